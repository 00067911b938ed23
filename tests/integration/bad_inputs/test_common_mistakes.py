"""Bad inputs, one a row: each ends with exit code 2 and one message that names the place, the value and the remedy."""

import json
from pathlib import Path
from typing import Any

import pytest

from burnish.cli import main
from burnish.errors import ConfigError, RewardError

from .conftest import Refuse, Row
from .conftest import row as case


def check(name: str, *says: str, **how: Any) -> Row:
    """A case for `burnish check`, which reads data and rewards but no model."""
    return case(name, *says, command=("check", "run.yaml"), **how)


NO_KL = "algorithm.kl_in=none algorithm.kl_coef=0"
CONFIG = [
    case("misspelt key", "run.yaml:11", "optimization.learing_rate", "did you mean optimization.learning_rate?",
         text="optimization: {learing_rate: 1e-3}"),
    case("unknown top-level key", "run.yaml:11", "stepz is not a known key", "did you mean steps?", text="stepz: 3"),
    case("misspelt section", "rollot", "did you mean rollout?", words="rollot.group_size=4"),
    case("key of another system", "num_generations", "rollout.group_size", text="num_generations: 8"),
    case("key in the wrong section", "learning_rate", "optimization.learning_rate", text="learning_rate: 1e-5"),
    case("key inside a list entry", "rewards.0.wieght", "did you mean rewards.0.weight?", words="rewards.0.wieght=2"),
    case("text for a number", "steps is 'many'", "whole number, at least 1", words="steps=many"),
    case("too small", "steps is 0", "at least 1", words="steps=0"),
    case("number in quotes", "seed is '8'", "without quotes", text='seed: "8"'),
    case("fraction for a count", "rollout.group_size is 2.5", "whole number", words="rollout.group_size=2.5"),
    case("number with a unit", "'1e-5x'", "expected: number, above 0", words="optimization.learning_rate=1e-5x"),
    case("infinite", "optimization.learning_rate is inf", "not a finite number",
         words="optimization.learning_rate=.inf"),
    case("empty value", "steps is empty (null)", "whole number", words="steps="),
    case("number for text", "model.revision is 12", "in quotes", words="model.revision=12"),
    case("word for a boolean", "data.shuffle is 'maybe'", "true or false", words="data.shuffle=maybe"),
    case("number for a section", "rollout is 5", "a section with keys such as prompts_per_step", words="rollout=5"),
    case("unknown choice", "algorithm.kl_in is 'rewards'", "did you mean 'reward'?", words="algorithm.kl_in=rewards"),
    case("unknown sink", "logging.sinks.0 is 'tensorbord'", "did you mean 'tensorboard'?",
         words="logging.sinks=tensorbord"),
    case("unknown preset", "algorithm.preset 'gropo'", "did you mean 'grpo'?", words="algorithm=gropo"),
    case("unknown estimator", "algorithm.estimator 'rlo'", "did you mean 'rloo'?", words="algorithm.estimator=rlo"),
    case("unknown loss", "algorithm.loss 'ppo_clipp'", "did you mean 'ppo_clip'?", words="algorithm.loss=ppo_clipp"),
    case("critic that nothing reads", "critic.kind is shared", "'grpo' has no critic", "algorithm.estimator: gae",
         words="critic.kind=shared"),
    case("unknown kind of critic", "critic.kind is 'seperate'", "did you mean 'separate'?",
         words="algorithm=ppo critic.kind=seperate"),
    case("start of a shared critic", "critic.init is 'a'", "the policy's own backbone", "critic.kind: separate",
         words="algorithm=ppo critic.kind=shared critic.init=a"),
    case("head of a critic that brings one", "critic.head_init_std is 0.1", "has its own head", "critic.init: policy",
         words="algorithm=ppo critic.head_init_std=0.1 critic.init=a"),
    case("critic from a reward model that is not there", "critic.init is reward_model", "0 of the rewards",
         "model:PATH", words="algorithm=tldr_2020"),
    case("position without a token", "scoring.truncate_after is 2", "truncate_token is not set",
         words="scoring.truncate_after=2"),
    case("token that is two", "scoring.truncate_token is '12'", "not one", "'2']", words="scoring.truncate_token='12'"),
    case("token of no alphabet", "scoring.truncate_token 'x'", "name a token", words="scoring.truncate_token=x"),
    case("fixed length and truncation masked", "algorithm.mask_truncated", "ignore_eos", "remove mask_truncated",
         words="rollout.ignore_eos=true algorithm.mask_truncated=true"),
    case("query without an end", "data.query.end_text is missing", words="data.query.start_text=."),
    case("critic that only warms up", "critic.warmup_steps is 2", "never be trained", "below steps",
         words="algorithm=ppo critic.warmup_steps=2"),
    case("bound on the KL of a single epoch", "algorithm.max_epoch_kl is 0.1", "only one epoch",
         words="algorithm.max_epoch_kl=0.1"),
    case("group of one", "rollout.group_size is 1", "'grpo' compares", "2 or more", words="rollout.group_size=1"),
    case("refilling groups of one", "rollout.group_size is 1", "dynamic_sampling",
         words="algorithm=reinforce_plus_plus rollout.group_size=1 algorithm.dynamic_sampling=true"),
    case("KL weight without KL", "algorithm.kl_coef is 0.1", "kl_in is none", "set algorithm.kl_in",
         words="algorithm=dr_grpo algorithm.kl_coef=0.1"),
    case("KL without weight", "algorithm.kl_coef is 0", "kl_in is loss", "set kl_coef",
         words="algorithm=dr_grpo algorithm.kl_in=loss"),
    case("KL target without KL", "algorithm.kl_target is 6", "kl_in is none",
         words="algorithm=dr_grpo algorithm.kl_target=6"),
    case("gradient form of the KL in the reward", "algorithm.kl_estimator is k3+", "use k3",
         words="algorithm=rloo algorithm.kl_estimator=k3+"),
    case("whitened rewards, greedy baseline", "algorithm.whiten_rewards is true", "set it to false",
         words="algorithm=remax algorithm.whiten_rewards=true"),
    case("whitening of nothing over minibatches", "algorithm.whiten_over is minibatch", "whiten_rewards",
         words="algorithm.whiten_over=minibatch"),
    case("group rewards whitened by minibatch", "algorithm.whiten_over is minibatch", "the estimator 'rloo' reads more",
         words="algorithm.estimator=rloo algorithm.whiten_rewards=true algorithm.whiten_over=minibatch "
         "optimization.minibatches=2"),
    case("horizon of less than a step", "algorithm.kl_horizon is 2", "a step has 64 responses", "above 12",
         words="algorithm.kl_in=loss algorithm.kl_coef=0.1 algorithm.kl_target=1 algorithm.kl_horizon=2 "
         "rollout.prompts_per_step=8 rollout.group_size=8"),
    case("horizon of no controller", "algorithm.kl_horizon is 99", "set kl_target", words="algorithm.kl_horizon=99"),
    case("clip for a loss without one", "algorithm.clip_low is 0.3", "'reinforce' does not take it",
         words="algorithm=rloo algorithm.clip_low=0.3"),
    case("no clip for a loss that clips", "algorithm.clip_low is null", "'ppo_clip' clips",
         words="algorithm.clip_low=null"),
    case("discount that nothing reads", "algorithm.gamma is 0.9", "'grpo' has no discount",
         words="algorithm.gamma=0.9"),
    case("bounds upside down", "algorithm.mismatch_low is 3", "mismatch_high 2", "low < high",
         words="algorithm.mismatch_correction=token_mask algorithm.mismatch_low=3"),
    case("bounds above 1", "algorithm.mismatch_low is 1.2", "a weight of 1", "mismatch_low <= 1",
         words="algorithm.mismatch_correction=token_truncate algorithm.mismatch_low=1.2"),
    *(case(f"skipping rows that have a gradient: {word}", "algorithm.skip_zero_advantages is true", *says,
           words=f"algorithm.skip_zero_advantages=true {more} {word}")
      for word, more, *says in (
        ("model.router_aux_coef=0.01", "", "model.router_aux_coef"),
        ("algorithm.kl_in=loss", "algorithm.kl_coef=0.1", "algorithm.kl_in"),
        ("algorithm.entropy_coef=0.01", NO_KL, "algorithm.entropy_coef"))),
    *(case(f"skipping rows that the loss {loss} reads", "skip_zero_advantages",
           words=f"algorithm.skip_zero_advantages=true {NO_KL} algorithm.loss={loss}") for loss in ("kimi", "kl_cov")),
    case("bounds that nothing reads", "algorithm.mismatch_low is 0.1", "mismatch_correction",
         words="algorithm.mismatch_low=0.1"),
    case("top-k without correction", "rollout.top_k is 50", "mismatch_correction", words="rollout.top_k=50"),
    case("vllm for another engine", "rollout.vllm.python is 'x'", "engine: vllm", words="rollout.vllm.python=x"),
    case("vllm option that the run sets", "rollout.vllm.options.max_num_seqs is set", "rollout.max_batch_rows",
         words="rollout.engine=vllm rollout.vllm.options.max_num_seqs=3"),
    case("vllm with two filters", "vLLM applies min_p first", "use one of the two",
         words="rollout.engine=vllm rollout.top_p=0.9 rollout.min_p=0.1 algorithm.mismatch_correction=token_truncate"),
    case("vllm in an interpreter that is not there", "rollout.vllm.python is 'no/python', which cannot be started",
         "name the interpreter", words="rollout.engine=vllm rollout.vllm.python=no/python"),
    case("ratio without staleness", "algorithm.old_logprobs is trainer", "2 steps old", "mismatch_correction",
         words="max_staleness=2 algorithm.old_logprobs=trainer"),
    case("partial without anything ahead", "partial is true", "max_staleness is 0", "at least 1",
         words="partial=true cluster.rollout_workers=1"),
    case("partial with an engine that cannot stop", "partial is true", "'vllm' cannot stop", "StoppableEngine",
         words="partial=true max_staleness=1 cluster.rollout_workers=1 rollout.engine=vllm"),
    case("correction of nothing", "algorithm.old_logprobs is sampler", "token_mask has nothing to correct",
         words="algorithm.old_logprobs=sampler algorithm.mismatch_correction=token_mask"),
    case("processes in one process", "cluster.backend is inline", "cluster.trainers (2)", "set it to auto",
         words="cluster.backend=inline cluster.trainers=2"),
    case("lanes that cannot be shared", "cluster.lanes is 3", "2 trainers cannot share equally", "a multiple of 2",
         words="cluster.trainers=2 cluster.lanes=3"),
    *(case(f"too many {field}", f"cluster.{field} is {number}", "at most", words=f"cluster.{field}={number}")
      for field, number in (("threads", 100_000), ("lanes", 10**9), ("trainers", 10**6), ("rollout_workers", 10**9))),
    case("sharded weights that trainers sample with", "cluster.sharding is full", "needs whole weights", "at least 1",
         words="cluster.trainers=2 cluster.sharding=full"),
    case("a process for the policy", "cluster.own_process.0 is 'policy'", "one of reference, teacher, critic",
         words="cluster.own_process=policy"),
    case("rest for a process of its own", "cluster.offload names critic", "the critic runs in a separate process",
         words="cluster.own_process=critic cluster.offload=critic algorithm.preset=ppo"),
    case("no rewards", "rewards is empty", "rewards: math", words="rewards=[]"),
    case("no training data", "data.train is empty", "train.jsonl", words="data.train=[]"),
    case("no model", "model is missing", "path/to/model", base="data: {train: a.jsonl}\nrewards: math\n"),
    case("evaluation of nothing", "evaluation.every_steps is 5", "data.eval is empty", "set data.eval",
         words="evaluation.every_steps=5"),
    case("training data as held-out data", "data.eval.0.path 'train.jsonl'", "not be held out",
         words="data.eval=train.jsonl"),
    case("score of failures without the policy", "scoring.failure_score is 0", "on_failure is exclude",
         words="scoring.failure_score=0"),
    case("policy without the score of failures", "scoring.failure_score is not set", "on_failure is score",
         words="scoring.on_failure=score"),
    case("all weights zero", "rewards.0.weight is 0", "give one a weight", words="rewards.0.weight=0"),
    case("repeated key", "run.yaml:11", "steps: the key is given twice, first on line 7", "keep one", text="steps: 3"),
    case("broken YAML", "run.yaml", "line 12", "not readable as YAML", "indentation", text="a: [1, 2\nb: 3"),
    case("tab in YAML", "line 12", "not readable as YAML", "no tabs", text="algorithm:\n\tpreset: grpo"),
    case("YAML that would run code", "line 11", "python/object/apply:os.system", "remove the tag",
         text='seed: !!python/object/apply:os.system ["true"]'),
    case("empty run file", "run.yaml is empty", "model", base=""),
    case("missing run file", "nowhere.yaml does not exist", "check the path", command=("rl", "nowhere.yaml")),
    case("override without a value", "'steps' is not of the form key.path=value", words="steps"),
    case("override that is no YAML", "rollout.stop=[a", "not readable", words="rollout.stop=[a"),
]  # fmt: skip

