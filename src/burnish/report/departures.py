"""What a run's configuration says that defaults and preset would not: the few lines that tell a run from others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic_core import PydanticUndefined, to_jsonable_python

from burnish.config import fields
from burnish.config.kinds import kind_of_data
from burnish.config.preset_layer import preset_of
from burnish.config.schema import RUN_FILES, RunConfig
from burnish.types import Json

_NUMBER = re.compile(r"\.\d+(?=\.|$)")
_DOMAIN = re.compile(r"^domains\.[^.]+")


@dataclass(frozen=True, slots=True)
class Departure:
    """A field whose value is not what it would be by itself. `default` is None also where there is none."""

    path: str
    value: Json
    default: Json
    required: bool = False


def departures(resolved: Mapping[str, Json]) -> list[Departure]:
    """The fields of a resolved run file (`config.yaml`) that differ from the defaults and the run's preset, in order.

    Fields without a default are always among them; so are fields that this version does not know.
    """
    kind = kind_of_data(resolved)
    known = _defaults(RUN_FILES[kind])
    preset = preset_of(kind, resolved)
    known |= dict(preset.values) if preset is not None else {}
    found = []
    for path, value in leaves(resolved).items():
        default = known.get(_NUMBER.sub(".N", _DOMAIN.sub("domains.NAME", path)), PydanticUndefined)
        required = default is PydanticUndefined
        plain = None if required else to_jsonable_python(default)
        if required or value != plain:
            found.append(Departure(path, value, plain, required))
    return found


def _defaults(run_file: type[RunConfig]) -> dict[str, object]:
    """What each field is by itself."""
    return {item.path: item.info.get_default(call_default_factory=True) for item in fields.iter_fields(run_file)}


def leaves(value: Mapping[str, Json], prefix: str = "") -> dict[str, Json]:
    """Values by dotted path, where a list without sections is one value (`stop: [a, b]`), as a reader thinks of it."""
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
