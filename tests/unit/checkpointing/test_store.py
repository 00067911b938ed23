"""Checkpoints are whole or absent, whatever happens."""

import errno
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from burnish.checkpointing.encoding import read_state, write_state
from burnish.checkpointing.store import PENDING_FILE, CheckpointStore, Pending, read_pending, write_pending
from burnish.errors import CheckpointError


def writer(value: float) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "policy").mkdir()
        write_state(folder / "policy", "weights", {"w": torch.full((100,), value)})
        write_state(folder, "training_state", {"value": value})

    return write


def value_of(store: CheckpointStore) -> float:
    checkpoint = store.latest_valid().checkpoint
    assert checkpoint is not None
    weights = read_state(checkpoint.folder / "policy", "weights")["w"]
    value: float = read_state(checkpoint.folder, "training_state")["value"]
    assert torch.equal(weights, torch.full((100,), value))
    return value


@pytest.fixture
def saved(tmp_path: Path) -> CheckpointStore:
    """A store that holds a checkpoint of step 1."""
    store = CheckpointStore(tmp_path)
    store.save(1, writer(1.0))
    return store


def names(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


def test_saved_found_and_pruned(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    for step in (1, 2, 30):
        store.save(step, writer(step))
    assert store.steps() == [2, 30]
    assert names(tmp_path) == ["step-000002", "step-000030"]
    assert value_of(store) == 30


def test_pruned_to_fewer_than_were_kept(tmp_path: Path) -> None:
    """What is newer than the one that is known to be whole neither counts nor goes."""
    for step in (1, 2, 3, 4):
        CheckpointStore(tmp_path, keep=9).save(step, writer(step))
    store = CheckpointStore(tmp_path, keep=2)
    store.prune(3)
    assert names(tmp_path) == ["step-000002", "step-000003", "step-000004"]
    store.prune(4)
    assert names(tmp_path) == ["step-000003", "step-000004"]


def test_no_folder_and_an_empty_folder_are_no_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    assert store.latest_valid().checkpoint is None
    assert store.clean() == []
    (tmp_path / "checkpoints").mkdir()
    assert store.latest_valid().checkpoint is None
    (tmp_path / "checkpoints" / "step-000001").mkdir()
    found = store.latest_valid()
    assert found.checkpoint is None
    assert "has no manifest.json" in found.problems[0]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def replace_by(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def list_file(manifest: Path, name: str) -> None:
    """Add a file of this name to the list."""
    content = json.loads(manifest.read_text())
    content["files"] = {name: {"size": 1, "sha256": "0"}, **content["files"]}
    manifest.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("policy/weights.safetensors", cut, "bytes instead of"),
        ("policy/weights.safetensors", flip, "does not have the content"),
        ("training_state.json", Path.unlink, "is missing"),
        ("manifest.json", cut, "cannot be read"),
        ("manifest.json", Path.unlink, "has no manifest"),
        ("manifest.json", lambda path: path.write_text("[]"), "is not a manifest"),
        ("manifest.json", lambda path: path.write_text('{"format": 99, "files": {}}'), "format 99"),
        ("manifest.json", lambda path: path.write_text("[" * 100_000), "cannot be read"),
        ("manifest.json", lambda path: replace_by(path, os.mkfifo), "is a pipe"),
        ("manifest.json", lambda path: replace_by(path, Path.mkdir), "is a folder"),
        ("manifest.json", lambda path: replace_by(path, lambda p: p.symlink_to(p)), "points back to itself"),
        ("manifest.json", lambda path: replace_by(path, lambda p: p.symlink_to("/dev/zero")), "is a device"),
        ("manifest.json", lambda path: list_file(path, "a\0b"), "NUL"),
        ("manifest.json", lambda path: list_file(path, "a" * 5000), "too long"),
        ("training_state.json", lambda path: replace_by(path, os.mkfifo), "is a pipe"),
    ],
)
def test_a_damaged_one_is_reported_and_the_older_used(
    tmp_path: Path, saved: CheckpointStore, name: str, damage: Callable[[Path], object], words: str
) -> None:
    saved.save(2, writer(2.0))
    damage(tmp_path / "checkpoints" / "step-000002" / name)
    (problem,) = saved.latest_valid().problems
    assert words in problem
    assert "step-000002" in problem
    assert value_of(saved) == 1.0


def test_a_checkpoint_under_another_name_is_not_taken(tmp_path: Path, saved: CheckpointStore) -> None:
    (tmp_path / "checkpoints" / "step-000001").rename(tmp_path / "checkpoints" / "step-000009")
    assert saved.latest_valid().checkpoint is None


def test_the_same_step_again_replaces(tmp_path: Path, saved: CheckpointStore) -> None:
    saved.save(1, writer(5.0))
    assert value_of(saved) == 5.0
    assert names(tmp_path) == ["step-000001"]


def test_pruning_leaves_later_damaged_ones_to_their_turn(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=1)
    store.save(9, writer(9.0))
    cut(tmp_path / "checkpoints" / "step-000009" / "manifest.json")
    store.save(5, writer(5.0))
    assert value_of(store) == 5.0
    (aside,) = store.set_aside_after(5)
    assert store.steps() == [5]
    assert aside.name == "step-000009.damaged"
    assert aside.is_dir()
    assert store.clean() == []
    assert aside.is_dir()


def test_leftovers_of_a_killed_run_are_cleaned(tmp_path: Path, saved: CheckpointStore) -> None:
    folder = tmp_path / "checkpoints"
    (folder / "step-000002.writing").mkdir()
    (folder / "step-000002.writing" / "half").write_text("x")
    (folder / "step-000001").rename(folder / "step-000001.replaced")  # killed between the two renames
    assert saved.clean() == ["step-000002.writing"]
    assert value_of(saved) == 1.0
    assert names(tmp_path) == ["step-000001"]


@pytest.mark.parametrize(
    ("code", "remedy"), [(errno.ENOSPC, "free space"), (errno.EROFS, "writable"), (errno.EIO, "check the disk")]
)
def test_a_refusing_disk_keeps_the_older_checkpoint(
    tmp_path: Path, saved: CheckpointStore, code: int, remedy: str
) -> None:
    def refused(folder: Path) -> None:
        writer(2.0)(folder)
        raise OSError(code, os.strerror(code))

    with pytest.raises(CheckpointError, match=remedy) as caught:
        saved.save(2, refused)
    assert str(tmp_path) in caught.value.message
    assert names(tmp_path) == ["step-000001"]
    assert value_of(saved) == 1.0


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks")
def test_killed_at_random_instants_there_is_always_a_whole_one(tmp_path: Path) -> None:
    rng, store, newest = random.Random(0), CheckpointStore(tmp_path, keep=2), 0
    for _ in range(25):
        heard, said = os.pipe()
        child = os.fork()
        if child == 0:
            save_forever(tmp_path, newest + 1, said)
        os.read(heard, 1)  # it has saved once by now
        time.sleep(rng.uniform(0.0, 0.02))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(heard)
        os.close(said)
        store.clean()
        found = store.latest_valid()
        assert found.checkpoint is not None
        assert found.problems == ()
        assert value_of(store) == found.checkpoint.step > newest
        newest = found.checkpoint.step
    store.save(newest + 1, writer(0.0))  # whatever the kills left to prune is pruned by the next save
    assert names(tmp_path) == [f"step-{newest:06d}", f"step-{newest + 1:06d}"]


def save_forever(run_dir: Path, step: int, said: int) -> None:
    """In the forked child: every step saved twice, so that replacing is interrupted too. Leaves only by a kill."""
    store = CheckpointStore(run_dir, keep=2)
    while True:
        store.save(step, writer(float(step)))
        os.write(said, b".")
        store.save(step, writer(float(step)))
        step += 1


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks")
@pytest.mark.parametrize("step", [2, 3])
def test_killed_before_each_single_file_operation_of_a_save(tmp_path: Path, step: int) -> None:
    """Every open, rename, mkdir and removal of one save in turn is the last thing the process wanted to do; step 2
    replaces a checkpoint, step 3 is new and prunes one."""
    operation, finished = 0, False
    while not finished:
        run_dir = tmp_path / str(operation)
        store = CheckpointStore(run_dir, keep=2)
        store.save(1, writer(1.0))
        store.save(2, writer(2.0))
        child = os.fork()
        if child == 0:
            save_until(operation, store, step)
        finished = os.waitpid(child, 0)[1] == 0
        store.clean()
        found = store.latest_valid()
        assert found.problems == ()
        assert value_of(store) in ({20.0} if finished else {2.0, 20.0})
        operation += 1
    assert operation > 20


def save_until(operation: int, store: CheckpointStore, step: int) -> None:
    """In the forked child: dies before the file operation of that number, or leaves with 0 when the save has fewer."""
    remaining = operation

    def count(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal remaining
        if event in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree"):
            if remaining == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            remaining -= 1

    sys.addaudithook(count)
    store.save(step, writer(20.0))
    os._exit(0)


def test_a_full_disk_that_a_library_reports_in_its_own_way_is_named(tmp_path: Path) -> None:
    """As tokenizers does: a plain Exception with the number in its text."""

    with pytest.raises(CheckpointError, match=r"No space left on device.*\n.*free space"):
        CheckpointStore(tmp_path).save(1, Mock(side_effect=Exception("No space left on device (os error 28)")))
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_a_folder_that_is_moved_away_during_a_save_is_named(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        (tmp_path / "checkpoints").rename(tmp_path / "elsewhere")
        (folder / "weights").write_bytes(b"1")

    with pytest.raises(CheckpointError, match=r"checkpoints was removed .* while the checkpoint of step 1 was being"):
        CheckpointStore(tmp_path).save(1, write)
    assert not (tmp_path / "checkpoints").exists()


def test_every_checkpoint_holds_what_is_to_stand_beside_it(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, extra_files={"note.json": lambda: "{}"})
    saved = store.save(1, lambda folder: None)
    assert (saved.folder / "note.json").read_text() == "{}"
    (saved.folder / "note.json").write_text("{ }")
    assert store.latest_valid().checkpoint is None


def test_a_file_in_the_place_of_the_folder_is_named_before_the_first_save(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(CheckpointError, match="checkpoints is not a folder"):
        CheckpointStore(tmp_path).latest_valid()


def test_what_is_left_to_do_for_a_step_reads_back(tmp_path: Path) -> None:
    assert read_pending(tmp_path) is None
    write_pending(tmp_path, Pending({"reward/mean": 0.1}, normalised=True))
    assert read_pending(tmp_path) == Pending({"reward/mean": 0.1}, normalised=True)


@pytest.mark.parametrize(
    "text",
    [
        *("null", "[]", "{}", "", "\x00", "[" * 100_000, '{"row": 1, "normalised": false}'),
        f'{{"row": {{"a": {"9" * 400}}}, "normalised": false}}',
    ],
)
def test_odd_notes_about_that_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / PENDING_FILE).write_text(text)
    with pytest.raises(CheckpointError, match=r"pending\.json"):
        read_pending(tmp_path)


def test_a_pipe_in_their_place_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / PENDING_FILE)
    with pytest.raises(CheckpointError, match="is a pipe, not a file"):
        read_pending(tmp_path)
