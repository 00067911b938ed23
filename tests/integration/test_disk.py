"""Full disks, damaged files and losses that are not numbers: a clear error, and nothing that was good is lost."""

import errno
import itertools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from runs import BuildRl, Trace, rollouts_of, rows_of, run_file, trace, train, trained
from safetensors.torch import load_file

from burnish.errors import BurnishError, CheckpointError, DivergenceError
from burnish.trainers.interrupt import StopRequest
from burnish.trainers.outer_loop import run_loop
from burnish.trainers.rl.setup.parts import open_rl_run

Halfway = tuple[Path, Callable[[], str], Trace]
EVERY_STEP = {"steps": 4, "checkpoint": {"every_steps": 1}, "optimization": {"learning_rate": 1e-2}}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the undisturbed run and the one of 2 steps are kept, once the first test has made them."""
    return tmp_path_factory.mktemp("prepared")


@pytest.fixture
def halfway(tiny_run: BuildRl, prepared: Path, tmp_path: Path) -> Halfway:
    """A run that has done 2 of 4 steps, what finishes it and returns what was said, and the undisturbed run's trace."""
    if not (prepared / "half").exists():
        train(tiny_run(f"output={prepared}/calm", **EVERY_STEP))
        train(tiny_run(f"output={prepared}/half", "steps=2", **EVERY_STEP))
    folder = tmp_path / "run"
    shutil.copytree(prepared / "half", folder)
    assert kept(folder) == ["step-000001", "step-000002"]
    return folder, lambda: train(tiny_run(f"output={folder}", **EVERY_STEP))[1], trace(prepared / "calm")


def newest(folder: Path) -> Path:
    return max((folder / "checkpoints").glob("step-??????"))


