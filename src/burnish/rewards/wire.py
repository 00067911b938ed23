"""The protocol between training process and workers: frames of JSON over a socket, never pickles.

Messages to a worker keep their Python types: a value that JSON does not have becomes a dictionary with one tagged key
(`{"$tuple": [...]}`). Messages from a worker are plain JSON, which `burnish.rewards.messages` checks completely.
"""

from __future__ import annotations

import array
import base64
import datetime
import functools
import json
import sys
import uuid
import zoneinfo
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePath
from typing import Any

from burnish.outside.frames import MAX_BYTES, GarbledError, frame

MAX_ANSWER_BYTES = 64 << 20
"""Longest answer of a worker. A frame that claims to be longer is rejected."""

_PLAIN_INT = 1 << 4096  # Python refuses to write whole numbers of more than 4,300 digits as decimals
_PACKED_FROM = 32  # numbers in a list
_ATOMS = frozenset({str, bool, float, type(None)})


class UnsendableError(Exception):
    """A value cannot be sent to a worker. The message says where in the request it is, and what it is."""


def encode_request(message: Any) -> bytes:
    """A frame for a worker. UnsendableError for a type that cannot be encoded."""
    try:
        data = _dumps(_tagged(message, ""))
    except RecursionError:
        raise UnsendableError("it is nested too deeply, or contains itself") from None
    if len(data) > MAX_BYTES:
        raise UnsendableError(f"it takes {len(data):,} bytes, more than the {MAX_BYTES:,} of one message")
    return frame(data)


def decode_request(data: bytes | bytearray) -> Any:
    """Restore the value given to `encode_request`, from a frame without its length."""
    text = data.decode("utf-8", "surrogatepass")
    # Without any tag the plain decoder is enough, and much faster.
    return _TAG_DECODER.decode(text) if '"$' in text else json.loads(text)


def encode_answer(message: list[Any]) -> bytes:
    """A frame for the training process, of plain values only."""
    return frame(_dumps(message))


