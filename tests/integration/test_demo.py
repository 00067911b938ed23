"""`burnish demo` learns what it says it learns, and it is the reward that does it."""

from __future__ import annotations

from pathlib import Path

import pytest

from burnish.cli import main
from burnish.demo import DemoFolder
from burnish.observability.history import read_history
from burnish.observability.recorder import read_rollouts

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> DemoFolder:
    """A whole demo, by the command itself."""
    folder = DemoFolder(tmp_path_factory.mktemp("demo") / "demo")
    assert main(["demo", "--output", str(folder.path)]) == 0
    return folder


def accuracies(run: Path) -> list[float]:
    """Held-out greedy accuracy at every evaluation of a run."""
    return read_history(run)["eval/accuracy"][1]


def test_the_demo_goes_from_half_good_to_nearly_perfect(finished: DemoFolder) -> None:
    curve = accuracies(finished.rl_run)
    assert 0.3 < curve[0] <= 0.65
    assert curve[-1] >= 0.95
    assert len(curve) == 13  # before the first step, and every 5 of 60


def test_the_demo_leaves_its_report_and_models_behind(finished: DemoFolder) -> None:
    page = (finished.rl_run / "report.html").read_text(encoding="utf-8")
    assert "Held-out accuracy" in page
    assert f"{accuracies(finished.rl_run)[-1]:.1%}" in page
    assert list((finished.rl_run / "checkpoints").glob("step-*/policy/model.safetensors"))


def test_accuracy_is_what_the_recorded_answers_say(finished: DemoFolder) -> None:
    """Counted here once more from the text of the greedy responses and the sums themselves."""
    answers = read_rollouts(sorted((finished.rl_run / "rollouts").glob("eval-*.jsonl"))[-1])
    assert len(answers) == 500
    right = sum(entry["response"] == reversed_sum(entry["prompt"]) for entry in answers)
    assert right / 500 == pytest.approx(accuracies(finished.rl_run)[-1])


def reversed_sum(prompt: str) -> str:
    """ "47+85=" to "231"."""
    a, b = prompt.removesuffix("=").split("+")
    return f"{int(a) + int(b):03d}"[::-1]


@pytest.mark.matrix
def test_with_advantages_shuffled_between_samples_nothing_is_learned(
    finished: DemoFolder, one_thread: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The control: same run file, model and rewards, but an advantage does not belong to the sample that gets it."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    control = tmp_path / "control"
    overrides = ["algorithm.estimator=shuffled_advantages:shuffled_grpo", f"output={control}"]
    assert main(["rl", str(finished.rl_file), *overrides]) == 0
    curve = accuracies(control)
    assert curve[0] == accuracies(finished.rl_run)[0]
    assert curve[-1] < 0.65
