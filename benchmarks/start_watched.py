"""`burnish rl FILE`, watched: ends when the first token is sampled, and writes where the time until then went.

    python benchmarks/start_watched.py TIMES.json rl run.yaml    # any arguments of `burnish rl`

A phase's seconds leave out those of phases within it, so they add up to the whole. Everything counts in this process:
also the start of the interpreter, and what its threads compute. Other processes (workers of rewards) run beside it.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.abc
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

IMPORTS, REST = "imports", "rest"
PHASES = {
    "burnish.config.loading": {"load_run_file": "run file"},
    "burnish.checkpointing.fingerprints": {"Fingerprints.of": "fingerprints"},
    "burnish.models.loading": {
        "load_tokenizer": "tokenizer",
        "check_vocabulary": "tokenizer",
        "_saved_model": "weights",
        "align_weights": "weights",
        "check_finite": "weights",
        "use_packed_rows": "trial: packed rows",
        "use_layer_kernels": "trial: layers with kernels",
        "keep_faster_layers": "choice: layers",
        "decode_kernels": "building kernels",
    },
    "burnish.models.policy": {"LocalPolicy.__init__": "policy", "LocalPolicy.reference": "reference"},
    "burnish.rewards.scorer": {"ProcessRewardScorer.__init__": "rewards"},
    "burnish.rollouts.local.kernel_trial": {
        "decodes_alike": "trial: decoder",
        "_layout": "choice: products",
        "choose_decoder": "choice: decoder",
    },
    "burnish.forward.matmul_choice": {"_faster_precision": "choice: float32 products"},
    "burnish.rollouts.local.engine": {"DecodingLoop._admit": "prompts read", "DecodingLoop._taken_decoder": "decoder"},
    "burnish.rollouts.local.rows": {"RowsInProgress.advance": "first token"},
}
"""Functions by module, with the phase that they are; those that a version does not have are left out."""
FIRST_TOKEN = "first token"


class Phases:
    """Seconds and processor seconds by phase, of the main thread's calls."""

    def __init__(self) -> None:
        self._at = _clocks()
        self._open = [REST]
        self.spent: dict[str, list[float]] = {}

    def during(self, phase: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, whose time is that of `phase`."""

        @wraps(call)
        def timed(*args: Any, **options: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                return call(*args, **options)
            self._turn()
            self._open.append(phase)
            try:
                return call(*args, **options)
            finally:
                self._turn()
                self._open.pop()

        return timed

    def _turn(self) -> None:
        """Time since the last turn is the innermost phase's."""
        now = _clocks()
        spent = self.spent.setdefault(self._open[-1], [0.0, 0.0])
        for number, (before, after) in enumerate(zip(self._at, now, strict=True)):
            spent[number] += after - before
        self._at = now

    def write(self, file: Path) -> None:
        """Everything until now, with the whole since this process was started."""
        self._turn()
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
        whole = [uptime - ticks / os.sysconf("SC_CLK_TCK"), time.process_time()]
        file.write_text(json.dumps({"whole": whole, "phases": self.spent}), encoding="utf-8")


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


class Watching(importlib.abc.MetaPathFinder):
    """Times functions of a module as soon as it is imported, before others take them from it."""

    def __init__(self, phases: Phases, ended: Callable[[], None]) -> None:
        self._phases = phases
        self._ended = ended

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The usual one, which also times."""
        if fullname not in PHASES:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_watch(module: ModuleType) -> None:
            load(module)
            for name, phase in PHASES[fullname].items():
                self._watch(module, name, phase)

        spec.loader.exec_module = load_and_watch  # type: ignore[method-assign]
        return spec

    def _watch(self, module: ModuleType, name: str, phase: str) -> None:
        owner_name, _, function = name.rpartition(".")
        owner = getattr(module, owner_name, None) if owner_name else module
        call = getattr(owner, function, None)
        if owner is None or call is None:
            return
        timed = self._phases.during(phase, call)
        is_static = owner_name and isinstance(vars(owner).get(function), staticmethod)
        setattr(owner, function, staticmethod(timed) if is_static else timed)
        if phase == FIRST_TOKEN:
            setattr(owner, function, self._last(timed))

    def _last(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def then_end(*args: Any, **options: Any) -> None:
            call(*args, **options)
            self._ended()

        return then_end


def main() -> None:
    file, *arguments = sys.argv[1:]
    phases = Phases()

    def ended() -> None:
        phases.write(Path(file))
        os._exit(0)  # workers end when their pipes close

    sys.meta_path.insert(0, Watching(phases, ended))
    builtins.__import__ = phases.during(IMPORTS, builtins.__import__)
    importlib.import_module = phases.during(IMPORTS, importlib.import_module)
    from burnish.cli import main as command

    sys.exit(command(arguments))


if __name__ == "__main__":
    main()
