"""`burnish eval` on every kind of run: the numbers of training, on saved weights and other data; results are kept."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from burnish.checkpointing.run import dump_config
from burnish.cli import main
from burnish.config.loading import load_run_data
from burnish.config.schema import RlConfig, RmConfig, SftConfig
from burnish.forward import matmul_choice
from burnish.models.reward_model import RewardModel
from burnish.trainers import held_out
from burnish.trainers.cluster import train_rl
from burnish.trainers.reward_model.loop import train_reward_model
from burnish.trainers.rl.evaluation import Evaluator
from burnish.trainers.rl.measuring import evaluate_run
from burnish.trainers.sft import train_sft

QUIET = Console(quiet=True)


def last_row(folder: Path) -> dict[str, float]:
    row: dict[str, float] = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    return row


def metrics(folder: Path, number: int = 1) -> dict[str, float]:
    found: dict[str, float] = json.loads((folder / "eval" / f"{number:03d}" / "metrics.json").read_text())
    return found


@pytest.fixture
def rm_config(tiny_model: Path, tmp_path: Path) -> Callable[..., RmConfig]:
    """Sums with their answer and a wrong one: 60 pairs to train on, and other.jsonl of two domains."""

    def build(**fields: Any) -> RmConfig:
        rows = [
            {"prompt": f"{a}+{b}=", "chosen": f"{a + b:02d}", "rejected": f"{(a + b + 3) % 19:02d}"}
            for a in range(10)
            for b in range(8)
        ]
        other = [{**row, "domain": "even" if n % 2 == 0 else "odd"} for n, row in enumerate(rows[60:])]
        (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:60]))
        (tmp_path / "other.jsonl").write_text("".join(json.dumps(row) + "\n" for row in other))
        data = {
            "output": str(tmp_path / "rm"),
            "model": str(tiny_model),
            "data": {"train": str(tmp_path / "pairs.jsonl")},
            "held_out_fraction": 0.3,
            "max_tokens": 16,
            "steps": 3,
            "optimization": {"learning_rate": 1e-2, "comparisons_per_batch": 16},
            "logging": {"sinks": []},
            **fields,
        }
        return load_run_data(data, [], "rm").config

    return build


@pytest.mark.slow
def test_an_sft_run_and_another_set(
    tiny_sft: Callable[..., SftConfig], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny_sft()
    train_sft(config, console=QUIET)
    run, trained = Path(config.output), last_row(Path(config.output))
    assert trained["eval/perplexity"] == pytest.approx(math.exp(trained["eval/loss"]))
    assert main(["eval", str(run), "steps=3"]) == 2
    assert main(["eval", str(run)]) == 0
    assert "perplexity" in capsys.readouterr().out
    measured = metrics(run)
    assert measured == {
        name: pytest.approx(trained[name], rel=1e-5) for name in ("eval/loss", "eval/perplexity", "eval/token_accuracy")
    }
    assert main(["eval", str(run), f"data.eval={tmp_path / 'sft-train.jsonl'}"]) == 2  # it is the training data
    capsys.readouterr()
    mixed = [{"path": str(tmp_path / f"sft-{name}.jsonl"), "domain": name, "limit": 9} for name in ("train", "eval")]
    assert main(["eval", str(run), f"data.eval={json.dumps(mixed)}"]) == 0
    both = metrics(run, 2)
    tokens = 9 * 3  # two digits and the end
    middle = (both["eval/domain/train/loss"] * tokens + both["eval/domain/eval/loss"] * tokens) / (2 * tokens)
    assert both["eval/loss"] == pytest.approx(middle)
    assert metrics(run) == measured  # the first result is as it was


@pytest.mark.slow
def test_a_reward_model_on_its_own_pairs_and_on_others(
    rm_config: Callable[..., RmConfig], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = rm_config()
    train_reward_model(config, console=QUIET)
    run, trained = Path(config.output), last_row(Path(config.output))
    assert main(["eval", str(run)]) == 0
    measured = metrics(run)
    for name in ("eval/accuracy", "eval/accuracy_low", "eval/accuracy_high", "eval/length_rule_accuracy", "eval/loss"):
        assert measured[name] == pytest.approx(trained[name], abs=1e-5)
    assert main(["eval", str(run), f"data.eval={tmp_path / 'other.jsonl'}"]) == 0
    others = metrics(run, 2)
    assert others["eval/comparisons"] == 20
    assert others["eval/domain/even/comparisons"] == 10
    halves = (others["eval/domain/even/accuracy"] + others["eval/domain/odd/accuracy"]) / 2
    assert others["eval/accuracy"] == pytest.approx(halves)
    assert others["eval/accuracy_low"] <= others["eval/accuracy"] <= others["eval/accuracy_high"]
    assert sum(json.loads((run / "eval" / "002" / "score_histogram.json").read_text())["best"]) == 20
    (tmp_path / "pairs.jsonl").unlink()  # another set does not need the training pairs
    capsys.readouterr()
    assert main(["eval", str(run), f"data.eval={tmp_path / 'other.jsonl'}"]) == 0
    assert "needs the training data and is not measured" in " ".join(capsys.readouterr().out.split())
    assert metrics(run, 3)["eval/accuracy"] == others["eval/accuracy"]


def test_a_language_model_is_no_reward_model(
    rm_config: Callable[..., RmConfig], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rm.yaml").write_text(dump_config(rm_config()))
    assert main(["eval", str(tmp_path / "rm.yaml")]) == 2
    assert "is not a reward model" in capsys.readouterr().err


@pytest.mark.slow
def test_results_are_numbered_and_keep_what_they_were_measured_with(tiny_run: Callable[..., RlConfig]) -> None:
    config = tiny_run("steps=1")
    train_rl(config, console=QUIET)
    run = Path(config.output)
    assert main(["eval", str(run), "evaluation.max_prompts=5"]) == 0
    assert main(["eval", f"{run}@1"]) == 0
    assert {path.name for path in (run / "eval").iterdir()} == {"001", "002"}
    assert "max_prompts: 5" in (run / "eval" / "001" / "config.yaml").read_text()
    assert "step-000001/policy" in (run / "eval" / "002" / "config.yaml").read_text()
    assert len((run / "eval" / "002" / "rollouts" / "eval-000000.jsonl").read_text().splitlines()) == 20


@pytest.mark.slow
def test_weights_are_those_of_the_checkpoint_although_the_run_began_from_scratch(
    tiny_run: Callable[..., RlConfig],
) -> None:
    """`from_scratch` draws new weights; a checkpoint's must not be drawn anew."""
    config = tiny_run(
        "steps=2", "model.from_scratch=true", "optimization.learning_rate=0.1", "evaluation.every_steps=2"
    )
    result = train_rl(config, console=QUIET)
    report = evaluate_run(config, console=QUIET, weights=result.weights)
    trained, measured = (Path(config.output) / "rollouts" / "eval-000002.jsonl", report.rollouts_file)
    assert measured is not None
    responses = [
        [json.loads(line)["response"] for line in file.read_text().splitlines()] for file in (trained, measured)
    ]
    assert responses[0] == responses[1]


