"""Convert one turn of a conversation, as data sets write it, to a `Message`, without dropping anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from burnish.data.rows import describe
from burnish.errors import DataError
from burnish.outside.reading import strict_json
from burnish.types import Message

# Names of the speakers in the ShareGPT layout of conversations (`from`/`value`).
_SPEAKERS = {"human": "user", "gpt": "assistant", "observation": "tool"}
_CALLER = "function_call"
# Names that data sets use for the assistant's thinking.
_REASONING = ("reasoning_content", "reasoning", "thinking")
# Two names of the same: the turn is trained on, or not.
_MARKS = ("train", "weight")
_READ = {"role", "content", "from", "value", "tool_calls", *_REASONING, *_MARKS}
# A field that other trainers read and Burnish does not. Ignoring it would train on something else than was asked for.
_REFUSED = {"function_call": "write it as tool_calls"}


def checked_message(item: Any, where: str, *, may_mark: bool = False) -> Message:
    """The turn, from `{role, content, tool_calls, reasoning_content, ...}` or `{from, value}`.

    The content may be a list of text parts, or null if there are tool calls. The arguments of a call may be JSON text.
    With `may_mark` the turn may say whether it is trained on: `train: false`, or `weight: 0`. Other fields are kept for
    the chat template. Raises DataError, beginning with `where`, for anything unsupported.
    """
    if not isinstance(item, Mapping):
        raise DataError(f"{where} is {describe(item)}, not an object", remedy="it needs role and content")
    role = item.get("from") if "from" in item else item.get("role")
    if not isinstance(role, str) or not role:
        raise DataError(f"{where} has no role, only {', '.join(map(str, item))}", remedy="give each message a role")
    where = f"{where} ({role})"
    _check_refused(item, where)
    marked = _marked(item, where)
    if marked is False and not may_mark:
        raise DataError(
            f"{where} is marked as not to be trained on, which only supervised examples may be",
            remedy="remove the mark, leave such turns out of the row, or put them into its prompt",
        )
    trained = marked if may_mark else None
    extra = {key: value for key, value in item.items() if key not in _READ | set(_REFUSED) and value is not None}
    if role == _CALLER and "from" in item:
        return Message(
            "assistant", "", tool_calls=_calls([_loads(item.get("value"), where)], where), extra=extra, trained=trained
        )
    calls = _calls(item.get("tool_calls"), where)
    return Message(
        _SPEAKERS.get(role, role),
        _content(item.get("value") if "from" in item else item.get("content"), where, may_be_absent=bool(calls)),
        tool_calls=calls,
        reasoning_content=_reasoning(item, where),
        extra=extra,
        trained=trained,
    )


def _check_refused(item: Mapping[str, Any], where: str) -> None:
    for key, remedy in _REFUSED.items():
        if item.get(key) is not None:
            raise DataError(f"{where} has {key} {describe(item[key])}, which Burnish does not read", remedy=remedy)


def _marked(item: Mapping[str, Any], where: str) -> bool | None:
    """Return whether the turn is marked as trained on; None if it says nothing."""
    remedy = "mark a turn with train: true or false, or weight: 1 or 0; a row's own weight has a column"
    mark = _only_value(item, _MARKS, lambda value: value in (0, 1), where, remedy)
    return None if mark is None else bool(mark)


def _only_value(
    item: Mapping[str, Any], names: Iterable[str], fits: Callable[[Any], bool], where: str, remedy: str
) -> Any:
    """The value that the item has under one or more of these names; None if it has none. DataError for a value that
    does not fit, and for different ones."""
    given = {name: item[name] for name in names if item.get(name) is not None}
    if not all(map(fits, given.values())) or len(set(given.values())) > 1:
        has = ", ".join(f"{name} {describe(value, 30)}" for name, value in given.items())
        raise DataError(f"{where} has {has}", remedy=remedy)
    return next(iter(given.values()), None)


def _content(value: Any, where: str, *, may_be_absent: bool) -> str:
    if value is None and may_be_absent:
        return ""
    if isinstance(value, list) and value and all(_is_text_part(part) for part in value):
        return "".join(part["text"] for part in value)
    if not isinstance(value, str):
        raise DataError(
            f"{where} has {describe(value)} as content, not text", remedy="only plain text conversations are supported"
        )
    return value


def _is_text_part(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _reasoning(item: Mapping[str, Any], where: str) -> str | None:
    remedy = "give the reasoning once, as text, in reasoning_content"
    return _only_value(item, _REASONING, lambda value: isinstance(value, str), where, remedy) or None


def _calls(value: Any, where: str) -> tuple[Mapping[str, Any], ...]:
    if isinstance(value, str) and value.strip():
        value = _loads(value, where)
    if not value:
        return ()
    if not isinstance(value, list):
        raise DataError(f"{where} has {describe(value)} as tool_calls, not a list", remedy="fix or remove the row")
    return tuple(_call(item, f"{where}, tool call {number}") for number, item in enumerate(value, start=1))


def _call(item: Any, where: str) -> Mapping[str, Any]:
    """`{"type": "function", "id": ..., "function": {"name", "arguments"}}`, from this form or only its inner object.

    Arguments given as JSON text become a mapping, because templates apply `tojson`, which would quote text again.
    """
    outer = item if isinstance(item, Mapping) else {}
    inner = outer.get("function", outer)
    name = inner.get("name") if isinstance(inner, Mapping) else None
    if not isinstance(name, str) or not name:
        raise DataError(
            f"{where} is {describe(item)}",
            remedy='a tool call is {"type": "function", "function": {"name": ..., "arguments": {...}}}',
        )
    arguments = inner.get("arguments")
    if isinstance(arguments, str):
        arguments = _loads(arguments, f"{where} of {name}") if arguments.strip() else {}
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        raise DataError(
            f"{where} of {name} has as arguments {describe(arguments)}",
            remedy="arguments must be an object, or the JSON text of one",
        )
    kept = {key: value for key, value in outer.items() if key != "function"} if "function" in outer else {}
    return {"type": "function", **kept, "function": {**inner, "name": name, "arguments": dict(arguments)}}


def _loads(text: Any, where: str) -> Any:
    try:
        return strict_json(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(
            f"{where}: {describe(text)} is not JSON ({error})", remedy="write tool calls and their arguments as JSON"
        ) from error