def kept(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    "file", ["policy/model.safetensors", "training_state.json", "training_state.safetensors", "manifest.json"]
)
def test_of_a_truncated_checkpoint_the_older_one_is_used(halfway: Halfway, file: str) -> None:
    folder, finish, expected = halfway
    damaged = newest(folder) / file
    os.truncate(damaged, damaged.stat().st_size // 2)
    said = finish()
    assert all(words in said for words in ("checkpoint not used:", "step-000002", "after step 1"))
    assert trace(folder) == expected


@pytest.mark.slow
def test_a_flipped_bit_and_an_empty_folder_are_noticed(halfway: Halfway) -> None:
    folder, finish, expected = halfway
    weights = newest(folder) / "policy" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    (folder / "checkpoints" / "step-000003").mkdir()
    said = finish()
    assert "step-000003 has no manifest.json" in said
    assert "does not have the content that was saved" in said
    assert "after step 1" in said
    assert trace(folder) == expected


@pytest.mark.slow
def test_when_no_checkpoint_is_whole_nothing_is_thrown_away(halfway: Halfway) -> None:
    folder, finish, _ = halfway
    for checkpoint in (folder / "checkpoints").iterdir():
        (checkpoint / "policy" / "model.safetensors").unlink()
    metrics = (folder / "metrics.jsonl").read_text()
    with pytest.raises(CheckpointError, match=r"none is complete\n.*--fresh"):
        finish()
    assert (folder / "metrics.jsonl").read_text() == metrics
    assert len(kept(folder)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("left", ["no folder", "empty folder"])
def test_without_any_checkpoint_the_record_of_an_ended_run_stays(halfway: Halfway, left: str) -> None:
    folder, finish, _ = halfway
    (folder / "checkpoints").rename(folder.parent / "elsewhere")
    if left == "empty folder":
        (folder / "checkpoints").mkdir()
    with pytest.raises(CheckpointError, match="ended after step 2, but no checkpoint of it"):
        finish()


@pytest.mark.slow
@pytest.mark.parametrize("tail", [b'{"step": 3, "rew', b"\x00\x00\x00\x00", b'{"step": 3}'])
def test_a_torn_last_line_of_metrics_is_left_out(halfway: Halfway, tail: bytes) -> None:
    folder, finish, expected = halfway
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(tail)
    finish()
    assert trace(folder) == expected


def full_disk(patch: pytest.MonkeyPatch, after: int) -> None:
    """The disk is full from the (after + 1)-th time on that data is forced to it."""
    real, calls = os.fsync, itertools.count()

    def fsync(descriptor: int) -> None:
        if next(calls) >= after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    patch.setattr(os, "fsync", fsync)


WRITES = [n if n % 5 == 2 or n in (0, 4, 14, 30) else pytest.param(n, marks=pytest.mark.matrix) for n in range(70)]


@pytest.mark.slow
@pytest.mark.parametrize("after", WRITES)
def test_on_a_full_disk_the_run_stops_and_can_be_finished_later(halfway: Halfway, after: int) -> None:
    """Full at any write. Beyond the thirtieth the run may be done by then."""
    folder, finish, expected = halfway
    refusal: BurnishError | None = None
    with pytest.MonkeyPatch.context() as patch:
        full_disk(patch, after)
        try:
            finish()
        except BurnishError as error:
            refusal = error
    assert refusal is not None or after > 30
    if refusal is not None:
        assert "No space left on device" in refusal.message
        assert "free space on the disk" in str(refusal.remedy)
    assert not any(name.endswith(".writing") for name in kept(folder))
    # Two are kept; a third where the disk refused after the newest was in place and before the oldest was removed.
    assert len(kept(folder)) in (2, 3)
    finish()
    assert trace(folder) == expected
    assert kept(folder) == ["step-000003", "step-000004"]


LIMIT = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({bytes}, {bytes}))
"""


@pytest.mark.slow
def test_a_file_that_the_system_refuses_to_write_ends_the_command_with_one_message(
    commands: Any, tiny_run: BuildRl, halfway: Halfway
) -> None:
    """A real refusal in the middle of the weights file, by a limit on the size of files."""
    folder, finish, expected = halfway
    size = (newest(folder) / "policy" / "model.safetensors").stat().st_size
    before = LIMIT.format(bytes=size // 2)
    says = ["error: cannot write the checkpoint of step 3", "older checkpoints are untouched"]
    commands.refuse("rl", run_file(tiny_run(f"output={folder}", **EVERY_STEP)), before=before, says=says)
    assert kept(folder) == ["step-000001", "step-000002"]
    finish()
    assert trace(folder) == expected


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_named(tiny_run: BuildRl, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(CheckpointError, match="writable"):
            train(tiny_run(f"output={tmp_path}/run"))
    finally:
        tmp_path.chmod(0o700)


NAN_LOSS = """
import torch
from burnish.algorithms.policy_losses.result import PolicyLoss

CALLS = [0]
BROKEN_FROM = 2

def broken(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT):
    CALLS[0] += 1
    per_token = -advantages_BT * logprobs_BT
    return PolicyLoss(per_token * (float("nan") if CALLS[0] > BROKEN_FROM else 1.0), {})
"""


@pytest.mark.slow
def test_a_loss_that_is_no_number_stops_before_the_step_and_keeps_its_batch(
    tiny_run: BuildRl, make_module: Callable[[str, str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its third call on."""
    broken_loss = make_module("nan_losses", NAN_LOSS)
    config = tiny_run(algorithm={"preset": "dr_grpo", "loss": "nan_losses:broken", "clip_low": None, "clip_high": None})
    with open_rl_run(config, Console(quiet=True)) as run:
        model = run.policy.model  # type: ignore[attr-defined]
        seen: dict[int, list[torch.Tensor]] = {}

        def keep(step: int, row: dict[str, float]) -> None:
            seen[step] = [p.detach().clone() for p in model.parameters()]

        monkeypatch.setattr(run.journal.display, "update", keep)
        with pytest.raises(DivergenceError) as stopped:
            run_loop(run, StopRequest())
        assert list(seen) == [1, 2]
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), seen[2], strict=True))
    saved = Path(config.output) / "diverged" / "step-000003.safetensors"
    for words in ("loss is nan", "weights have not been changed", str(saved)):
        assert words in str(stopped.value)
    batch, told = load_file(saved), json.loads(saved.with_suffix(".json").read_text())
    assert batch["response_tokens"].shape[0] == len(told["rows"]) == 16
    assert {"prompt_tokens", "loss_mask", "advantages", "rollout_logprobs"} <= batch.keys()
    assert told["step"] == 3
    assert "loss is nan" in told["message"]
    recorded, kept_rows = (
        sorted(row["response_tokens"] for row in rows) for rows in (rollouts_of(config.output, 3), told["rows"])
    )
    assert recorded == kept_rows
    broken_loss.CALLS[0], broken_loss.BROKEN_FROM = 0, 1000
    folder = trained(config)
    assert [row["step"] for row in rows_of(folder)] == [1, 2, 3]