def decode_answer(data: bytes) -> Any:
    """Decode the plain JSON value in a frame. GarbledError for anything else, including numbers that are not finite."""
    try:
        return _ANSWER_DECODER.decode(data.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise GarbledError(f"{data[:60]!r}, which is not JSON") from error


def _dumps(value: Any) -> bytes:
    """JSON as bytes. Lone surrogates are passed through, so that any text arrives unchanged."""
    return _ENCODER.encode(value).encode("utf-8", "surrogatepass")


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON number")


# No check for circular values, because `_tagged` has already gone through the whole value.
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False)
_ANSWER_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _tagged(value: Any, place: str) -> Any:
    """`value` in JSON types, with tags for other types. Subclasses of plain types become the plain type."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is list:
        return _packed(value) or _tagged_items(value, place)
    if kind is dict:
        return _tagged_dict(value, place)
    if kind is int:
        return value if -_PLAIN_INT < value < _PLAIN_INT else {"$int": hex(value)}
    if kind is tuple:
        return {"$tuple": _tagged_items(value, place)}
    if kind in _TAGS:
        tag, write, _ = _TAGS[kind]
        return {tag: write(value)}
    return _tagged_other(value, place)


def _packed(items: list[Any]) -> dict[str, str] | None:
    """A long list of token ids, in a form that is fast to write and read; None for any other list."""
    if len(items) < _PACKED_FROM or set(map(type, items)) != {int}:
        return None
    try:
        return {"$ids": base64.b64encode(array.array("i", items)).decode()}
    except OverflowError:
        return None


def _read_packed(text: str) -> list[int]:
    numbers = array.array("i")
    numbers.frombytes(base64.b64decode(text))
    return numbers.tolist()


def _tagged_items(items: Any, place: str) -> list[Any]:
    kinds = set(map(type, items))
    if kinds <= _ATOMS or (kinds == {int} and min(items) > -_PLAIN_INT and max(items) < _PLAIN_INT):
        return list(items)
    return [_tagged(item, f"{place}[{index}]") for index, item in enumerate(items)]


def _tagged_dict(value: Mapping[Any, Any], place: str) -> dict[str, Any]:
    if _are_plain_keys(tuple(value)):
        return {key: _tagged(item, f"{place}.{key}" if place else key) for key, item in value.items()}
    pairs = [[_tagged(key, place), _tagged(item, f"{place}[{key!r:.40}]")] for key, item in value.items()]
    return {"$dict": pairs}


@functools.lru_cache(maxsize=1024)
def _are_plain_keys(keys: tuple[Any, ...]) -> bool:
    """Cached, because thousands of rows have the same columns."""
    return all(isinstance(key, str) and not key.startswith("$") for key in keys)


def _tagged_other(value: Any, place: str) -> Any:
    """A value whose type is not in the tables: a numpy scalar or array, or a subclass of a type in the tables."""
    # Looked up in `sys.modules`: if the library was never imported, the value cannot be one of its objects.
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)) and not value.dtype.hasobject:
        return _tagged_array(value, scalar=isinstance(value, numpy.generic))
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(value, (pandas.Timestamp, pandas.Timedelta)):
        return {"$pandas": [type(value).__name__, value.isoformat()]}
    if isinstance(value, PurePath):
        return {"$path": str(value)}
    if isinstance(value, Mapping):
        return _tagged_dict(dict(value), place)
    if isinstance(value, (set, frozenset)):
        return {f"${type(value).__name__}": _tagged_items(list(value), place)}
    for base, plain in _BASES:
        if isinstance(value, base):
            return _tagged(plain(value), place)
    raise UnsendableError(f"{place or 'the value'} is of type {type(value).__module__}.{type(value).__qualname__}")


def _tagged_array(value: Any, *, scalar: bool) -> dict[str, Any]:
    if value.dtype.fields is not None:
        raise UnsendableError("a numpy array with named fields")
    shape = None if scalar else list(value.shape)
    return {"$numpy": [value.dtype.str, shape, base64.b64encode(value.tobytes()).decode()]}


def _write_datetime(value: datetime.datetime) -> list[Any]:
    """A named time zone keeps its name; any other becomes its offset from UTC."""
    zone = None if value.tzinfo is None else _named_zone(str(value.tzinfo))
    if zone is None or value.replace(tzinfo=zone).utcoffset() != value.utcoffset():
        return [value.isoformat(), value.fold, None]
    return [value.replace(tzinfo=None).isoformat(), value.fold, zone.key]


@functools.cache
def _named_zone(name: str) -> zoneinfo.ZoneInfo | None:
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError):
        return None


def _read_datetime(content: list[Any]) -> datetime.datetime:
    text, fold, zone = content
    value = datetime.datetime.fromisoformat(text).replace(fold=fold)
    return value if zone is None else value.replace(tzinfo=zoneinfo.ZoneInfo(zone))


def _read_numpy(content: list[Any]) -> Any:
    import numpy

    dtype, shape, data = content
    # A bytearray, because an array over `bytes` would be read-only.
    flat = numpy.frombuffer(bytearray(base64.b64decode(data)), dtype=dtype)
    return flat[0] if shape is None else flat.reshape(shape)


def _read_pandas(content: list[str]) -> Any:
    import pandas  # type: ignore[import-untyped]

    kind, text = content
    return {"Timestamp": pandas.Timestamp, "Timedelta": pandas.Timedelta}[kind](text)


def _write_bytes(value: bytes | bytearray) -> str:
    return base64.b64encode(value).decode()


_TAGS: dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    bytes: ("$bytes", _write_bytes, base64.b64decode),
    bytearray: ("$bytearray", _write_bytes, lambda text: bytearray(base64.b64decode(text))),
    datetime.datetime: ("$datetime", _write_datetime, _read_datetime),
    datetime.date: ("$date", datetime.date.isoformat, datetime.date.fromisoformat),
    datetime.time: ("$time", datetime.time.isoformat, datetime.time.fromisoformat),
    datetime.timedelta: ("$timedelta", lambda v: [v.days, v.seconds, v.microseconds], lambda v: datetime.timedelta(*v)),
    Decimal: ("$decimal", str, Decimal),
    Fraction: ("$fraction", str, Fraction),
    complex: ("$complex", lambda v: [repr(v.real), repr(v.imag)], lambda parts: complex(*map(float, parts))),
    uuid.UUID: ("$uuid", str, uuid.UUID),
}
"""Types -> their key in JSON, the function that writes a value, and the function that reads it."""

_BASES: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (str, str.__str__),
    (float, float.__float__),
    (int, int.__int__),
    (list, list),
    (tuple, tuple),
)
"""Types whose subclasses are sent as the type itself, with a conversion that calls no method of the subclass."""

_READERS: dict[str, Callable[[Any], Any]] = {
    **{tag: read for tag, _, read in _TAGS.values()},
    "$tuple": tuple,
    "$dict": dict,
    "$ids": _read_packed,
    "$set": set,
    "$frozenset": frozenset,
    "$int": lambda text: int(text, 16),
    "$path": Path,
    "$numpy": _read_numpy,
    "$pandas": _read_pandas,
}


def _untagged(found: dict[str, Any]) -> Any:
    if len(found) != 1:
        return found
    ((key, content),) = found.items()
    # Unambiguous: a dictionary with the user's own key in `$...` was written as `$dict`.
    return _READERS[key](content) if key.startswith("$") else found


_TAG_DECODER = json.JSONDecoder(object_hook=_untagged)
