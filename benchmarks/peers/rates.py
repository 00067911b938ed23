"""The best matrix rate of this machine, which is what steps are held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from parent import run_script

HERE = Path(__file__).parent


def measure_rates(threads: int, variables: Mapping[str, str], *, quick: bool) -> dict[str, Any]:
    """Multiply-adds per second of each kind of product, and their errors. `variables` are added to the environment."""
    return run_script(HERE / "run_rates.py", {"threads": threads, "quick": quick}, environment=variables)


def best_of(measured: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The highest of several measurements of one machine, kind by kind: other work can only make one too low, and a
    floor by a low rate flatters."""
    kinds = measured[0]["macs_per_second"]
    highest = {kind: max(rates["macs_per_second"][kind] for rates in measured) for kind in kinds}
    return {**measured[0], "macs_per_second": highest}


def rate_at(rates: Mapping[str, Any], precision: str) -> float:
    """Multiply-adds per second at a precision."""
    return max(rates["macs_per_second"][kind] for kind in kinds_at(rates, precision))


def kinds_at(rates: Mapping[str, Any], precision: str) -> list[str]:
    """Kinds of products that count at a precision: the faster float32 only where it is as accurate."""
    return ["float32", "float32_fast"] if rates["fast_is_accurate"] and precision == "float32" else [precision]
