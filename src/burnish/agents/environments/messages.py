"""Messages between training process and conversation processes: objects of JSON, each in a frame.

To a process: `open`, `call`, `calls`, `step`, `reward` (see `session.py`), each with a `number` that its answers
repeat. They are plain values, which are checked here before anything uses them. `failed` in an answer means that the
environment can no longer be used.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from burnish.outside.frames import GarbledError, frame
from burnish.types import Json

Value = TypeVar("Value")
MAX_ANSWER_BYTES = 32 << 20
"""Longest answer. Texts for the model are cut before they are sent, so only what goes wrong is longer."""
_ROLE = re.compile(r"\w{1,32}")
_SHOWN = 60
"""Characters of a wrong value in a message."""


def encode(message: Mapping[str, Any]) -> bytes:
    """One frame. Values that JSON does not have (dates and the like in a row of data) become texts."""
    return frame(json.dumps(message, default=str).encode())


def number(message: Mapping[str, Any], name: str) -> float | None:
    """A finite number or None. GarbledError for anything else."""
    value = message.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e308 or math.isnan(value):
        raise _wrong(name, value, "a finite number")
    return float(value)


def text(message: Mapping[str, Any], name: str) -> str:
    """A text that can be written in UTF-8. GarbledError for anything else."""
    return _whole(_of_type(message, name, str, "a text"), name)


def flag(message: Mapping[str, Any], name: str) -> bool:
    """True or false. GarbledError for anything else."""
    return _of_type(message, name, bool, "true or false")


def count(message: Mapping[str, Any], name: str) -> int:
    """A number of things. GarbledError for anything else."""
    value = _of_type(message, name, int, "a count")
    if value < 0:
        raise _wrong(name, value, "a count")
    return value


def opening(message: Mapping[str, Any]) -> str | list[dict[str, Json]]:
    """Read the addition of an environment to a prompt: a text, which is empty if there is none, or messages.
    GarbledError for anything else."""
    value = message.get("opening")
    if value is None:
        return ""
    if isinstance(value, str):
        return _whole(value, "opening")
    if not isinstance(value, list) or not all(isinstance(turn, dict) for turn in value):
        raise _wrong("opening", value, "a text or messages")
    turns: list[dict[str, Json]] = [{"role": text(turn, "role"), "content": text(turn, "content")} for turn in value]
    for turn in turns:
        if not _ROLE.fullmatch(str(turn["role"])):  # a template writes it as it is
            raise _wrong("role", turn["role"], "a word")
    return turns


def _of_type(message: Mapping[str, Any], name: str, kind: type[Value], wanted: str) -> Value:
    value = message.get(name)
    if type(value) is not kind:
        raise _wrong(name, value, wanted)
    return value


def _whole(value: str, name: str) -> str:
    """Halves of surrogate pairs, which no tokenizer takes and no file holds, are refused."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise GarbledError(f"{name}, which is not a text: it has half of a surrogate pair") from None
    return value


def _wrong(name: str, value: object, wanted: str) -> GarbledError:
    shown = repr(value) if isinstance(value, (bool, float, str, type(None))) else type(value).__name__
    return GarbledError(f"{name} as {shown:.{_SHOWN}}, not {wanted}")
