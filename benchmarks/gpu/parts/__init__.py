"""One module for each part: `rows(toy)` lists its measurements, `measure(settings, place)` makes one."""

from __future__ import annotations

import importlib

from rows import Row

PARTS = ("tests", "exact", "steps", "decode", "memory", "peers", "learn", "vllm", "several")
"""In the order of a first day: right numbers, then figures, then what needs more than one GPU alone."""


def rows_of(part: str, *, rehearses: bool) -> list[Row]:
    """The rows of a part, what matters most first."""
    found: list[Row] = importlib.import_module(f"parts.{part}").rows(rehearses)
    return found
