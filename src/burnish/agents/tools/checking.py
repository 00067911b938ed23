"""Checks of calls against the offered tools, with messages for the model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from burnish.agents.tools.calls import ToolCall
from burnish.agents.tools.plain import shown
from burnish.errors import did_you_mean
from burnish.types import Json

Schema = Mapping[str, Json]

_IN_WORDS = {
    "string": "a text",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_LONGEST_NAME = 100
"""Names beyond this length get no suggestion: comparing them is slow, and nothing would be similar."""


def check_call(call: ToolCall, schemas: Sequence[Schema]) -> str | None:
    """Check a call. Returns sentences for the model that say what is wrong, or None if it fits a tool of `schemas`.

    schemas: JSON schemas of functions, `{"type": "function", "function": {...}}` or only the inner object. The check
    covers the name of the tool, missing and unknown arguments, and types and `enum` of the values, also within lists
    and objects. Other keywords of JSON Schema (`pattern`, `minimum`, `$ref` ...) are ignored.
    """
    tool = find_tool(call.name, schemas)
    if tool is None:
        names = [str(function_of(schema).get("name")) for schema in schemas]
        hint = _as_sentence(_hint(call.name, names))
        return f"There is no tool {shown(call.name)}. {hint}Tools: {', '.join(names) or 'none'}."
    problems = list(_problems(call, tool))
    return " ".join(problems) or None


def find_tool(name: str, schemas: Sequence[Schema]) -> Schema | None:
    """The schema of the tool with this name, without `{"type": "function", ...}` around it."""
    return next((function for function in map(function_of, schemas) if function.get("name") == name), None)


def function_of(schema: Schema) -> Schema:
    """The inner object of a tool's schema: name, description and parameters."""
    inner = schema.get("function")
    return inner if isinstance(inner, dict) else schema


def parameters_of(function: Schema) -> dict[str, Schema]:
    """The schema of each parameter of a tool."""
    parameters = function.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    if not isinstance(properties, dict):
        return {}
    return {name: schema if isinstance(schema, dict) else {} for name, schema in properties.items()}


def allowed_types(schema: Schema) -> set[str]:
    """The JSON types that a schema allows; an empty set if it does not restrict them."""
    named = schema.get("type")
    types = {named} if isinstance(named, str) else {name for name in _items(named) if isinstance(name, str)}
    types |= {kind for inner in _alternatives(schema) for kind in allowed_types(inner)}
    types = types or {_type_of(value) for value in _items(schema.get("enum"))}
    return types | {"null"} if types and schema.get("nullable") is True else types


def fits(value: Json, schema: Schema) -> bool:
    """Return whether a value has a type that the schema allows, and is in its `enum`."""
    return mismatch(value, schema, "it") is None


def mismatch(value: Json, schema: Schema, what: str) -> str | None:
    """Say why a value, called `what`, does not fit its schema; None if it does."""
    types = allowed_types(schema)
    if types and types <= _IN_WORDS.keys() and not any(_is_of_type(value, name) for name in types):
        return f"{what} must be {' or '.join(_IN_WORDS[name] for name in sorted(types))}, not {shown(value)}"
    if value is None and schema.get("nullable") is True:
        return None
    choices = _items(schema.get("enum"))
    if choices and _as_text(value) not in map(_as_text, choices):
        hint = _hint(value, [choice for choice in choices if isinstance(choice, str)]) if isinstance(value, str) else ""
        return f"{what} must be one of {', '.join(map(shown, choices))}, not {shown(value)}{hint and f' ({hint})'}"
    alternatives = [mismatch(value, inner, what) for inner in _alternatives(schema)]
    if alternatives and None not in alternatives:
        return alternatives[0]
    return next(filter(None, (mismatch(*inner) for inner in _inside(value, schema, what))), None)


def _problems(call: ToolCall, function: Schema) -> Iterator[str]:
    known = parameters_of(function)
    parameters = function.get("parameters")
    outer = parameters if isinstance(parameters, dict) else {"properties": {}}
    # Schemas of data sets may leave out the properties. Then any argument is accepted.
    takes_others = "properties" not in outer or outer.get("additionalProperties") not in (None, False)
    for name in _items(outer.get("required")):
        if name not in call.arguments:
            yield f"The argument {shown(name)} of {call.name} is missing."
    for name, value in call.arguments.items():
        if name in known:
            problem = mismatch(value, known[name], f"The argument {shown(name)} of {call.name}")
            if problem:
                yield f"{problem}."
        elif not takes_others:
            takes = f"It takes {', '.join(known)}." if known else "It takes no arguments."
            yield f"{call.name} has no argument {shown(name)}. {_as_sentence(_hint(name, known))}{takes}"


def _inside(value: Json, schema: Schema, what: str) -> Iterator[tuple[Json, Schema, str]]:
    """Yield the values in a list or object that have a schema, each with its schema and a name for messages."""
    if isinstance(value, list):
        first = _items(schema.get("prefixItems"))
        rest = schema.get("items")
        for number, item in enumerate(value, start=1):
            inner = first[number - 1] if number <= len(first) else rest
            if isinstance(inner, dict):
                yield item, inner, f"Item {number} of {what[:1].lower()}{what[1:]}"
    elif isinstance(value, dict):
        known = schema.get("properties")
        for key, item in value.items():
            inner = known.get(key) if isinstance(known, dict) else None
            inner = schema.get("additionalProperties") if inner is None else inner
            if isinstance(inner, dict):
                yield item, inner, f"The value of {shown(key)} in {what[:1].lower()}{what[1:]}"


def _alternatives(schema: Schema) -> list[Schema]:
    listed = [*_items(schema.get("anyOf")), *_items(schema.get("oneOf"))]
    return [inner for inner in listed if isinstance(inner, dict)]


def _items(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _type_of(value: Json) -> str:
    return next(name for name in ("integer", *_IN_WORDS) if _is_of_type(value, name))


def _is_of_type(value: Json, name: str) -> bool:
    match name:
        case "integer":  # 5.0 is one for JSON Schema, but not for a function that wants an int
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        case "null":
            return value is None
        case _:
            kinds: dict[str, type] = {"string": str, "boolean": bool, "array": list, "object": dict}
            return isinstance(value, kinds[name])


def _as_text(value: Json) -> str:
    return json.dumps(value, sort_keys=True)  # unlike 1 == True == 1.0


def _hint(word: str, known: Sequence[str] | Mapping[str, object]) -> str:
    return did_you_mean(word, known) if len(word) <= _LONGEST_NAME else ""


def _as_sentence(hint: str) -> str:
    return f"{hint[:1].upper()}{hint[1:]} " if hint else ""
