"""Prompts to which an environment adds its opening, as tokens. What it adds is text, whatever it looks like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from burnish.data.chat import encode_bare, encode_prompt, turns_of
from burnish.data.marked import marks, pieces
from burnish.data.plain_tokens import PlainEncoder
from burnish.data.template import ChatFormat, Template
from burnish.errors import DataError
from burnish.types import Json, Message, Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Opening = str | Sequence[Mapping[str, Json]]
_WORD = "burnish opening"


@dataclass(frozen=True)
class OpeningEncoder:
    """Encodes a prompt together with what its environment adds to it: a text behind the user's last message, or further
    messages."""

    tokenizer: PreTrainedTokenizerBase
    chat: ChatFormat
    _plain: PlainEncoder = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_plain", PlainEncoder(self.tokenizer))

    def encode(self, prompt: Prompt, opening: Opening) -> tuple[int, ...]:
        """Tokens as `encode_prompt` gives them, except that no part of the opening is a control token. Raises
        DataError if the template or the tokenizer refuses it."""
        tokens = self._joined(prompt, opening)
        harmless = self._joined(prompt, _filled(opening, [_WORD] * len(_contents(opening))))
        if self._plain.control_tokens(tokens) == self._plain.control_tokens(harmless):
            return tokens
        return self._apart(prompt, opening)

    def _joined(self, prompt: Prompt, opening: Opening) -> tuple[int, ...]:
        whole = replace(prompt, text=None, messages=_messages(prompt, opening))
        return encode_prompt(whole, self.tokenizer, self.chat)

    def _apart(self, prompt: Prompt, opening: Opening) -> tuple[int, ...]:
        """The tokens where the opening has what looks like control tokens: it is encoded apart from the rest."""
        begin, end = marks(_messages(prompt, opening))
        written, contents = self._written(prompt, opening), _contents(opening)
        for some in (contents, [content.strip() for content in contents]):
            marked = self._written(prompt, _filled(opening, [begin + content + end for content in some]))
            if marked.replace(begin, "").replace(end, "") == written:
                tokens: list[int] = []
                for piece, is_opening in pieces(marked, begin, end):
                    tokens += self._plain.encode(piece) if is_opening else encode_bare(piece, self.tokenizer)
                return tuple(tokens)
        raise DataError(
            f"prompt {prompt.id}: the chat template changes what the environment adds",
            remedy="set model.chat_template to one that writes the contents of messages as they are",
        )

    def _written(self, prompt: Prompt, opening: Opening) -> str:
        template = Template(self.tokenizer, self.chat.options, prompt.tools)
        return template.render(_messages(prompt, opening), where=f"prompt {prompt.id}", add_generation_prompt=True)


def _messages(prompt: Prompt, opening: Opening) -> tuple[Message, ...]:
    """The conversation of a prompt with its opening."""
    messages = turns_of(prompt)
    if not isinstance(opening, str):
        return (*messages, *(Message(str(turn["role"]), str(turn["content"])) for turn in opening))
    *before, last = messages
    if last.role != "user":
        return (*messages, Message("user", opening))
    return (*before, replace(last, content=last.content + opening))


def _contents(opening: Opening) -> list[str]:
    return [opening] if isinstance(opening, str) else [str(turn["content"]) for turn in opening]


def _filled(opening: Opening, contents: Sequence[str]) -> Opening:
    """The opening with other contents."""
    if isinstance(opening, str):
        return contents[0]
    return [{**turn, "content": content} for turn, content in zip(opening, contents, strict=True)]
