"""Rows as read from a source, conversion to JSON types, and look-ups whose errors list what the row has instead."""

from __future__ import annotations

import base64
import datetime
import decimal
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from burnish.errors import DataError, did_you_mean
from burnish.outside.reading import reading, strict_json

_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Row:
    """One row. `number` counts the rows of its source from 0. `where` is `file:line` or `file, row n`, for messages.

    `typed`: the row is from Parquet or Arrow. There each column has one type, so keys that this row lacks but other
    rows have appear as null. `only_text`: the row is from CSV. `may_mark`: messages of the row may say whether they are
    trained on.
    """

    number: int
    where: str
    values: Mapping[str, Any]
    typed: bool = False
    only_text: bool = False
    may_mark: bool = False


@contextmanager
def reading_row(where: str) -> Iterator[None]:
    """Make every error while one row is read name its file and line, `where`."""
    with reading(f"{where}: reading this row", remedy="fix or remove the row"):
        try:
            yield
        except DataError as error:
            if where in error.message:
                raise
            raise DataError(f"{where}: {error.message}", remedy=error.remedy) from error


def plain_value(value: Any) -> Any:
    """The value in JSON types.

    numpy scalars and arrays become Python values, dates ISO text, bytes text or base64. NaN becomes None, because
    tables use it for missing values. Raises TypeError for anything else (images, audio).
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return None if math.isnan(value) else float(value)
        case np.generic() | np.ndarray():
            return plain_value(value.tolist())
        case Mapping():
            return {str(key): plain_value(item) for key, item in value.items()}
        case list() | tuple():
            return [plain_value(item) for item in value]
        case set() | frozenset():  # in an order that does not depend on the process
            return sorted((plain_value(item) for item in value), key=repr)
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case datetime.timedelta():
            return value.total_seconds()
        case decimal.Decimal():
            return _plain_decimal(value)
        case bytes():
            return _text_or_base64(value)
    raise TypeError(f"a {type(value).__name__} has no plain form")


def _plain_decimal(value: decimal.Decimal) -> int | float | str | None:
    """A number where that keeps all digits, else text."""
    if value.is_finite() and value == value.to_integral_value():
        return int(value)
    number: float | None = plain_value(float(value))
    return number if number is None or decimal.Decimal(repr(number)) == value else str(value)


def _text_or_base64(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return base64.b64encode(value).decode("ascii")


def plain_row(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The row in JSON types, and the names of the columns left out because they have no JSON form."""
    kept: dict[str, Any] = {}
    left_out = []
    for name, value in values.items():
        try:
            kept[str(name)] = plain_value(value)
        except TypeError:
            left_out.append(str(name))
    return kept, left_out


def lookup(values: Mapping[str, Any], path: str, default: Any = _ABSENT) -> Any:
    """The value at `path`: the column of exactly that name, or a nested value (`outer.inner`).

    Raises KeyError if there is none and no default was given.
    """
    if path in values:
        return values[path]
    current: Any = values
    for part in path.split("."):
        if not isinstance(current, Mapping) or part not in current:
            if default is _ABSENT:
                raise KeyError(path)
            return default
        current = current[part]
    return current


