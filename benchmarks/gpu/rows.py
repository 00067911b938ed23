"""A row is one measurement: where it is made, what it may take, and what it should reach. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from device import Device

Settings = Mapping[str, Any]
Figures = dict[str, Any]
"""Numbers and words by name. The name's end is its unit: `_seconds`, `_bytes`, `_share` (of 1), `_per_second`."""


@dataclass(frozen=True)
class Target:
    """What a figure should reach, and what others published of the same."""

    figure: str
    at_least: float | None = None
    at_most: float | None = None
    published: str = ""

    def reached(self, figures: Mapping[str, Any]) -> bool | None:
        """None if the figure was not measured."""
        found = figures.get(self.figure)
        if not isinstance(found, (int, float)):
            return None
        return (self.at_least is None or found >= self.at_least) and (self.at_most is None or found <= self.at_most)


@dataclass(frozen=True)
class Row:
    """`settings` say all of the work, so a row can be measured in another process. `seconds` is its deadline."""

    part: str
    name: str
    settings: Settings = field(default_factory=dict)
    seconds: float = 120.0
    targets: tuple[Target, ...] = ()


@dataclass(frozen=True)
class Place:
    """Where a row is measured. `folder` is its own, and empty."""

    device: Device
    folder: Path


class Skipped(Exception):
    """A row that cannot be measured here, and why."""
