"""`burnish verify` makes recorded steps again: what was recorded by another program does not reproduce."""

import shutil
from functools import partial
from pathlib import Path

import pytest
from runs import BuildPairs, BuildRl, BuildSft, lines_of, rows_of, run_file, write_lines

from burnish.cli import main
from burnish.errors import CheckpointError
from burnish.trainers.verifying import StepRange, spans_of


@pytest.fixture
def folder(tiny_run: BuildRl, tmp_path: Path) -> Path:
    """A run with checkpoints of the steps 2, 4 and 5, whose rollouts and evaluations are recorded."""
    config = tiny_run(
        steps=5,
        optimization={"learning_rate": 1e-2, "minibatches": 2},
        evaluation={"every_steps": 2, "max_prompts": 5},
        checkpoint={"every_steps": 2, "keep": 9},
    )
    assert main(["rl", run_file(config)]) == 0
    return Path(config.output)


@pytest.mark.slow
def test_a_run_reproduces_and_a_record_of_something_else_does_not(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(path.name for path in folder.iterdir())
    assert main(["verify", str(folder), "--step", "0", "--step", "2"]) == 0
    said = capsys.readouterr().out
    assert "steps 1 to 2: the same, bit for bit" in said
    assert "steps 3 to 4: the same, bit for bit" in said
    assert sorted(path.name for path in folder.iterdir()) == before
    path = folder / "rollouts/step-000005.jsonl"
    lines = lines_of(path)
    lines[1]["reward"] += 0.5
    write_lines(path, lines)
    rows = rows_of(folder)
    rows[3]["policy/loss"] += 1e-12
    write_lines(folder / "metrics.jsonl", rows)
    assert main(["verify", str(folder)]) == 1
    said = capsys.readouterr().out
    assert "steps 3 to 4: first difference (recorded and now): step 3, loss: 1 of" in said
    assert "step 5: first difference (recorded and now): step 5, rewards: 1 of" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("sft",),
        ("distill", "teacher={model}", "sampled_share=0.5"),
        ("prefer", "optimization={{comparisons_per_batch: 4, learning_rate: 0.01}}"),
        ("rm", "optimization={{comparisons_per_batch: 4}}", "normalization={{kind: bias, on: references}}"),
        ("rl", "cluster.trainers=2", "cluster.rollout_workers=1", "cluster.threads=1", "rollout.group_size=2"),
    ],
    ids=lambda words: words[0],
)
def test_any_kind_of_run_reproduces(
    words: tuple[str, ...],
    tiny_run: BuildRl,
    tiny_sft: BuildSft,
    tiny_pairs: BuildPairs,
    tiny_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kind, *fields = (word.format(model=tiny_model) for word in words)
    rows = [{"prompt": f"{n}+1=", "chosen": f"{n}7", "rejected": f"{n % 3}"} for n in range(10)]
    builders = {"rl": tiny_run, "rm": partial(tiny_pairs, "rm", rows), "prefer": partial(tiny_pairs, "prefer", rows)}
    losses = ("losses=[ipo]",) if kind == "prefer" else ()
    config = builders.get(kind, tiny_sft)(f"output={tmp_path}/run", *losses)
    assert main([kind, run_file(config), "steps=4", "checkpoint={every_steps: 2, keep: 9}", *fields]) == 0
    assert main(["verify", str(tmp_path / "run"), "--step", "2", "--count", "1"]) == 0
    assert "step 3: the same, bit for bit" in capsys.readouterr().out


def test_which_steps_are_made_again(tmp_path: Path) -> None:
    for step in (2, 4):
        (tmp_path / f"checkpoints/step-{step:06d}").mkdir(parents=True)
    (tmp_path / "metrics.jsonl").write_text("".join(f'{{"step": {step}}}\n' for step in range(1, 8)))
    assert spans_of(tmp_path, [], None) == [StepRange(2, 4), StepRange(4, 7)]
    assert spans_of(tmp_path, [], 1) == [StepRange(2, 3), StepRange(4, 5)]
    assert spans_of(tmp_path, [0, 4], 5) == [StepRange(0, 5), StepRange(4, 7)]
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 3\n.*checkpoints: 2, 4; recorded up to step 7"):
        spans_of(tmp_path, [3], None)
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(CheckpointError, match="no step after a checkpoint"):
        spans_of(tmp_path, [], None)
