"""Algorithms by name, from `presets.json`: each preset sets the fields of a run file that it changes.

The two lineage presets also set values that equal today's defaults, so that a changed default does not change them;
docs/lineage.md gives the source of each. `burnish algorithms NAME` prints one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from burnish.types import Json


@dataclass(frozen=True, slots=True)
class Preset:
    """One preset: a summary, its paper, and what it sets, by dotted path (`steps`, `algorithm.loss_options`)."""

    name: str
    summary: str
    source: str
    values: Mapping[str, Json]


def _values(sets: Mapping[str, Json]) -> dict[str, Json]:
    values: dict[str, Json] = {}
    for name, value in sets.items():
        values |= {f"{name}.{field}": one for field, one in value.items()} if isinstance(value, dict) else {name: value}
    return values


_TABLE = json.loads(Path(__file__).with_name("presets.json").read_text(encoding="utf-8"))
PRESETS, RM_PRESETS = (
    {name: Preset(name, row["summary"], row["source"], _values(row["sets"])) for name, row in _TABLE[kind].items()}
    for kind in ("rl", "rm")
)
"""Presets of `burnish rl`, and of the reward models of its two lineage presets."""
