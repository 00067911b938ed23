"""The lock belongs to the folder, not to its name; a live run is never moved away."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from burnish.checkpointing.lock import RunLock
from burnish.checkpointing.run import move_run_aside
from burnish.errors import CheckpointError

HOLDER = "import sys, time; from pathlib import Path; from burnish.checkpointing.lock import RunLock; \
lock = RunLock(Path(sys.argv[1])); lock.acquire(); print('held', flush=True); time.sleep(60)"


@pytest.fixture
def elsewhere() -> Iterator[Any]:
    """Lets another process take the lock of a folder, and returns its process id."""
    holders: list[subprocess.Popen[str]] = []

    def hold(folder: Path) -> int:
        holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True)
        holders.append(holder)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        return holder.pid

    yield hold
    for holder in holders:
        holder.send_signal(signal.SIGKILL)
        holder.wait()


def test_a_second_process_is_refused_until_the_first_is_dead(tmp_path: Path, elsewhere: Any) -> None:
    pid = elsewhere(tmp_path)
    with pytest.raises(CheckpointError, match=f"is in use by process {pid} on "):
        RunLock(tmp_path).acquire()
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert str(pid) in (tmp_path / "run.lock").read_text()  # stale, and no hindrance
    with RunLock(tmp_path):
        assert json.loads((tmp_path / "run.lock").read_text())["pid"] == os.getpid()
        with pytest.raises(CheckpointError, match="is in use by process"):  # nor twice by one process, but again
            RunLock(tmp_path).acquire()
    with RunLock(tmp_path):
        pass


def a_run(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("steps: 1\n")
    return folder


@pytest.mark.parametrize("live", ["run", "run/rl"])
def test_a_folder_with_a_live_run_in_it_or_below_is_not_moved_away(tmp_path: Path, elsewhere: Any, live: str) -> None:
    run = a_run(tmp_path / "run")
    pid = elsewhere(tmp_path / live)
    with pytest.raises(CheckpointError, match=f"{live} is in use by process {pid} on "):
        move_run_aside(run)
    assert (run / "config.yaml").is_file()
    assert not (tmp_path / "run.old-1").exists()


def test_a_dead_run_is_moved_and_can_be_locked_in_both_places(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    (run / "run.lock").write_text('{"pid": 1, "host": "gone"}')
    assert move_run_aside(run) == tmp_path / "run.old-1"
    with RunLock(run), RunLock(tmp_path / "run.old-1"):
        pass
    assert move_run_aside(run) == tmp_path / "run.old-2"


def test_a_folder_that_holds_no_run_stays(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    assert move_run_aside(tmp_path / "thesis") is None
    (tmp_path / "thesis" / "one.tex").write_text("mine")
    with pytest.raises(CheckpointError, match="is not the folder of a run"):
        move_run_aside(tmp_path / "thesis")
    assert (tmp_path / "thesis" / "one.tex").is_file()
    assert not (tmp_path / "thesis" / "run.lock").exists()


def test_of_a_link_the_run_behind_it_is_moved(tmp_path: Path) -> None:
    run = a_run(tmp_path / "disk" / "run")
    link = tmp_path / "run"
    link.symlink_to(run)
    assert move_run_aside(link) == tmp_path / "disk" / "run.old-1"
    assert link.is_symlink()
    assert list(link.iterdir()) == []


def test_a_lock_taken_on_a_folder_that_moved_away_meanwhile_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process moves the folder between our opening the file and our locking it."""
    run = a_run(tmp_path / "run")
    real, calls = fcntl.lockf, [0]

    def lockf(*arguments: Any) -> None:
        calls[0] += 1
        if calls[0] == 1:
            run.rename(tmp_path / "away")
        real(*arguments)

    monkeypatch.setattr(fcntl, "lockf", lockf)
    with RunLock(run) as lock:
        lock.check()
        assert (run / "run.lock").is_file()
        assert (tmp_path / "away" / "run.lock").read_text() == ""
    assert calls[0] == 2


def test_a_folder_removed_moved_or_replaced_while_it_is_locked_is_noticed(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    with RunLock(run) as lock:
        lock.check()
        run.rename(tmp_path / "away")
        with pytest.raises(CheckpointError, match=r"removed or moved away .* \(it is now .*/away\)"):
            lock.check()
        assert not run.exists()
        a_run(run)
        (run / "run.lock").write_text("")
        with pytest.raises(CheckpointError, match="was replaced"):
            lock.check()


def test_a_lock_file_that_alone_was_removed_is_made_again_unless_another_took_it(
    tmp_path: Path, elsewhere: Any
) -> None:
    with RunLock(tmp_path) as lock:
        (tmp_path / "run.lock").unlink()
        lock.check()
        assert str(os.getpid()) in (tmp_path / "run.lock").read_text()
        (tmp_path / "run.lock").unlink()
        elsewhere(tmp_path)
        with pytest.raises(CheckpointError, match=r"or its run\.lock was replaced"):
            lock.check()


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_a_lock_file_of_another_kind_is_named(tmp_path: Path, kind: str) -> None:
    (tmp_path / "run.lock").mkdir() if kind == "folder" else os.mkfifo(tmp_path / "run.lock")
    with pytest.raises(CheckpointError, match=r"run\.lock is (a folder|not a regular file)\n.*remove it"):
        RunLock(tmp_path).acquire()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO])
def test_a_disk_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(fcntl, "lockf", Mock(side_effect=OSError(number, os.strerror(number))))
    with pytest.raises(CheckpointError, match=r"cannot lock .*run\.lock: .*\n.*local one"):
        RunLock(tmp_path).acquire()
