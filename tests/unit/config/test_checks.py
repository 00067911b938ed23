"""What does not go together in a run file is refused with the reason; what does is taken."""

import re
from typing import Any

import pytest

from burnish.config.loading import load_run_data
from burnish.errors import ConfigError

RUNS: dict[str, dict[str, Any]] = {
    "rl": {"model": "m", "data": {"train": "a"}, "rewards": "math"},
    "sft": {"model": "m", "data": {"train": "a"}},
    "rm": {"model": "m", "data": {"train": "a"}},
    "distill": {"model": "m", "data": {"train": "a"}, "teacher": "t"},
}
NAMES = "cluster.offload names"
HAS_NONE = "but a run of `burnish"
PUZZLES = ["data.train={reasoning_gym: {gcd: {}, puzzle24: {}}, size: 4}"]
ON_TWO = "rollout.engine=vllm rollout.vllm.options.tensor_parallel_size=2"
NEVER_FALLS = "learning_rate_fraction is 0.1, but optimization.schedule is constant, which never falls"


@pytest.mark.parametrize(
    ("kind", "words", "reason"),
    [
        ("rl", "cluster.offload=[optimizer,optimizer]", f"{NAMES} optimizer twice"),
        ("rl", "algorithm=dapo cluster.offload=[reference]", f"{NAMES} reference, but algorithm.kl_in is none"),
        ("rl", "algorithm.kl_in=loss model.lora.rank=4 cluster.offload=[reference]",
         f"{NAMES} reference, but with model.lora the reference is the policy with its adapters off"),
        ("rl", "algorithm=grpo cluster.offload=[critic]", f"{NAMES} critic, but the estimator 'grpo' has no critic"),
        ("rl", "algorithm=ppo critic.kind=shared cluster.offload=[critic]",
         f"{NAMES} critic, but critic.kind is shared: a"),
        ("rl", "cluster.offload=[reward_model]", f"{NAMES} reward_model, but no reward is a"),
        ("rl", "rewards=model:rm cluster.own_process=reward_model cluster.offload=[reward_model]",
         f"{NAMES} reward_model, but the reward model runs in a separate process (own_process)"),
        ("rl", "cluster.offload=[rollout_engine]", f"{NAMES} rollout_engine, but rollout.engine is 'local'"),
        ("rl", "cluster.offload=[rollout_engine] rollout.engine=vllm cluster.rollout_workers=1",
         f"{NAMES} rollout_engine, but rollout workers have their own GPUs"),
        ("rl", "cluster.offload=[rollout_engine] rollout.engine=vllm model.device=cpu", "vLLM sleeps on GPUs only"),
        ("rl", "cluster.offload=[policy]", "cluster.offload"),
        ("sft", "cluster.offload=[rollout_engine]", f"{NAMES} rollout_engine, {HAS_NONE}"),
        ("sft", "cluster.offload=[critic]", f"{NAMES} critic, {HAS_NONE}"),
        ("rm", "cluster.offload=[optimizer,reference]", f"{NAMES} reference, {HAS_NONE}"),
        ("sft", "cluster.offload=[optimizer] cluster.trainers=2 cluster.sharding=full",
         "cluster.offload does not work with cluster.sharding: full"),
        *((kind, "model.quantization=nf4", "model.quantization is nf4, but without model.lora all weights train")
          for kind in RUNS),
        ("rl", "model.quantization=nf4 model.lora.rank=2 model.from_scratch=true",
         "model.quantization is nf4, but model.from_scratch makes random weights"),
        ("sft", "model.quantization=int8 model.lora.rank=2 cluster.trainers=2 cluster.sharding=full",
         "quantized weights (model.quantization) cannot be split over trainers"),
        ("rl", "algorithm=ppo critic.kind=separate model.quantization=int8 model.lora.rank=2",
         "critic.kind is separate, but such a critic trains all weights"),
        *((kind, "model.device=mps cluster.trainers=2", "cluster.trainers does not work with model.device mps")
          for kind in RUNS),
        ("sft", "model.device=mps cluster.offload=[optimizer]", "cluster.offload does not work with model.device"),
        ("rl", "model.device=mps model.quantization=nf4 model.lora.rank=2", "model.quantization does not work"),
        ("rl", "model.device=mps rollout.engine=vllm", "which needs a CUDA GPU, but model.device is mps"),
        ("rl", "cluster.offload=[teacher]", f"{NAMES} teacher, but the run file has no teacher"),
        ("rl", "algorithm=online_dpo optimization.epochs=2", "optimization.epochs is 2, but the estimator"),
        ("rl", "algorithm=online_dpo optimization.minibatches=2", "optimization.minibatches is 2, but the estimator"),
        ("rl", "algorithm=online_dpo max_staleness=1", "max_staleness is 1, but 'online_dpo'"),
        ("rl", "algorithm=online_dpo algorithm.mask_truncated=true", "which could leave out half of a pair"),
        ("distill", "cluster.offload=[teacher,reference]", f"{NAMES} reference, {HAS_NONE} distill` has none"),
        ("distill", "cluster.sharding=full cluster.trainers=2", "cluster.sharding is full, which has not been tried"),
        ("distill", "sampled_share=0.5 cluster.trainers=2", "sampled_share is 0.5, but the student samples only in"),
        ("distill", "hard_weight=0.1 sampled_share=1", "hard_weight is 0.1, but with sampled_share 1 no step"),
        ("distill", "token_loss=dft", "token_loss is dft, but distillation minimises a divergence"),
        ("distill", "teacher.cache=kept", "teacher.cache is set, but top_k is null"),
        ("distill", "teacher.cache=kept sampled_share=0.5", "teacher.cache is set, but sampled_share is 0.5"),
        ("distill", "teacher.cache=kept cluster.offload=[teacher]", f"{NAMES} teacher, but with teacher.cache"),
        ("distill", "neftune_alpha=5", "neftune_alpha is 5, but a student reads the same input as its teacher"),
        ("distill", "beta=0.1", "beta is 0.1, but divergence is forward_kl, which has none"),
        ("distill", "divergence=jsd beta=1", "beta"),
        ("rl", "cluster.own_process=reward_model", "is reward_model, but no reward is a reward model (model:PATH)"),
        ("rl", "rewards=model:rm cluster.own_process=[reward_model,reward_model]", "reward_model is named twice"),
        ("rl", "rewards=model:rm cluster.own_process=reward_model cluster.backend=inline",
         "a separate process for the reward model"),
        ("rm", "cluster.own_process=reward_model", "only `burnish rl` has a reference, a critic or rewards"),
        ("rl", "sandbox.token_variable=A", "sandbox.token_variable is for a sandbox on another machine"),
        ("rl", "sandbox.grade=shared", "sandbox.grade is for a sandbox on another machine"),
        ("rl", "sandbox.url=host:80", "give http://HOST:PORT"),
        ("rl", "sandbox.url=http://host:80 sandbox.tier=process", "whose server sets its own tier"),
        ("rl", "sandbox.tire=process", "did you mean sandbox.tier?"),
        ("sft", "sandbox.tier=process", "sandbox is not a known key"),
        ("rm", "sandbox.tier=process", "sandbox is not a known key"),
        ("rl", "algorithm.kl_in=none algorithm.kl_estimator=k2", "algorithm.kl_estimator is k2, but it is not used"),
        ("rl", "algorithm=grpo algorithm.discount=turn", "the estimator 'grpo' has no choice of discount"),
        ("rl", "algorithm=turn_grpo algorithm.discount=turn", "the estimator 'turn_grpo' has no choice of discount"),
        ("rl", "algorithm=turn_grpo algorithm.whiten_rewards=true", "longer responses would score higher"),
        ("rl", "algorithm=gigpo algorithm.whiten_rewards=true", "longer responses would score higher"),
        ("rl", "algorithm.loss=turn_gspo", "the preset 'turn_gspo' uses 0.0003"),
        ("rl", "optimization.final_learning_rate_fraction=0.1", NEVER_FALLS),
        ("sft", "optimization.final_learning_rate_fraction=0.1 optimization.schedule=constant", NEVER_FALLS),
        ("rm", "normalization.kind=bias normalization.references=r",
         "normalization.references is set, but normalization.on is policy"),
        ("rm", "normalization.kind=bias normalization.on=references normalization.policy=p",
         "normalization.policy is set, but normalization.on is references"),
        ("rm", "normalization.responses=4", "normalization.responses is set, but kind is none"),
        ("rl", "rollout.engine=vllm evaluation.samples=4 evaluation.temperature=0.005",
         "evaluation.temperature is 0.005, but vLLM samples at 0.01 or above"),
        ("rl", "rollout.engine=vllm rollout.temperature=0.002", "rollout.temperature is 0.002, but vLLM"),
        ("rl", ON_TWO, "tensor_parallel_size is 2, but without rollout workers vLLM shares the single GPU"),
        ("rl", f"{ON_TWO} cluster.rollout_workers=1 cluster.backend=torchrun",
         "options.tensor_parallel_size is 2, but torchrun gives each process one GPU"),
        ("rl", f"{ON_TWO} cluster.rollout_workers=1 cluster.backend=ray cluster.gpus_per_worker=4",
         "cluster.gpus_per_worker is 4, but a rollout worker needs exactly 2 GPUs"),
        ("rl", ON_TWO.replace("2", "0"), "tensor_parallel_size is 0, which is not a number of GPUs"),
        ("rl", ON_TWO.replace("2", "two"), "tensor_parallel_size is 'two', which is not a number of GPUs"),
        ("rl", ON_TWO.replace("tensor", "pipeline"), "pipeline_parallel_size is set, but an engine is on one machine"),
        ("rl", "algorithm=ppo steps=100 critic.warmup_steps=95 optimization.warmup_steps=20 optimization.minibatches=1 "
         "optimization.epochs=1", "optimization.warmup_steps is 20, but the run makes 5 optimizer steps"),
        ("rl", ["data.train={reasoning_gym: {gcd: {}}}", "data.eval={reasoning_gym: {gcd: {}}}"],
         "data.eval.0.seed is 0, as"),
        ("rl", ["data.train={reasoning_gym: {}}"], "names no task"),
        ("rl", ["data.train={reasoning_gym: {gcd: {}}, path: a.jsonl}"],
         "data.train.0.path is 'a.jsonl', but reasoning_gym"),
        ("rl", ["data.train={reasoning_gym: {gcd: {}}, split: test}"], "data.train.0.split is for rows from files"),
        ("rl", ["data.train={reasoning_gym: {gcd: {}}, size: 1048577}"], "generate at most 1,048,576"),
        ("rl", ["data.train={path: a.jsonl, size: 5}"], "data.train.0.size is for rows that reasoning_gym generates"),
        ("rl", [*PUZZLES, "rewards=reasoning_gym"], "options.allow does not name puzzle24"),
        ("rl", "algorithm=dppo algorithm.loss_options.divergence=js", "'js' is not known"),
        ("rl", "algorithm=dppo algorithm.loss_options.divergence=kl", "algorithm.clip_low is left at its default 0.2"),
        ("rl", "algorithm.loss_options.divergence=kl", "algorithm.loss_options.divergence is 'kl', not a finite"),
        *(("rl", f"algorithm=maxrl algorithm.{word}", "can make rewards negative, but maxrl divides by their mean")
          for word in ("whiten_rewards=true", "kl_in=reward algorithm.kl_coef=0.1", "overlong_buffer=0.2")),
        ("rl", "algorithm.mismatch_correction=sequence_off_policy", "algorithm.mismatch_delta is not set"),
        ("rl", "algorithm.mismatch_correction=token_mask algorithm.mismatch_delta=0.1", "it belongs to mismatch_corr"),
        *((kind, f"optimization.optimizer=muon cluster.trainers=2 cluster.sharding={cut}",
           f"cluster.sharding is {cut}, which splits matrices, but optimization.optimizer muon needs whole ones")
          for kind, cut in (("rl", "optimizer"), ("sft", "full"), ("rm", "optimizer"))),
        ("rl", "algorithm.aggregation=bnpo", "its mean is over a micro-batch, so memory would decide the gradient"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_with_the_reason(kind: str, words: str | list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(reason)):
        load_run_data(RUNS[kind], words.split() if isinstance(words, str) else words, kind)


@pytest.mark.parametrize(
    ("kind", "words", "roles"),
    [
        ("rl", "algorithm=ppo cluster.offload=optimizer", "optimizer"),
        ("rl", "algorithm=ppo rewards=model:rm cluster.offload=[critic,reference,reward_model,optimizer]",
         "critic reference reward_model optimizer"),
        ("rl", "cluster.offload=rollout_engine rollout.engine=vllm", "rollout_engine"),
        ("sft", "cluster.offload=[optimizer]", "optimizer"),
        ("rm", "cluster.offload=[optimizer]", "optimizer"),
    ],
)  # fmt: skip
def test_what_a_run_has_can_rest(kind: str, words: str, roles: str) -> None:
    loaded = load_run_data(RUNS[kind], words.split(), kind)
    assert loaded.config.cluster.offload == tuple(roles.split())  # type: ignore[attr-defined]


def test_a_reward_model_of_its_own_process_cannot_choose_among_gpus() -> None:
    data = {**RUNS["rl"], "rewards": [{"name": "model:rm", "options": {"device": "cuda:1"}}]}
    with pytest.raises(ConfigError, match=r"rewards\.0\.options\.device.*cuda:1.*which sees one GPU"):
        load_run_data(data, ("cluster.own_process=reward_model",), "rl")
    assert load_run_data(data, (), "rl").config.cluster.own_process == ()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("rl", [*PUZZLES, "data.eval={reasoning_gym: {gcd: {}}, seed: 1}",
                "rewards={name: reasoning_gym, options: {allow: [puzzle24]}}"]),
        ("rl", PUZZLES),  # another reward has no part in their scores
        ("sft", PUZZLES),
        ("rl", ["algorithm=ppo", "algorithm.discount=turn", "algorithm.gamma=0.9"]),
        ("rl", ["algorithm=turn_grpo", "algorithm.gamma=0.9", "algorithm.estimator_options.normalise=false"]),
        ("rl", ["algorithm=gigpo", "algorithm.estimator_options.whole_history=true"]),
        ("rl", ["algorithm=turn_gspo", "algorithm.mismatch_correction=turn_mask"]),
        ("rl", ["rollout.engine=vllm", "evaluation.temperature=0.005"]),  # with which nothing samples
        ("rl", ["algorithm=dppo", "algorithm.loss_options.divergence=kl", "algorithm.clip_low=0.05",
                "algorithm.clip_high=0.05", "max_staleness=2", "cluster.rollout_workers=1"]),
        ("rl", ["algorithm.mismatch_correction=sequence_off_policy", "algorithm.mismatch_delta=0.1",
                "algorithm.old_logprobs=sampler"]),
    ],
)  # fmt: skip
def test_what_works_is_taken(kind: str, words: list[str]) -> None:
    load_run_data(RUNS[kind], words, kind)


@pytest.mark.parametrize(
    ("word", "field", "own"),
    [
        ("dro", "loss", "kimi"),
        ("icepop", "mismatch_correction", "token_mask"),
        ("seq-mask-tis", "mismatch_correction", "sequence_mask_mean"),
    ],
)
def test_names_of_other_systems_become_ours(word: str, field: str, own: str) -> None:
    bounds = ["algorithm.clip_low=null", "algorithm.clip_high=null"] if field == "loss" else []
    config = load_run_data(RUNS["rl"], [f"algorithm.{field}={word}", *bounds], "rl").config
    assert vars(config.algorithm)[field] == own  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=rf"'{word}' is not known\n.*{own}"):
        load_run_data(RUNS["rl"], [f"algorithm={word}"], "rl")
