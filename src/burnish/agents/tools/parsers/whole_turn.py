"""Calls that are a whole turn, except for a thought: JSON (Llama 3.1 to 4), or a Python list (Llama 4, Gemma)."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence

from burnish.agents.tools.calls import MalformedCall, Parsed, ToolCall, call_from_object
from burnish.agents.tools.parsers.protocol import Schemas
from burnish.agents.tools.plain import UnreadableError, check_plain, end_of_space, parse_expression, read_json_at, shown
from burnish.types import Json

_TAGS = re.compile(r"\s*(?:<\|python_(?:tag|start|end)\|>\s*)*")
_END_TAG = "<|python_end|>"
_THOUGHT = "</think>"
_LLAMA_FORM = '{"name": "the tool", "parameters": {"parameter": "value"}}, and ; between several calls'
_KEYS = ("parameters", "arguments")
# The beginning of a call in JSON, to recognise one that is not valid JSON.
_LIKE_JSON_CALL = re.compile(r"""\{\s*['"]?(?:name|parameters|arguments|type['"]?\s*:\s*['"]?function)\b""")
MAX_CHARACTERS = 100_000
"""Longest turn with calls. Python's syntax tree takes some hundred bytes for each character."""
_PYTHON_FORM = '[the_tool(parameter="value")], and a comma between calls'
_LIKE_PYTHON_CALL = re.compile(r"\[\s*[^\W\d]\w*(?:\s*\.\s*\w+)*\s*\(")
# Python reads unknown escapes as a backslash and a letter, which was not meant, and warns on standard error.
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_KNOWN_ESCAPES = frozenset("\n\\'\"abfnrtv0123xNuU")
# Gemma's templates write values by `tojson`.
_JSON_CONSTANTS: Mapping[str, Json] = {"true": True, "false": False, "null": None}

ReadTurn = Callable[[str, bool], Sequence[ToolCall | MalformedCall]]
"""Reads the calls of a text without thought and tags; the flag says that tags marked it as calls. Empty for none."""


def parse_whole_turn(text: str, read: ReadTurn) -> Parsed:
    """Read the calls of a turn that has nothing else, except for a thought and Llama's tags.

    The turn may have only the end of its thought, because the chat template begins it. An argument may contain
    `</think>`, too, so a turn is first read as if it had no thought.
    """
    thought = text.find(_THOUGHT) + len(_THOUGHT) if _THOUGHT in text else 0
    for start in dict.fromkeys((0, thought)):
        body = text[start:].rstrip().removesuffix(_END_TAG)
        tags = _TAGS.match(body)
        begin = tags.end() if tags else 0
        calls = read(body[begin:].rstrip(), "<|" in body[:begin])
        if calls and (start == thought or all(isinstance(call, ToolCall) for call in calls)):
            return Parsed(text[:start].strip(), tuple(calls))
    return Parsed(text)


def _malformed(text: str, error: UnreadableError, form: str) -> MalformedCall:
    return MalformedCall(text, f"This is not a tool call: {error}. Write only {form}")


class LlamaJson:
    """A turn that is only JSON: an object with name and parameters (or arguments), or several separated by `;`.

    `<|python_tag|>` may come first. Without it, a JSON object that has no parameters and more than a name is an answer,
    not a call.
    """

    def parse(self, text: str, tools: Schemas = ()) -> Parsed:
        """Read the calls in a turn (see `ToolParser.parse`). The schemas are not needed, because JSON has types."""
        return parse_whole_turn(text, _read_objects)


def _read_objects(text: str, tagged: bool) -> list[ToolCall | MalformedCall]:
    calls: list[ToolCall | MalformedCall] = []
    if not tagged and not _is_call(text):
        return calls
    position = 0
    while not calls or position < len(text):
        start = position
        try:
            value, position = read_json_at(text, start)
        except UnreadableError as error:  # the beginning of the next call is not known
            return [*calls, _malformed(text[start:], error, _LLAMA_FORM)]
        try:
            calls.append(call_from_object(value, keys=_KEYS, ignored=("type",)))
        except UnreadableError as error:
            calls.append(_malformed(text[start:position], error, _LLAMA_FORM))
        position = end_of_space(text, position)
        position = end_of_space(text, position + text.startswith(";", position))
    return calls


