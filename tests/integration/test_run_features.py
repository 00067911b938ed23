"""What a run file can switch on, each in a run of a few steps: the feature shows in what the run leaves behind."""

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from runs import BuildRl, lines_of, rollouts_of, trace, trained, trained_rows
from tiny_models import save_llama
from transformers import GenerationConfig

from burnish.algorithms.statistics import pass_at_k
from burnish.config.schema import RlConfig
from burnish.forward.quantized_layers import dequantized, quantized
from burnish.models.characters import character_tokenizer
from burnish.trainers.rl.measuring import evaluate_run
from burnish.types import Quantization

pytestmark = pytest.mark.slow


CHAT = "{% for message in messages %}[{{ message['content'] }}]{% endfor %}{% if add_generation_prompt %}({% endif %}"


def policy_folder(config: RlConfig) -> Path:
    return max((Path(config.output) / "checkpoints").glob("step-*")) / "policy"


def weights(folder: Path) -> dict[str, torch.Tensor]:
    from transformers import AutoModelForCausalLM

    return dict(AutoModelForCausalLM.from_pretrained(folder).named_parameters())


def test_lora_trains_the_adapter_against_the_base(tiny_run: BuildRl, tiny_model: Path) -> None:
    config = tiny_run("model.lora.rank=4", "algorithm.kl_coef=0.1", "optimization.learning_rate=1e-2", "steps=2")
    first, second = trained_rows(config)
    assert first["kl/reference"] == pytest.approx(0.0, abs=1e-6)  # the adapter begins as nothing
    assert first["policy/grad_norm"] > 0
    assert second["kl/reference_per_token"] > 1e-6  # and the reference is the base with the adapter off

    before, merged = weights(tiny_model), weights(policy_folder(config))  # loads without peft
    changed = {name for name, old in before.items() if not torch.equal(old, merged[name])}
    assert changed == {name for name in before if name.endswith("_proj.weight")}

    import peft
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    adapted = peft.PeftModel.from_pretrained(base, policy_folder(config) / "adapter")
    plain = AutoModelForCausalLM.from_pretrained(policy_folder(config))
    tokens = torch.tensor([[3, 4, 5, 6]])
    torch.testing.assert_close(adapted(tokens).logits, plain(tokens).logits, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("quantization", ["int8", "nf4"])
def test_adapters_train_on_weights_of_few_bits(tiny_run: BuildRl, tiny_model: Path, quantization: Quantization) -> None:
    """The policy that is sampled, trained and saved is one model: the rounded weights and the adapters on them."""
    words = ("model.lora.rank=4", f"model.quantization={quantization}", "algorithm.kl_coef=0.1")
    config = tiny_run(*words, "optimization.learning_rate=1e-2", "steps=2")
    first, second = trained_rows(config)
    assert first["kl/reference"] == pytest.approx(0.0, abs=1e-6)
    assert second["kl/reference_per_token"] > 1e-6
    for row in (first, second):
        assert row["rollout/logprob_diff_max"] < 1e-4

    before, merged = weights(tiny_model), weights(policy_folder(config))
    for name, old in before.items():
        if not name.endswith("_proj.weight"):
            assert torch.equal(old, merged[name])
            continue
        rounded = dequantized(*quantized(old.detach(), quantization), len(old))
        learnt = merged[name] - rounded
        assert 0 < torch.linalg.matrix_rank(learnt, rtol=1e-4) <= 4  # that of the adapter


def test_a_lora_run_on_weights_of_4_bits_goes_on_where_it_stopped(tiny_run: BuildRl, tmp_path: Path) -> None:
    words = (
        "model.quantization=nf4",
        "model.lora.rank=2",
        "optimization.learning_rate=1e-2",
        "checkpoint.every_steps=1",
    )
    whole = trained(tiny_run(*words, "steps=3", f"output={tmp_path / 'whole'}"))
    for steps in (2, 3):
        parts = trained(tiny_run(*words, f"steps={steps}", f"output={tmp_path / 'parts'}"))
    assert trace(parts) == trace(whole)


def test_bfloat16_weights_move_by_steps_too_small_for_bfloat16(tiny_run: BuildRl, tiny_model: Path) -> None:
    from safetensors.torch import load_file

    config = tiny_run("model.dtype=bfloat16", "optimization.learning_rate=1e-5", "steps=3")
    assert all(math.isfinite(value) for row in trained_rows(config) for value in row.values())
    saved = load_file(policy_folder(config) / "model.safetensors")
    assert {tensor.dtype for tensor in saved.values()} == {torch.bfloat16}
    given = load_file(tiny_model / "model.safetensors")
    moved = [not torch.equal(saved[name], given[name].bfloat16()) for name in saved]
    assert any(moved)  # only float32 masters can collect steps of 1e-5


def test_weighted_sources_show_by_domain(tiny_run: BuildRl, tiny_task: Path) -> None:
    train, held_out = ({"path": f"{tiny_task}/{name}.jsonl"} for name in ("train", "eval"))
    data = {
        "train": [{**train, "domain": "often", "weight": 3.0}, {**train, "domain": "seldom", "weight": 1.0}],
        "eval": [{**held_out, "domain": "left"}, {**held_out, "domain": "right", "limit": 5}],
    }
    config = tiny_run("steps=1", "rollout.prompts_per_step=8", "evaluation.every_steps=1", data=data)
    (row,) = trained_rows(config)
    lines = rollouts_of(config.output)
    for domain, prompts in (("often", 6), ("seldom", 2)):
        rewards = [line["reward"] for line in lines if line["domain"] == domain]
        assert len(rewards) == prompts * config.rollout.group_size
        assert row[f"reward/domain/{domain}"] == pytest.approx(sum(rewards) / len(rewards))
    assert {"eval/domain/left/accuracy", "eval/domain/right/accuracy"} <= row.keys()


@pytest.fixture
def chat_model(tmp_path: Path) -> Path:
    """A random character-level model with a chat template, whose generation config names two end tokens."""
    folder = tmp_path / "chat-model"
    tokenizer = character_tokenizer("0123456789+=[]()", eos="$", pad="_", chat_template=CHAT)
    save_llama(folder, tokenizer, hidden_size=32, num_layers=1, num_heads=2, context_length=32)
    settings = GenerationConfig.from_pretrained(folder)
    settings.eos_token_id = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(")")]
    settings.save_pretrained(folder)
    return folder


