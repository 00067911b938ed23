"""Supervised fine-tuning end to end: loss falls on held-out rows, passes and steps are counted right."""

import io
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from runs import BuildSft, lines_of, rows_of, step_rows, trace, trained, trained_rows, write_lines
from transformers import AutoModelForCausalLM, AutoTokenizer

from burnish.data.sft import SftExample, SftSet
from burnish.trainers.sft import train_sft, unheard_end


@pytest.fixture
def sft_run(tiny_sft: BuildSft, tmp_path: Path) -> BuildSft:
    """Examples without an end of their own."""
    for file in tmp_path.glob("sft-*.jsonl"):
        file.write_text(file.read_text().replace("$", ""))
    own = {
        "optimization": {"learning_rate": 3e-3, "tokens_per_batch": 70},
        "evaluation": {"every_steps": 50},
        "checkpoint": {"every_steps": None},
    }
    return lambda **fields: tiny_sft(**{**own, **fields})


def test_examples_that_end_as_no_response_of_the_model_does_are_told(tiny_model: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(tiny_model)
    example = SftExample("a", (3, 4, 5, 6), (False, True, True, False))
    examples = SftSet(examples=(example,), source_sizes=(1,), weights=(1.0,))
    for ends, is_told in (((7, 8), True), ((7, 5), False), ((), False)):
        loaded: Any = SimpleNamespace(tokenizer=tokenizer, eos_token_ids=ends)
        lines = unheard_end(examples.last_tokens(), loaded)
        assert bool(lines) == is_told
        assert all("(id 5), after which the model would go on" in line for line in lines)


@pytest.mark.slow
def test_the_held_out_loss_falls_and_the_result_loads(sft_run: BuildSft) -> None:
    config = sft_run(steps=100)
    result = train_sft(config, console=Console(quiet=True))
    rows = rows_of(config.output)
    assert rows[0]["step"] == 0
    assert rows[-1]["eval/loss"] < 0.6 * rows[0]["eval/loss"]
    assert rows[-1]["eval/token_accuracy"] > rows[0]["eval/token_accuracy"] + 0.3
    AutoModelForCausalLM.from_pretrained(result.weights)


@pytest.mark.slow
@pytest.mark.parametrize("field", [{"token_loss": "dft"}, {"neftune_alpha": 0.5}])
def test_it_learns_with_the_losses_and_noise_of_papers(sft_run: BuildSft, field: dict[str, Any]) -> None:
    config = sft_run(steps=100, **field)
    rows = trained_rows(config)
    assert rows[-1]["eval/loss"] < 0.7 * rows[0]["eval/loss"]
    assert rows[-1]["eval/token_accuracy"] > rows[0]["eval/token_accuracy"] + 0.25
    assert ("train/cross_entropy" in rows[-1]) is (field == {"token_loss": "dft"})


@pytest.mark.slow
def test_noise_is_the_same_after_a_resume_and_none_in_evaluation(sft_run: BuildSft, tmp_path: Path) -> None:
    def run(name: str, steps: int, **fields: Any) -> Any:
        optimization = {"learning_rate": 3e-3, "tokens_per_batch": 70, "schedule": "constant"}
        evaluation = {"every_steps": 2}
        common = {"optimization": optimization, "evaluation": evaluation, **fields}
        return trace(trained(sft_run(output=str(tmp_path / name), steps=steps, **common)))

    whole = run("whole", 4, neftune_alpha=5)
    run("resumed", 2, neftune_alpha=5)
    assert run("resumed", 4, neftune_alpha=5) == whole
    plain, other = run("plain", 2), run("other seed", 2, neftune_alpha=5, seed=1)
    assert plain.metrics[0]["eval/loss"] == whole.metrics[0]["eval/loss"]
    first = [each.metrics[1]["train/loss"] for each in (plain, whole, other)]
    assert len(set(first)) == 3


def test_weights_reach_the_step(sft_run: BuildSft, tmp_path: Path) -> None:
    """Rows of weight 0 are not there; equal weights are none."""
    rows = lines_of(tmp_path / "sft-train.jsonl")[:20]
    losses = {}
    for name, weights in {"none": [None] * 20, "twos": [2] * 20, "halves": [1, 0] * 10, "half": [None, 0] * 10}.items():
        kept = [(row, weight) for row, weight in zip(rows, weights, strict=True) if name != "half" or weight is None]
        given = [row if weight is None else row | {"weight": weight} for row, weight in kept]
        write_lines(tmp_path / f"{name}.jsonl", given)
        data = {"train": str(tmp_path / f"{name}.jsonl"), "shuffle": False}
        config = sft_run(output=str(tmp_path / name), steps=1, evaluation={}, data=data)
        losses[name] = trained_rows(config)[-1]["train/loss"]
    assert losses["none"] == losses["twos"]
    assert losses["halves"] == losses["half"] != losses["none"]


def test_the_saved_policy_stops_where_training_ended_responses(
    sft_run: BuildSft, tiny_model: Path, tmp_path: Path
) -> None:
    """The files name another end than the tokenizer: those of a base model, with a tokenizer for chats."""
    model = shutil.copytree(tiny_model, tmp_path / "model")
    (model / "generation_config.json").write_text('{"eos_token_id": 3}')
    config = sft_run(model=str(model), steps=1)
    said = Console(file=io.StringIO())
    found = json.loads((train_sft(config, console=said).weights / "generation_config.json").read_text())
    end = json.loads((model / "config.json").read_text())["eos_token_id"]
    assert found["eos_token_id"] == [3, end]
    assert "warning" not in said.file.getvalue()


@pytest.mark.parametrize(("tokens", "passes", "examples"), [(70, 1, [10] * 8), (210, 2, [30] * 5 + [10])])
def test_passes_draw_every_example_once_and_may_end_with_a_smaller_batch(
    sft_run: BuildSft, tokens: int, passes: int, examples: list[int]
) -> None:
    """80 examples of 7 tokens: prompt 4, answer 2, end 1."""
    optimization = {"learning_rate": 1e-3, "tokens_per_batch": tokens, "epochs": passes}
    rows = step_rows(trained(sft_run(optimization=optimization)))
    assert [row["train/examples"] for row in rows] == examples
    assert sum(row["train/tokens"] for row in rows) == 7 * sum(examples)
