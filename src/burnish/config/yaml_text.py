"""Read run files as YAML: safely, with the line of every key, and without the surprises of YAML 1.1.

The result is plain data. `1e-6` is a number, `on`/`off`/`yes`/`no` and dates stay text (fields of type bool still
accept the words), a repeated key is an error, anchors and aliases work, tags do not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from burnish.config.problems import Problem
from burnish.errors import ConfigError
from burnish.outside.reading import file_problem, read_at_most
from burnish.types import Json


@dataclass(slots=True)
class ParsedYaml:
    """Plain data, the line (from 1) of each dotted key, and what is wrong with the text."""

    data: Json = None
    lines: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    num_values: int = 0


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalar types of YAML 1.2."""


class _Scalars(yaml.constructor.SafeConstructor):
    """SafeConstructor that takes `012` for twelve."""


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes any text that `_Loader` would read as something else."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Quote Unicode line breaks, which would be read back as spaces, and `<<`, which would be a merge."""
        style = '"' if _UNICODE_BREAK.search(text) or text == _MERGE else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_UNICODE_BREAK = re.compile("[\x85\u2028\u2029]")
_Dumper.add_representer(str, _Dumper.represent_text)

_FLOAT = r"""^(?:[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?[eE][-+]?[0-9]+
    |[-+]?[0-9][0-9_]*\.[0-9_]*
    |[-+]?\.[0-9]+(?:[eE][-+]?[0-9]+)?
    |[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"""
for _kind, _pattern in (
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$"),
    ("null", r"^(?:~|null|Null|NULL|)$"),
    ("int", r"^[-+]?[0-9][0-9_]*$"),
    ("float", _FLOAT),
):
    for _class in (_Loader, _Dumper):
        if _kind == "bool":
            _class.yaml_implicit_resolvers = {}
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(_pattern, re.VERBOSE), None)
_Scalars.add_constructor("tag:yaml.org,2002:int", lambda _, node: int(node.value.replace("_", "")))
_MERGE = "<<"
_PLAIN_TAGS = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "str", "int", "float", "bool", "null"))
_MAX_BYTES = 250_000
"""A run file has a few thousand. PyYAML needs a second for this many."""
_MAX_VALUES = 20_000
"""Aliases of aliases can expand to billions of values. A run file has a few dozen."""
_MAX_DEPTH = 50
_TOO_DEEP = f"lists or sections are nested more than {_MAX_DEPTH} deep"


def read_run_text(path: Path, what: str = "run file") -> str:
    """Text of a run file, or of another file that is written like one. ConfigError if the file does not exist or is not
    text."""
    problem = file_problem(path)
    if problem == "does not exist":
        raise ConfigError(f"{what} {path} does not exist (looked in {Path.cwd()})", remedy="check the path")
    if problem is not None:
        raise ConfigError(f"{what} {path} {problem}", remedy="name a .yaml file")
    try:
        with path.open("rb") as stream:
            content = read_at_most(stream, _MAX_BYTES)
    except OSError as error:
        raise ConfigError(f"{what} {path} cannot be read: {error.strerror}", remedy="check its permissions") from error
    if len(content) > _MAX_BYTES:
        raise ConfigError(f"{what} {path} is larger than {_MAX_BYTES:,} bytes", remedy="is it a data file?")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{what} {path} is not UTF-8 text: line {line} has the byte {content[error.start]:#04x}",
            remedy="save it as UTF-8",
        ) from error


def parse_yaml(text: str) -> ParsedYaml:
    """Parse the text of a run file. Syntax errors, tags and repeated keys are returned as problems with their line."""
    parsed = ParsedYaml()
    try:
        node = yaml.compose(text, Loader=_Loader)
        parsed.data = None if node is None else _build(node, (), parsed)
    except yaml.MarkedYAMLError as error:
        parsed.problems.append(_syntax_problem(error))
    except RecursionError:
        parsed.problems.append(Problem("", f"not readable as YAML: {_TOO_DEEP}", "close the brackets of each line"))
    except (yaml.YAMLError, ValueError) as error:
        what = str(error).partition("\n")[0]
        parsed.problems.append(Problem("", f"not readable as YAML: {what}", "save the file as plain UTF-8 text"))
    return parsed


