"""What every peer's process does alike: read what it is to do, time phases, report. Runs in every interpreter.

A peer is a script `run_NAME.py TASK.json RESULT.json`. The task is plain data (`read_task`); the result has
  seconds         one dictionary of seconds by phase for each measured step, `step` being all of it and `cpu` the
                  processor's seconds of this process in it (all threads), which other work on the machine hardly moves
  lengths         for each measured step the [prompt tokens, response tokens] of every response
  sampled         with turns: for each measured step how many of each response's tokens the policy wrote
  distinct_prompts, optimizer_steps (None where there are none), settings (what was chosen beside the task)
and gets versions, PyTorch's `capability` (its vector instructions), and the peak of the process's resident memory, or
of what PyTorch had reserved on the GPU.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from memory import peak_resident_bytes
from workloads import Workload, decode


def read_task() -> tuple[dict[str, Any], Workload]:
    """Keys: workload (all of it), model, prompts (file), output (folder), precision (float32 or bfloat16), threads,
    warmup, steps, device (a CPU if there is none), and what the peer's settings are. Sets threads."""
    task = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    torch.set_num_threads(task["threads"])
    return task, decode(task["workload"])


def report(result: dict[str, Any], packages: Sequence[str]) -> None:
    result["versions"] = {name: version(name) for name in packages}
    result["capability"] = torch.backends.cpu.get_cpu_capability()
    if torch.cuda.is_available():
        result["device_peak_bytes"] = torch.cuda.max_memory_reserved()
    else:
        result["peak_bytes"] = peak_resident_bytes()
    Path(sys.argv[2]).write_text(json.dumps(result), encoding="utf-8")


def version(package: str) -> str:
    """Of what is installed; sources may also be on the module path only."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "from its sources"


class Phases:
    """Seconds by phase of the step under way. A phase inside another counts for itself only."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self._inner = 0.0
        self._started = clock()
        self._cpu_started = time.process_time()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        outer, self._inner = self._inner, 0.0
        started = self._clock()
        try:
            yield
        finally:
            spent = self._clock() - started
            self._seconds[name] = self._seconds.get(name, 0.0) + spent - self._inner
            self._inner = outer + spent

    def restart(self) -> None:
        """A step begins now."""
        self._seconds, self._inner = {}, 0.0
        self._started, self._cpu_started = self._clock(), time.process_time()

    def take(self, rest: str) -> dict[str, float]:
        """Seconds since `restart` by phase; what no phase took is `rest`. The next step begins now."""
        total = self._clock() - self._started
        own = self._seconds | {rest: total - sum(self._seconds.values())}
        seconds = own | {"step": total, "cpu": time.process_time() - self._cpu_started}
        self.restart()
        return seconds
