"""Which parser a name means, and which one reads what a chat template writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from burnish.agents.tools.calls import Parsed, ToolCall
from burnish.agents.tools.parsers.registry import BUILT_INS, find_parser, recognise
from burnish.errors import ConfigError, RolloutError

Turn = Mapping[str, Any]
Write = Callable[[str, Mapping[str, Any]], str]


def chatml(write: Write, *, header: str, end: str, call_end: str | None = None) -> Any:
    """A chat template as a function. `write` gives the text of a call."""

    def render(messages: Sequence[Turn], tools: Sequence[Any] = ()) -> str:
        text = f"<|system|>{json.dumps(list(tools))}{end}"
        for turn in messages:
            functions = [call["function"] for call in turn.get("tool_calls", ())]
            called = [write(function["name"], function["arguments"]) for function in functions]
            text += header.replace("ROLE", turn["role"]) + turn["content"] + "".join(called)
            text += call_end if called and call_end else end
        return text

    return render


def pythonic(name: str, arguments: Mapping[str, Any], written: Callable[[Any], str] = repr) -> str:
    return f"[{name}({', '.join(f'{key}={written(value)}' for key, value in arguments.items())})]"


def xml(name: str, arguments: Mapping[str, Any]) -> str:
    """As Qwen3-Coder's template: lists and objects as JSON, everything else as Python prints it."""
    values = {key: json.dumps(v) if isinstance(v, (list, dict)) else str(v) for key, v in arguments.items()}
    lines = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"\n<tool_call>\n<function={name}>\n{lines}</function>\n</tool_call>"


def hermes(name: str, arguments: Mapping[str, Any]) -> str:
    """As Hermes' template: arguments first, and a space at the end."""
    return f'\n<tool_call>\n{{ "arguments": {json.dumps(arguments)}, "name": "{name}"}}\n</tool_call> '


def llama(name: str, arguments: Mapping[str, Any]) -> str:
    return f'{{"name": "{name}", "parameters": {json.dumps(arguments)}}}'


def gemma(name: str, arguments: Mapping[str, Any]) -> str:
    """As templates for Gemma: a list of calls with values as JSON."""
    return pythonic(name, arguments, json.dumps)


CHATML = {"header": "<|im_start|>ROLE\n", "end": "<|im_end|>\n"}
LLAMA = {"header": "<|start_header_id|>ROLE<|end_header_id|>\n\n", "end": "<|eot_id|>"}


@pytest.mark.parametrize(
    ("render", "parser"),
    [
        (chatml(hermes, **CHATML), "hermes"),
        (chatml(hermes, header="<|im_start|>ROLE\n<think>\n\n</think>\n\n", end="<|im_end|>\n"), "hermes"),
        (chatml(xml, **CHATML), "qwen_xml"),
        (chatml(llama, **LLAMA), "llama_json"),
        (chatml(llama, **LLAMA, call_end="<|eom_id|>"), "llama_json"),
        (chatml(lambda *call: "<|python_tag|>" + llama(*call), **LLAMA, call_end="<|eom_id|>\n"), "llama_json"),
        (chatml(llama, header="[ROLE] ", end="</s>"), "llama_json"),
        (chatml(gemma, header="<start_of_turn>ROLE\n", end="<end_of_turn>\n"), "pythonic"),
        (chatml(pythonic, **CHATML), "pythonic"),
    ],
)  # fmt: skip
def test_the_form_of_a_template_is_recognised(render: Any, parser: str) -> None:
    assert recognise(render) == parser


@pytest.mark.parametrize(
    "write",
    [
        lambda name, arguments: "",
        lambda name, arguments: f"<call>{name}</call>",
        lambda name, arguments: hermes(name, {key: str(value) for key, value in arguments.items()}),
        lambda name, arguments: hermes(name, arguments) * 2,
    ],
)
def test_a_form_that_is_not_read_back_exactly_is_refused(write: Any) -> None:
    with pytest.raises(ConfigError, match=r"no parser of tool calls \(hermes, qwen_xml, llama_json, pythonic\)"):
        recognise(chatml(write, **CHATML))


def test_a_template_without_the_assistant() -> None:
    with pytest.raises(ConfigError, match="does not render what the assistant says"):
        recognise(lambda messages, tools: str(messages[0]["content"]))


@pytest.mark.parametrize("name", BUILT_INS)
def test_built_ins(name: str) -> None:
    assert find_parser(name) is BUILT_INS[name]


OWN_CODE = """
from burnish.agents.tools.calls import Parsed, ToolCall

class Mine:
    def parse(self, text, tools=()):
        if text == "fail":
            raise ValueError("no such thing")
        if text == "odd":
            return [ToolCall("f", {})]
        if text == "list":
            return Parsed(text, [ToolCall("f", {})])
        if text == "arguments":
            return Parsed(text, (ToolCall("f", [1]),))
        return Parsed("", (ToolCall(text, {}),))

class Deaf:
    pass

class Broken(Mine):
    def __init__(self):
        raise OSError("no disk")
"""


def test_a_parser_of_the_users(place: str) -> None:
    parser = find_parser(f"{place}:Mine")
    assert parser.parse("f") == Parsed("", (ToolCall("f", {}),))
    with pytest.raises(RolloutError, match=r"Mine' failed: ValueError: no such thing \(.*own_code.py:7\)"):
        parser.parse("fail")
    for text in ("odd", "list", "arguments"):
        with pytest.raises(RolloutError, match="Mine' returned"):
            parser.parse(text)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hermez", r"parser is 'hermez', which is not a parser of tool calls\n  -> did you mean 'hermes'\?"),
        ("PLACE:Deaf", "has no method parse"),
        ("PLACE:Main", "has no Main"),
        ("PLACE:", "is not a parser of tool calls"),
        ("PLACE:Broken", "its constructor failed: OSError: no disk"),
    ],
)
def test_parsers_that_cannot_be_used(place: str, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_parser(name.replace("PLACE", place))
