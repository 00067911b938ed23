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
_SEQUENCES: dict[str, type] = {kind.__name__: kind for kind in (tuple, set, frozenset, deque)}
_FRACTION = re.compile(r"-?[0-9]{1,4300}(/[0-9]{1,4300})?")
"""As `str` writes one, with the digits that Python reads at most. `Fraction` alone spends seconds on "1e10000000"."""


def _fraction(text: str) -> Fraction:
    if not _FRACTION.fullmatch(text):
        raise ValueError("not a fraction")
    return Fraction(text)


_TAGS: dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    int: ("int", hex, lambda digits: int(digits, 16)),
    float: ("float", float.hex, float.fromhex),
    complex: ("complex", lambda v: [v.real.hex(), v.imag.hex()], lambda parts: complex(*map(float.fromhex, parts))),
    bytearray: ("bytearray", bytearray.hex, bytearray.fromhex),
    bytes: ("bytes", bytes.hex, bytes.fromhex),
    range: ("range", lambda v: [encode(one) for one in (v.start, v.stop, v.step)], lambda v: range(*map(decode, v))),
    Decimal: ("decimal", str, Decimal),
    Fraction: ("fraction", str, _fraction),
    datetime.date: ("date", datetime.date.isoformat, datetime.date.fromisoformat),
    datetime.datetime: ("datetime", datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    datetime.timedelta: ("timedelta", lambda v: [v.days, v.seconds, v.microseconds], lambda v: datetime.timedelta(*v)),
}
"""Type -> its tag, the function that writes a value, and the function that reads it."""
_READERS = {tag: read for tag, _, read in _TAGS.values()}


class NotPlainError(Exception):
    """A value that cannot cross: of another type, too deep, or too large."""


class TooLargeError(NotPlainError):
    """A message that may not be sent, because it is too large."""


class ClosedError(BaseException):
    """The other end has closed the pipe. No `Exception`, so that tests which catch those do not go on without it."""


def encode(value: Any, instead: Callable[[object], Any] | None = None, depth: int = 0) -> Any:
    """The value in JSON's types: lists as they are, everything that JSON lacks as an object with one tag.

    instead: what stands for an object of another type; without it such a value raises NotPlainError.
    """
    kind = type(value)
    if kind in _EXACT:
        return value
    if depth > _DEPTH:
        raise NotPlainError(f"a value is nested more than {_DEPTH} deep")
    if kind is int and -_SAFE < value < _SAFE:
        return value
    if kind in _AS_DICTS:
        pairs = [[encode(key, instead, depth + 1), encode(item, instead, depth + 1)] for key, item in value.items()]
        return {"dict": pairs}
    if kind is list or kind in _SEQUENCES.values():
        items = [encode(item, instead, depth + 1) for item in value]
        return items if kind is list else {kind.__name__: items}
    if kind in _TAGS:
        tag, write, _ = _TAGS[kind]
        try:
            return {tag: write(value)}
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
    if tag == "dict":
        return {_decode(key, handle): _decode(item, handle) for key, item in content}
    if tag in _SEQUENCES:
        return _SEQUENCES[tag](_decode(item, handle) for item in content)
    if tag in _READERS:
        return _READERS[tag](content)
    if tag == "handle" and handle is not None:
        return handle(content)
    raise NotPlainError(f"unknown tag {tag!r}")


class Link(Protocol):
    """Link to a candidate: a pipe to its process, or an object that answers in this process."""

    def send(self, message: Any) -> None:
        """Send a message. Raises NotPlainError for one that cannot be sent, and ClosedError."""

    def receive(self) -> Any:
        """The next message. Raises NotPlainError for anything that is not a message, and ClosedError."""
