"""Burnish's side of `heap.py`: steps of `run_burnish.py`, while malloc is asked what it holds (glibc from 2.33 on)."""

from __future__ import annotations

import ctypes

import child
import run_burnish
from memory import Watcher
from rich.console import Console

from burnish.trainers.outer_loop import save
from burnish.trainers.rl.setup.parts import open_rl_run


class Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of malloc.h: bytes and numbers of blocks, over all arenas."""

    _fields_ = (
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks")),
        *((name, ctypes.c_size_t) for name in ("uordblks", "fordblks", "keepcost")),
    )


class HeapWatch(Watcher):
    """`held_bytes` and `used_bytes` are the largest found until it is left: what malloc has from the system, and what
    of that somebody uses. Small free blocks that a thread keeps for itself count as used."""

    seconds = 0.01

    def __init__(self) -> None:
        super().__init__()
        self.held_bytes = 0
        self.used_bytes = 0
        self._ask = ctypes.CDLL(None).mallinfo2
        self._ask.restype = Mallinfo

    def look(self) -> None:
        found = self._ask()
        self.held_bytes = max(self.held_bytes, found.arena + found.hblkhd)
        self.used_bytes = max(self.used_bytes, found.uordblks + found.hblkhd)


def main() -> None:
    task, workload = child.read_task()
    config = run_burnish.build_config(task, workload)
    run_burnish.end_as_planned(workload)
    with HeapWatch() as heap, open_rl_run(config, Console(quiet=True)) as run:
        result = run_burnish.measure(run, task["warmup"], task["steps"], logged=False)
        save(run)
    result |= {"held_bytes": heap.held_bytes, "used_bytes": heap.used_bytes, "settings": {}}
    child.report(result, ["burnish", "torch", "transformers"])


if __name__ == "__main__":
    main()
