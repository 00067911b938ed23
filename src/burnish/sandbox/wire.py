"""Values between a candidate and its tests: exact plain types as tagged JSON, so that nothing which arrives can act.

A subclass of `int` whose `__eq__` is always true is not an int here. It is refused where it is encoded, and if the
candidate writes the bytes itself, they can still only say a plain value.
"""

from __future__ import annotations

import datetime
import re
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any, Protocol

_DEPTH = 200
_SAFE = 1 << 53
_EXACT = (type(None), bool, str)
_AS_DICTS = (dict, OrderedDict, defaultdict, Counter)
_SEQUENCES: dict[str, type] = {"tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}
_FRACTION = re.compile(r"-?[0-9]{1,4300}(/[0-9]{1,4300})?")
"""As `str` writes one, with the digits that Python reads at most. `Fraction` alone spends seconds on "1e10000000"."""


def _fraction(text: str) -> Fraction:
    if not _FRACTION.fullmatch(text):
        raise ValueError("not a fraction")
    return Fraction(text)


_TEXTS: dict[str, tuple[type, Callable[[str], Any]]] = {
    "decimal": (Decimal, Decimal),
    "fraction": (Fraction, _fraction),
    "date": (datetime.date, datetime.date.fromisoformat),
    "datetime": (datetime.datetime, datetime.datetime.fromisoformat),
}


class NotPlainError(Exception):
    """A value that cannot cross: of another type, too deep, or too large."""


class TooLargeError(NotPlainError):
    """A message that may not be sent, because it is too large."""


class ClosedError(BaseException):
    """The other end has closed the pipe. No `Exception`, so that tests which catch those do not go on without it."""


def encode(value: object, instead: Callable[[object], Any] | None = None, depth: int = 0) -> Any:
    """The value in JSON's types: lists as they are, everything that JSON lacks as an object with one tag.

    instead: what stands for an object of another type; without it such a value raises NotPlainError.
    """
    kind = type(value)
    if kind in _EXACT:
        return value
    if depth > _DEPTH:
        raise NotPlainError(f"a value is nested more than {_DEPTH} deep")
    inner = depth + 1
    if kind is int:
        return value if -_SAFE < value < _SAFE else {"int": hex(value)}  # type: ignore[operator,arg-type]
    if kind is float:
        return {"float": value.hex()}  # type: ignore[attr-defined]
    if kind is list:
        return [encode(item, instead, inner) for item in value]  # type: ignore[attr-defined]
    if kind in _AS_DICTS:
        pairs = value.items()  # type: ignore[attr-defined]
        return {"dict": [[encode(key, instead, inner), encode(item, instead, inner)] for key, item in pairs]}
    for tag, sequence in _SEQUENCES.items():
        if kind is sequence:
            return {tag: [encode(item, instead, inner) for item in value]}  # type: ignore[attr-defined]
    if kind is complex:
        return {"complex": [value.real.hex(), value.imag.hex()]}  # type: ignore[attr-defined]
    if kind in (bytes, bytearray):
        return {"bytes": value.hex()}  # type: ignore[attr-defined]
    if kind is range:
        return {"range": [encode(bound) for bound in (value.start, value.stop, value.step)]}  # type: ignore[attr-defined]
    if kind is datetime.timedelta:
        return {"timedelta": [value.days, value.seconds, value.microseconds]}  # type: ignore[attr-defined]
    for tag, (exact, _) in _TEXTS.items():
        if kind is exact:
            try:
                return {tag: value.isoformat() if tag.startswith("date") else str(value)}  # type: ignore[attr-defined]
            except ValueError as error:
                raise NotPlainError(f"a {tag} has more digits than Python writes") from error
    if instead is not None:
        return instead(value)
    raise NotPlainError(f"a value of type {kind.__name__!r} is not plain")


def decode(data: Any, handle: Callable[[Any], object] | None = None) -> Any:
    """The value that `encode` was given. Raises NotPlainError for anything that it does not write."""
    try:
        return _decode(data, handle)
    except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError, AttributeError) as error:
        raise NotPlainError(f"a message that no encoder writes: {type(error).__name__}") from error


def _decode(data: Any, handle: Callable[[Any], object] | None) -> Any:
    if type(data) in (*_EXACT, int):
        return data
    if type(data) is list:
        return [_decode(item, handle) for item in data]
    ((tag, content),) = data.items()
    if tag == "int":
        return int(content, 16)
    if tag == "float":
        return float.fromhex(content)
    if tag == "dict":
        return {_decode(key, handle): _decode(item, handle) for key, item in content}
    if tag in _SEQUENCES:
        return _SEQUENCES[tag](_decode(item, handle) for item in content)
    if tag == "complex":
        return complex(*map(float.fromhex, content))
    if tag == "bytes":
        return bytes.fromhex(content)
    if tag == "range":
        return range(*map(decode, content))
    if tag == "timedelta":
        return datetime.timedelta(*content)
    if tag in _TEXTS:
        return _TEXTS[tag][1](content)
    if tag == "handle" and handle is not None:
        return handle(content)
    raise NotPlainError(f"unknown tag {tag!r}")


class Link(Protocol):
    """Link to a candidate: a pipe to its process, or an object that answers in this process."""

    def send(self, message: Any) -> None:
        """Send a message. Raises NotPlainError for one that cannot be sent, and ClosedError."""

    def receive(self) -> Any:
        """The next message. Raises NotPlainError for anything that is not a message, and ClosedError."""