def test_conversations_go_through_the_template_and_end_at_any_end_token(
    tiny_run: BuildRl, chat_model: Path, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    data = tmp_path / "chat.jsonl"
    turns = [{"role": "system", "content": "0"}, {"role": "user", "content": "1+2="}]
    data.write_text(json.dumps({"messages": turns, "answer": "03"}) + "\n")
    config = tiny_run(
        "steps=1",
        "rollout.prompts_per_step=16",
        "rollout.max_prompt_tokens=16",
        "rollout.max_response_tokens=12",
        "rollout.stop_token_ids=[3]",
        model=str(chat_model),
        data={"train": str(data)},
    )
    trained(config)
    lines = rollouts_of(config.output)
    tokenizer = AutoTokenizer.from_pretrained(chat_model)
    assert {tokenizer.decode(line["prompt_tokens"]) for line in lines} == {"[0][1+2=]("}
    stopped = [line["token_texts"] for line in lines if line["finish_reason"] == "stop"]
    ends = [*tokenizer.convert_tokens_to_ids(["$", ")"]), 3]
    assert {texts[-1] for texts in stopped} == {"$", ")", tokenizer.decode([3])}
    saved = json.loads((policy_folder(config) / "generation_config.json").read_text())
    assert saved["eos_token_id"] == ends
    assert not any(text in ("$", ")") for texts in stopped for text in texts[:-1])


def test_stop_texts_end_a_response_and_stay_in_it(tiny_run: BuildRl) -> None:
    config = tiny_run("steps=1", rollout={"max_prompt_tokens": 8, "max_response_tokens": 12, "stop": ["7", "1+"]})
    trained(config)
    texts = ["".join(line["token_texts"]) for line in rollouts_of(config.output)]
    assert {"7", "+", "$"} <= {text[-1] for text in texts}
    for text in texts:
        assert text.find("7") in (-1, len(text) - 1)
        assert text.find("1+") in (-1, len(text) - 2)


@pytest.mark.parametrize(
    "correction", ["token_truncate", "token_mask", "turn_truncate", "turn_mask", "sequence_truncate", "sequence_mask"]
)
def test_top_p_with_a_correction_of_the_mismatch(tiny_run: BuildRl, correction: str) -> None:
    """The sampler's distribution is cut at top_p, the trainer's is not: each weight is below 1 by the mass cut off."""
    rows = trained_rows(tiny_run("rollout.top_p=0.7", f"algorithm.mismatch_correction={correction}", "steps=2"))
    for row in rows:
        assert row["rollout/logprob_diff_mean"] > 0.1
        assert 0.5 < row["rollout/weight_mean"] < 0.95
        assert row["policy/grad_norm"] > 0


def test_without_top_p_sampler_and_trainer_agree(tiny_run: BuildRl) -> None:
    (row,) = trained_rows(tiny_run("steps=1"))
    assert row["rollout/logprob_diff_max"] < 1e-4
    assert row["rollout/weight_mean"] == pytest.approx(1.0, abs=1e-5)


def test_dapo_refills_constant_groups(tiny_run: BuildRl) -> None:
    config = tiny_run("steps=1", "algorithm.max_refills=20", algorithm="dapo")
    (row,) = trained_rows(config)
    groups: dict[int, list[dict[str, Any]]] = {}
    for line in rollouts_of(config.output):
        groups.setdefault(line["group_id"], []).append(line)
    constant = {number for number, lines in groups.items() if len({line["reward"] for line in lines}) == 1}
    assert row["groups/sampled"] == len(groups) > 4  # some were thrown away,
    assert len(groups) - len(constant) == 4  # and four teach
    assert row["groups/missing"] == 0
    assert row["groups/constant_fraction"] == pytest.approx(len(constant) / len(groups))
    for number, lines in groups.items():
        assert all((line["advantage"] is None) == (number in constant) for line in lines)


def test_dapo_says_when_refills_run_out(tiny_run: BuildRl, tmp_path: Path) -> None:
    (tmp_path / "flat.py").write_text("def flat(response):\n    return 1.0\n")
    config = tiny_run("steps=2", "algorithm.max_refills=1", algorithm="dapo", rewards=f"{tmp_path / 'flat.py'}:flat")
    for row in trained_rows(config):
        assert row["groups/missing"] == 4
        assert row["groups/sampled"] == 8
        assert "policy/grad_norm" not in row  # nothing to learn, and nothing made up


def test_evaluation_with_samples(tiny_run: BuildRl) -> None:
    config = tiny_run("evaluation.samples=4", "evaluation.success=digits", "evaluation.success_score=0.5")
    report = evaluate_run(config, console=Console(quiet=True))
    lines = lines_of(report.rollouts_file)
    sampled: dict[int, list[dict[str, Any]]] = {}
    for line in lines:
        if line["sample_index"] >= 0:
            sampled.setdefault(line["group_id"], []).append(line)
    assert len(sampled) == 20
    for k in (1, 2, 4):
        expected = [pass_at_k(4, sum(line["reward"] >= 0.5 for line in group), k) for group in sampled.values()]
        assert report.metrics[f"eval/pass@{k}"] == pytest.approx(sum(expected) / 20)
    assert 0 < report.metrics["eval/pass@1"] < report.metrics["eval/pass@4"]
    voted = [most_voted(group)["reward"] >= 0.5 for group in sampled.values()]
    assert report.metrics["eval/maj@4"] == pytest.approx(sum(voted) / 20)


def test_a_bonus_does_not_solve_and_a_learned_reward_has_no_accuracy(tiny_run: BuildRl, tmp_path: Path) -> None:
    """A bonus of 1 for every response: weighted sums of 1 and more, and yet nothing is solved by it."""
    (tmp_path / "bonus.py").write_text("def bonus(response):\n    return 1.0\n")
    bonus = {"name": f"{tmp_path}/bonus.py:bonus"}
    report = evaluate_run(tiny_run(rewards=["exact", bonus]), console=Console(quiet=True))
    assert report.metrics["eval/reward_mean"] >= 1.0
    assert report.metrics["eval/accuracy"] == report.metrics["eval/part/exact"] < 1.0
    said = io.StringIO()
    report = evaluate_run(tiny_run("evaluation.samples=2", rewards=[bonus]), console=Console(file=said, width=200))
    assert not {"eval/accuracy", "eval/pass@1", "eval/maj@2"} & report.metrics.keys()
    assert said.getvalue().count("accuracy, pass@k and maj@k are not measured") == 1


OWN_PARTS = """
from burnish.algorithms.advantages import Groups
from burnish.algorithms.policy_losses.weighted import reinforce


def centred(scores_B, group_ids_B, *, scale=1.0):
    return scale * (scores_B - Groups.of(group_ids_B).mean(scores_B))


def plain(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT):
    return reinforce(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT)


class Lines:
    def __init__(self, run_dir, *, project, config, resume_step):
        self.file = open(run_dir / "lines.txt", "a")

    def write(self, step, row):
        self.file.write(f"{step}\\n")

    def close(self):
        self.file.close()
"""


def test_estimator_loss_and_sink_from_a_file(tiny_run: BuildRl, tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(OWN_PARTS)
    own = f"{tmp_path}/parts.py"
    algorithm = {"estimator": f"{own}:centred", "estimator_options": {"scale": 2.0}, "loss": f"{own}:plain"}
    config = tiny_run("steps=2", algorithm=algorithm, logging={"sinks": [f"{own}:Lines"]})
    assert all(row["policy/grad_norm"] > 0 for row in trained_rows(config))
    for line in rollouts_of(config.output):
        assert line["advantage"] is None or abs(line["advantage"]) <= 2.0
    assert (Path(config.output) / "lines.txt").read_text() == "1\n2\n"


@pytest.mark.parametrize(
    ("at_start", "steps_evaluated"), [(None, set()), (True, {0}), (False, set())], ids=["unsaid", "at_start", "not"]
)
def test_every_steps_null_is_never(tiny_run: BuildRl, at_start: bool | None, steps_evaluated: set[int]) -> None:
    config = tiny_run("steps=1", evaluation={"every_steps": None, "at_start": at_start})
    assert {int(row["step"]) for row in trained_rows(config) if "eval/reward_mean" in row} == steps_evaluated


def most_voted(group: list[dict[str, Any]]) -> dict[str, Any]:
    texts = [line["response"].strip() for line in group]
    return max(group, key=lambda line: (texts.count(line["response"].strip()), -line["sample_index"]))


NO_KL = ("algorithm.kl_in=none", "algorithm.kl_coef=0")


def test_responses_without_an_advantage_can_be_left_out(tiny_run: BuildRl, tiny_task: Path, tmp_path: Path) -> None:
    """The same weights as with them, step after step; a step where no response has one still moves by its momentum."""
    (tmp_path / "some.py").write_text(
        "calls = []\n\n\ndef first_letter(prompt, response, **_):\n    return float(response[:1] in '01234')\n"
    )
    fields = {"rewards": [{"name": f"{tmp_path}/some.py:first_letter"}], "optimization": {"learning_rate": 1e-2}}
    whole_run, part_run = (
        tiny_run("steps=4", *NO_KL, f"algorithm.skip_zero_advantages={skips}", f"output={tmp_path}/{skips}", **fields)
        for skips in ("false", "true")
    )
    whole, part = trained_rows(whole_run), trained_rows(part_run)
    assert any(0 < row["policy/skipped_fraction"] < 1 for row in part)
    for one, other in zip(whole, part, strict=True):
        assert one["groups/constant_fraction"] == pytest.approx(other["policy/skipped_fraction"])
        assert one["policy/loss"] == pytest.approx(other["policy/loss"], abs=1e-5)
        assert one["reward/mean"] == other["reward/mean"]
    for name, weight in weights(policy_folder(whole_run)).items():
        torch.testing.assert_close(weights(policy_folder(part_run))[name], weight, atol=1e-5, rtol=1e-4)


def test_a_run_in_which_no_response_has_an_advantage(tiny_run: BuildRl, tmp_path: Path) -> None:
    (tmp_path / "same.py").write_text("def same(prompt, response, **_):\n    return 1.0\n")
    rewards, optimization = [{"name": f"{tmp_path}/same.py:same"}], {"weight_decay": 0.1, "learning_rate": 1e-2}
    words = ("steps=2", *NO_KL, "algorithm.skip_zero_advantages=true")
    rows = trained_rows(tiny_run(*words, rewards=rewards, optimization=optimization))
    assert [row["policy/skipped_fraction"] for row in rows] == [1.0, 1.0]
    assert [row["policy/loss"] for row in rows] == [0.0, 0.0]
    assert [row["policy/grad_norm"] for row in rows] == [0.0, 0.0]
    assert rows[-1]["policy/optimizer_steps"] == 1
