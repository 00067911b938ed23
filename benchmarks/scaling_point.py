"""One point of `scaling.py`, in a process of its own: steps of the loop of `burnish rl` at one size of everything.

    python benchmarks/scaling_point.py TASK.json RESULT.json

The task is plain data: `point` (prompts, group, prompt, response, vocabulary, hidden, layers), `threads`, `steps`,
`memory` (whether that is measured). The result has
  seconds      {"cpu": {phase: [of each step]}, "wall": the same}; `step` being all of it
  bytes        {phase: peak resident minus what was resident between steps}, from a step that is not timed; or None
  macs         {phase: multiply-adds that the phase cannot avoid} (floor.py of the peers), the attention's included
  parameters   of the model
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

sys.path.append(str(Path(__file__).parent / "peers"))
from floor import step_macs
from memory import peak_resident_bytes
from models import write_model, write_prompts
from run_burnish import build_config
from workloads import MODELS, ModelShape, Workload

from burnish.config.schema import RlConfig
from burnish.trainers.rl.loop import RlRun
from burnish.trainers.rl.setup.parts import open_rl_run

PHASES = ("generate", "logprobs", "update", "step")
HEAD_SIZE = 32
MAX_BATCH_ROWS, TOKENS_PER_MICROBATCH = 12, 512
"""Small, so that small steps already have several batches of each and the series show how these add up."""


class PhaseMeter:
    """Stands where the live display does and reads a clock at the beginning and the end of each phase."""

    def __init__(self, begin: Callable[[], float], end: Callable[[float], float]) -> None:
        self._begin, self._end = begin, end
        self._name, self._started = "", 0.0
        self.found: dict[str, float] = {}

    def phase(self, name: str) -> None:
        """A phase begins; "" is the end of the one under way."""
        if name:
            self._name, self._started = name, self._begin()
        else:
            self.found[self._name] = self._end(self._started)


def main() -> None:
    task = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    torch.set_num_threads(task["threads"])
    point, steps = task["point"], task["steps"]
    MODELS["point"] = model_shape(point)  # the table that the peers' code looks a workload's model up in
    workload = Workload(
        "point", "", "point", point["prompts"], point["group"], point["prompt"], point["response"], kl=True
    )
    with tempfile.TemporaryDirectory() as folder:
        config = prepare(Path(folder), workload, steps + 2)
        with open_rl_run(config, Console(quiet=True)) as run:
            result = measure(run, steps)
            result["bytes"] = phase_bytes(run) if task["memory"] else None
    lengths = [(point["prompt"], point["response"])] * workload.rows
    macs = step_macs(workload, lengths)
    result["macs"] = macs | {"step": sum(macs.values())}
    result["parameters"] = MODELS["point"].parameters
    Path(sys.argv[2]).write_text(json.dumps(result), encoding="utf-8")


def model_shape(point: dict[str, int]) -> ModelShape:
    hidden, heads = point["hidden"], point["hidden"] // HEAD_SIZE
    return ModelShape(hidden, point["layers"], heads, heads, 4 * hidden, point["vocabulary"])


def prepare(folder: Path, workload: Workload, steps: int) -> RlConfig:
    """Model and prompts in `folder`, and the run of `steps` steps with them."""
    write_model("point", folder / "model")
    write_prompts(workload, workload.prompts * steps, [], folder / "prompts.jsonl")
    task = {
        "model": str(folder / "model"),
        "prompts": str(folder / "prompts.jsonl"),
        "output": str(folder / "run"),
        "precision": "float32",
        "naive": False,
        "warmup": 0,
        "steps": steps,
    }
    config = build_config(task, workload)
    rollout = config.rollout.model_copy(update={"max_batch_rows": MAX_BATCH_ROWS})
    optimization = config.optimization.model_copy(update={"tokens_per_microbatch": TOKENS_PER_MICROBATCH})
    return config.model_copy(update={"rollout": rollout, "optimization": optimization})


def measure(run: RlRun, steps: int) -> dict[str, Any]:
    """A step to warm up, and `steps` steps on two clocks."""
    run.train_step()
    cpu: dict[str, list[float]] = {name: [] for name in PHASES}
    wall: dict[str, list[float]] = {name: [] for name in PHASES}
    for _ in range(steps):
        meter = attach(run, PhaseMeter(time.process_time, lambda started: time.process_time() - started))
        started = time.process_time()
        row = run.train_step()
        meter.found["step"] = time.process_time() - started
        for name in PHASES:
            cpu[name].append(meter.found[name])
            wall[name].append(row[f"time/{name}_seconds"])
    return {"seconds": {"cpu": cpu, "wall": wall}}


def attach(run: RlRun, meter: PhaseMeter) -> PhaseMeter:
    run.journal = dataclasses.replace(run.journal, display=meter)  # type: ignore[arg-type]
    return meter


def phase_bytes(run: RlRun) -> dict[str, float]:
    """Peak of each phase of one more step, above what is resident before it: models, optimizer, all that stays."""
    floor = resident_after_trim()

    def begin() -> float:
        resident_after_trim()  # what an earlier phase has freed is no part of this one's memory
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts anew from here
        return floor

    meter = attach(run, PhaseMeter(begin, lambda floor: peak_resident_bytes() - floor))
    run.train_step()
    found = {name: value for name, value in meter.found.items() if name in PHASES}
    return found | {"step": max(found.values())}


def resident_after_trim() -> float:
    """Resident bytes (Linux), once the allocator (glibc) has given back what is free."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024.0
    raise RuntimeError("/proc/self/status has no VmRSS")


if __name__ == "__main__":
    main()
