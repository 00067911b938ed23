"""Tables of good and bad texts for every form in which models write calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from burnish.agents.tools.calls import MalformedCall, Parsed, ToolCall
from burnish.agents.tools.parsers.registry import BUILT_INS

JOB = ("job", {"city": "Rome", "days": 3})
GOOD = {
    "hermes": '<tool_call>\n{"name": "job", "arguments": {"city": "Rome", "days": 3}}\n</tool_call>',
    "qwen_xml": "<tool_call>\n<function=job>\n<parameter=city>\nRome\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
    "llama_json": '{"name": "job", "parameters": {"city": "Rome", "days": 3}}',
    "pythonic": '[job(city="Rome", days=3)]',
}
PROPERTIES: dict[str, Any] = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "part": {"type": "number"},
    "exact": {"type": "boolean"},
    "tags": {"type": "array"},
    "more": {"type": "object"},
    "note": {"type": "string", "nullable": True},
    "either": {"type": ["string", "integer"]},
    "any": {},
}
SCHEMA = {"type": "function", "function": {"name": "job", "parameters": {"type": "object", "properties": PROPERTIES}}}


def parsed(form: str, text: str) -> Parsed:
    return BUILT_INS[form].parse(text, (SCHEMA,))


def calls(form: str, text: str) -> list[tuple[str, Any]]:
    """(name, arguments) of each call, and ("?", why) of each that is malformed."""
    found = parsed(form, text).calls
    return [("?", call.why) if isinstance(call, MalformedCall) else (call.name, call.arguments) for call in found]


def h(text: str) -> str:
    return f"<tool_call>\n{text}\n</tool_call>"


HERMES_GOOD = [
    (GOOD["hermes"], [JOB]),
    ('<tool_call>\n\n {"arguments": {}, "name": "job"} \n</tool_call>', [("job", {})]),
    (h('{"name": "a", "arguments": {}}') + "\n" + h('{"name": "b", "arguments": {}}'), [("a", {}), ("b", {})]),
    (h('{"name": "a", "arguments": {"x": "</tool_call>"}}'), [("a", {"x": "</tool_call>"})]),
    (h('{"name": "a", "arguments": {"x": "<tool_call>{\\"name\\""}}'), [("a", {"x": '<tool_call>{"name"'})]),
    (h('{"name": "a", "arguments": {"x": "</think>"}}'), [("a", {"x": "</think>"})]),
    (h('{"name": "a", "arguments": {"x": "\\u00fc\\n"}}'), [("a", {"x": "ü\n"})]),
    (h('{"name": "a", "arguments": {"x": [1, 1.5, -2e3, true, null, {"y": []}]}}'),
     [("a", {"x": [1, 1.5, -2000.0, True, None, {"y": []}]})]),
    ("no call at all", []),
    ("", []),
    ('{"name": "job", "arguments": {}}', []),
    ("<think>" + GOOD["hermes"] + "</think>no", []),
    ("<think>hm</think>" + GOOD["hermes"], [JOB]),
    (GOOD["hermes"] + "</think>" + h('{"name": "b", "arguments": {}}'), [("b", {})]),
    ("so <tool_call> is it </think>" + GOOD["hermes"], [JOB]),
    ("<think>a</think><think>" + GOOD["hermes"] + "</think>" + h('{"name": "b", "arguments": {}}'), [("b", {})]),
    (h('{"name": "a", "arguments": {"n": ' + "9" * 1000 + "}}"), [("a", {"n": int("9" * 1000)})]),
    (h('{"name": "a", "arguments": {"x": "\\ud83d\\ude00"}}'), [("a", {"x": "😀"})]),
    (h('{"name": "a b/c", "arguments": {"x y": 1}}'), [("a b/c", {"x y": 1})]),
]  # fmt: skip
HERMES_BAD = [
    ("<tool_call>", "it is not valid JSON (expecting value at character 1)"),
    (h("[]"), "it is [], not a JSON object"),
    (h("{}"), 'it has no "name"'),
    (h('{"arguments": {}}'), 'it has no "name"'),
    (h('{"name": 3, "arguments": {}}'), '"name" must be the name of a tool'),
    (h('{"name": "job"}'), 'it has no "arguments"; without arguments write "arguments": {}'),
    (h('{"name": "job", "parameters": {}}'), "it has the key 'parameters'; use \"arguments\""),
    (h('{"name": "job", "arguments": {}, "id": 1}'), 'it has the key \'id\'; use only "name" and "arguments"'),
    (h('{"name": "job", "arguments": [1]}'), '"arguments" must be an object, not [1]'),
    (h("{'name': 'job', 'arguments': {}}"), "not valid JSON (expecting property name enclosed in double quotes"),
    (h('{"name": "job", "arguments": {}}}'), "after the JSON value there is other text: '}'"),
    (h('{"name": "job", "arguments": {"x": NaN}}'), "NaN is not a JSON value"),
    (h('{"name": "job", "arguments": {"x": 1e999}}'), "a number that is not finite, or too large"),
    (h('{"name": "job", "arguments": {"x": 1, "x": 2}}'), "the key 'x' occurs twice"),
    (h('{"name": "job", "arguments": {"x": ' + "9" * 1001 + "}}"), "an integer of more than 1000 digits"),
    (h('{"name": "job", "arguments": {"x": ' + "[" * 10**5 + "]" * 10**5 + "}}"), "nested more than 50 deep"),
    (h('{"name": "job", "arguments": {"x": "\\ud800"}}'), "one half of a surrogate pair"),
    (h('{"name": "job", "arguments": {"x": "a\nb"}}'), r"in strings, write line breaks as \n"),
    (h('{"name": "job", "arguments": {"x": "a}}'), "a text in it is not closed by a quotation mark"),
    ('<tool_call>\n{"name": "job", "arguments": {}}', "the call is not closed by </tool_call>"),
    ('<tool_call>{"name": "job", "arguments": {}}<|x|></tool_call>', "the call is not closed by </tool_call>"),
]


def q(body: str) -> str:
    return f"<tool_call>\n<function=job>\n{body}\n</function>\n</tool_call>"


def p(name: str, value: str) -> str:
    return f"<parameter={name}>\n{value}\n</parameter>"


QWEN_GOOD = [
    (GOOD["qwen_xml"], [JOB]),
    ("<tool_call><function=job></function></tool_call>", [("job", {})]),
    (q("<parameter=city>Rome</parameter>"), [("job", {"city": "Rome"})]),
    (q(p("city", "")), [("job", {"city": ""})]),
    (q(p("city", "\n a \n\n")), [("job", {"city": "\n a \n\n"})]),
    (q(p("city", "3")), [("job", {"city": "3"})]),
    (q(p("city", 'if a < b and <i>x</i>:\n\treturn "c"')), [("job", {"city": 'if a < b and <i>x</i>:\n\treturn "c"'})]),
    (q(p("days", " 3 ")), [("job", {"days": 3})]),
    (q(p("days", "three")), [("job", {"days": "three"})]),
    (q(p("days", "9" * 1001)), [("job", {"days": "9" * 1001})]),
    (q(p("part", "3")), [("job", {"part": 3})]),
    (q(p("part", "-1.5e2")), [("job", {"part": -150.0})]),
    (q(p("exact", "True") + p("tags", '["a", 1]')), [("job", {"exact": True, "tags": ["a", 1]})]),
    (q(p("exact", "false")), [("job", {"exact": False})]),
    (q(p("more", '{"a": {"b": null}}')), [("job", {"more": {"a": {"b": None}}})]),
    (q(p("note", "None") + p("city", "None")), [("job", {"note": None, "city": "None"})]),
    (q(p("either", "5")), [("job", {"either": 5})]),
    (q(p("any", "5")), [("job", {"any": "5"})]),
    (q(p("unknown", "5")), [("job", {"unknown": "5"})]),
    ("<tool_call><function=other><parameter=days>3</parameter></function></tool_call>", [("other", {"days": "3"})]),
    ("<think>" + GOOD["qwen_xml"] + "</think>", []),
    ("<function=job>\n</function>", []),
    ("plain", []),
]
QWEN_BAD = [
    ("<tool_call>", "<tool_call> is not followed by <function=NAME>"),
    (GOOD["hermes"], "<tool_call> is not followed by <function=NAME>"),
    ("<tool_call><function=></function></tool_call>", "is not followed by <function=NAME>"),
    ("<tool_call><function=a\nb></function></tool_call>", "is not followed by <function=NAME>"),
    ("<tool_call><function=job></tool_call>", "<function=job> is not closed by </function>"),
    ("<tool_call><function=job></function>", "the call is not closed by </tool_call>"),
    ("<tool_call><function=job></function> and </tool_call>", "other text: 'and </tool_call>'"),
    (q("text"), "<function=job> is not closed by </function>"),
    (q("<parameter=city>\nRome"), "the parameter 'city' is not closed by </parameter>"),
    (q("<parameter=city>Rome<parameter=days>3</parameter>"), "the parameter 'city' is not closed by </parameter>"),
    (q("<parameter=>3</parameter>"), "<function=job> is not closed by </function>"),
    (q(p("city", "a") + p("city", "b")), "the parameter 'city' occurs twice"),
    (q(p("city", "a </parameter> b")), "<function=job> is not closed by </function>"),
    (q(p("city", "a </function> b")), "the parameter 'city' is not closed by </parameter>"),
    ("<tool_call><function=job></function><function=b></function></tool_call>", "not closed by </tool_call>"),
]


LLAMA_GOOD = [
    (GOOD["llama_json"], [JOB]),
    ("<|python_tag|>" + GOOD["llama_json"], [JOB]),
    ("<|python_start|>" + GOOD["llama_json"] + "<|python_end|>", [JOB]),
    (GOOD["llama_json"] + " ; \n" + GOOD["llama_json"] + ";", [JOB, JOB]),
    (GOOD["llama_json"] + GOOD["llama_json"], [JOB, JOB]),
    ('{"type": "function", "name": "a", "parameters": {}}', [("a", {})]),
    ('{"name": "a", "parameters": {"x": "; {}"}}', [("a", {"x": "; {}"})]),
    ('{"name": "a", "parameters": {"x": "</think>"}}', [("a", {"x": "</think>"})]),
    ("<think>x</think>\n" + GOOD["llama_json"], [JOB]),
    ("x</think>\n\n<|python_tag|>" + GOOD["llama_json"], [JOB]),
    (GOOD["llama_json"] + " hm </think>" + '{"name": "b", "parameters": {}}', [("b", {})]),
    ("<think>" + GOOD["llama_json"], []),
    ("The call is " + GOOD["llama_json"], []),
    ('{"answer": 42}', []),
    ('{"name": "Bob", "age": 3}', []),
    ("[1, 2]", []),
    ("", []),
]
LLAMA_BAD = [
    ("<|python_tag|>", "not valid JSON"),
    ("<|python_tag|>print(1)", "not valid JSON (expecting value at character 1)"),
    ('<|python_tag|>{"answer": 42}', 'it has no "name"'),
    ('{"name": "job"}', 'it has no "parameters"; without arguments write "parameters": {}'),
    ('{"parameters": {}}', 'it has no "name"'),
    ('{"name": "job", "parameters": {}, "arguments": {}}', 'it has "parameters" and "arguments"; use only one'),
    ('{"name": "job", "parameters": {}, "id": 2}', 'it has the key \'id\'; use only "name" and "parameters"'),
    ('{"name": "job", "parameters": {}', "not valid JSON"),
    ("{'name': 'job', 'parameters': {}}", "not valid JSON (expecting property name"),
    ('{"type": "function", "function": {"name": "job"', "not valid JSON"),
]


PYTHONIC_GOOD = [
    (GOOD["pythonic"], [JOB]),
    ("[ job ( ) , other(a = 1) ]", [("job", {}), ("other", {"a": 1})]),
    ("[job(city='Rome',\n    days=3,\n),\n]", [JOB]),
    ("<|python_start|>[job()]<|python_end|>", [("job", {})]),
    ("[tools.math.add(a=1)]", [("tools.math.add", {"a": 1})]),
    ("[f(a=-1, b=-2.5, c=0, d=1e3)]", [("f", {"a": -1, "b": -2.5, "c": 0, "d": 1000.0})]),
    ("[f(a=True, b=False, c=None)]", [("f", {"a": True, "b": False, "c": None})]),
    ("[f(a=[1, 'x', [None]], b={'k': {'l': [1]}})]", [("f", {"a": [1, "x", [None]], "b": {"k": {"l": [1]}}})]),
    ("[f(a=(1, 2))]", [("f", {"a": [1, 2]})]),
    ("[f(a='it\\'s', b=\"\\n\\u00fc\\\\\")]", [("f", {"a": "it's", "b": "\nü\\"})]),
    ("[f(a='a' 'b')]", [("f", {"a": "ab"})]),
    ("[f(a=')]', b='</think>')]", [("f", {"a": ")]", "b": "</think>"})]),
    ("[f(a=0x10, b=1_000)]", [("f", {"a": 16, "b": 1000})]),
    ('[f(**{"from": 1, "x y": 2}, b=3)]', [("f", {"from": 1, "x y": 2, "b": 3})]),
    ("[größe(a='π😀')]", [("größe", {"a": "π😀"})]),
    ("<think>[f()]</think>\n[g()]", [("g", {})]),
    ("[f()] maybe</think>[g()]", [("g", {})]),
    ("Let me call [f()]", []),
    ("[1, 2, 3]", []),
    ("[link](https://example.org)", []),
    ("f(a=1)", []),
    ("", []),
]
PYTHONIC_BAD = [
    ("[f(1)]", "arguments of f have no name; write f(parameter=value)"),
    ("[f(a=1, a=2)]", "the argument 'a' occurs twice"),
    ("[f(a=1, **{'a': 2})]", "the argument 'a' occurs twice"),
    ("[f(a={'k': 1, 'k': 2})]", "the key 'k' occurs twice"),
    ("[f(a={1: 2})]", "keys of dictionaries must be texts"),
    ("[f(**[1])]", "after ** there must be a dictionary, not [1]"),
    ("[f(a=Rome)]", "'Rome' is not a value; write texts in quotation marks"),
    ("[f(a=g())]", "values must be texts, numbers"),
    ("[f(a=b'x')]", "values must be texts, numbers"),
    ("[f(a=-True)]", "values must be texts, numbers"),
    ("[f(a=__import__('os').system('true'))]", "values must be texts, numbers"),
    ("[f(a=0x" + "f" * 9000 + ")]", "more than 1000 digits"),
    ("[f(a='\\d')]", r"\d has no meaning; write \\ for a backslash"),
    ("[f(a=1)", "not valid Python ('[' was never closed)"),
    ("[f(a=1), 2]", "the list has something that is not a call"),
    ("[f(a=1) for x in y]", "it is not a list of calls"),
    ("[f()()]", "what is called must be the name of a tool"),
    ("[f(a=" + "[" * 150 + "]" * 150 + ")]", "nested more than 50 deep"),
    ("[f(a=" + "[" * 5000 + "]" * 5000 + ")]", "nested"),
    ("[f(a=" + "-" * 50_000 + "1)]", "nested too deep"),
    ("[f(a='" + "x" * 100_000 + "')]", "it has 100,009 characters; 100,000 are allowed"),
    ("[f(a='\0')]", "not"),
]


def rows(**tables: list[tuple[str, Any]]) -> list[Any]:
    return [
        pytest.param(form, text, result, id=f"{form}-{number}")
        for form, lines in tables.items()
        for number, (text, result) in enumerate(lines)
    ]


GOOD_ROWS = rows(hermes=HERMES_GOOD, qwen_xml=QWEN_GOOD, llama_json=LLAMA_GOOD, pythonic=PYTHONIC_GOOD)
BAD_ROWS = rows(hermes=HERMES_BAD, qwen_xml=QWEN_BAD, llama_json=LLAMA_BAD, pythonic=PYTHONIC_BAD)


@pytest.mark.parametrize(("form", "text", "expected"), GOOD_ROWS)
def test_calls_are_read(form: str, text: str, expected: list[Any]) -> None:
    found = calls(form, text)
    assert json.dumps(found) == json.dumps(expected)  # unlike ==, this tells 1, 1.0 and True apart
    if not expected:
        assert parsed(form, text).content == text


@pytest.mark.parametrize(("form", "text", "why"), BAD_ROWS)
def test_what_is_not_a_call_is_explained(form: str, text: str, why: str) -> None:
    (call,) = (call for call in parsed(form, text).calls if isinstance(call, MalformedCall))
    assert why in call.why
    assert ". Write " in call.why
    assert len(call.why) < 500
    assert call.text in text


def test_text_around_calls_is_kept_in_order() -> None:
    text = f"<think>first</think>\nI look.\n{GOOD['hermes']}\nand\n{h('[]')} then\n"
    found = parsed("hermes", text)
    assert found.content == "<think>first</think>\nI look.\n\nand\n then"
    assert [type(call) for call in found.calls] == [ToolCall, MalformedCall]


def test_text_before_and_after_a_thought_is_content() -> None:
    assert parsed("llama_json", "<think>a</think>\n" + GOOD["llama_json"]).content == "<think>a</think>"
    assert parsed("pythonic", GOOD["pythonic"]).content == ""
    assert parsed("hermes", f"{GOOD['hermes']}a</think>b{GOOD['hermes']}").content == f"{GOOD['hermes']}a</think>b"


@pytest.mark.parametrize(
    ("form", "broken"),
    [
        ("hermes", '<tool_call>\n{"name": "x, "arguments": {}}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "x", "arguments": {"a": "b}}\n</tool_call>'),
        ("hermes", "<tool_call>\n"),
        ("hermes", "<tool_call>\nx\n</tool_call>\n"),
        ("hermes", '<tool_call>\n{"nam": "x", "arguments": {"a": "</tool_call>"}}\n</tool_call>'),
        ("qwen_xml", "<tool_call>\n"),
        ("qwen_xml", "<tool_call><function=x>\n<parameter=a>\n1\n</function></tool_call>"),
        ("qwen_xml", "<tool_call><function=x>"),
    ],
)
def test_one_broken_call_does_not_cost_the_next(form: str, broken: str) -> None:
    assert [name for name, _ in calls(form, broken + GOOD[form])] == ["?", "job"]


def test_the_rest_after_json_that_cannot_be_read_is_one_malformed_call() -> None:
    found = parsed("llama_json", f"{GOOD['llama_json']}; {{}}; {{x}} ; {GOOD['llama_json']}").calls
    assert [type(call) for call in found] == [ToolCall, MalformedCall, MalformedCall]
    assert found[2].text == f"{{x}} ; {GOOD['llama_json']}"


def test_a_call_has_the_form_of_messages() -> None:
    call = ToolCall("job", {"days": 3})
    assert call.to_dict() == {"type": "function", "function": {"name": "job", "arguments": {"days": 3}}}
    assert {call: 1}[ToolCall("job", {"days": 3})] == 1
