"""Schemas and observations of OpenEnv in words."""

from __future__ import annotations

from typing import Any

import pytest

from burnish.environments import openenv_texts as texts

METADATA = {"type": "object", "title": "Metadata", "description": "Additional metadata"}
KIND = {"const": "move", "default": "move", "type": "string"}
TEXT = {"type": "string", "title": "Message", "description": "What to say"}
NUMBER = {"type": "integer", "title": "Number"}
WORD = {"type": "string", "enum": ["left", "right"]}


def action(required: list[str], **fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"metadata": METADATA, **fields}, "required": required}


@pytest.mark.parametrize(
    ("schema", "field"),
    [
        (action(["message"], message=TEXT), "message"),
        (action([], message=TEXT), "message"),
        (action(["message"], message=TEXT, kind=KIND), "message"),
        (action(["message"], message=TEXT, loud={"type": "boolean", "default": False}), "message"),
        (action(["message", "number"], message=TEXT, number=NUMBER), None),
        (action(["message", "other"], message=TEXT, other=TEXT), None),
        (action(["number"], number=NUMBER), None),
        (action(["move"], move=WORD), None),
        (action([]), None),
        ({}, None),
    ],
)
def test_actions_that_are_a_text(schema: dict[str, Any], field: str | None) -> None:
    assert texts.text_field(schema) == field


def test_actions_with_fields_are_one_tool() -> None:
    schema = {
        **action(["move"], move=WORD, number=NUMBER, kind=KIND),
        "description": "Move a piece.",
        "$defs": {"A": {}},
    }
    assert texts.step_schema(schema) == {
        "type": "function",
        "function": {
            "name": "step",
            "description": "Move a piece.",
            "parameters": {
                "type": "object",
                "properties": {
                    "move": {"description": "", "type": "string", "enum": ["left", "right"]},
                    "number": {"description": "", "type": "integer"},
                },
                "required": ["move"],
                "$defs": {"A": {}},
            },
        },
    }
    assert texts.step_schema(action([]))["function"]["description"] == "Act in the environment."  # type: ignore[index, call-overload]


def test_actions_that_call_tools() -> None:
    call = {"type": {"const": "call_tool"}, "tool_name": {"type": "string"}, "arguments": {"type": "object"}}
    assert texts.calls_tools(action(["tool_name"], **call))  # type: ignore[arg-type]
    assert not texts.calls_tools(action(["message"], message=TEXT))


@pytest.mark.parametrize(
    ("observation", "text"),
    [
        ({"message": "higher"}, "higher"),
        ({"message": "higher", "reward": 1.0, "done": True, "metadata": {"seed": 1}}, "higher"),
        ({"message": "höher", "left": 3}, '{"message": "höher", "left": 3}'),
        ({"board": [[0, 1]]}, '{"board": [[0, 1]]}'),
        ({"left": 3}, '{"left": 3}'),
        ({}, ""),
        ({"reward": 1.0, "done": True}, ""),
    ],
)
def test_observations(observation: dict[str, Any], text: str) -> None:
    assert texts.observation_text(observation) == text


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("plain", "plain"),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "data": 1}, "a\nb"),
        ({"content": [{"type": "image", "data": "x"}]}, '{"content": [{"type": "image", "data": "x"}]}'),
        (5, "5"),
        (None, "null"),
        ({"content": []}, '{"content": []}'),
    ],
)
def test_results_of_tools(result: object, text: str) -> None:
    assert texts.result_text(result) == text


@pytest.mark.parametrize(
    ("observation", "error"),
    [
        ({"error": None, "result": "x"}, None),
        ({"error": {"error_type": "execution_error", "message": "nope"}, "result": None}, "nope"),
        ({"error": "nope"}, "nope"),
        ({"result": {"content": [{"type": "text", "text": "bad"}], "is_error": True}}, "bad"),
        ({"result": {"content": [{"type": "text", "text": "bad"}], "isError": True}}, "bad"),
        ({"result": {"content": [{"type": "text", "text": "good"}], "is_error": False}}, None),
    ],
)
def test_tools_that_failed(observation: dict[str, Any], error: str | None) -> None:
    assert texts.result_error(observation) == error


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (
            {"message": "Invalid message", "errors": [{"loc": ["guess"], "msg": "Field required"}]},
            "guess: Field required",
        ),
        (
            {"message": "Invalid", "errors": [{"loc": ["a", 0], "msg": "too long"}, {"msg": "no"}]},
            "a.0: too long; no",
        ),
        ({"message": "no such move", "code": "EXECUTION_ERROR"}, "no such move"),
        ({}, "no reason given"),
    ],
)
def test_what_is_refused(data: dict[str, Any], text: str) -> None:
    assert texts.error_text(data) == text
