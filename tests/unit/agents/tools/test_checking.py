"""Calls compared with the schemas of the tools."""

from __future__ import annotations

from typing import Any

import pytest

from burnish.agents.tools.calls import ToolCall
from burnish.agents.tools.checking import allowed_types, check_call, fits

PROPERTIES: dict[str, Any] = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "part": {"type": "number"},
    "exact": {"type": "boolean"},
    "unit": {"type": "string", "enum": ["celsius", "kelvin"]},
    "level": {"enum": [1, 2]},
    "tags": {"type": "array", "items": {"type": "string"}},
    "pair": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]},
    "more": {"type": "object", "additionalProperties": {"type": "integer"}},
    "place": {"type": "object", "properties": {"x": {"type": "number"}}},
    "note": {"type": "string", "nullable": True},
    "either": {"type": ["integer", "string"]},
    "mixed": {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "string"}]},
    "choice": {"type": "string", "enum": ["a"], "nullable": True},
    "odd": {"type": "float"},
    "free": {},
}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": PROPERTIES, "required": ["city"]}},
}
NONE = {"type": "object", "properties": {}}
TOOLS: list[dict[str, Any]] = [
    WEATHER,
    {"name": "now", "parameters": NONE},
    {"name": "open", "parameters": {**NONE, "additionalProperties": {"type": "string"}}},
    {"name": "bare"},
    {"name": "unknown", "parameters": {"type": "object"}},
]


CELSIUS = "The argument 'unit' of weather must be one of 'celsius', 'kelvin', not 'celcius' (did you mean 'celsius'?)."


@pytest.mark.parametrize(
    "arguments",
    [
        {"days": 3, "part": 1, "exact": False, "unit": "kelvin", "level": 2},
        {"part": 1.5, "tags": [], "pair": [1, "x"], "more": {}, "place": {"x": 1, "y": "z"}, "note": None},
        {"tags": ["a"], "more": {"a": 1}, "either": 1, "mixed": [1], "choice": None, "odd": "x", "free": [None]},
        {"either": "x", "mixed": "x", "choice": "a", "note": "x", "pair": [1, "x", "any"]},
    ],
)
def test_what_fits(arguments: dict[str, Any]) -> None:
    assert check_call(ToolCall("weather", {"city": "Rome", **arguments}), TOOLS) is None


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"city": 3}, "The argument 'city' of weather must be a text, not 3."),
        ({"days": "3"}, "The argument 'days' of weather must be an integer, not '3'."),
        ({"days": 3.0}, "The argument 'days' of weather must be an integer, not 3.0."),
        ({"days": True}, "The argument 'days' of weather must be an integer, not True."),
        ({"exact": 1}, "The argument 'exact' of weather must be true or false, not 1."),
        ({"tags": "a"}, "The argument 'tags' of weather must be a list, not 'a'."),
        ({"either": []}, "The argument 'either' of weather must be an integer or a text, not []."),
        ({"tags": ["a", 1]}, "Item 2 of the argument 'tags' of weather must be a text, not 1."),
        ({"pair": ["x", "x"]}, "Item 1 of the argument 'pair' of weather must be an integer, not 'x'."),
        ({"more": {"k": "v"}}, "The value of 'k' in the argument 'more' of weather must be an integer, not 'v'."),
        ({"place": {"x": "v"}}, "The value of 'x' in the argument 'place' of weather must be a number, not 'v'."),
        ({"unit": "k"}, "The argument 'unit' of weather must be one of 'celsius', 'kelvin', not 'k'."),
        ({"level": 3}, "The argument 'level' of weather must be one of 1, 2, not 3."),
        ({"unit": "celcius"}, CELSIUS),
        ({"cty": "x"}, "weather has no argument 'cty'. Did you mean 'city'? It takes " + ", ".join(PROPERTIES) + "."),
    ],
)
def test_what_does_not(arguments: dict[str, Any], problem: str) -> None:
    assert check_call(ToolCall("weather", {"city": "Rome", **arguments}), TOOLS) == problem


def test_all_problems_are_named_at_once() -> None:
    assert check_call(ToolCall("weather", {"days": "x", "exact": "y"}), TOOLS) == (
        "The argument 'city' of weather is missing. The argument 'days' of weather must be an integer, not 'x'. "
        "The argument 'exact' of weather must be true or false, not 'y'."
    )


def test_tools_that_do_not_exist() -> None:
    assert check_call(ToolCall("wether", {}), TOOLS) == (
        "There is no tool 'wether'. Did you mean 'weather'? Tools: weather, now, open, bare, unknown."
    )
    assert check_call(ToolCall("x", {}), []) == "There is no tool 'x'. Tools: none."
    assert len(check_call(ToolCall("x" * 10**6, {"y" * 10**6: "z" * 10**6}), TOOLS)) < 200


def test_tools_that_say_little_about_their_arguments() -> None:
    assert check_call(ToolCall("now", {}), TOOLS) is None
    for name in ("now", "bare"):
        assert check_call(ToolCall(name, {"x": 1}), TOOLS) == f"{name} has no argument 'x'. It takes no arguments."
    for name in ("open", "unknown"):
        assert check_call(ToolCall(name, {"x": 1}), TOOLS) is None


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"type": "string", "nullable": True}, {"string", "null"}),
        ({"enum": ["a", 1, None]}, {"string", "integer", "null"}),
        ({"anyOf": [{"type": "array"}, {"enum": [1.5]}]}, {"array", "number"}),
        ({}, set()),
        ({"nullable": True}, set()),
    ],
)
def test_types_that_a_schema_allows(schema: dict[str, Any], types: set[str]) -> None:
    assert allowed_types(schema) == types


def test_values_that_are_equal_only_to_python() -> None:
    assert fits(1, {"enum": [1]})
    assert not fits(True, {"enum": [1]})
    assert not fits(1.0, {"type": "number", "enum": [1]})