ROW = '{"prompt": "1+2=", "answer": "03"}\n'

DATA = [
    check("missing data file", "trian.jsonl", "no such file", "did you mean 'train.jsonl'?",
          words="data.train=trian.jsonl"),
    check("malformed line", "train.jsonl:2", "JSON", files={"train.jsonl": ROW + '{"prompt": "1+1=\n'}),
    check("template with an unknown column", "qestion", words="data.train.0.prompt_template={qestion}"),
    case("prompt longer than the context", "train.jsonl:1", "40 tokens", "context is 32",
         words="rollout.max_prompt_tokens=64", files={"train.jsonl": json.dumps({"prompt": "1" * 40, "answer": "1"})}),
]  # fmt: skip

MODEL = [
    case("missing model folder", "'./modle' does not exist", "did you mean", words="model=./modle"),
    case("pickle weights", "pickle weights (pytorch_model.bin)", "convert it", words="model=./pickled",
         files={"pickled/config.json": '{"model_type": "llama"}', "pickled/pytorch_model.bin": "x"}),
    case("unknown option of the loss", "'ppo_clip' has no option 'dual_klip'", "dual_clip",
         words="algorithm.loss_options.dual_klip=3"),
    case("null for a number", "eps of 'grpo' is null", "give a number", words="algorithm.estimator_options.eps=null"),
    case("no room for a covariance", "covariance_low is 9", "below",
         words="algorithm=clip_cov algorithm.loss_options.covariance_low=9"),
]  # fmt: skip


