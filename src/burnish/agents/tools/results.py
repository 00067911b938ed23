"""Results and errors of tools as text for the model."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace

from burnish.agents.tools.calls import ToolError

_SHORTEST_LIMIT = 64
_FOLDERS = re.compile(r"(?<![\w/:.~])~?/(?:[^\s/'\"():,;]+/)+")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The text that a model gets for a call. `cut` counts the characters that were left out of it.

    failed: the only result of the call is this error. told: the tool itself reported a wrong call, by a ToolError.
    timed_out: the call ran out of time. seconds: that it took, where it was made.
    """

    text: str
    failed: bool = False
    cut: int = 0
    told: bool = False
    timed_out: bool = False
    seconds: float | None = field(default=None, compare=False)


def result_of(value: object, limit: int) -> ToolResult:
    """Convert a tool's return value to text of at most `limit` characters (64 or more).

    A string is passed on unchanged, plain data as JSON, so None is `null`. For anything else, and for numbers that are
    not finite, the model gets an error. Lone surrogates, which no tokenizer accepts, are escaped.
    """
    if isinstance(value, str):
        return _cut(value, limit, failed=False)
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except TypeError as error:
        reason = str(error).removesuffix(" is not JSON serializable")
        return _cut(f"Error: the tool returned something that is not text or plain data: {reason}", limit, failed=True)
    except (ValueError, RecursionError):
        reason = "a number that is not finite, or data that contain themselves"
        return _cut(f"Error: the tool returned something that JSON does not have: {reason}", limit, failed=True)
    return _cut(text, limit, failed=False)


def error_of(error: BaseException, limit: int) -> ToolResult:
    """Describe a tool's exception in one line with type and message, of at most `limit` characters (64 or more).

    There is no traceback. Folders of absolute paths and addresses of objects are left out, because they reveal where
    the run is, and differ from one run to the next.
    """
    if isinstance(error, ToolError):  # in the tool's own words
        return replace(_cut(f"Error: {error}", limit, failed=True), told=True)
    try:
        message = str(error)
    except Exception as second:  # noqa: BLE001  boundary: a user's exception may fail to print itself
        message = f"(its message cannot be shown: {type(second).__name__})"
    message = _ADDRESS.sub("", _FOLDERS.sub("", " ".join(message.split())))
    text = f"Error: {type(error).__name__}: {message}" if message else f"Error: {type(error).__name__}"
    return _cut(text, limit, failed=True)


def _cut(text: str, limit: int, *, failed: bool) -> ToolResult:
    if limit < _SHORTEST_LIMIT:
        raise ValueError(f"a limit of {limit} characters; it must be at least {_SHORTEST_LIMIT}")
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= limit:
        return ToolResult(text, failed)
    kept = limit - len(_mark(len(text)))  # the number in the mark is smaller, so the mark is not longer
    return ToolResult(text[:kept] + _mark(len(text) - kept), failed, len(text) - kept)


def _mark(cut: int) -> str:
    return f"\n[{cut} more characters are not shown]"
