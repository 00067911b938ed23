"""From a run file and overrides to a checked configuration, and where each of its values came from.

Layers from weakest to strongest: defaults, preset, run file, command line. Relative paths in a run file and on the
command line alike are relative to the folder in which the command is started; nothing here opens them.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import ValidationError

from burnish.config import fields
from burnish.config.checks import check_complete
from burnish.config.explain import explain
from burnish.config.presets import PRESETS, RM_PRESETS, Preset
from burnish.config.problems import Problem, raise_problems
from burnish.config.schema import AlgorithmConfig, RlConfig, RunConfig, SftConfig
from burnish.config.schema_rm import RmConfig
from burnish.config.secrets import masked_places
from burnish.config.yaml_text import ParsedYaml, parse_value, parse_yaml
from burnish.errors import ConfigError
from burnish.reading import file_problem, read_at_most, reading

Kind = Literal["rl", "sft", "rm"]
COMMAND_LINE = "command line"
FILE = "file"
DEFAULT = "default"
SECTIONS: dict[str, type[RunConfig]] = {"rl": RlConfig, "sft": SftConfig, "rm": RmConfig}
_MAX_BYTES = 250_000
"""A run file has a few thousand; PyYAML needs a second for so many."""
_MAX_PARTS = 50
"""Most words between the dots of a key."""


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A checked configuration; `provenance` maps the dotted path of every value to `default`, `preset NAME`, `file` or
    `command line`; `source` is what messages call the run file."""

    config: RunConfig
    provenance: Mapping[str, str]
    source: str

    @property
    def rl(self) -> RlConfig:
        """The configuration as that of an RL run. ConfigError when it is another kind."""
        if not isinstance(self.config, RlConfig):
            raise self._other_kind("rl")
        return self.config

    @property
    def sft(self) -> SftConfig:
        """The configuration as that of a supervised run. ConfigError when it is another kind."""
        if not isinstance(self.config, SftConfig):
            raise self._other_kind("sft")
        return self.config

    @property
    def rm(self) -> RmConfig:
        """The configuration as that of a reward model's run. ConfigError when it is another kind."""
        if not isinstance(self.config, RmConfig):
            raise self._other_kind("rm")
        return self.config

    def _other_kind(self, wanted: str) -> ConfigError:
        own = next(kind for kind, section in SECTIONS.items() if section is type(self.config))
        return ConfigError(f"{self.source} is a run file of `burnish {own}`", remedy=f"use one of `burnish {wanted}`")


@dataclass(slots=True)
class _Layers:
    """The merged data so far, who set each leaf, and where to point for each key."""

    kind: Kind
    data: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, str] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    @property
    def section(self) -> type[RunConfig]:
        return SECTIONS[self.kind]

    def add(self, data: dict[str, Any], origin: str) -> None:
        _merge(self.data, data)
        for path in _leaves(data):
            _forget_inside(self.provenance, path)
            self.provenance[path] = origin


def load_run_file(path: str | Path, overrides: Sequence[str] = (), kind: Kind = "rl") -> LoadedConfig:
    """Read, merge and check a run file. Overrides are `key.path=value`, the value as YAML reads it.

    Raises ConfigError that shows every problem with its line (or the override), value and remedy.
    """
    parsed = parse_yaml(read_run_text(Path(path)))
    with reading(f"{path}: reading the run file", ConfigError, remedy="look for odd keys and values in it"):
        return _load(parsed, overrides, kind, source=str(path))


def load_run_data(
    data: Mapping[str, Any], overrides: Sequence[str] = (), kind: Kind = "rl", *, source: str = "run file"
) -> LoadedConfig:
    """The same from plain data instead of a file: presets apply, shorthand forms and overrides work."""
    return _load(ParsedYaml(copy.deepcopy(dict(data))), overrides, kind, source=source)


def _load(parsed: ParsedYaml, overrides: Sequence[str], kind: Kind, *, source: str) -> LoadedConfig:
    if not isinstance(parsed.data, dict) and not parsed.problems:
        found = "is empty" if parsed.data is None else f"holds {parsed.data!r:.80}, not keys with values"
        raise ConfigError(f"{source} {found}", remedy="write at least `model:` and `data:`; see docs/configuration.md")
    layers = _Layers(kind)
    layers.places = {key: f"{source}:{line}" for key, line in parsed.lines.items()}
    raise_problems(parsed.problems, source=source, where=layers.places)
    given = _Layers(kind)
    given.add(fields.expand_section(layers.section, parsed.data), FILE)
    for override in overrides:
        _apply_override(given, layers.places, override)
    _add_preset(layers, given.data)
    _merge(layers.data, given.data)
    for path_, origin in given.provenance.items():
        _forget_inside(layers.provenance, path_)
        layers.provenance[path_] = origin
    config = _validate(layers, given.problems, source)
    return LoadedConfig(config, _full_provenance(config, layers.provenance), source)


