"""Several trainers, each with a device: sharding, and rollout workers that sample ahead."""

from __future__ import annotations

import statistics
from typing import Any

from rows import Figures, Place, Row, Settings, Skipped

import burnish
from burnish.observability.history import read_rows
from parts.steps import run_data

LAYOUTS: dict[str, dict[str, Any]] = {
    "two trainers": {"cluster": {"trainers": 2, "lanes": 2, "sharding": "whole"}},
    "the optimizer in slices": {"cluster": {"trainers": 2, "lanes": 2, "sharding": "optimizer"}},
    "everything in slices": {"cluster": {"trainers": 2, "lanes": 2, "sharding": "full", "rollout_workers": 1}},
    "a rollout worker ahead": {"cluster": {"rollout_workers": 1}, "max_staleness": 1},
    "two lanes": {"cluster": {"lanes": 2}},
}
"""`two lanes` are one process, for a rehearsal: the tests of the cluster start the others."""


def rows(toy: bool) -> list[Row]:
    layouts = ["two lanes"] if toy else list(LAYOUTS)[:-1]
    return [
        Row("several", f"{shape}, {layout}", {"shape": shape, "layout": layout, "sizes": TOY if toy else {}}, 240)
        for shape in (("toy",) if toy else ("0.5b", "1.7b"))
        for layout in layouts
    ]


TOY = {"prompts": 2, "group": 2, "prompt": 8, "response": 4}


def run_file(settings: Settings, place: Place) -> dict[str, Any]:
    return run_data(settings, place, steps=1 if settings["sizes"] else 4, **LAYOUTS[settings["layout"]])


def measure(settings: Settings, place: Place) -> Figures:
    cluster = LAYOUTS[settings["layout"]]["cluster"]
    needed, there = cluster.get("trainers", 1) + cluster.get("rollout_workers", 0), place.device.count()
    if there < needed:
        raise Skipped(f"it needs {needed} GPUs, and this machine has {there}")
    burnish.train(run_file(settings, place), quiet=True)
    found = read_rows(place.folder / "run" / "metrics.jsonl")[-2:]
    names = ("step", "generate", "update", "sync")
    return {
        **{f"{name}_seconds": statistics.median(r.get(f"time/{name}_seconds", 0.0) for r in found) for name in names},
        "tokens_per_second": found[-1]["throughput/response_tokens_per_second"],
        "logprob_diff_max": max(row["rollout/logprob_diff_max"] for row in found),
    }