def reward(body: str) -> dict[str, str]:
    return {"reward.py": body}


REWARD = [
    check("unknown reward", "mathh", "did you mean", words="rewards=mathh"),
    check("reward with a syntax error", "SyntaxError", "reward.py:1)", files=reward("def digits(:\n")),
    check("reward that imports what is not there", "No module named 'nonsense'", "reward.py:2)",
          files=reward("import math\nimport nonsense\ndef digits(response): return 1.0\n")),
    check("reward whose neighbour is broken", "NameError", "near.py:1)",
          files={**reward("import near\ndef digits(response): return 1.0\n"), "near.py": "nothing\n"}),
    case("loss in a module with a syntax error", "SyntaxError", "losses_of_mine.py:1)",
         words="algorithm.loss=losses_of_mine:mine", files={"losses_of_mine.py": "def mine(:\n"}),
]  # fmt: skip

IN_THE_RUN = [  # so no plan finds it
    case("loss that returns nothing", "algorithm.loss 'own_losses:nothing' returned None, not a PolicyLoss",
         words="algorithm.loss=own_losses:nothing algorithm.clip_low=null algorithm.clip_high=null",
         files={"own_losses.py": "def nothing(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT): return None\n"}),
]  # fmt: skip

COMMANDS = [
    case("unknown command", "No such command 'rll'", "rl", command=("rll",)),
    case("command without a file", "FILE", command=("rl",)),
    case("unknown algorithm", "'ppoo'", "known:", command=("algorithms", "ppoo")),
    case("report of no run", "nowhere", "does not exist", command=("report", "nowhere")),
    case("report of an empty folder", "metrics.jsonl", command=("report", "empty"), files={"empty/x": ""}),
    case("evaluation of a folder that is no run", "not a run", "config.yaml", command=("eval", "empty"),
         files={"empty/x": ""}),
    case("evaluation without held-out data", "data.eval is empty", "held-out", command=("eval", "run.yaml")),
    case("check without a file", "no run file is given", "--list", command=("check",)),
    case("rl file for sft", "run.yaml is a run file of `burnish rl`", command=("sft", "run.yaml")),
    case("sft without data", "data.train is empty", base="sft", words="data.train=[]"),
    case("sft warm-up longer than the run", "optimization.warmup_steps is 9", "at most 3", base="sft",
         words="steps=3 optimization.warmup_steps=9"),
    case("sft with queries", "data.query is set", "entire documents", base="sft", words="data.query.end_text=.",
         command=("sft", "run.yaml")),
]  # fmt: skip

