"""Burnish beside TRL on the same work. Each row is a trial of one setting, so both sides are searched, and the search
goes on where an earlier call ended. The work and both programs are those of benchmarks/peers."""

from __future__ import annotations

import dataclasses
import importlib.util
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from models import write_model, write_prompts
from parent import ScriptFailed, run_script
from records import ROOT, sources_digest
from rows import Figures, Place, Row, Settings, Skipped
from settings import TrlSettings
from workloads import Workload, check_same_work, encode, planned_lengths

PEERS = ROOT / "benchmarks" / "peers"
WARMUP, STEPS = 1, 2
SHAPES = {"0.5b": "half", "1.7b": "large", "toy": "tiny"}
"""Names of the models in benchmarks/peers."""
TRIAL_SECONDS = 110.0
FASTER, SMALLER = 2.0, 0.7
"""Targets: at least so many times TRL's tokens per second, in at most this share of its memory."""


def rows(toy: bool) -> list[Row]:
    if toy:
        return [burnish_row("toy", 256), trl_row("toy", 4)]
    found = []
    for shape in ("0.5b", "1.7b"):
        found += [trl_row(shape, 16), burnish_row(shape, 16_384), trl_row(shape, 32), burnish_row(shape, 65_536)]
        found += [trl_row(shape, 64), trl_row(shape, 8), burnish_row(shape, 32_768), burnish_row(shape, 8192)]
        found += [trl_row(shape, 64, checkpointing=True)]
    return found


def burnish_row(shape: str, tokens: int) -> Row:
    settings = {"peer": "burnish", "shape": shape, "microbatch_tokens": tokens}
    return Row("peers", f"{shape}, Burnish, {tokens:,} tokens", settings, TRIAL_SECONDS)


def trl_row(shape: str, count: int, *, checkpointing: bool = False) -> Row:
    own = dataclasses.asdict(TrlSettings(rows=count, checkpointing=checkpointing))
    name = f"{shape}, TRL, {count} rows{', checkpointing' if checkpointing else ''}"
    return Row("peers", name, {"peer": "trl", "shape": shape, "settings": own}, TRIAL_SECONDS)


def workload_of(shape: str) -> Workload:
    if shape == "toy":
        return Workload("GPU", "toy", SHAPES[shape], 2, 2, 8, 8)
    return Workload("GPU", "8 x 8, prompt 256, response geometric", SHAPES[shape], 8, 8, 256, 512, 256)


def measure(settings: Settings, place: Place) -> Figures:
    peer, workload = settings["peer"], workload_of(settings["shape"])
    if peer == "trl" and importlib.util.find_spec("trl") is None:
        raise Skipped("TRL is not installed (docs/gpu.md says how its wheels are packed)")
    prompts = place.folder / "prompts.jsonl"
    write_prompts(workload, (WARMUP + STEPS) * workload.prompts, [], prompts)
    task = {
        "workload": encode(workload),
        "model": str(written_model(workload.model)),
        "prompts": str(prompts),
        "output": str(place.folder / "run"),
        "precision": "bfloat16",
        "threads": 1 if workload.model == "tiny" else 8,
        "warmup": WARMUP,
        "steps": STEPS,
        "device": place.device.name,
        "naive": False,
        "checkpointing": False,
        **{name: settings[name] for name in ("microbatch_tokens", "settings") if name in settings},
    }
    try:
        result = run_script(PEERS / f"run_{peer}.py", task, environment={}, timeout=TRIAL_SECONDS)
    except ScriptFailed as failed:
        raise RuntimeError(failed.reason) from failed
    check_same_work(peer, workload, result, planned_lengths(workload, prompts, range(WARMUP, WARMUP + STEPS)))
    return figures_of(result)


def figures_of(result: Mapping[str, Any]) -> Figures:
    step = statistics.median(seconds["step"] for seconds in result["seconds"])
    tokens = statistics.median(sum(map(sum, lengths)) for lengths in result["lengths"])
    phases = {
        f"{name}_seconds": statistics.median(seconds.get(name, 0.0) for seconds in result["seconds"])
        for name in ("generate", "reward", "logprobs", "update")
    }
    memory = result.get("device_peak_bytes", result.get("peak_bytes"))
    return {"tokens_per_second": tokens / step, "step_seconds": step, **phases, "peak_bytes": memory}


def written_model(name: str) -> Path:
    """Written once for all trials of this machine."""
    folder = Path(tempfile.gettempdir()) / f"burnish-gpu-{name}-{sources_digest()}"
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(prefix="burnish-gpu-") as part:
            write_model(name, Path(part) / "model")
            with suppress(OSError):  # another process may have been faster
                (Path(part) / "model").rename(folder)
    return folder


def summary(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """The fastest of each side, compared."""
    lines = []
    for shape in SHAPES:
        best = {peer: fastest(records, f"{shape}, {peer}, ") for peer in ("Burnish", "TRL")}
        ours, theirs = best["Burnish"], best["TRL"]
        if ours is None or theirs is None:
            continue
        faster = ours["tokens_per_second"] / theirs["tokens_per_second"]
        smaller = ours["peak_bytes"] / theirs["peak_bytes"]
        verdicts = [("reached" if ok else "missed") for ok in (faster >= FASTER, smaller <= SMALLER)]
        lines.append(
            f"{shape}: the fastest setting of Burnish makes {faster:.2f}x the tokens per second of TRL's fastest "
            f"(target {FASTER:g}x: {verdicts[0]}) in {smaller:.2f} of its memory (target {SMALLER:g}: {verdicts[1]})."
        )
    return lines


def fastest(records: Sequence[Mapping[str, Any]], prefix: str) -> Mapping[str, Any] | None:
    found = [r["figures"] for r in records if r["row"].startswith(prefix) and "figures" in r]
    return max(found, key=lambda figures: figures["tokens_per_second"], default=None)
