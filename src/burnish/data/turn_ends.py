"""The token that ends each trained turn: the model must sample it, whatever a chat template takes it to be.

Most templates end a turn with a token of its own (`<|im_end|>`). In others (GLM) the token that begins what follows
ends it (`<|user|>`, `<|observation|>`), and behind the last turn nothing follows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from burnish.data.chat import encode_bare
from burnish.data.template import Template
from burnish.errors import DataError
from burnish.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ASKED = Message("user", "burnish question")
_SAID = "burnish answer"
_OPEN_TAG = re.compile(r"<[^<>]*$")
_UNENDED = (
    "conversations in which no token ends a turn of the assistant, so that the model does not learn to stop there"
)


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Tokens that stand for no text: special ones and those that were added to the vocabulary."""
    return frozenset((*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()))


@dataclass(frozen=True)
class TurnEnds:
    """Finds and trains the tokens that end turns. Errors begin with `where`."""

    template: Template
    where: str

    def trained(
        self, messages: Sequence[Message], tokens: Sequence[int], mask: Sequence[bool]
    ) -> tuple[list[int], list[bool], list[str]]:
        """(tokens, mask, notes): the mask is True on the token that ends each run of trained tokens. What ends the
        conversation's last turn is added where the template writes nothing."""
        found, on, notes = list(tokens), list(mask), set[str]()
        lasts = [
            i for i, (here, next_one) in enumerate(zip(on, [*on[1:], False], strict=True)) if here and not next_one
        ]
        for last in lasts:
            said = self._before_space(found, last)
            if self._is_end(said):
                continue
            follows = next((i for i in range(last + 1, len(found)) if not self._is_space(found[i])), None)
            if follows is None and messages[-1].role == "assistant":
                end = self._end_of_last(messages[-1], said)
                found, on = [*found, *end], [*on, *(True for _ in end)]
                if end:
                    notes.add(f"conversations that the chat template does not end; {self._text(end)} was added")
            elif follows is not None and self._may_end(found[follows]):
                on[last + 1 : follows + 1] = [True] * (follows - last)
            elif said not in self._special:
                notes.add(_UNENDED)
        return found, on, sorted(notes)

    @property
    def _tokenizer(self) -> PreTrainedTokenizerBase:
        return self.template.tokenizer

    @cached_property
    def _special(self) -> frozenset[int]:
        return special_tokens(self._tokenizer)

    @cached_property
    def _closing(self) -> frozenset[int]:
        """Special tokens behind the text of any turn."""
        written = self._write(_ASKED, Message("assistant", _SAID))
        return self._special.intersection(encode_bare(written.rpartition(_SAID)[2], self._tokenizer))

    @cached_property
    def _header(self) -> frozenset[int]:
        """Tokens with which the assistant's turn begins. None of them ends one."""
        return frozenset(encode_bare(header_of(self.template, self.where), self._tokenizer))

    def _is_end(self, token: int) -> bool:
        return token == self._tokenizer.eos_token_id or token in self._closing

    def _may_end(self, token: int) -> bool:
        return token == self._tokenizer.eos_token_id or (token in self._special and token not in self._header)

    def _end_of_last(self, message: Message, said: int) -> list[int]:
        """What to add behind the conversation: the token that would follow it, else an EOS."""
        follows = self._follows(message)
        if follows is not None and self._may_end(follows):
            return [follows]
        if said in self._special:
            return []
        if self._tokenizer.eos_token_id is None:
            raise DataError(
                f"{self.where}: no token ends the assistant's last turn, so the model could not learn to stop",
                remedy="use a tokenizer with an eos_token, or set model.chat_template to one that ends turns",
            )
        return [int(self._tokenizer.eos_token_id)]

    def _follows(self, message: Message) -> int | None:
        """The first token of a further message behind a turn like this one."""
        said = Message("assistant", "" if message.tool_calls else _SAID, tool_calls=message.tool_calls)
        heard = _ASKED
        if message.tool_calls:
            call = message.tool_calls[0]
            heard = Message("tool", _SAID, extra={"tool_call_id": call.get("id"), "name": message.called()[0]})
        ended, going_on = self._write(_ASKED, said), self._write(_ASKED, said, heard)
        rest = going_on.removeprefix(ended) if ended else ""
        tokens = encode_bare(rest, self._tokenizer) if going_on.startswith(ended) and rest else ()
        return next((token for token in tokens if not self._is_space(token)), None)

    def _write(self, *messages: Message) -> str:
        try:
            return self.template.write(messages, where=self.where, add_generation_prompt=False)
        except DataError:
            return ""  # it refuses such a conversation

    def _before_space(self, tokens: Sequence[int], last: int) -> int:
        return next((token for token in reversed(tokens[: last + 1]) if not self._is_space(token)), tokens[last])

    def _is_space(self, token: int) -> bool:
        return token not in self._special and not self._tokenizer.decode([token]).strip()

    def _text(self, tokens: Sequence[int]) -> str:
        return repr(self._tokenizer.decode(list(tokens)))


def header_of(template: Template, where: str) -> str:
    """What the template writes in front of an answer to a user; empty if it refuses such a conversation."""
    try:
        asked, begun = (template.write([_ASKED], where=where, add_generation_prompt=flag) for flag in (False, True))
    except DataError:
        return ""
    return begun[shared_length(asked, begun) :]


def shared_length(first: str, second: str) -> int:
    """Number of characters with which both texts begin, none of them of a tag that differs."""
    differing = (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    shared = next(differing, min(len(first), len(second)))
    begun = _OPEN_TAG.search(first[:shared])
    return begun.start() if begun else shared


def closing_of(template: Template, where: str) -> str:
    """The special token that the template writes behind an answer in front of the next question; empty if none."""
    try:
        written = template.write(
            [_ASKED, Message("assistant", _SAID), _ASKED], where=where, add_generation_prompt=False
        )
    except DataError:
        return ""
    tokenizer = template.tokenizer
    behind = encode_bare(written.partition(_SAID)[2], tokenizer)
    return str(tokenizer.decode(behind[:1])) if special_tokens(tokenizer).intersection(behind[:1]) else ""
