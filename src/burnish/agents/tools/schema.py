"""JSON schema of a Python function, from its signature, type hints and Google-style docstring.

The result equals `transformers.utils.get_json_schema` where both accept a function (a test compares them), so that a
model sees the same text in training and later. The library is not used, because its schema for a hint has changed
between releases, it imports torch, offers `*args` as a parameter, turns `(choices: [...])` in a description into part
of the schema, and does not notice a description of a parameter that does not exist.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from burnish.errors import ConfigError, did_you_mean
from burnish.types import Json

_PLAIN: dict[object, dict[str, Json]] = {
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    list: {"type": "array"},
    tuple: {"type": "array"},
    dict: {"type": "object"},
    Any: {},
}
_SUPPORTED = "int, float, str, bool, None, Any, Literal, and list, tuple, dict and unions (int | None) of them"
_SECTION = re.compile(r"^(Args|Arguments|Returns|Raises|Yields|Examples?|Notes?):[ \t]*$", re.MULTILINE)
_ENTRY = re.compile(r"(\w+)(?: *\([^)]*\))?:(.*)", re.DOTALL)


def schema_of(function: Callable[..., object], *, name: str | None = None, method: bool = False) -> dict[str, Json]:
    """`{"type": "function", "function": {"name", "description", "parameters", "return"}}` of a function.

    name: the tool's name for the model; by default the function's own.
    method: the function is taken from a class, so its first parameter (`self`) is not one of the tool's.

    Parameters without a default are required. A parameter that the docstring does not describe has an empty
    description. `return` is present if JSON has the return type. Raises ConfigError that names function and parameter
    if there is no docstring, if a parameter has no type hint, has one that JSON does not have, or cannot be given by
    name, or if the docstring describes a parameter that does not exist.
    """
    name = name or function.__name__
    parameters = list(inspect.signature(function).parameters.values())[1 if method else 0 :]
    hints = _hints(function, name)
    description, documented, returned = _read_docstring(inspect.getdoc(function) or "", name)
    _check_documented(documented, [parameter.name for parameter in parameters], name)
    properties: dict[str, Json] = {}
    for parameter in parameters:
        _check_parameter(parameter, name)
        what = f"the parameter {parameter.name!r} of the tool {name!r}"
        schema = _schema_of_hint(hints[parameter.name], what)
        properties[parameter.name] = {**schema, "description": documented.get(parameter.name, "")}
    required: list[Json] = [parameter.name for parameter in parameters if parameter.default is parameter.empty]
    inner: dict[str, Json] = {
        "name": name,
        "description": description,
        "parameters": {"type": "object", "properties": properties, **({"required": required} if required else {})},
        **_return_schema(hints, returned),
    }
    return {"type": "function", "function": inner}


def _hints(function: Callable[..., object], name: str) -> dict[str, object]:
    try:
        return typing.get_type_hints(function)
    except Exception as error:  # boundary: hints written as text are a user's expressions
        raise ConfigError(
            f"the type hints of the tool {name!r} cannot be read: {type(error).__name__}: {error}",
            remedy="hints must be names that exist when the program runs (not only under TYPE_CHECKING)",
        ) from error


def _check_parameter(parameter: inspect.Parameter, name: str) -> None:
    what = f"the parameter {parameter.name!r} of the tool {name!r}"
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise ConfigError(
            f"{what} cannot be given by name ({parameter})",
            remedy="give the tool only parameters with names (decorators need functools.wraps)",
        )
    if parameter.annotation is parameter.empty:
        remedy = f"write {parameter.name}: TYPE, where TYPE may be {_SUPPORTED}"
        if parameter.name in ("self", "cls"):
            remedy = "use a method of an object, not of its class"
        raise ConfigError(f"{what} has no type hint", remedy=remedy)


def _schema_of_hint(hint: object, what: str) -> dict[str, Json]:
    """The schema of the values that a type hint allows. `what` names the owner of the hint in errors."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is None and isinstance(hint, Hashable) and hint in _PLAIN:
        return dict(_PLAIN[hint])
    if origin in (Union, types.UnionType):
        return _union(inner, what)
    if origin is Literal and all(type(value) in (int, str, bool, type(None)) for value in inner):
        return _literal(inner)
    if origin in (list, dict, tuple) and not inner:  # typing.List without brackets
        return dict(_PLAIN[origin])
    if origin is list:
        return {"type": "array", "items": _schema_of_hint(inner[0], what)}
    if origin is tuple and len(inner) > 1 and ... not in inner:
        return {"type": "array", "prefixItems": [_schema_of_hint(item, what) for item in inner]}
    if origin is dict and inner[0] in (str, Any):
        return {"type": "object", "additionalProperties": _schema_of_hint(inner[1], what)}
    raise ConfigError(f"{what} has the type hint {_spelt(hint)}, which JSON does not have", remedy=_instead(hint))


