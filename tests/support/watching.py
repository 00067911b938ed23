"""Processes that a test watches, and conditions that it waits for."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Until it holds, for so long at most."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"did not happen within {seconds} s"
        time.sleep(0.02)


def children(of: int | None = None) -> set[int]:
    """Ids of all processes that descend from this one, or of those that live and descend from another one."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if state != "Z" or of is None:
                parents[int(entry.name)] = int(parent)
    root = of or os.getpid()
    found, size = {root}, 0
    while size != len(found):
        size = len(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found - {root}


@contextmanager
def leaving_nothing() -> Iterator[None]:
    """Assert that the block leaves no process and no open file."""
    before, descriptors = children(), len(os.listdir("/proc/self/fd"))
    yield
    assert children() <= before
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def runs(pid: int) -> bool:
    """Whether the process still does anything: it may have ended and nobody have asked for that yet."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
