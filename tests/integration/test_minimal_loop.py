"""The naked loop and the trainer are the same algorithm: same samples, same loss, same gradients."""

from pathlib import Path

import pytest
from runs import BuildRl, trained_rows
from scripts import load_script

EXAMPLE = Path(__file__).parents[2] / "examples" / "minimal_loop.py"


@pytest.mark.slow
def test_the_naked_loop_gives_the_trainers_numbers(tiny_run: BuildRl, tiny_model: Path, tiny_task: Path) -> None:
    config = tiny_run(steps=5)
    expected = trained_rows(config)
    history = load_script(EXAMPLE).main(str(tiny_model), str(tiny_task / "train.jsonl"), 5)
    assert any(row["policy/grad_norm"] > 0.1 for row in history)
    assert any(row["reward/mean"] > 0 for row in history)
    for ours, theirs in zip(history, expected, strict=True):
        for name, value in ours.items():
            assert theirs[name] == pytest.approx(value, rel=1e-4, abs=1e-6), (ours["step"], name)


def test_the_naked_loop_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 300
