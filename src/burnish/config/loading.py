"""From a run file and overrides to a checked configuration that knows where each of its values came from.

Layers from weakest to strongest: defaults, preset, run file, command line. Relative paths, both in a run file and on
the command line, are relative to the folder in which the command is started. Nothing here opens them.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import ValidationError

from burnish.config import fields
from burnish.config.checks import check_complete
from burnish.config.explain import explain
from burnish.config.kinds import USUAL, find_kind, kind_of_keys
from burnish.config.preset_layer import preset_of, preset_values
from burnish.config.problems import Problem, named, place_of, raise_problems
from burnish.config.schema_run import RunConfig
from burnish.config.secrets import masked, masked_places
from burnish.config.yaml_text import ParsedYaml, parse_value, parse_yaml, read_run_text
from burnish.errors import ConfigError
from burnish.outside.reading import reading
from burnish.types import Json

_Run = TypeVar("_Run", bound=RunConfig)

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

    def of(self, wanted: type[_Run]) -> _Run:
        """The configuration of a run of this kind. ConfigError if it is of another."""
        if isinstance(self.config, wanted):
            return self.config
        raise ConfigError(
            f"{self.source} is a run file of `burnish {self.config.kind}`",
            remedy=f"use one of `burnish {wanted.kind}`",
        )


@dataclass(slots=True)
class _Layers:
    """The data merged so far, which layer set each leaf, and the place of each key for error messages."""

    kind: str
    data: dict[str, Json] = field(default_factory=dict)
    provenance: dict[str, str] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    @property
    def section(self) -> type[RunConfig]:
        return find_kind(self.kind).section

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
    layers = _Layers(kind)
    layers.places = {key: f"{source}:{line}" for key, line in parsed.lines.items()}
    raise_problems(parsed.problems, source=source, where=layers.places)
    if not isinstance(parsed.data, dict):
        found = "is empty" if parsed.data is None else f"contains {parsed.data!r:.80}, not keys with values"
        raise ConfigError(f"{source} {found}", remedy="write at least `model:` and `data:`; see docs/configuration.md")
    given = _Layers(kind)
    given.add(fields.expand_section(layers.section, parsed.data), FILE)
    for override in overrides:
        given.problems += _apply_override(given, layers.places, override)
    _add_preset(layers, given.data)
    _merge(layers.data, given.data)
    for path, origin in given.provenance.items():
        layers.set_by(origin, [path])
    config = _validate(layers, given.problems, source)
    provenance = {path: place_of(path, layers.provenance, DEFAULT) for path in flat_values(config)}
    return LoadedConfig(config, provenance, source)


def _add_preset(layers: _Layers, given: Mapping[str, Json]) -> None:
    preset = preset_of(layers.section, given)
    if preset is None:
        return  # no preset, or an unknown one, which the checks report with the nearest name
    nested: dict[str, Json] = {}
    for key, value in preset_values(preset, given).items():
        _put(nested, key.split("."), copy.deepcopy(value))
    layers.add(nested, f"preset {preset.name}")


def _apply_override(given: _Layers, places: dict[str, str], override: str) -> Iterator[Problem]:
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
    annotation = fields.annotation_at(given.section, key)
    value = value if annotation is None else fields.expand(annotation, value)
    wrong = _put(given.data, key.split("."), value)
    if wrong is not None:
        yield Problem("", f"{override!r:.200}: {wrong}", "give the whole list, or an index in it", COMMAND_LINE)
        return
    given.set_by(COMMAND_LINE, _flat(value, key))
    place = f"{COMMAND_LINE} ({override:.200})"
    for path in [key, *_flat(value, key)]:
        places[path] = place
    for length in range(1, key.count(".") + 1):
        places.setdefault(".".join(key.split(".")[:length]), place)


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


def _validate(layers: _Layers, problems: list[Problem], source: str) -> RunConfig:
    problems = list(problems)
    config: RunConfig | None = None
    try:
        config = layers.section.model_validate(layers.data)
    except ValidationError as error:
        problems += explain(error, layers.section, layers.data, layers.provenance)
    if config is not None:
        problems += check_complete(config, f"burnish {layers.kind}")
    problems += [_masked_value(place) for place in masked_places(layers.data)]
    raise_problems(named(problems), source=source, where=layers.places)
    if config is None:  # explain() never returns an empty list for an error
        raise ConfigError(f"{source} cannot be used", remedy="see docs/configuration.md")
    return config


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
    items: list[tuple[str, Json]] = []
    if isinstance(value, dict):
        items = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [(str(index), item) for index, item in enumerate(value)]
    found: dict[str, Json] = {}
    for key, item in items:
        found |= _flat(item, f"{prefix}.{key}" if prefix else key)
    return found or {prefix: value}
