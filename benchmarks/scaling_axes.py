"""The axes of `scaling.py`: which sizes are measured, and what may grow how fast along each. Plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scaling_fit import Growth, Verdict, fit_growth, fit_peak, fit_power, judge

PHASES = ("generate", "logprobs", "update", "step")
BASE = {"prompts": 8, "group": 3, "prompt": 32, "response": 32, "vocabulary": 2048, "hidden": 128, "layers": 4}
"""With these numbers whole groups fill the micro-batches of scaling_point.py, along most axes: how full they happen to
be would otherwise be read as growth."""
LINEAR = 1.15
"""For what is meant to grow linearly. Above 1 for small quadratic parts (attention) and for what the processor's caches
no longer hold at larger sizes."""
READS_ITS_PAST = 1.5
"""For sampling against response length: between the linear products and the keys and values read for every token, which
are quadratic. In a model of this width reading them is most of the time from some hundred tokens on."""
CONSTANT = 0.15
"""For what is meant to stay the same. Above 0 for batches that are filled better by larger steps, and for the tokens
themselves with a few numbers to each."""
NOISE = {"seconds": 0.03, "bytes": 0.05}
"""Relative standard deviation of the same point measured in another process."""


@dataclass(frozen=True)
class Axis:
    """One size changes, the others are those of BASE.

    bounds: of the exponents of seconds by phase where they are not LINEAR. constant: phases whose memory is meant to
    stay the same (that of the others is meant to be linear).
    """

    name: str
    label: str
    changes: str
    values: tuple[int, ...]
    bounds: Mapping[str, float] = field(default_factory=dict)
    constant: tuple[str, ...] = ()

    def points(self, quick: bool) -> list[dict[str, int]]:
        return [BASE | {self.changes: value} for value in (self.values[:-1] if quick else self.values)]

    def size(self, measured: Mapping[str, Any]) -> int:
        """Where a measured point stands on the axis."""
        return measured["parameters"] if self.changes in ("hidden", "layers") else measured["point"][self.changes]


AXES = (
    Axis(
        "response length",
        "response tokens",
        "response",
        (16, 32, 64, 128, 256),
        bounds={"generate": READS_ITS_PAST, "step": READS_ITS_PAST},
        constant=("logprobs", "update"),
    ),
    Axis("prompt length", "prompt tokens", "prompt", (16, 32, 64, 128, 256), constant=("logprobs", "update")),
    Axis("group size", "responses to a prompt", "group", (3, 7, 15, 30, 60), constant=PHASES),
    Axis("prompts per step", "prompts", "prompts", (4, 8, 16, 32, 64), constant=PHASES),
    Axis("vocabulary", "tokens in the vocabulary", "vocabulary", (2048, 4096, 8192, 16_384, 32_768)),
    Axis("model width", "parameters", "hidden", (64, 128, 192, 256, 384)),
    Axis("model depth", "parameters", "layers", (2, 4, 8, 16, 24)),
)


@dataclass(frozen=True)
class Finding:
    """The growth of `seconds` or `bytes` of a phase along an axis; `arithmetic`: the exponent of its multiply-adds
    (None for bytes)."""

    axis: str
    quantity: str
    phase: str
    growth: Growth
    arithmetic: float | None
    bound: float
    verdict: Verdict

    def __str__(self) -> str:
        g = self.growth
        return (
            f"{self.axis}: {self.quantity} of {self.phase} grow with exponent {g.exponent:.2f} "
            f"({g.low:.2f} to {g.high:.2f}), bound {self.bound:.2f}"
        )


def examine(axis: Axis, measured: Sequence[Mapping[str, Any]], clock: str) -> list[Finding]:
    """Growth along the axis. `measured`, by increasing size: point, parameters, and by phase macs, bytes and
    seconds[clock]."""
    sizes = [axis.size(point) for point in measured]
    found = []
    for phase in PHASES:
        growth = fit_growth(sizes, [point["seconds"][clock][phase] for point in measured], noise=NOISE["seconds"])
        arithmetic = fit_growth(sizes, [point["macs"][phase] for point in measured], noise=0.0).exponent
        bound = axis.bounds.get(phase, LINEAR)
        found.append(Finding(axis.name, "seconds", phase, growth, arithmetic, bound, judge(growth, bound)))
    for phase in PHASES:
        fit, bound = (fit_power, CONSTANT) if phase in axis.constant else (fit_peak, LINEAR)
        growth = fit(sizes, [point["bytes"][phase] for point in measured], noise=NOISE["bytes"])
        found.append(Finding(axis.name, "bytes", phase, growth, None, bound, judge(growth, bound)))
    return found
