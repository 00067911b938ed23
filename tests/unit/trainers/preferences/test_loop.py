"""`burnish prefer` on a preference with a known rule: learning, resume, micro-batches, the reference, bad rows."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from runs import ctrl_c_in_step, preference_run, untimed_rows

from burnish.config.loading import load_run_data
from burnish.config.schema_data import ModelConfig
from burnish.config.schema_prefer import PreferConfig
from burnish.data.preference_tokens import PreferenceExample
from burnish.errors import BurnishError, DataError, ModelError
from burnish.forward.batch import TokenScores
from burnish.models.loading import load_model
from burnish.models.optimizers import OptimizerSettings
from burnish.models.policy import LocalPolicy
from burnish.models.roles import Denominators
from burnish.trainers.preferences.batches import build_batch, mismatched, responses_of
from burnish.trainers.preferences.loop import open_prefer_run, train_preferences
from burnish.trainers.preferences.measuring import evaluate_prefer_run
from burnish.trainers.preferences.objective import matched, objective_of
from burnish.trainers.preferences.reference import REFERENCE_FILE, KeptReference

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def model(save_tiny_llama: Callable[..., Path]) -> Path:
    return save_tiny_llama("abcdefgh?", hidden_size=32, intermediate_size=64)


@pytest.fixture
def prefer_run(model: Path, tmp_path: Path) -> Callable[..., PreferConfig]:
    def build(*overrides: str, pairs: int = 96, **fields: Any) -> PreferConfig:
        own = {"losses": "sigmoid", "optimization": {"learning_rate": 3e-3, "comparisons_per_batch": 16}, **fields}
        data = preference_run(model, tmp_path, pairs, weighted=True) | own
        return load_run_data(data, list(overrides), "prefer").config

    return build


def weights_of(config: PreferConfig, step: int) -> bytes:
    return (Path(config.output) / f"checkpoints/step-{step:06}/policy/model.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["sigmoid", "ipo", "simpo", "orpo", "kto", "aot", "aot_unpaired"])
def test_held_out_preferences_are_learned(prefer_run: Callable[..., PreferConfig], loss: str) -> None:
    config = prefer_run(f"losses={loss}", "optimization.epochs=4", "evaluation.every_steps=null", pairs=192)
    train_preferences(config, console=QUIET)
    first, *_, last = untimed_rows(config.output)
    assert last["step"] == 48
    assert last["eval/accuracy"] > max(0.7, first["eval/accuracy"] + 0.1)
    assert last["eval/loss"] < first["eval/loss"]
    saved = Path(config.output) / "checkpoints/step-000048/policy"
    measured = evaluate_prefer_run(config, console=QUIET, weights=saved)
    assert measured.metrics["eval/accuracy"] == last["eval/accuracy"]
    assert measured.metrics["eval/margin"] == pytest.approx(last["eval/margin"], abs=1e-5)


def test_the_first_step_is_log_two(prefer_run: Callable[..., PreferConfig]) -> None:
    """The policy is its reference: no margin, and a loss of log 2 for each pair, times its weight."""
    config = prefer_run("steps=1", "evaluation.at_start=false", pairs=16)
    train_preferences(config, console=QUIET)
    (row,) = untimed_rows(config.output)
    rows = map(json.loads, Path(config.data.train[0].path).read_text().splitlines())
    assert row["train/loss"] == pytest.approx(0.693147 * sum(one["weight"] for one in rows) / 16, abs=1e-5)
    assert row["preference/margin"] == pytest.approx(0, abs=1e-5)
    assert row["train/comparisons"] == 16


@pytest.mark.slow
@pytest.mark.parametrize(
    "model_fields",
    [["model.dtype=bfloat16"], *(["model.lora.rank=8", f"model.quantization={kind}"] for kind in ("int8", "nf4"))],
    ids=["bfloat16", "int8", "nf4"],
)
def test_small_number_types_begin_at_the_reference_and_learn(prefer_run, model_fields: list[str]) -> None:
    config = prefer_run(*model_fields, "optimization.learning_rate=1e-2", "evaluation.every_steps=null")
    train_preferences(config, console=QUIET)
    first, second, *_, last = untimed_rows(config.output)
    assert first["eval/loss"] == pytest.approx(0.693147, abs=0.01)
    assert second["preference/margin"] == pytest.approx(0, abs=0.01)
    assert last["eval/loss"] < first["eval/loss"]


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["sigmoid", "kto"])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(prefer_run, tmp_path: Path, loss: str) -> None:
    whole, cut = prefer_run(f"losses={loss}", f"output={tmp_path / 'whole'}"), prefer_run(f"losses={loss}")
    train_preferences(whole, console=QUIET)
    with ctrl_c_in_step(3):
        assert train_preferences(cut, console=QUIET).step == 3
    kept = (tmp_path / "run" / REFERENCE_FILE).stat().st_mtime_ns
    train_preferences(cut, console=QUIET)
    assert (tmp_path / "run" / REFERENCE_FILE).stat().st_mtime_ns == kept
    assert untimed_rows(cut.output) == untimed_rows(whole.output)
    assert weights_of(cut, 6) == weights_of(whole, 6)


@pytest.mark.slow
def test_two_trainers_give_the_bits_of_one(prefer_run: Callable[..., PreferConfig], tmp_path: Path) -> None:
    shared = ("steps=3", "cluster.threads=1")
    one = prefer_run(*shared, f"output={tmp_path / 'one'}", "cluster.lanes=2")
    two = prefer_run(*shared, f"output={tmp_path / 'two'}", "cluster.trainers=2")
    for config in (one, two):
        train_preferences(config, console=QUIET)
    assert untimed_rows(one.output) == untimed_rows(two.output)
    assert (tmp_path / "one" / REFERENCE_FILE).read_bytes() == (tmp_path / "two" / REFERENCE_FILE).read_bytes()
    assert weights_of(one, 3) == weights_of(two, 3)


@pytest.mark.slow
def test_adapters_learn_and_their_reference_is_the_base(prefer_run: Callable[..., PreferConfig]) -> None:
    config = prefer_run("model.lora.rank=4", "optimization.epochs=4", "optimization.learning_rate=2e-2")
    train_preferences(config, console=QUIET)
    rows = untimed_rows(config.output)
    assert rows[1]["preference/margin"] == pytest.approx(0, abs=1e-5)
    assert rows[-1]["eval/accuracy"] > 0.6


@pytest.mark.slow
def test_a_lost_reference_is_that_of_the_start(prefer_run: Callable[..., PreferConfig], tmp_path: Path) -> None:
    config = prefer_run("steps=4")
    train_preferences(config, console=QUIET)
    file = tmp_path / "run" / REFERENCE_FILE
    before = file.read_bytes()
    for damaged in (before[: len(before) // 2], before[:-1] + bytes([before[-1] ^ 1])):
        file.write_bytes(damaged)
        with open_prefer_run(config, QUIET):
            assert file.read_bytes() == before


@pytest.mark.slow
def test_a_reference_may_be_another_model(prefer_run, model: Path, tmp_path: Path, save_tiny_llama) -> None:
    start = prefer_run("steps=3", f"output={tmp_path / 'start'}")
    train_preferences(start, console=QUIET)
    same = prefer_run("steps=3", f"output={tmp_path / 'same'}", f"reference={model}")
    train_preferences(same, console=QUIET)
    assert untimed_rows(same.output) == untimed_rows(start.output)
    trained = prefer_run("steps=3", f"output={tmp_path / 'trained'}", f"reference={tmp_path / 'start'}")
    train_preferences(trained, console=QUIET)
    first = untimed_rows(trained.output)[1]
    assert first["preference/margin"] < 0  # the reference has learned what the policy is to learn
    other = save_tiny_llama("abcdefghij?", hidden_size=32, intermediate_size=64)
    for path, message in ((other, "different vocabulary"), (tmp_path / "none", r"^reference .* does not exist")):
        with pytest.raises(ModelError, match=message):
            train_preferences(prefer_run(f"output={tmp_path / message}", f"reference={path}"), console=QUIET)


@pytest.mark.parametrize("loss", ["sigmoid", "kto", "simpo", "aot", "aot_unpaired"])
def test_micro_batches_change_nothing(model: Path, loss: str) -> None:
    """Gradients are the same, and no pair is cut, however few tokens a micro-batch may have."""
    draw = random.Random(3)
    texts = [tuple(draw.choices(range(3, 10), k=draw.randint(2, 6))) for _ in range(24)]
    examples = [PreferenceExample(str(i), texts[0], (texts[2 * i], texts[2 * i + 1]), i % 2) for i in range(1, 12)]
    rows = responses_of(examples)
    found = []
    for tokens in (8, 10_000):
        loaded = load_model(ModelConfig(path=str(model), device="cpu"), seed=0)
        policy = LocalPolicy(loaded, OptimizerSettings(1e-2, 10), tokens_per_microbatch=tokens)
        scores = {one.text: np.full(len(one.text[1]), -1 - 0.1 * n, np.float32) for n, one in enumerate(rows)}
        objective = objective_of([(loss, 1.0, {})], {}, length_normalised=False)
        batch = build_batch(rows, KeptReference(scores), pad_token_id=0, in_pairs=loss != "kto")
        if objective.sorts is not None:
            batch = matched(batch, policy.logprobs(batch).logprobs_BT, objective.sorts)
        parts = [part for _, part in policy._scorer.trunk.split(batch, tokens)]
        assert len(parts) == 1 if tokens > 8 else len(parts) > 11 if loss == "kto" else len(parts) == 11
        metrics = policy.update(batch, objective).metrics
        found.append((metrics["policy/grad_norm"].result(), metrics["train/loss"].result()))
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_a_mean_over_tokens_is_compared_with_a_mean_over_tokens() -> None:
    """kto, length_normalised: ratios of 4 nats over 2 tokens for the response, and for one to another prompt."""
    rows = responses_of([PreferenceExample("1", (3,), ((4, 5),), best=0, good=True, weight=3.0)])
    batch = build_batch(rows, KeptReference({rows[0].text: np.full(2, -5, np.float32)}), pad_token_id=0, in_pairs=False)
    objective = objective_of([("kto", 1.0, {"beta": 0.5})], {}, length_normalised=True)
    logprobs = torch.full((1, 2), -3.0)
    objective = replace(objective, kl=objective.mismatched_kl(logprobs, batch))
    assert objective.kl == 2.0
    value = objective(TokenScores(logprobs), batch, Denominators(2, 1, 1))
    assert value.loss.item() == pytest.approx(3 * 0.5)  # weight 3, 1 - s(0)
    assert value.metrics["train/loss"].result() == pytest.approx(1.5)
    assert value.metrics["preference/chosen_reward"].result() == pytest.approx(0.5 * 2)


def test_the_best_candidate_makes_a_pair_with_each_other() -> None:
    example = PreferenceExample("1", (1,), ((2,), (3,), (4,)), best=1, weight=2.0)
    rated = PreferenceExample("2", (1,), ((5,),), best=0, good=False)
    found = [(one.text[1], one.pair, one.preferred, one.weight) for one in responses_of([example, rated])]
    assert found == [
        ((3,), 0, True, 2.0),
        ((2,), 0, False, 2.0),
        ((3,), 1, True, 2.0),
        ((4,), 1, False, 2.0),
        ((5,), 2, False, 1.0),
    ]


def test_mismatched_texts_have_the_response_of_another_prompt() -> None:
    examples = [PreferenceExample(str(n), (n // 2,), ((10 + n,), (20 + n,)), best=0) for n in range(4)]
    assert mismatched(examples) == [((0,), (12,)), ((0,), (12,)), ((1,), (10,)), ((1,), (10,))]


def test_rated_responses_are_read(prefer_run: Callable[..., PreferConfig], tmp_path: Path) -> None:
    rows = [{"prompt": "bcd?", "completion": "aaa", "label": True}, {"prompt": "bcd?", "completion": "hh", "label": 0}]
    rated = tmp_path / "rated.jsonl"
    rated.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = prefer_run("losses=kto", f"data.train={rated}", "data.eval=[]", "evaluation.every_steps=null", "steps=2")
    train_preferences(config, console=QUIET)
    assert untimed_rows(config.output)[-1]["preference/rejected_tokens"] == 3  # with the end of the sequence
    with pytest.raises(DataError, match="rates a single response, but the losses compare two"):
        train_preferences(prefer_run(f"data.train={rated}", f"output={tmp_path / 'b'}"), console=QUIET)
    rated.write_text(json.dumps(rows[0] | {"label": "good"}) + "\n")
    with pytest.raises(DataError, match=r"rated.jsonl:1: column 'label' \(label\) holds"):
        train_preferences(config.model_copy(update={"output": str(tmp_path / "c")}), console=QUIET)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["losses=dpo"], "is 'dpo', which is not a loss on preferences"),
        (["losses=[sigmoid, kto]"], "names kto, which makes other pairs"),
        (["losses=sft", "beta=0.2"], "beta is set, but sft does not take it"),
        (["losses=[{name: ipo, options: {beta: 1.0}}]", "beta=0.2"], "but ipo does not take it, or sets its own"),
        (["losses=simpo", "reference=runs/sft"], "none of the losses compares the policy with a reference"),
        (["losses=ipo", "divergence=js"], "divergence is set, but ipo does not take it"),
        (["losses=[{name: hinge, options: {alpha: 0.5}}]"], "alpha is set, but the divergence is not alpha"),
        (["losses=[{name: simpo, options: {gama: 1}}]"], "losses.0: 'simpo' has no option 'gama'"),
        (["losses=[]"], "losses is empty"),
        (["ties=half"], "ties"),
    ],
)
def test_settings_that_cannot_work_are_refused(prefer_run, overrides: list[str], message: str) -> None:
    with pytest.raises(BurnishError) as refused:
        train_preferences(prefer_run(*overrides), console=QUIET)
    assert message in str(refused.value).replace("\n", " ")
