"""vLLM samples beside training on the same device: awake, asleep during updates, and how long weights take to it."""

from __future__ import annotations

import importlib.util
import statistics
import sys
from typing import Any

from rich.console import Console
from rows import Figures, Place, Row, Settings, Skipped
from shapes import weights_made_on

from burnish.config.loading import load_run_data
from burnish.trainers.rl.setup.parts import open_rl_run
from parts.steps import run_data

AWAKE = {"share": 0.4, "changes": {}}
ASLEEP = {"share": 0.8, "changes": {"cluster": {"offload": ["optimizer", "rollout_engine"]}}}


def rows(toy: bool) -> list[Row]:
    shapes = ("toy",) if toy else ("0.5b", "1.7b")
    return [
        Row("vllm", f"{shape}, {name}", {"shape": shape, **settings}, 240)
        for shape in shapes
        for name, settings in (("awake", AWAKE), ("asleep", ASLEEP))
    ]


def run_file(settings: Settings, place: Place) -> dict[str, Any]:
    data = run_data(settings, place, steps=3, **settings["changes"])
    options = {"gpu_memory_utilization": settings["share"]}
    data["rollout"] |= {"engine": "vllm", "vllm": {"options": options, "start_timeout_seconds": 180}}
    return data


def measure(settings: Settings, place: Place) -> Figures:
    if importlib.util.find_spec("vllm") is None:
        raise Skipped(f"vLLM is not installed for {sys.executable}")
    config = load_run_data(run_file(settings, place)).config
    with weights_made_on(place.device.name), open_rl_run(config, Console(quiet=True)) as run:
        steps = [run.train_step() for _ in range(3)]
    names = ("step", "generate", "update", "sync", "engine_sleep", "engine_start")
    told = {f"{name}_seconds": [row.get(f"time/{name}_seconds", 0.0) for row in steps] for name in names}
    return {
        "start_seconds": told.pop("engine_start_seconds")[0],
        **{name: statistics.median(values[1:]) for name, values in told.items()},
        "logprob_diff_max": max(row["rollout/logprob_diff_max"] for row in steps),
        "tokens_per_second": steps[-1]["throughput/response_tokens_per_second"],
        "allocated_bytes": place.device.allocated_peak(),
    }
