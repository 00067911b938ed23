"""What a run's configuration says that defaults and preset would not: the few lines that tell a run from others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import PydanticUndefined, to_jsonable_python

from burnish.config import fields
from burnish.config.kinds import kind_of_data
from burnish.config.loading import SECTIONS, preset_of
from burnish.config.writing import flat_leaves

_NUMBER = re.compile(r"\.\d+(?=\.|$)")


@dataclass(frozen=True, slots=True)
class Departure:
    """A field whose value is not what it would be by itself. `default` is None also where there is none."""

    path: str
    value: Any
    default: Any
    required: bool = False


def departures(resolved: Mapping[str, Any]) -> list[Departure]:
    """The fields of a resolved run file (`config.yaml`) that differ from the defaults and the run's preset, in order.

    Fields without a default are always among them; so are fields that this version does not know.
    """
    kind = kind_of_data(resolved)
    known: dict[str, Any] = {}
    for item in fields.iter_fields(SECTIONS[kind]):
        known[item.path] = item.info.get_default(call_default_factory=True)
    preset = preset_of(kind, resolved)
    known |= dict(preset.values) if preset is not None else {}
    found = []
    for path, value in flat_leaves(resolved).items():
        default = known.get(_NUMBER.sub(".N", path), PydanticUndefined)
        required = default is PydanticUndefined
        plain = None if required else to_jsonable_python(default)
        if required or value != plain:
            found.append(Departure(path, value, plain, required))
    return found