def read_run_text(path: Path) -> str:
    """Text of a run file. ConfigError when there is none, or when it is no text."""
    problem = file_problem(path)
    if problem == "does not exist":
        raise ConfigError(f"run file {path} does not exist (looked in {Path.cwd()})", remedy="check the path")
    if problem is not None:
        raise ConfigError(f"run file {path} {problem}", remedy="name a .yaml file")
    try:
        with path.open("rb") as stream:
            content = read_at_most(stream, _MAX_BYTES)
    except OSError as error:
        raise ConfigError(
            f"run file {path} cannot be read: {error.strerror}", remedy="check its permissions"
        ) from error
    if len(content) > _MAX_BYTES:
        raise ConfigError(f"run file {path} is larger than {_MAX_BYTES:,} bytes", remedy="is it a data file?")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"run file {path} is not UTF-8 text: line {line} has the byte {content[error.start]:#04x}",
            remedy="save it as UTF-8",
        ) from error


def _add_preset(layers: _Layers, given: Mapping[str, Any]) -> None:
    preset = preset_of(layers.kind, given)
    if preset is None:
        return  # there is none, or the checks report it with the nearest name
    values = dict(preset.values)
    algorithm = _section(given, "algorithm")
    dropped = _dropped_kl(algorithm), _dropped_whitening(algorithm, values)
    for key in (*itertools.chain(*dropped), *_dropped_ending(_section(given, "scoring"), values)):
        values.pop(key, None)
    nested: dict[str, Any] = {}
    for key, value in values.items():
        _set(nested, key.split("."), copy.deepcopy(value))
    layers.add(nested, f"preset {preset.name}")


def preset_of(kind: Kind, given: Mapping[str, Any]) -> Preset | None:
    """The preset that a run file of this kind names, or the default one; None for an unknown name."""
    known = {"rl": PRESETS, "rm": RM_PRESETS, "sft": {}}[kind]
    default = AlgorithmConfig.model_fields["preset"].default
    name = _section(given, "algorithm").get("preset", default) if kind == "rl" else given.get("preset")
    return known.get(name) if isinstance(name, str) else None


