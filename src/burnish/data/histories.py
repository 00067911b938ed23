"""Whole conversations as tokens. Messages of tools and environments never become control tokens, whatever they hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import Any

from burnish.data.chat import encode_bare, turns_of
from burnish.data.plain_tokens import PlainEncoder, marks, pieces
from burnish.data.template import Template
from burnish.errors import DataError
from burnish.types import Json, Message, Prompt, Tokenizer

Opening = str | Sequence[Mapping[str, Json]]
Heard = Mapping[int, int]
"""Messages of tools and environments: number of the message, from 0 -> character at which their text begins in it."""
_WORD = "burnish word"


def opened(prompt: Prompt, opening: Opening) -> tuple[tuple[Message, ...], dict[int, int]]:
    """Add the opening of an environment to the conversation of a prompt: text behind the user's last message, or
    further messages. Also return where it begins."""
    messages = turns_of(prompt)
    if not isinstance(opening, str):
        added = tuple(Message(str(turn["role"]), str(turn["content"])) for turn in opening)
        return (*messages, *added), {len(messages) + index: 0 for index in range(len(added))}
    *before, last = messages
    if last.role != "user":
        return (*messages, Message("user", opening)), {len(messages): 0}
    return (*before, replace(last, content=last.content + opening)), {len(before): len(last.content)}


@dataclass(frozen=True)
class HistoryEncoder:
    """Encodes conversations with the chat template, without control tokens in messages of tools and environments.

    options: arguments of the template. plain: encodes such messages; None makes one, with a copy of the tokenizer.
    """

    tokenizer: Tokenizer
    options: Mapping[str, Any] = field(default_factory=dict)
    plain: InitVar[PlainEncoder | None] = None
    _plain: PlainEncoder = field(init=False, repr=False)

    def __post_init__(self, plain: PlainEncoder | None) -> None:
        object.__setattr__(self, "_plain", plain or PlainEncoder(self.tokenizer))

    def encode(
        self, messages: Sequence[Message], heard: Heard, tools: Sequence[Mapping[str, Any]], *, where: str
    ) -> tuple[int, ...]:
        """Encode the messages and the beginning of the policy's turn, with no control token in `heard` text. Raises
        DataError, beginning with `where`, if the template or the tokenizer refuses them."""
        template = Template(self.tokenizer, self.options, tuple(tools))

        def write(some: Sequence[Message]) -> str:
            return template.render(some, where=where, add_generation_prompt=True)

        written = write(messages)
        tokens = encode_bare(written, self.tokenizer)
        if not heard:
            return tokens
        harmless = encode_bare(write(_changed(messages, heard, lambda text: _WORD)), self.tokenizer)
        unknown = self.tokenizer.unk_token  # it also stands for other text, so counting it proves nothing
        is_named = unknown is not None and any(unknown in messages[at].content[start:] for at, start in heard.items())
        if not is_named and self._plain.control_tokens(tokens) == self._plain.control_tokens(harmless):
            return tokens
        begin, end = marks(messages)

        def between(text: str) -> str:
            """Put marks around the text, inside its outer white space, which many templates remove."""
            core = text.strip()
            return text.replace(core, begin + core + end, 1) if core else text

        marked = write(_changed(messages, heard, between))
        if marked.replace(begin, "").replace(end, "") == written:
            return self._plain.encode_pieces(pieces(marked, begin, end))
        raise DataError(
            f"{where}: the chat template changes what is said in it, and special tokens stand in that",
            remedy="set model.chat_template to one that writes the contents of messages as they are",
        )


def _changed(messages: Sequence[Message], heard: Heard, change: Callable[[str], str]) -> tuple[Message, ...]:
    """Apply `change` to the text of tools and environments."""
    found = list(messages)
    for number, start in heard.items():
        content = found[number].content
        found[number] = replace(found[number], content=content[:start] + change(content[start:]))
    return tuple(found)
