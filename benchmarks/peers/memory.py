"""How much memory a program needs at most, with every process that it starts (Linux)."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Self

SECONDS = 0.1
"""Between looks."""


class Watcher:
    """Looks again and again, in a thread, from when it is entered until it is left."""

    seconds = SECONDS
    """Between looks."""

    def __init__(self) -> None:
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join()

    def look(self) -> None:
        """Note what there is now."""
        raise NotImplementedError

    def _watch(self) -> None:
        while not self._left.wait(self.seconds):
            self.look()


class PeakMemory(Watcher):
    """Watches the process `pid` and its descendants until left. `all_bytes` and `workers_bytes` are the largest found.

    The process counts with its own peak since the look before, which the kernel keeps and which is then set back, so
    nothing between two looks is missed. A descendant counts with its proportional share (PSS): pages that it shares
    with others are not counted twice. It is the smaller share of two looks in a row, because a process that has been
    forked but not yet started its program shows all that its parent has.
    """

    def __init__(self, pid: int) -> None:
        super().__init__()
        self.all_bytes = 0
        self.workers_bytes = 0
        self._process = Path("/proc") / str(pid)
        self._shares: dict[Path, int] = {}  # of descendants, at the last look

    def look(self) -> None:
        with suppress(FileNotFoundError, ProcessLookupError, ValueError):  # it has ended, or is about to
            self._look()

    def _look(self) -> None:
        own = peak_resident_bytes(self._process)
        with suppress(PermissionError):  # then its peak of all time counts, which is too much rather than too little
            (self._process / "clear_refs").write_text("5", encoding="ascii")  # the peak is what there is now
        before, self._shares = self._shares, {worker: shared_bytes(worker) for worker in descendants(self._process)}
        workers = sum(min(share, before.get(worker, 0)) for worker, share in self._shares.items())
        self.all_bytes = max(self.all_bytes, own + workers)
        self.workers_bytes = max(self.workers_bytes, workers)


def peak_resident_bytes(process: Path = Path("/proc/self")) -> int:
    """VmHWM of a process. Raises ValueError if it has ended."""
    return _bytes_of(process / "status", "VmHWM:")


def descendants(process: Path) -> list[Path]:
    """Every process that it or its descendants have started and that runs."""
    found: list[Path] = []
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        for task in (process / "task").iterdir():
            for pid in (task / "children").read_text(encoding="ascii").split():
                child = process.parent / pid
                found += [child, *descendants(child)]
    return found


def shared_bytes(process: Path) -> int:
    """Proportional share of a process, or all that it has where the share is a secret (in a sandbox); 0 if it has
    ended."""
    try:
        return _bytes_of(process / "smaps_rollup", "Pss:")
    except PermissionError:
        return _bytes_of(process / "status", "VmRSS:")
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return 0


def _bytes_of(file: Path, name: str) -> int:
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise ValueError(f"{file} has no {name.rstrip(':')}: the process has ended, or this is not Linux")
