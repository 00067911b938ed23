"""Parts of a conversation that a chat template writes, and their positions, found by numbered probes in the texts.

A template is a program, and searching its output for a text does not prove that it wrote it: the same words may be in
another turn, and a template may quote, trim or split what it writes. So the conversation is written once more, with a
probe behind the first character of each stretch of text and one in front of its last. Without the probes the result
must be the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from burnish.data.template import Template
from burnish.errors import DataError
from burnish.types import Json, Message

# Tags around thinking and the like. Templates look for them, so a probe never stands inside of one.
_TAG = re.compile(r"(</?[\w:-]+>|<[|｜][^<>\s]*>|<[^<>\s]*[|｜]>|\[/?[A-Z_]+\])")
_PROBE = re.compile(r"burnish7(\d+)probe", re.IGNORECASE)
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Part:
    """The beginning or the end of a text in a turn. turn: the number of its message. name: of the field. at: the
    character of the rendered conversation at which it stands; None if it is not written."""

    turn: int
    name: str
    text: str
    at: int | None


def written_parts(messages: Sequence[Message], whole: str, template: Template, where: str) -> list[Part]:
    """Find the parts of all turns but the system's. `whole`: the conversation as the template writes it.

    If the probes change what the template writes, only parts whose words cannot be found in `whole` are returned.
    """
    probes = _Probes()
    marked = [m if m.role == "system" else probes.in_message(m, turn) for turn, m in enumerate(messages)]
    try:
        written = template.write(marked, where=where, add_generation_prompt=False)
    except DataError:  # the template compares a text with something, and refuses it with a probe in it
        written = ""
    places = _places(written)
    parts = [Part(*said, places.get(number)) for number, said in enumerate(probes.said)]
    is_same = _PROBE.sub("", written) == whole
    return parts if is_same else [part for part in parts if part.at is None and not _has_words(whole, part.text)]


def _places(written: str) -> dict[int, int]:
    """Position of the character in front of each probe (its first occurrence), counted in the text without probes."""
    places: dict[int, int] = {}
    removed = 0
    for match in _PROBE.finditer(written):
        places.setdefault(int(match[1]), match.start() - removed - 1)
        removed += len(match[0])
    return places


def _has_words(whole: str, text: str) -> bool:
    return re.search(r"\W+".join(map(re.escape, _WORD.findall(text))) or re.escape(text), whole) is not None


@dataclass(slots=True)
class _Probes:
    said: list[tuple[int, str, str]] = field(default_factory=list)
    """Message, field and text of each probe."""

    def in_message(self, message: Message, turn: int) -> Message:
        reasoning = message.reasoning_content
        return replace(
            message,
            content=self._in_text(message.content, turn, "content"),
            reasoning_content=reasoning and self._in_text(reasoning, turn, "reasoning_content"),
            tool_calls=tuple(
                self._in_call(call, turn, f"tool call {number}") for number, call in enumerate(message.tool_calls, 1)
            ),
        )

    def _in_text(self, text: str, turn: int, name: str) -> str:
        pieces = enumerate(_TAG.split(text))  # every second one is a tag
        return "".join(piece if number % 2 else self._in_stretch(piece, turn, name) for number, piece in pieces)

    def _in_stretch(self, text: str, turn: int, name: str) -> str:
        core = text.strip()
        start = text.index(core)
        for place in sorted({start + 1, start + len(core) - 1} - {start}, reverse=True) if core else ():
            text = text[:place] + self._next(turn, name, core) + text[place:]
        return text

    def _in_call(self, call: Mapping[str, Any], turn: int, name: str) -> Mapping[str, Any]:
        function, called = call["function"], str(call["function"]["name"])
        # Some templates write the id of a call, which holds the name, in place of it.
        shown = called if called in str(call.get("id")) else self._in_stretch(called, turn, name)
        arguments = self._in_value(function["arguments"], turn, f"{name} ({called})")
        return {**call, "function": {**function, "name": shown, "arguments": arguments}}

    def _in_value(self, value: Json, turn: int, name: str) -> Json:
        if isinstance(value, str):
            return self._in_stretch(value, turn, name)
        if isinstance(value, Mapping):
            # A number takes no probe, so its key has it. Keys of texts may be looked up by name.
            return {
                key if item and isinstance(item, (str, list, Mapping)) else key + self._next(turn, name, key): (
                    self._in_value(item, turn, name)
                )
                for key, item in value.items()
            }
        return [self._in_value(item, turn, name) for item in value] if isinstance(value, list) else value

    def _next(self, turn: int, name: str, text: str) -> str:
        self.said.append((turn, name, text))
        return f"burnish7{len(self.said) - 1}probe"