LEARNED = [
    case("identical pair", "pairs.jsonl:1", "chosen and rejected are identical", "bad_rows: drop", base="rm",
         files={"pairs.jsonl": '{"prompt": "1+1=", "chosen": "2", "rejected": "2"}\n'}),
    case("reward that is no reward model", "reward 'model:model'", "LlamaForCausalLM", "burnish rm",
         words="rewards=model:model"),
    case("critic from a language model", "critic.init 'model' is not a reward model", "burnish rm",
         words="algorithm=ppo critic.init=./model"),
]  # fmt: skip

CASES = [*CONFIG, *DATA, *MODEL, *REWARD, *IN_THE_RUN, *COMMANDS, *LEARNED]

PLANNED = [
    *({**row, "command": ("plan", "run.yaml")} for row in [*DATA, *MODEL, *REWARD]),  # which read more than the file
    case("clip for an estimator of parts", "reward_clip is 1.0, but the estimator 'gdpo' reads each reward by itself",
         words="algorithm=gdpo algorithm.reward_clip=1", command=("plan", "run.yaml")),
]  # fmt: skip


@pytest.mark.slow_cases(
    "critic from*", "evaluation without*", "loss that*", "prompt longer*", "reward *", "token that is two"
)
@pytest.mark.parametrize("row", CASES, ids=[row["name"] for row in CASES])
def test_bad_input_is_told_in_one_message(row: Row, refuse: Refuse) -> None:
    refuse(row)