def common_length(first: Sequence[object], second: Sequence[object]) -> int:
    """Number of leading items that both have in common."""
    differing = (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    return next(differing, min(len(first), len(second)))


def has_column(values: Mapping[str, Any], path: str) -> bool:
    return lookup(values, path, None) is not None or path in values  # a column that holds null is still there


def column_names(rows: Iterable[Row]) -> list[str]:
    """Names of all columns in order of appearance, including `outer.inner` for nested ones."""
    names: dict[str, None] = {}
    for row in rows:
        for name, value in row.values.items():
            names.setdefault(name)
            if isinstance(value, Mapping):
                names.update(dict.fromkeys(f"{name}.{inner}" for inner in value))
    return list(names)


def hint(word: str, choices: Iterable[str]) -> str:
    """`; did you mean 'x'?` to append to a sentence, or an empty string if no choice is near."""
    near = did_you_mean(word, choices)
    return f"; {near}" if near else ""


def value_at(row: Row, path: str, *, role: str) -> Any:
    """The value of the column for `role`. If it is missing, raises DataError that lists the row's columns."""
    try:
        return lookup(row.values, path)
    except KeyError:
        names = column_names([row])
        raise DataError(
            f"{row.where}: no column {path!r} (for {role}); the row has {', '.join(names) or 'no columns'}"
            f"{hint(path, names)}",
            remedy=f"name the right column with columns: {{{role}: ...}}, or fix the row",
        ) from None


def text_at(row: Row, path: str, *, role: str) -> str:
    """The text of a column; DataError for anything else."""
    value = value_at(row, path, role=role)
    if not isinstance(value, str):
        raise wrong_value(row, path, role, value, "text", remedy="fix the row, or build the text with prompt_template")
    return value


def optional_text_at(row: Row, roles: Mapping[str, str], role: str) -> str | None:
    """The text of the column that plays the role; None if there is no such column, or nothing in it."""
    value = lookup(row.values, roles[role], None) if role in roles else None
    return None if value in (None, "") else text_at(row, roles[role], role=role)


def number_of(row: Row, value: Any) -> Any:
    """The number or truth value of a role: in CSV the one that a text spells, None for empty text; else the value."""
    if not row.only_text or not isinstance(value, str):
        return value
    try:
        return strict_json(value.lower()) if value.strip() else None
    except (ValueError, RecursionError):
        return value


def weight_at(row: Row, path: str, *, may_be_zero: bool) -> float:
    """The weight of the row's loss: a finite number above 0, or 0 with `may_be_zero`; DataError for anything else."""
    value = number_of(row, value_at(row, path, role="weight"))
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf or (value == 0 and not may_be_zero):
        least, leave_out = ("at least", "set it to 0 for") if may_be_zero else ("above", "remove")
        remedy = (
            f"a weight is a number {least} 0, the factor of this row's loss; {leave_out} rows that should not "
            "count; if the column means something else, rename it"
        )
        raise wrong_value(row, path, "weight", value, remedy=remedy)
    return float(value)


def wrong_value(row: Row, path: str, role: str, value: Any, wanted: str = "", *, remedy: str) -> DataError:
    """The error for a value that a column of this role cannot have. wanted: what it should be instead."""
    instead = f", not {wanted}" if wanted else ""
    return DataError(f"{row.where}: column {path!r} ({role}) holds {describe(value)}{instead}", remedy=remedy)


def describe(value: Any, width: int = 60) -> str:
    """A short description of a value for messages: its type and its beginning."""
    if value is None:
        return "nothing (null)"
    shown = repr(value)
    return f"{type(value).__name__} {shown if len(shown) <= width else shown[: width - 3] + '...'}"


def over_long_error(where: str, what: str, num_tokens: int, field: str, limit: int) -> DataError:
    """The error for a row that is longer than the limit in a field, where `data.over_long` is error."""
    return DataError(
        f"{where}: {what} {num_tokens:,} tokens, over {field.rpartition('.')[2]} {limit:,}",
        remedy=f"raise {field}, or set data.over_long to drop or truncate",
    )


MAX_TEXT_CHARACTERS = 4_000_000
"""About a million tokens, for which a tokenizer takes seconds. For a whole file that ended up in one field it takes
minutes, and cannot be interrupted."""


def check_length(text: str) -> None:
    """Raise DataError for a text that is too long for a tokenizer."""
    if len(text) > MAX_TEXT_CHARACTERS:
        raise DataError(
            f"a text of {len(text):,} characters, more than the {MAX_TEXT_CHARACTERS:,} that one row may hold: "
            f"{describe(text)}",
            remedy="split the text into several rows, or remove the row; a text file may need document_separator",
        )
