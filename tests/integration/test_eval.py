"""`burnish eval` on every kind of run: the numbers of training, on saved weights and other data; results are kept."""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from runs import BuildPairs, BuildRl, BuildSft, lines_of, rows_of, trained, write_lines

from burnish.cli import main
from burnish.config.schema import RunConfig
from burnish.forward import matmul_choice
from burnish.models.reward_model import RewardModel
from burnish.trainers import held_out
from burnish.trainers.cluster import train_rl
from burnish.trainers.rl.evaluation import Evaluator
from burnish.trainers.rl.measuring import evaluate_run

QUIET = Console(quiet=True)


def metrics(folder: Path, number: int = 1) -> dict[str, float]:
    found: dict[str, float] = json.loads((folder / "eval" / f"{number:03d}" / "metrics.json").read_text())
    return found


@pytest.fixture
def rm_config(tiny_pairs: BuildPairs, tmp_path: Path) -> RunConfig:
    """Sums with their answer and a wrong one: 60 pairs to train on, and other.jsonl of two domains."""
    rows = [
        {"prompt": f"{a}+{b}=", "chosen": f"{a + b:02d}", "rejected": f"{(a + b + 3) % 19:02d}"}
        for a in range(10)
        for b in range(8)
    ]
    other = [{**row, "domain": "even" if n % 2 == 0 else "odd"} for n, row in enumerate(rows[60:])]
    write_lines(tmp_path / "other.jsonl", other)
    optimization = {"learning_rate": 1e-2, "comparisons_per_batch": 16}
    return tiny_pairs("rm", rows[:60], held_out_fraction=0.3, steps=3, optimization=optimization)


@pytest.mark.slow
def test_an_sft_run_and_another_set(tiny_sft: BuildSft, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tiny_sft())
    last = rows_of(run)[-1]
    assert last["eval/perplexity"] == pytest.approx(math.exp(last["eval/loss"]))
    assert main(["eval", str(run), "steps=3"]) == 2
    assert main(["eval", str(run)]) == 0
    assert "perplexity" in capsys.readouterr().out
    measured = metrics(run)
    assert measured == {
        name: pytest.approx(last[name], rel=1e-5) for name in ("eval/loss", "eval/perplexity", "eval/token_accuracy")
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
    rm_config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(rm_config)
    last = rows_of(run)[-1]
    assert main(["eval", str(run)]) == 0
    measured = metrics(run)
    for name in ("eval/accuracy", "eval/accuracy_low", "eval/accuracy_high", "eval/length_rule_accuracy", "eval/loss"):
        assert measured[name] == pytest.approx(last[name], abs=1e-5)
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


@pytest.mark.slow
def test_results_are_numbered_and_keep_what_they_were_measured_with(tiny_run: BuildRl) -> None:
    run = trained(tiny_run("steps=1"))
    assert main(["eval", str(run), "evaluation.max_prompts=5"]) == 0
    assert main(["eval", f"{run}@1"]) == 0
    assert {path.name for path in (run / "eval").iterdir()} == {"001", "002"}
    assert "max_prompts: 5" in (run / "eval" / "001" / "config.yaml").read_text()
    assert "step-000001/policy" in (run / "eval" / "002" / "config.yaml").read_text()
    assert len((run / "eval" / "002" / "rollouts" / "eval-000000.jsonl").read_text().splitlines()) == 20


@pytest.mark.slow
def test_weights_are_those_of_the_checkpoint_although_the_run_began_from_scratch(tiny_run: BuildRl) -> None:
    """`from_scratch` draws new weights; a checkpoint's must not be drawn anew."""
    config = tiny_run(
        "steps=2", "model.from_scratch=true", "optimization.learning_rate=0.1", "evaluation.every_steps=2"
    )
    weights = train_rl(config, console=QUIET).weights
    measured = evaluate_run(config, console=QUIET, weights=weights).rollouts_file
    assert measured is not None
    files = Path(config.output) / "rollouts" / "eval-000002.jsonl", measured
    first, second = ([line["response"] for line in lines_of(file)] for file in files)
    assert first == second


@pytest.mark.slow
def test_float32_products_are_those_of_training(
    tiny_run: BuildRl, tiny_sft: BuildSft, rm_config: RunConfig, monkeypatch: pytest.MonkeyPatch
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
    trained(rm_config)
    monkeypatch.setattr(RewardModel, "score", noting(RewardModel.score))
    assert main(["eval", rm_config.output]) == 0
    assert measured == [["medium"]] * 3