def _is_call(text: str) -> bool:
    if not text.startswith("{"):
        return False
    try:
        value, _ = read_json_at(text, 0)
    except UnreadableError:
        return _LIKE_JSON_CALL.match(text) is not None
    return isinstance(value, dict) and (
        any(key in value for key in _KEYS) or {"name"} <= value.keys() <= {"name", "type"}
    )


class Pythonic:
    """A turn that is only `[tool(parameter=value, ...), ...]`, where values are Python literals of plain data.

    It is read by `ast` and never evaluated. Names that Python does not allow for parameters are in a dictionary:
    `tool(**{"from": 1})`.
    """

    def parse(self, text: str, tools: Schemas = ()) -> Parsed:
        """Read the calls in a turn (see `ToolParser.parse`). The schemas are not needed: literals have types."""
        return parse_whole_turn(text, _read_list)


def _read_list(text: str, tagged: bool) -> list[ToolCall | MalformedCall]:
    if not tagged and not _LIKE_PYTHON_CALL.match(text):
        return []
    try:
        items = _listed(text)
    except UnreadableError as error:
        return [_malformed(text, error, _PYTHON_FORM)]
    return [_read_item(item, text) for item in items]


def _listed(text: str) -> list[ast.expr]:
    if len(text) > MAX_CHARACTERS:
        raise UnreadableError(f"it has {len(text):,} characters; {MAX_CHARACTERS:,} are allowed")
    wrong = next((match[1] for match in _ESCAPE.finditer(text) if match[1] not in _KNOWN_ESCAPES), None)
    if wrong is not None:
        raise UnreadableError(rf"\{wrong} has no meaning; write \\ for a backslash")
    try:
        tree = parse_expression(text)
    except SyntaxError as error:
        raise UnreadableError(f"it is not valid Python ({error.msg})") from None
    except ValueError:
        raise UnreadableError("it has a character that Python does not read") from None
    except (RecursionError, MemoryError):  # MemoryError: the parser's own limit on nesting
        raise UnreadableError("it is nested too deep") from None
    if not isinstance(tree, ast.List) or not tree.elts:
        raise UnreadableError("it is not a list of calls")
    return tree.elts


def _read_item(item: ast.expr, text: str) -> ToolCall | MalformedCall:
    try:
        return _call(item)
    except RecursionError:
        return _malformed(text, UnreadableError("it is nested too deep"), _PYTHON_FORM)
    except UnreadableError as error:
        return _malformed(text, error, _PYTHON_FORM)


def _call(item: ast.expr) -> ToolCall:
    if not isinstance(item, ast.Call):
        raise UnreadableError("the list has something that is not a call")
    name = _name(item.func)
    if item.args:
        raise UnreadableError(f"arguments of {name} have no name; write {name}(parameter=value)")
    arguments: dict[str, Json] = {}
    for given in item.keywords:
        more = _literal(given.value) if given.arg is None else {given.arg: _literal(given.value)}
        if not isinstance(more, dict):
            raise UnreadableError(f"after ** there must be a dictionary, not {shown(more)}")
        for key, value in more.items():
            if key in arguments:
                raise UnreadableError(f"the argument {shown(key)} occurs twice")
            arguments[key] = value
    check_plain(arguments)
    return ToolCall(name, arguments)


def _name(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        raise UnreadableError("what is called must be the name of a tool")
    return ".".join(reversed([*parts, node.id]))


def _literal(node: ast.expr) -> Json:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)) if number is not True:
            return -number
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_literal(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return _dictionary(keys, values)
        case ast.Name(id="true" | "false" | "null" as name):
            return _JSON_CONSTANTS[name]
        case ast.Name(id=name):
            raise UnreadableError(f"{shown(name)} is not a value; write texts in quotation marks")
        case _:
            raise UnreadableError("values must be texts, numbers, True, False, None, lists or dictionaries")


def _dictionary(keys: Sequence[ast.expr | None], values: Sequence[ast.expr]) -> Json:
    read: dict[str, Json] = {}
    for node, value in zip(keys, values, strict=True):
        key = None if node is None else _literal(node)
        if not isinstance(key, str):
            raise UnreadableError("keys of dictionaries must be texts")
        if key in read:
            raise UnreadableError(f"the key {shown(key)} occurs twice")
        read[key] = _literal(value)
    return read
