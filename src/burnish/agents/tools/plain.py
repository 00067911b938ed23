"""Strict reading of JSON written by a model: every accepted value can be passed on, recorded and written again."""

from __future__ import annotations

import ast
import json
import math
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence

from burnish.types import Json

MAX_DEPTH = 50
"""Deeper values are refused, because later readers may be recursive."""
MAX_DIGITS = 1000
"""Longest integer. The time to convert one grows with the square of its digits."""
_MAX_INTEGER = 10**MAX_DIGITS
_SPACE = re.compile(r"\s*")


def parse_expression(text: str) -> ast.expr:
    """Parse a Python expression, with the exceptions of `ast.parse`.

    Syntax warnings (as for `1if x else 2`) are suppressed: the text is the model's, not the user's.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        return ast.parse(text, mode="eval").body


class UnreadableError(Exception):
    """A call cannot be read. The message says why, in words for the model."""


def read_json(text: str) -> Json:
    """Read a JSON text. Raises UnreadableError for other text, and for values that `read_json_at` refuses."""
    value, end = read_json_at(text, 0)
    if text[end:].strip():
        raise UnreadableError(f"after the JSON value there is other text: {shown(text[end:].strip())}")
    return value


def read_json_at(text: str, position: int) -> tuple[Json, int]:
    """Read the JSON value that begins at a position (or after white space there). Returns it and its end.

    Raises UnreadableError for NaN and infinities, duplicate keys, integers of more than `MAX_DIGITS` digits, lone
    surrogates, and values nested more than `MAX_DEPTH` deep. `json.loads` accepts these, but they have no meaning in
    JSON, or break later readers.
    """
    begin = end_of_space(text, position)
    try:
        value, end = _DECODER.raw_decode(text, begin)
    except RecursionError:
        raise UnreadableError(f"it is nested more than {MAX_DEPTH} deep") from None
    except json.JSONDecodeError as error:
        raise UnreadableError(f"it is not valid JSON ({_in_short(error, begin)})") from None
    check_plain(value)
    return value, end


def end_of_space(text: str, position: int) -> int:
    """Position after the white space that begins at a position."""
    space = _SPACE.match(text, position)
    return space.end() if space else position


def check_plain(value: Json) -> None:
    """Raise UnreadableError if the value is too deep or holds a text or number that cannot be passed on."""
    layer: list[Json] = [value]
    for _ in range(MAX_DEPTH + 1):
        for item in layer:
            _check_single(item)
        layer = [inner for item in layer for inner in _inside(item)]
        if not layer:
            return
    raise UnreadableError(f"it is nested more than {MAX_DEPTH} deep")


def shown(value: object, limit: int = 80) -> str:
    """Quote a value of the model in a message to it, cut to `limit` characters."""
    quoted = json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else repr(value)
    return quoted if len(quoted) <= limit else f"{quoted[: limit - 4]} ..."


def _inside(value: Json) -> list[Json]:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    return value if isinstance(value, list) else []


def _check_single(value: Json) -> None:
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise UnreadableError("it has one half of a surrogate pair; write the character itself") from None
    elif isinstance(value, int) and not -_MAX_INTEGER < value < _MAX_INTEGER:
        raise UnreadableError(f"it has an integer of more than {MAX_DIGITS} digits")
    elif isinstance(value, float) and not math.isfinite(value):
        raise UnreadableError("it has a number that is not finite, or too large")


def _in_short(error: json.JSONDecodeError, begin: int) -> str:
    if error.msg.startswith("Invalid control character"):
        return r"in strings, write line breaks as \n and tabs as \t"
    message = error.msg.removesuffix(" at").removesuffix(" starting")
    return f"{message[:1].lower()}{message[1:]} at character {error.pos - begin + 1}"


def _unique(pairs: Sequence[tuple[str, Json]]) -> Mapping[str, Json]:
    read = dict(pairs)
    if len(read) < len(pairs):
        (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise UnreadableError(f"the key {shown(twice)} occurs twice")
    return read


def _integer(digits: str) -> int:
    # Before the conversion, because Python's own limit can be switched off.
    if len(digits) > MAX_DIGITS:
        raise UnreadableError(f"it has an integer of more than {MAX_DIGITS} digits")
    return int(digits)


def _no_constant(name: str) -> Json:
    raise UnreadableError(f"{name} is not a JSON value")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_int=_integer, parse_constant=_no_constant)
