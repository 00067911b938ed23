"""A Python list of calls as the whole turn, as Llama 4 and Gemma write calls."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence

from burnish.tools.calls import MalformedCall, Parsed, ToolCall
from burnish.tools.parsers.protocol import Schemas
from burnish.tools.parsers.whole_turn import parse_whole_turn
from burnish.tools.plain import UnreadableError, check_plain, parse_expression, shown
from burnish.types import Json

MAX_CHARACTERS = 100_000
"""Of a turn with calls. Python's syntax tree takes some hundred bytes for each character."""
_FORM = '[the_tool(parameter="value")]'
_LIKE_A_CALL = re.compile(r"\[\s*[^\W\d]\w*(?:\s*\.\s*\w+)*\s*\(")
# Python warns about these, on the run's standard error, and reads them as something that was not meant.
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_KNOWN_ESCAPES = frozenset("\n\\'\"abfnrtv0123xNuU")
# Gemma's templates write values by `tojson`.
_JSON_CONSTANTS: Mapping[str, Json] = {"true": True, "false": False, "null": None}


class Pythonic:
    """A turn that is only `[tool(parameter=value, ...), ...]`, where values are Python literals of plain data.

    It is read by `ast` and never evaluated. Names that Python does not allow for parameters are in a dictionary:
    `tool(**{"from": 1})`.
    """

    def parse(self, text: str, tools: Schemas = ()) -> Parsed:
        """The calls in a turn (see `ToolParser.parse`). The schemas are not needed, because literals have types."""
        return parse_whole_turn(text, _read)


def _read(text: str, tagged: bool) -> list[ToolCall | MalformedCall]:
    if not tagged and not _LIKE_A_CALL.match(text):
        return []
    try:
        items = _listed(text)
    except UnreadableError as error:
        return [_malformed(text, error)]
    return [_read_one(item, text) for item in items]


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


def _read_one(item: ast.expr, text: str) -> ToolCall | MalformedCall:
    try:
        return _call(item)
    except RecursionError:
        return _malformed(text, UnreadableError("it is nested too deep"))
    except UnreadableError as error:
        return _malformed(text, error)


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


def _malformed(text: str, error: UnreadableError) -> MalformedCall:
    return MalformedCall(text, f"This is not a tool call: {error}. Write only {_FORM}, and a comma between calls")