def _section(given: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = given.get(name)
    return section if isinstance(section, dict) else {}


def _dropped_ending(scoring: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[str, ...]:
    """So is its rule about truncated responses: without the token there is no position and no response without one."""
    if values.get("scoring.truncate_token") is not None and scoring.get("truncate_token", "") is None:
        return ("scoring.truncate_after", "scoring.incomplete_score")
    return ()


def _dropped_whitening(section: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[str, ...]:
    """And its whitening: where nothing is whitened, it is not over anything."""
    fields = ("whiten_rewards", "whiten_advantages")
    whitens = any(section.get(field, values.get(f"algorithm.{field}", False)) is not False for field in fields)
    return () if whitens else ("algorithm.whiten_over",)


def _dropped_kl(section: Mapping[str, Any]) -> tuple[str, ...]:
    """The KL of a preset is one thing: a run file that turns it off in one word need not unset the others."""
    steering = ("algorithm.kl_estimator", "algorithm.kl_target", "algorithm.kl_horizon")
    if section.get("kl_in") == "none" and "kl_coef" not in section:
        return ("algorithm.kl_coef", *steering)
    if section.get("kl_coef") in (0, 0.0) and "kl_in" not in section:
        return ("algorithm.kl_in", *steering)
    if "kl_target" in section and section["kl_target"] is None:
        return ("algorithm.kl_horizon",)
    return ()


def _apply_override(given: _Layers, places: dict[str, str], override: str) -> None:
    key, equals, text = override.partition("=")
    key = key.strip().lstrip("-")
    parts = key.split(".")
    if not equals or len(parts) > _MAX_PARTS or not all(part and part == part.strip() for part in parts):
        message = f"{override!r:.200} is not of the form key.path=value"
        given.problems.append(Problem("", message, "for example rollout.group_size=4", COMMAND_LINE))
        return
    if places.get(key, "").startswith(f"{COMMAND_LINE} ({key}="):
        message = f"{key} is given twice on the command line: {places[key].removeprefix(COMMAND_LINE)} and ({override})"
        given.problems.append(Problem("", message, "keep one of the two", COMMAND_LINE))
        return
    try:
        value = parse_value(text)
    except yaml.YAMLError as error:
        message = f"{override!r:.200}: the value is not readable as YAML: {error}"
        given.problems.append(
            Problem("", message, "quote the value for YAML, for example 'output=\"my: run\"'", COMMAND_LINE)
        )
        return
    annotation = fields.annotation_at(given.section, key)
    value = value if annotation is None else fields.expand(annotation, value)
    wrong = _place(given, key.split("."), value)
    if wrong is not None:
        given.problems.append(
            Problem("", f"{override!r:.200}: {wrong}", "give the whole list, or an index in it", COMMAND_LINE)
        )
        return
    place = f"{COMMAND_LINE} ({override:.200})"
    for path in [key, *(f"{key}.{leaf}" for leaf in _leaves(value) if leaf)]:
        places[path] = place
    for length in range(1, key.count(".") + 1):
        places.setdefault(".".join(key.split(".")[:length]), place)


def _place(given: _Layers, parts: list[str], value: Any) -> str | None:
    """Put an override into the merged data. Returns what is wrong with its list index, if anything."""
    target: Any = given.data
    for depth, part in enumerate(parts[:-1]):
        if isinstance(target, list):
            wrong = _index_problem(target, part, ".".join(parts[:depth]))
            if wrong:
                return wrong
            target = target[int(part)]
        elif isinstance(target.get(part), (dict, list)):
            target = target[part]
        else:
            target[part] = target = {}
    path, last = ".".join(parts), parts[-1]
    if isinstance(target, list):
        wrong = _index_problem(target, last, ".".join(parts[:-1]))
        if wrong:
            return wrong
        target[int(last)] = value
    elif isinstance(value, dict) and isinstance(target.get(last), dict):
        _merge(target[last], value)
    else:
        target[last] = value
    for leaf in _leaves(value):
        full = f"{path}.{leaf}" if leaf else path
        _forget_inside(given.provenance, full)
        given.provenance[full] = COMMAND_LINE
    return None


def _index_problem(items: list[Any], part: str, path: str) -> str | None:
    if not (part.isascii() and part.isdigit()) or int(part) >= len(items):
        numbers = f"0 to {len(items) - 1}" if items else "none"
        return f"{path} has {len(items)} entries (index {numbers}), {part!r} is not one of them"
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
    raise_problems(_named(problems), source=source, where=layers.places)
    if config is None:  # explain() never returns an empty list for an error
        raise ConfigError(f"{source} cannot be used", remedy="see docs/configuration.md")
    return config


def _masked_value(place: str) -> Problem:
    message = "was masked when this file was written, because it looks like a secret"
    return Problem(place, message, f"give the value again, for example on the command line: {place}=VALUE")


def _named(problems: list[Problem]) -> list[Problem]:
    """Messages that begin with their field; places are put before them."""
    return [replace(p, message=f"{p.field} {p.message}") if p.field else p for p in problems]


def _full_provenance(config: RunConfig, given: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in _leaves(config.model_dump(mode="json")):
        parts = path.split(".")
        prefixes = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
        found[path] = next((given[p] for p in prefixes if p in given), DEFAULT)
    return found


def _merge(base: dict[str, Any], top: Mapping[str, Any]) -> None:
    for key, value in top.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            _merge(base[key], value)
        else:
            base[key] = value


def _set(data: dict[str, Any], parts: Sequence[str], value: Any) -> None:
    for part in parts[:-1]:
        data = data.setdefault(part, {})
    data[parts[-1]] = value


def _leaves(value: Any, prefix: str = "") -> Iterator[str]:
    """Dotted paths of everything that holds no further values (an empty list or section counts as one)."""
    items: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        items = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [(str(index), item) for index, item in enumerate(value)]
    if not items:
        yield prefix
    for key, item in items:
        yield from _leaves(item, f"{prefix}.{key}" if prefix else key)


def _forget_inside(provenance: dict[str, str], path: str) -> None:
    for known in [k for k in provenance if k.startswith(f"{path}.")]:
        del provenance[known]
