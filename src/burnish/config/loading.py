"""From a run file and overrides to a checked configuration that knows where each of its values came from.

Layers from weakest to strongest: defaults, preset, run file, command line. Relative paths, both in a run file and on
the command line, are relative to the folder in which the command is started. Nothing here opens them.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from pydantic import ValidationError

from burnish.config import fields
from burnish.config.checks import check_complete
from burnish.config.explain import explain
from burnish.config.kinds import USUAL, find_kind, kind_of_keys
from burnish.config.preset_values import preset_of, preset_values
from burnish.config.problems import Problem, named, place_of, raise_problems
from burnish.config.schema_run import ConfigT, RunConfig
from burnish.config.secrets import masked, masked_places
from burnish.config.yaml_text import ParsedYaml, parse_value, parse_yaml, read_run_text
from burnish.errors import ConfigError
from burnish.outside.reading import reading
from burnish.types import Json

COMMAND_LINE = "command line"
FILE = "file"
DEFAULT = "default"
_MAX_PARTS = 50
"""Most parts in a dotted key."""


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A checked configuration. `provenance` maps the dotted path of every value to `default`, `preset NAME`, `file` or
    `command line`. `source` is the name of the run file in messages."""

    config: RunConfig
    provenance: Mapping[str, str]
    source: str

    def values(self) -> dict[str, Json]:
        """Every value by its dotted path, with secrets masked."""
        values = flat_values(self.config)
        return {path: masked(values[path], place=path) for path in self.provenance}

    def of(self, wanted: type[ConfigT]) -> ConfigT:
        """The configuration of a run of this kind. ConfigError if it is of another."""
        if isinstance(self.config, wanted):
            return self.config
        raise ConfigError(
            f"{self.source} is a run file of `burnish {self.config.kind}`", remedy=f"use one of `burnish {wanted.kind}`"
        )


@dataclass(slots=True)
class _Layers:
    """The data merged so far, and which layer set each leaf."""

    data: dict[str, Json] = field(default_factory=dict)
    provenance: dict[str, str] = field(default_factory=dict)

    def add(self, data: dict[str, Json], origin: str) -> None:
        _merge(self.data, data)
        self.set_by(origin, _flat(data))

    def set_by(self, origin: str, paths: Iterable[str]) -> None:
        """Record which layer set these leaves. Whatever was inside them is gone."""
        for path in paths:
            for inside in [known for known in self.provenance if known.startswith(f"{path}.")]:
                del self.provenance[inside]
            self.provenance[path] = origin


def load_run_file(path: str | Path, overrides: Sequence[str] = (), kind: str = USUAL) -> LoadedConfig:
    """Read, merge and check a run file. Overrides are `key.path=value`, with the value in YAML.

    Raises a ConfigError that lists every problem with its line (or override), value and remedy.
    """
    parsed = parse_yaml(read_run_text(Path(path)))
    with reading(f"{path}: reading the run file", ConfigError, remedy="look for odd keys and values in it"):
        return _load(parsed, overrides, kind, source=str(path))


def load_run_data(
    data: Mapping[str, Json], overrides: Sequence[str] = (), kind: str = USUAL, *, source: str = "run file"
) -> LoadedConfig:
    """Like `load_run_file`, from plain data instead of a file. Presets, shorthand forms and overrides work too."""
    return _load(ParsedYaml(copy.deepcopy(dict(data))), overrides, kind, source=source)


def kind_of_file(path: str | Path, overrides: Sequence[str] = ()) -> str:
    """Tell the kind of run from the keys of the file and of the overrides (`kind_of_keys`). A file that cannot be read
    may be of any kind: loading it then reports what is wrong."""
    data = parse_yaml(read_run_text(Path(path))).data
    words = {word.partition("=")[0].partition(".")[0] for word in overrides}
    return kind_of_data(data, words)


def kind_of_data(data: object, further_keys: Collection[str] = ()) -> str:
    """Like `kind_of_file`, for plain data."""
    if not isinstance(data, dict):
        return USUAL
    return kind_of_keys({*map(str, data), *further_keys}).name


def flat_values(config: RunConfig) -> dict[str, Json]:
    """Every value by its dotted path (list items by number); an empty list or section counts as a value."""
    return _flat(config.model_dump(mode="json"))


def _load(parsed: ParsedYaml, overrides: Sequence[str], kind: str, *, source: str) -> LoadedConfig:
    places = {key: f"{source}:{line}" for key, line in parsed.lines.items()}
    raise_problems(parsed.problems, source=source, where=places)
    if not isinstance(parsed.data, dict):
        found = "is empty" if parsed.data is None else f"contains {parsed.data!r:.80}, not keys with values"
        raise ConfigError(f"{source} {found}", remedy="write at least `model:` and `data:`; see docs/configuration.md")
    section = find_kind(kind).section
    _refuse_other_kind(parsed.data, kind, source)
    given = _Layers()
    given.add(fields.expand_section(section, parsed.data), FILE)
    problems = [problem for word in overrides for problem in _apply_override(section, given, places, word)]
    layers = _preset_layer(section, given.data)
    _merge(layers.data, given.data)
    for path, origin in given.provenance.items():
        layers.set_by(origin, [path])
    config, wrong = _validated(section, layers, kind)
    raise_problems(named([*problems, *wrong]), source=source, where=places)
    assert config is not None  # its errors are problems
    provenance = {path: place_of(path, layers.provenance, DEFAULT) for path in flat_values(config)}
    return LoadedConfig(config, provenance, source)