@pytest.mark.slow_cases("unknown reward", "reward *")
@pytest.mark.parametrize("row", PLANNED, ids=[row["name"] for row in PLANNED])
def test_a_plan_refuses_what_the_run_would_refuse(row: Row, refuse: Refuse) -> None:
    refuse(row)


def test_a_plan_only_notes_what_another_folder_or_machine_would_allow(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "run").mkdir()
    (folder / "run" / "config.yaml").write_text("steps: 5\n")
    before = sorted(folder.rglob("*"))
    assert main(["plan", "run.yaml", "model.device=cuda:99"]) == 0
    said = capsys.readouterr().out
    assert "model.device is 'cuda:99', but torch sees" in said
    assert "run contains a run with a different configuration" in said
    assert "--fresh would start over" in said
    assert [path for path in sorted(folder.rglob("*")) if "__pycache__" not in str(path)] == before


def test_debug_shows_the_traceback(folder: Path) -> None:
    with pytest.raises(ConfigError):
        main(["rl", "nowhere.yaml", "--debug"])


def test_debug_shows_the_traceback_of_a_reward_file(folder: Path) -> None:
    (folder / "reward.py").write_text("def helper():\n    return nothing\nhelper()\n")
    with pytest.raises(RewardError, match=r"NameError: .*reward\.py:2\)") as caught:
        main(["check", "run.yaml", "--debug"])
    assert all(words in str(caught.value.__cause__) for words in ("Traceback", 'reward.py", line 3'))


@pytest.mark.slow
def test_a_run_with_another_configuration_is_not_resumed(refuse: Refuse, folder: Path) -> None:
    assert main(["rl", "run.yaml"]) == 0
    says = "rollout.temperature: 1.0 before, 0.5 now", "--fresh"
    refuse(case("changed", *says, words="rollout.temperature=0.5"))
    assert main(["rl", "run.yaml", "rollout.temperature=0.5", "--fresh"]) == 0
    assert (folder / "run.old-1" / "metrics.jsonl").is_file()