def parse_value(text: str) -> Json:
    """One value as YAML reads it (`1e-6`, `[a, b]`, `null`, `true`, text). Raises yaml.YAMLError."""
    parsed = parse_yaml(text)
    if parsed.problems:
        raise yaml.YAMLError(parsed.problems[0].message)
    return parsed.data


def dump_yaml(data: object) -> str:
    """Plain data as text that `parse_yaml` reads back as the same data, with keys in the same order."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)


def _build(node: yaml.Node, parents: tuple[str, ...], parsed: ParsedYaml) -> Json:
    """The plain data of a node whose path is `parents`."""
    _check_size(node, parents, parsed)
    if parents:
        parsed.lines.setdefault(".".join(parents), node.start_mark.line + 1)
    if node.tag not in _PLAIN_TAGS:
        raise _refused(f"the tag {node.tag!r} is not allowed", node)
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, parents, parsed)
    if isinstance(node, yaml.SequenceNode):
        return [_build(item, (*parents, str(i)), parsed) for i, item in enumerate(node.value)]
    try:
        return _Scalars().construct_object(node, deep=True)  # type: ignore[no-untyped-call]
    except ValueError as error:  # a number with thousands of digits
        raise yaml.MarkedYAMLError(problem=str(error), problem_mark=node.start_mark) from error


def _check_size(node: yaml.Node, parents: tuple[str, ...], parsed: ParsedYaml) -> None:
    parsed.num_values += 1
    if parsed.num_values > _MAX_VALUES:
        raise _refused(f"aliases (&, *) expand to more than {_MAX_VALUES:,} values", node)
    if len(parents) > _MAX_DEPTH:
        raise _refused(f"{_TOO_DEEP}, or aliases (*) refer to themselves", node)


def _refused(problem: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def _mapping(node: yaml.MappingNode, parents: tuple[str, ...], parsed: ParsedYaml) -> dict[str, Json]:
    data: dict[str, Json] = {}
    merged: dict[str, Json] = {}
    seen: dict[str, int] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            field = ".".join(parents)
            parsed.problems.append(Problem(field, f"line {line}: a key must be a plain word", "write `key: value`"))
            continue
        key = key_node.value
        field = ".".join((*parents, key))
        if key in seen:
            message = f"{field}: the key is given twice, first on line {seen[key]}"
            parsed.lines[field] = line
            parsed.problems.append(Problem(field, message, "keep one of the two"))
            continue
        seen[key] = parsed.lines[field] = line
        if key == _MERGE and key_node.style is None:  # in quotes it is a key like any other
            merged = _merged(value_node, (*parents, key), parsed)
        else:
            data[key] = _build(value_node, (*parents, key), parsed)
    return {**merged, **data}


def _merged(node: yaml.Node, parents: tuple[str, ...], parsed: ParsedYaml) -> dict[str, Json]:
    """The sections named after `<<`; earlier ones take precedence."""
    value = _build(node, parents, parsed)
    parts = value if isinstance(value, list) else [value]
    sections = [part for part in parts if isinstance(part, dict)]
    if len(sections) != len(parts):
        raise _refused("<< takes an alias of a section (*name), or a list of them", node)
    return {key: item for section in reversed(sections) for key, item in section.items()}


def _syntax_problem(error: yaml.MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    remedy = "check indentation (spaces, no tabs), colons and quotes there"
    if isinstance(error, yaml.constructor.ConstructorError):
        remedy = "only plain values are read (text, numbers, lists, sections)"
        remedy += "; remove the tag" if "tag" in str(error.problem) else "; write them out"
    said = [part for part in (error.context, error.problem) if part]
    return Problem("", f"{place}not readable as YAML: {', '.join(said)}", remedy)
