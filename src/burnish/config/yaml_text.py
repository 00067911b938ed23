"""Run files as text: YAML read safely, with the line of every key, and without YAML's old surprises.

Only plain data comes out. `1e-6` is a number, `on`/`off`/`yes`/`no` and dates stay text (a field of type bool still
takes them), a repeated key is an error, anchors and aliases work, tags do not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from burnish.config.problems import Problem


@dataclass(slots=True)
class ParsedYaml:
    """Plain data, the line (from 1) of each dotted key, and what is wrong with the text."""

    data: Any = None
    lines: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    num_values: int = 0


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalar types of YAML 1.2."""


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes whatever text `_Loader` would read as something else."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Line breaks of Unicode come back as spaces unless they are escaped, which only double quotes can."""
        style = '"' if _UNICODE_BREAK.search(text) else None
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
_Loader.add_constructor("tag:yaml.org,2002:int", lambda _, node: int(node.value.replace("_", "")))
_MERGE = "<<"
_PLAIN_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_MAX_VALUES = 100_000
"""Aliases of aliases can stand for billions of values; a run file has a few dozen."""


def parse_yaml(text: str) -> ParsedYaml:
    """Parse the text of a run file. Errors of syntax, tags and repeated keys come back as problems with their line."""
    parsed = ParsedYaml()
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is not None:
            parsed.data = _build(loader, node, "", parsed)
    except yaml.MarkedYAMLError as error:
        parsed.problems.append(_syntax_problem(error))
    except (yaml.YAMLError, ValueError) as error:
        parsed.problems.append(Problem("", f"not readable as YAML: {error}", "save the file as plain UTF-8 text"))
    finally:
        loader.dispose()
    return parsed


def parse_value(text: str) -> Any:
    """One value as YAML reads it (`1e-6`, `[a, b]`, `null`, `true`, text). Raises yaml.YAMLError."""
    parsed = parse_yaml(text)
    if parsed.problems:
        raise yaml.YAMLError(parsed.problems[0].message)
    return parsed.data


def dump_yaml(data: Any) -> str:
    """Plain data as text that `parse_yaml` reads back to the same data, keys in their order."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)


def _build(loader: _Loader, node: yaml.Node, path: str, parsed: ParsedYaml) -> Any:
    parsed.num_values += 1
    if parsed.num_values > _MAX_VALUES or path.count(".") > 100:
        raise yaml.YAMLError("aliases (&, *) nest without end")
    if path:
        parsed.lines.setdefault(path, node.start_mark.line + 1)
    if not isinstance(node, yaml.ScalarNode) and node.tag not in _PLAIN_TAGS:
        raise yaml.constructor.ConstructorError(None, None, f"the tag {node.tag!r} is not allowed", node.start_mark)
    if isinstance(node, yaml.MappingNode):
        return _mapping(loader, node, path, parsed)
    if isinstance(node, yaml.SequenceNode):
        return [_build(loader, item, _join(path, str(i)), parsed) for i, item in enumerate(node.value)]
    return loader.construct_object(node, deep=True)  # type: ignore[no-untyped-call]


def _mapping(loader: _Loader, node: yaml.MappingNode, path: str, parsed: ParsedYaml) -> dict[str, Any]:
    data: dict[str, Any] = {}
    seen: dict[str, int] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            parsed.problems.append(Problem(path, f"line {line}: a key must be a plain word", "write `key: value`"))
            continue
        key = key_node.value
        if key == _MERGE:
            merged = _build(loader, value_node, path, ParsedYaml())
            data = {**_merged(merged), **data}
            continue
        field = _join(path, key)
        if key in seen:
            message = f"{field}: the key stands twice, first on line {seen[key]}"
            parsed.lines[field] = line
            parsed.problems.append(Problem(field, message, "keep one of the two"))
            continue
        seen[key] = parsed.lines[field] = line
        data[key] = _build(loader, value_node, field, parsed)
    return data


def _merged(value: Any) -> dict[str, Any]:
    parts = value if isinstance(value, list) else [value]
    return {key: item for part in reversed(parts) if isinstance(part, dict) for key, item in part.items()}


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _syntax_problem(error: yaml.MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    remedy = "check indentation (spaces, no tabs), colons and quotes there"
    if isinstance(error, yaml.constructor.ConstructorError):
        remedy = "only plain values are read (text, numbers, lists, sections); remove the tag"
    return Problem("", f"{place}not readable as YAML: {error.problem or error.context}", remedy)
