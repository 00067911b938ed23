"""The configuration of runs, and how they differ from the defaults and from each other."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from pydantic_core import PydanticUndefined, to_jsonable_python

from burnish.board.turns import as_text
from burnish.config.kinds import find_kind
from burnish.config.loading import kind_of_data
from burnish.config.preset_values import values_beneath
from burnish.config.secrets import masked_yaml
from burnish.config.yaml_text import parse_yaml
from burnish.types import Json

_NUMBER = re.compile(r"\.\d+(?=\.|$)")
_DOMAIN = re.compile(r"^domains\.[^.]+")


@dataclass(frozen=True, slots=True)
class Departure:
    """A field whose value differs from its default. `default` is also None if there is none."""

    path: str
    value: Json
    default: Json
    required: bool = False


@dataclass(frozen=True, slots=True)
class Configuration:
    """The resolved run file of a run, with its secrets masked. `text` and `departures` are None, and the others empty,
    if config.yaml is missing or cannot be read; `values` has all fields by path."""

    name: str
    text: str | None
    data: Mapping[str, Json]
    values: Mapping[str, Json]
    departures: Sequence[Departure] | None


class ConfigurationRow(TypedDict):
    """A field in which a run differs from the defaults, with a value for each run."""

    path: str
    values: list[str]
    default: str
    differs: bool


def read_configuration(run_dir: Path, name: str) -> Configuration:
    """Read `config.yaml` of a run. DataError, or an OSError or UnicodeError, if it cannot be read."""
    text = masked_text(run_dir / "config.yaml")
    data = None if text is None else parse_yaml(text).data
    if not isinstance(data, dict):
        return Configuration(name, text, {}, {}, None)
    return Configuration(name, text, data, leaves(data), departures(data))


def configuration_table(runs: Sequence[Configuration]) -> list[ConfigurationRow]:
    """Make a row for each field in which some run differs from the defaults and its preset: field, default, and a value
    per run; empty for a run without the field. Runs with different presets may have different defaults."""
    found: dict[str, dict[str, Departure]] = {}
    for run in runs:
        for departure in run.departures or ():
            found.setdefault(departure.path, {})[run.name] = departure
    table: list[ConfigurationRow] = []
    for path, by_run in found.items():
        values = [as_text(run.values[path]) if path in run.values else "" for run in runs]
        own = {value for run, value in zip(runs, values, strict=True) if run.name not in by_run and value}
        own |= {as_text(departure.default) for departure in by_run.values()}
        default = own.pop() if len(own) == 1 else "by preset"
        if any(departure.required for departure in by_run.values()):
            default = ""
        table.append({"path": path, "values": values, "default": default, "differs": len(set(values)) > 1})
    return table


def departures(resolved: Mapping[str, Json]) -> list[Departure]:
    """Find the fields of a resolved run file (`config.yaml`) that differ from defaults and the run's preset, in order.

    Fields without a default, and fields that this version does not know, are always included.
    """
    known = values_beneath(find_kind(kind_of_data(resolved)).section, resolved)
    found = []
    for path, value in leaves(resolved).items():
        default = known.get(_NUMBER.sub(".N", _DOMAIN.sub("domains.NAME", path)), PydanticUndefined)
        required = default is PydanticUndefined
        plain = None if required else to_jsonable_python(default)
        if required or value != plain:
            found.append(Departure(path, value, plain, required))
    return found


def leaves(value: Mapping[str, Json], prefix: str = "") -> dict[str, Json]:
    """Flatten to values by dotted path. A list without sections is one value (`stop: [a, b]`), as a reader sees it."""
    found: dict[str, Json] = {}
    for key, item in value.items():
        path = f"{prefix}.{key}" if prefix else str(key)
        sections = [entry for entry in item if isinstance(entry, dict)] if isinstance(item, list) else []
        if isinstance(item, list) and item and len(sections) == len(item):
            for number, entry in enumerate(sections):
                found |= leaves(entry, f"{path}.{number}")
        elif isinstance(item, dict) and item:
            found |= leaves(item, path)
        else:
            found[path] = item
    return found


def masked_text(path: Path) -> str | None:
    """Read a text with its secrets masked, because the page may be passed on; None if there is no such file."""
    return masked_yaml(path.read_text(encoding="utf-8")) if path.exists() else None
