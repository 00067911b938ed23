"""Whatever call is written comes back, and no text makes a parser fail or slow."""

from __future__ import annotations

import json
import keyword
import string
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from burnish.agents.tools.calls import MalformedCall, Parsed, ToolCall
from burnish.agents.tools.parsers.registry import BUILT_INS
from burnish.agents.tools.parsers.tagged import _TAG

TAGS = [
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "<function=", "</function>", "<parameter=", "</parameter>"),
    *("<|python_tag|>", "<|python_end|>", '"', "'", "\\", "\n", "{", "}", "[", "]", "(", ")", ";", ",", "=", ":", " "),
    *('{"name": "f", "arguments": {}}', '{"name": "f", "parameters": {}}', "[f(a=1)]", "f(", ">", "null", "1e999"),
]
CHARACTERS = st.characters(exclude_categories=["Cs"])
TEXTS = st.text(CHARACTERS) | st.lists(st.sampled_from(TAGS) | st.text(CHARACTERS, max_size=3)).map("".join)
NUMBERS = st.integers() | st.integers(-(10**300), 10**300) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
NAMES = st.text(string.ascii_letters + "_", min_size=1, max_size=8).filter(lambda name: not keyword.iskeyword(name))
CALLS = st.builds(ToolCall, NAMES, st.dictionaries(NAMES, VALUES, max_size=4))
KINDS = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


def written(form: str, calls: list[ToolCall]) -> str:
    """Calls as a model writes them."""
    if form == "pythonic":
        return f"[{', '.join(f'{call.name}(**{dict(call.arguments)!r})' for call in calls)}]"
    bodies = []
    for call in calls:
        if form == "qwen_xml":
            given = call.arguments.items()
            values = {key: value if isinstance(value, str) else json.dumps(value) for key, value in given}
            assume(not any(_TAG.search(value) for value in values.values()))
            parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
            bodies.append(f"<function={call.name}>\n{parameters}</function>")
        else:
            key = "parameters" if form == "llama_json" else "arguments"
            bodies.append(json.dumps({"name": call.name, key: dict(call.arguments)}, ensure_ascii=False))
    return "; ".join(bodies) if form == "llama_json" else "\n".join(map("<tool_call>\n{}\n</tool_call>".format, bodies))


def schema_for(calls: list[ToolCall]) -> list[dict[str, Any]]:
    """One tool for each call, whose parameters have exactly the types of its arguments."""

    def typed(call: ToolCall) -> dict[str, Any]:
        return {key: {"type": KINDS.get(type(value), "null")} for key, value in call.arguments.items()}

    return [{"name": call.name, "parameters": {"type": "object", "properties": typed(call)}} for call in calls]


@pytest.mark.slow
@pytest.mark.parametrize("form", BUILT_INS)
@given(calls=st.lists(CALLS, min_size=1, max_size=3, unique_by=lambda call: call.name), before=st.booleans())
@settings(deadline=None, max_examples=60)
def test_what_is_written_is_read(form: str, calls: list[ToolCall], before: bool) -> None:
    text = written(form, calls)
    text = "<think>I think [f()] of <tool_call> {</think>\n" + text if before else text
    found = BUILT_INS[form].parse(text, schema_for(calls)).calls
    assert len(found) == len(calls)
    for call, back in zip(calls, found, strict=True):
        assert isinstance(back, ToolCall)
        assert json.dumps(back.to_dict(), sort_keys=True) == json.dumps(call.to_dict(), sort_keys=True)
        assert list(back.arguments) == list(call.arguments)


@pytest.mark.slow_cases("hermes")
@pytest.mark.parametrize("form", BUILT_INS)
@given(text=TEXTS | st.text())
@settings(deadline=None, max_examples=60)
def test_nothing_is_raised(form: str, text: str) -> None:
    found = BUILT_INS[form].parse(text)
    assert isinstance(found, Parsed)
    if not found.calls:
        assert found.content == text


@pytest.mark.slow
@pytest.mark.parametrize("form", BUILT_INS)
@given(data=st.data(), call=CALLS)
@settings(deadline=None, max_examples=60)
def test_nor_by_broken_calls(form: str, data: st.DataObject, call: ToolCall) -> None:
    text = written(form, [call])
    start = data.draw(st.integers(0, len(text)))
    stop = data.draw(st.integers(start, len(text)))
    mutated = text[:start] + data.draw(st.sampled_from([*TAGS, ""])) + text[stop:]
    for found in BUILT_INS[form].parse(mutated).calls:
        assert isinstance(found, (ToolCall, MalformedCall))


HOSTILE = [
    *("<tool_call>", "<tool_call> ", "<tool_call>{", '<tool_call>"', '<tool_call>\\"', '<tool_call>{"'),
    *('<tool_call>{"a": "', '<tool_call>[", "', '<tool_call>[",",', "<tool_call></think>", "<think>", "</think>"),
    *("<tool_call><function=f>", "<tool_call><function=f><parameter=a>", "<parameter=a></parameter>", "<function="),
    *("<tool_call><function=f><parameter=a></parameter>", '{"name": "f", "parameters": {}};', "<|python_tag|>"),
    *('{"name": "f", "parameters": {"a": ', "[f(", "[f(a={", "[f(a=1), ", "[", " ", "\\", '"', "<"),
]
ENDLESS = [
    pytest.param(unit, form, marks=[pytest.mark.slow] if slow else [])
    for unit in HOSTILE
    for form in BUILT_INS
    for slow in [unit.startswith("<tool_call>") and form in ("hermes", "qwen_xml")]
]


@pytest.mark.parametrize(("unit", "form"), ENDLESS)
def test_long_hostile_text_ends(unit: str, form: str) -> None:
    # If the time grew with the square of the length, this would take hours.
    repeated = unit * (300_000 // len(unit))
    for text in (repeated, '<tool_call>{"' + repeated, "<tool_call><function=f>" + repeated + "</parameter>" * 1000):
        assert isinstance(BUILT_INS[form].parse(text), Parsed)
