"""Calls between `<tool_call>` and `</tool_call>`: where they are, whatever is between the tags."""

from __future__ import annotations

import re
from collections.abc import Callable

from burnish.tools.calls import MalformedCall, Parsed, ToolCall
from burnish.tools.plain import UnreadableError, end_of_space, shown

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_THINK, _THOUGHT = "<think>", "</think>"
_MARK = re.compile(f"{OPEN}|{_THINK}|{_THOUGHT}")
_RESUME = re.compile(f"{OPEN}|{CLOSE}|{_THINK}|{_THOUGHT}")

ReadPayload = Callable[[str, int], tuple[ToolCall, int]]
"""Reads the call that begins at a position: the call, and where it ends. Raises PayloadError."""


class PayloadError(UnreadableError):
    """What follows `<tool_call>` is not a call. The text before `resume` has been looked at and holds no other call."""

    def __init__(self, why: str, resume: int) -> None:
        super().__init__(why)
        self.resume = resume


def parse_tagged(text: str, read: ReadPayload, form: str) -> Parsed:
    """All calls outside of thoughts. `form` says, to the model, how a call is written.

    If the chat template begins the thought, the turn has only its end: a `</think>` that closes nothing makes
    everything before it a thought.
    """
    calls: list[ToolCall | MalformedCall] = []
    outside: list[str] = []
    position, has_thought = 0, False
    while mark := _MARK.search(text, position):
        outside.append(text[position : mark.start()])
        position = mark.end()
        if mark[0] == OPEN:
            call, position = _one_call(text, mark.start(), read, form)
            calls.append(call)
            continue
        if mark[0] == _THINK:
            position = _after(_THOUGHT, text, position)
        elif not has_thought:
            calls, outside = [], [text[: mark.start()]]
        outside.append(text[mark.start() : position])
        has_thought = True
    outside.append(text[position:])
    return Parsed("".join(outside).strip(), tuple(calls)) if calls else Parsed(text)


def _one_call(text: str, start: int, read: ReadPayload, form: str) -> tuple[ToolCall | MalformedCall, int]:
    try:
        call, end = read(text, start + len(OPEN))
        close = end_of_space(text, end)
        if text.startswith(CLOSE, close):
            return call, close + len(CLOSE)
        why = f"the call is not closed by {CLOSE}"
        if close < len(text) and not text.startswith("<", close):
            why = f"between the end of the call and {CLOSE} there is other text: {shown(text[close : close + 40])}"
        raise PayloadError(why, end)
    except PayloadError as error:
        # Go on after this call or where another begins, so that one mistake does not cost the calls after it.
        following = _RESUME.search(text, error.resume)
        end = following.start() if following else len(text)
        end += len(CLOSE) if text.startswith(CLOSE, end) else 0
        return MalformedCall(text[start:end], f"This is not a tool call: {error}. Write {form}"), end


def _after(tag: str, text: str, position: int) -> int:
    found = text.find(tag, position)
    return len(text) if found < 0 else found + len(tag)