def test_an_sft_run_with_every_steps_null_never_evaluates(tiny_sft: Callable[..., SftConfig]) -> None:
    config = tiny_sft("steps=1", evaluation={"every_steps": None})
    train_sft(config, console=QUIET)
    rows = [json.loads(line) for line in (Path(config.output) / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1]
    assert not [name for name in rows[0] if name.startswith("eval/")]


@pytest.mark.slow
def test_float32_products_are_those_of_training(
    tiny_run: Callable[..., RlConfig],
    tiny_sft: Callable[..., SftConfig],
    rm_config: Callable[..., RmConfig],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where training takes the faster products, so does an evaluation, and its numbers are those of the run."""
    inside: list[str] = []
    measured: list[list[str]] = []

    @contextmanager
    def precision(name: str) -> Iterator[None]:
        inside.append(name)
        yield
        inside.remove(name)

    def noting(function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*given: Any, **named: Any) -> Any:
            measured.append(list(inside))
            return function(*given, **named)

        return noted

    monkeypatch.setattr(matmul_choice, "WIDTH", 1)
    monkeypatch.setattr(matmul_choice, "NARROW_WIDTH", 1)
    monkeypatch.setattr(matmul_choice, "_faster_precision", lambda model, paths: "medium")
    monkeypatch.setattr(matmul_choice, "matmul_precision", precision)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(Evaluator, "evaluate", noting(Evaluator.evaluate))
    monkeypatch.setattr(held_out, "held_out_loss", noting(held_out.held_out_loss))
    evaluate_run(tiny_run(), console=QUIET)
    held_out.evaluate_sft_run(tiny_sft(), console=QUIET)
    train_reward_model(rm_config(), console=QUIET)
    monkeypatch.setattr(RewardModel, "score", noting(RewardModel.score))
    assert main(["eval", rm_config().output]) == 0
    assert measured == [["medium"]] * 3