def _union(members: Sequence[object], what: str) -> dict[str, Json]:
    schemas = [_schema_of_hint(member, what) for member in members if member is not type(None)]
    names = sorted({str(schema["type"]) for schema in schemas if schema.keys() == {"type"}})
    if len(schemas) == 1:
        schema = schemas[0]
    elif all(schema.keys() == {"type"} for schema in schemas):
        schema = {"type": names[0] if len(names) == 1 else [*names]}
    else:
        schema = {"anyOf": [*schemas]}
    return {**schema, "nullable": True} if type(None) in members else schema


def _literal(values: Sequence[Json]) -> dict[str, Json]:
    kinds: list[Json] = list(dict.fromkeys(_PLAIN[type(value)]["type"] for value in values))
    return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": list(values)}


def _spelt(hint: object) -> str:
    return hint.__qualname__ if isinstance(hint, type) and not get_args(hint) else str(hint).replace("typing.", "")


def _instead(hint: object) -> str:
    origin = get_origin(hint) or hint
    if isinstance(origin, type) and issubclass(origin, (set, frozenset)):
        return "use list and make it a set in the function"
    if origin is tuple:
        return "use list for any number of items, and tuple[...] for two or more of fixed types"
    if origin is dict:
        return "keys are always texts in JSON: use dict[str, ...]"
    return f"use one of {_SUPPORTED}"


def _return_schema(hints: dict[str, object], description: str) -> dict[str, Json]:
    """`{"return": schema}`; empty without a hint, or if JSON does not have it, since the model never writes results."""
    if "return" not in hints:
        return {}
    try:
        schema = _schema_of_hint(hints["return"], "the result")
    except ConfigError:
        return {}
    return {"return": {**schema, **({"description": description} if description else {})}}


def _read_docstring(text: str, name: str) -> tuple[str, dict[str, str], str]:
    """Split a docstring into description, descriptions of parameters by name, and description of the result."""
    description, *rest = _SECTION.split(text.strip())
    sections = dict(zip(rest[::2], rest[1::2], strict=True))
    if not description.strip():
        raise ConfigError(
            f"the tool {name!r} has no description",
            remedy="say in its docstring what it does, and what its parameters mean under 'Args:'",
        )
    block = sections.get("Args", "") + sections.get("Arguments", "")
    return description.strip(), dict(_entries(block, name)), _one_line(sections.get("Returns", ""))


def _entries(block: str, name: str) -> Iterator[tuple[str, str]]:
    """Yield name and description of each parameter. A description continues in lines that are indented further."""
    lines = [line for line in block.splitlines() if line.strip()]
    indent = min((len(line) - len(line.lstrip()) for line in lines), default=0)
    for entry in re.split(rf"^[ \t]{{{indent}}}(?=\S)", "\n".join(lines), flags=re.MULTILINE)[1:]:
        read = _ENTRY.match(entry)
        if read is None:
            raise ConfigError(
                f"the docstring of the tool {name!r} has the line {_one_line(entry)!r} under 'Args:'",
                remedy="write 'parameter: what it means', and indent the lines that go on",
            )
        yield read[1], _one_line(read[2])


def _check_documented(documented: dict[str, str], known: Sequence[str], name: str) -> None:
    for word in documented:
        if word not in known:
            raise ConfigError(
                f"the docstring of the tool {name!r} describes {word!r}, which is not one of its parameters",
                remedy=did_you_mean(word, known, f"parameters: {', '.join(known) or 'none'}"),
            )


def _one_line(text: str) -> str:
    return " ".join(text.split())
