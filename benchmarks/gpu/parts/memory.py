"""Planned against measured memory of the device, by phase of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from device import Device
from rich.console import Console
from rows import Figures, Place, Row, Settings, Target
from shapes import weights_made_on

from burnish.config.loading import load_run_data
from burnish.planning.memory import Phase, bytes_in, estimate_memory
from burnish.trainers.placement import model_facts
from burnish.trainers.rl.setup.parts import open_rl_run
from parts.steps import run_data

PLANNED: dict[str, tuple[Phase, ...]] = {
    "generate": ("sampling",),
    "logprobs": ("log-probabilities", "reference"),
    "values": ("values",),
    "update": ("update", "optimizer step", "critic update", "critic's optimizer step"),
}
"""Phases of the plan within each phase of a run."""
PPO = {"algorithm": {"preset": "ppo", "kl_in": "reward", "kl_coef": 0.05}, "critic": {"kind": "separate"}}
KL = {"algorithm": {"preset": "grpo", "kl_in": "loss", "kl_coef": 0.05}}
HOLDS = (Target("largest_ratio", at_most=1.05),)
"""The device must not need more than was planned; 5 % are for what PyTorch itself takes."""


def rows(toy: bool) -> list[Row]:
    if toy:
        sizes = {"prompts": 2, "group": 2, "prompt": 8, "response": 4}
        return [memory_row("toy", "ppo", PPO, sizes=sizes, targets=())]
    return [
        memory_row("0.5b", "grpo", {}),
        memory_row("0.5b", "grpo with a reference", KL),
        memory_row("0.5b", "ppo with a critic", PPO),
        memory_row("1.7b", "grpo", {}),
        memory_row("1.7b", "grpo, the optimizer rests", {"cluster": {"offload": ["optimizer"]}}),
        memory_row("7b", "grpo lora", {}, lora=True),
        memory_row("0.5b", "grpo, 49,152 tokens", {}, tokens=49_152),
    ]


def memory_row(
    shape: str, name: str, changes: Settings, targets: tuple[Target, ...] = HOLDS, **settings: object
) -> Row:
    return Row("memory", f"{shape}, {name}", {"shape": shape, "changes": changes, **settings}, 120, targets)


class PhasePeaks:
    """Stands in the place of the display's announcements, which name each phase as it begins, and "" after it."""

    def __init__(self, device: Device) -> None:
        self._device, self._phase = device, ""
        self.bytes: dict[str, int] = {}

    def phase(self, name: str) -> None:
        if self._phase:
            self._device.synchronize()
            most = max(self.bytes.get(self._phase, 0), self._device.allocated_peak())
            self.bytes[self._phase] = most
        self._device.reset_peak()
        self._phase = name


def run_file(settings: Settings, place: Place) -> dict[str, Any]:
    return run_data(settings, place, steps=2, **settings["changes"])


def measure(settings: Settings, place: Place) -> Figures:
    config = load_run_data(run_file(settings, place)).config
    sizes = model_facts(config)
    assert sizes is not None
    planned = estimate_memory(config, sizes, on_gpu=True)
    peaks = PhasePeaks(place.device)
    with weights_made_on(place.device.name), open_rl_run(config, Console(quiet=True)) as run:
        announce: Callable[[str], None] = peaks.phase
        run.journal.display.phase = announce  # type: ignore[method-assign]
        for _ in range(2):
            run.train_step()
    figures: Figures = {}
    for phase, parts in PLANNED.items():
        if phase in peaks.bytes:
            expected = max(bytes_in(part, planned) for part in parts)
            figures[f"{phase}_planned_bytes"], figures[f"{phase}_bytes"] = expected, peaks.bytes[phase]
    ratios = [found / figures[f"{phase}_planned_bytes"] for phase, found in peaks.bytes.items() if phase in PLANNED]
    return {"largest_ratio": max(ratios), **figures, "reserved_bytes": place.device.reserved_peak()}
