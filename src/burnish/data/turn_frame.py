"""The frame that a chat template writes around the assistant's turns: a header, and the token that ends each.

The model must learn to sample that token, whichever it is. Most templates have a token for it (`<|im_end|>`). In others
(GLM) a turn is ended by the token that begins the next one (`<|user|>`, `<|observation|>`), and nothing follows the
last turn.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from burnish.data.chat import encode_bare
from burnish.data.rows import common_length
from burnish.data.template import Template
from burnish.errors import DataError
from burnish.types import Message

_ASKED = Message("user", "burnish question")
_SAID = "burnish answer"
_OPEN_TAG = re.compile(r"<[^<>]*$")
_UNENDED = "conversations in which no token ends a turn of the assistant, so the model does not learn to stop there"


@dataclass(frozen=True)
class TurnFrame:
    """Text and tokens of a template around turns. Errors begin with `where`."""

    template: Template
    where: str

    @cached_property
    def special(self) -> frozenset[int]:
        """Tokens that stand for no text: special tokens and tokens added to the vocabulary."""
        return frozenset(
            (*self.template.tokenizer.all_special_ids, *self.template.tokenizer.get_added_vocab().values())
        )

    @cached_property
    def header(self) -> str:
        """Text in front of an answer to a user; empty if the template refuses such a conversation."""
        begun = self._write(_ASKED, next_turn=True)
        return begun[shared_length(self._write(_ASKED), begun) :]

    @cached_property
    def closing(self) -> int | None:
        """The special token that is written behind an answer, in front of the next question."""
        behind = self._write(_ASKED, Message("assistant", _SAID), _ASKED).partition(_SAID)[2]
        behind = behind.partition(_ASKED.content)[0]  # a small tokenizer may not know its letters
        return next(iter(self.special.intersection(encode_bare(behind, self.template.tokenizer)[:1])), None)

    def with_ends(
        self, messages: Sequence[Message], tokens: Sequence[int], mask: Sequence[bool], *, trim: bool
    ) -> tuple[list[int], list[bool], list[str]]:
        """Return (tokens, mask, notes), with the mask True on the token that ends each run of trained tokens; with
        `trim`, not on white space behind it, which the policy never writes. If the template does not end the last turn,
        its end is added."""
        found, on, notes = list(tokens), list(mask), set[str]()
        for last in [i for i in range(len(on)) if on[i] and on[i + 1 : i + 2] != [True]]:
            end_of_text = next((i for i in range(last, -1, -1) if not self._is_space(found[i])), last)
            said = found[end_of_text]
            if trim and said in self.special and on[end_of_text]:
                on[end_of_text + 1 : last + 1] = [False] * (last - end_of_text)
            if said in (self.template.tokenizer.eos_token_id, self.closing):
                continue
            follows = next((i for i in range(last + 1, len(found)) if not self._is_space(found[i])), None)
            if follows is None and messages[-1].role == "assistant":
                end = self._end_of_last(messages[-1], said)
                found, on = [*found, *end], [*on, *(True for _ in end)]
                added = repr(self.template.tokenizer.decode(end))
                if end:
                    notes.add(f"conversations that the chat template does not end; {added} was added")
                elif said not in self.special:
                    notes.add(_UNENDED)
            elif follows is not None and self._may_end(found[follows]):
                on[end_of_text + 1 : follows + 1] = [True] * (follows - end_of_text)
            elif said not in self.special:
                notes.add(_UNENDED)
        return found, on, sorted(notes)

    def _may_end(self, token: int | None) -> bool:
        """Return whether the token may end a turn: an EOS, or a special token that is not in the assistant's header."""
        header = encode_bare(self.header, self.template.tokenizer)
        return token == self.template.tokenizer.eos_token_id or (token in self.special and token not in header)

    def _end_of_last(self, message: Message, said: int) -> list[int]:
        """Return the tokens to add behind the conversation: the token that would follow it, else an EOS."""
        follows, eos = self._follows(message), self.template.tokenizer.eos_token_id
        if follows is not None and self._may_end(follows):
            return [follows]
        return [] if said in self.special or eos is None else [int(eos)]

    def _follows(self, message: Message) -> int | None:
        """The first token of a further message behind a turn like this one."""
        said = Message("assistant", "" if message.tool_calls else _SAID, tool_calls=message.tool_calls)
        heard = _ASKED
        if message.tool_calls:
            call = message.tool_calls[0]
            heard = Message("tool", _SAID, extra={"tool_call_id": call.get("id"), "name": message.called()[0]})
        ended, going_on = self._write(_ASKED, said), self._write(_ASKED, said, heard)
        rest = going_on[len(ended) :].partition(heard.content)[0] if ended and going_on.startswith(ended) else ""
        tokens = encode_bare(rest, self.template.tokenizer)
        return next((token for token in tokens if not self._is_space(token)), None)

    def _write(self, *messages: Message, next_turn: bool = False) -> str:
        """The conversation as the template writes it; empty if it refuses it."""
        try:
            return self.template.write(messages, where=self.where, add_generation_prompt=next_turn)
        except DataError:
            return ""

    def _is_space(self, token: int) -> bool:
        return token not in self.special and not self.template.tokenizer.decode([token]).strip()


def shared_length(first: str, second: str) -> int:
    """Length of the common beginning of both texts, without a tag that is only partly common."""
    return len(_OPEN_TAG.sub("", first[: common_length(first, second)]))