def _refuse_other_kind(data: dict[str, Json], kind: str, source: str) -> None:
    """Raise ConfigError for a run file with keys that only another kind of run has."""
    other, own = kind_of_keys(set(map(str, data))), find_kind(kind).section.model_fields
    foreign = [key for key in other.section.model_fields if key in data and key not in own]
    if other.name != kind and foreign:
        raise ConfigError(
            f"{source} is a run file of `burnish {other.name}`: it has {', '.join(foreign)}",
            remedy=f"start it with burnish {other.name}, or write what `burnish {kind}` needs (docs/configuration.md)",
        )


def _preset_layer(section: type[RunConfig], given: Mapping[str, Json]) -> _Layers:
    """The values of the preset; none for an unknown one, which the checks report with the nearest name."""
    layers, preset = _Layers(), preset_of(section, given)
    if preset is not None:
        nested: dict[str, Json] = {}
        for key, value in preset_values(preset, given).items():
            _put(nested, key.split("."), copy.deepcopy(value))
        layers.add(nested, f"preset {preset.name}")
    return layers


def _apply_override(
    section: type[RunConfig], given: _Layers, places: dict[str, str], override: str
) -> Iterator[Problem]:
    key, equals, text = override.partition("=")
    key = key.strip().lstrip("-")
    parts = key.split(".")
    if not equals or len(parts) > _MAX_PARTS or not all(part and part == part.strip() for part in parts):
        message = f"{override!r:.200} is not of the form key.path=value"
        yield Problem("", message, "for example rollout.group_size=4", COMMAND_LINE)
        return
    if places.get(key, "").startswith(f"{COMMAND_LINE} ({key}="):
        message = f"{key} is given twice on the command line: {places[key].removeprefix(COMMAND_LINE)} and ({override})"
        yield Problem("", message, "keep one of the two", COMMAND_LINE)
        return
    try:
        value = parse_value(text)
    except yaml.YAMLError as error:
        message = f"{override!r:.200}: the value is not readable as YAML: {error}"
        yield Problem("", message, "quote the value for YAML, for example 'output=\"my: run\"'", COMMAND_LINE)
        return
    value = fields.expand(fields.annotation_at(section, key), value)
    wrong = _put(given.data, parts, value)
    if wrong is not None:
        yield Problem("", f"{override!r:.200}: {wrong}", "give the whole list, or an index in it", COMMAND_LINE)
        return
    given.set_by(COMMAND_LINE, _flat(value, key))
    place = f"{COMMAND_LINE} ({override:.200})"
    for path in [key, *_flat(value, key)]:
        places[path] = place
    for length in range(1, len(parts)):
        places.setdefault(".".join(parts[:length]), place)


def _put(target: dict[str, Json] | list[Json], parts: Sequence[str], value: Json, path: str = "") -> str | None:
    """Put a value at a dotted path, merging it with a section that is already there. `path` is the path of `target`.
    Returns what is wrong with a list index in the path, if anything."""
    part, rest = parts[0], parts[1:]
    inside: Json
    if isinstance(target, list):
        wrong = _index_problem(target, part, path)
        if wrong is not None:
            return wrong
        inside = target[int(part)]
    else:
        inside = target.get(part)
    if rest and isinstance(inside, (dict, list)):
        return _put(inside, rest, value, f"{path}.{part}".lstrip("."))
    for word in reversed(rest):
        value = {word: value}
    if isinstance(target, list):
        target[int(part)] = value
    else:
        _merge(target, {part: value})
    return None


def _index_problem(items: list[Json], part: str, path: str) -> str | None:
    if not (part.isascii() and part.isdigit()) or int(part) >= len(items):
        numbers = f"0 to {len(items) - 1}" if items else "none"
        return f"{path} has {len(items)} entries (index {numbers}), and {part!r} is not one of them"
    return None


def _validated(section: type[RunConfig], layers: _Layers, kind: str) -> tuple[RunConfig | None, list[Problem]]:
    """The configuration, None if it has errors, and its problems."""
    config, problems = None, []
    try:
        config = section.model_validate(layers.data)
        problems = check_complete(config, f"burnish {kind}")
    except ValidationError as error:
        problems = explain(error, section, layers.data, layers.provenance)
    return config, problems + [_masked_value(place) for place in masked_places(layers.data)]


def _masked_value(place: str) -> Problem:
    message = "was masked when this file was written because it looks like a secret"
    return Problem(place, message, f"give the value again, for example on the command line: {place}=VALUE")


def _merge(base: dict[str, Json], top: Mapping[str, Json]) -> None:
    for key, value in top.items():
        below = base.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            _merge(below, value)
        else:
            base[key] = value


def _flat(value: Json, prefix: str = "") -> dict[str, Json]:
    """Collect the values that contain no other values (including empty lists and sections), by dotted path."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    found: dict[str, Json] = {}
    for key, item in items:
        found |= _flat(item, f"{prefix}.{key}" if prefix else str(key))
    return found or {prefix: value}
