"""What follows a turn of the policy: the answers of tools or of an environment, as tokens to be appended.

A conversation grows by appending alone. Nothing that the policy has seen or written is rendered or tokenised again,
because text does not lead back to the same tokens, and the policy would then train on a history that it never saw. So a
new message is rendered after a stand-in for the turn before it, and only what the template writes after that is kept.

What a message contains is text, whatever it looks like: the end of a turn that a tool writes must not end one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from burnish.data.chat import encode_bare
from burnish.data.plain_tokens import PlainEncoder, marks, pieces
from burnish.data.template import Template, template_reads
from burnish.errors import DataError
from burnish.types import Json, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
Observer = Literal["tool", "user"]
"""Roles whose messages may follow a turn of the policy."""

_ASKED = Message("user", "burnish question")
_SAID = "burnish answer"
_THOUGHT = "burnish thought"
_OBSERVED = "burnish observation"
_MOST_FRAMES = 4096
_MOST_ANSWERS = 2048
_LONGEST_ANSWER = 256
"""Characters of an answer that is remembered. Long ones hardly ever come again."""

AnswerKey = tuple[str, bool, tuple[str, ...]]
"""The shape of an answer, whether the turn before it had ended, and the contents of its messages."""


@dataclass(frozen=True)
class ObservationFormat:
    """How a tokenizer's chat template goes on after a turn of the policy.

    stop_token_ids: with which of them sampled, a turn has ended. A turn that something else has ended is closed first,
    as the template closes it. plain: encodes what is heard; None makes one, with a copy of the tokenizer.
    """

    template: Template
    stop_token_ids: frozenset[int]
    plain: InitVar[PlainEncoder | None] = None
    _plain: PlainEncoder = field(init=False, repr=False)
    _frames: dict[str, _Frame | None] = field(default_factory=dict, init=False, repr=False, compare=False)
    _answers: dict[AnswerKey, tuple[int, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self, plain: PlainEncoder | None) -> None:
        object.__setattr__(self, "_plain", plain or PlainEncoder(self.template.tokenizer))

    def tokens(
        self, messages: Sequence[Message], calls: Sequence[Mapping[str, Any]], last_token: int, *, where: str
    ) -> tuple[int, ...]:
        """What to append after a turn that ended with `last_token` and made these calls: the rest of that turn, the
        messages, and the beginning of the next turn.

        Raises DataError, beginning with `where`, if the template refuses the messages or changes their contents.
        """
        key = _shape(messages, calls), last_token in self.stop_token_ids, tuple(m.content for m in messages)
        tokens = self._answers.get(key)  # environments say the same again and again, and so do calls of a group
        if tokens is None:
            tokens = self._new_tokens(key, messages, calls, where)
            if self._is_timeless and sum(map(len, key[2])) <= _LONGEST_ANSWER:
                _keep(self._answers, key, tokens, _MOST_ANSWERS)
        return tokens

    def _new_tokens(
        self, key: AnswerKey, messages: Sequence[Message], calls: Sequence[Mapping[str, Any]], where: str
    ) -> tuple[int, ...]:
        shape, has_ended, _ = key
        tokens = list(self._after_the_end if has_ended else self._closing_tokens)
        frame = self._frame(shape, messages, calls)
        contents = None if frame is None else self._written_in(frame, messages, where)
        if frame is None or contents is None:
            return (*tokens, *self._plain.encode_pieces(self._pieces(messages, calls, where)))
        for around, content in zip(frame.tokens, (*contents, ""), strict=True):
            tokens += around
            tokens += self._plain.encode(content)
        return tuple(tokens)

    def rewrites(self, observer: Observer, *, where: str) -> str:
        """What the template writes differently once a message of this role follows it; empty if it leaves earlier turns
        as they are. A policy that is trained on what it saw would be used with a history that it never saw.

        Raises DataError, beginning with `where`, if the template refuses such a conversation.
        """
        return next((kind for said in self._ways_to_answer() if (kind := self._rewritten(said, observer, where))), "")

    @property
    def _tokenizer(self) -> PreTrainedTokenizerBase:
        return self.template.tokenizer

    @cached_property
    def _closing(self) -> str:
        """What the template writes after the text of a turn, in front of the next one."""
        written = self._render([_ASKED, Message("assistant", _SAID)])
        return written.rpartition(_SAID)[2]

    @cached_property
    def _closing_tokens(self) -> tuple[int, ...]:
        return encode_bare(self._closing, self._tokenizer) if self._closing else ()

    @cached_property
    def _after_the_end(self) -> tuple[int, ...]:
        """What the template closes a turn with behind the token that ends it. Llama 2's has a space before that."""
        for place, token in enumerate(self._closing_tokens):
            if token in self.stop_token_ids or self._plain.control_tokens([token]):
                return self._closing_tokens[place + 1 :]
        return self._closing_tokens

    @cached_property
    def _is_timeless(self) -> bool:
        """Whether the template writes the same tomorrow."""
        reads = template_reads(self.template.source("the run's chat template"))
        return reads is not None and "strftime_now" not in reads.variables

    def _frame(self, shape: str, messages: Sequence[Message], calls: Sequence[Mapping[str, Any]]) -> _Frame | None:
        """What the template writes around the contents of messages such as these. None if it does not write a plain
        word as it is."""
        if shape in self._frames:
            return self._frames[shape]
        frame = self._new_frame(messages, calls)
        _keep(self._frames, shape, frame, _MOST_FRAMES)
        return frame

    def _new_frame(self, messages: Sequence[Message], calls: Sequence[Mapping[str, Any]]) -> _Frame | None:
        words = [replace(message, content=_OBSERVED) for message in messages]
        try:
            written = list(self._pieces(words, calls, ""))
            said, before, _ = self._turn(words, calls, "")
        except DataError:
            return None  # it is reported with the contents that cause it
        texts = [text for text, is_content in written if not is_content]
        contents = [text for text, is_content in written if is_content and text]
        if contents != [_OBSERVED] * len(words):
            return None
        texts += [""] * (1 + len(words) - len(texts))  # where the template ends with a content
        return _Frame(said, before, tuple(texts), tuple(encode_bare(text, self._tokenizer) for text in texts))

    def _written_in(self, frame: _Frame, messages: Sequence[Message], where: str) -> list[str] | None:
        """The contents as the template writes them, if it writes nothing but them and the frame; it is asked, because
        a template may do anything with a certain content. None if it changes more than the white space around them."""
        written = self.template.write([_ASKED, frame.said, *messages], where=where, add_generation_prompt=True)
        text = _since(written, frame.said.content)
        for contents in ([m.content for m in messages], [m.content.strip() for m in messages]):
            if text == frame.before + frame.around(contents):
                return contents
        return None

    def _pieces(
        self, messages: Sequence[Message], calls: Sequence[Mapping[str, Any]], where: str
    ) -> Iterator[tuple[str, bool]]:
        """The text that the template writes for the messages, and whether a piece of it is their content."""
        begin, end = marks(messages)
        marked = [replace(message, content=begin + message.content + end) for message in messages]
        text, plain = self._turn(marked, calls, where)[2], self._turn(messages, calls, where)[2]
        if text.replace(begin, "").replace(end, "") != plain:
            # Most templates that change a content remove the white space around it.
            marked = [replace(message, content=begin + message.content.strip() + end) for message in messages]
            text = self._turn(marked, calls, where)[2]
            if text.replace(begin, "").replace(end, "") != plain:
                raise DataError(
                    f"{where}: the chat template changes what tools or environments answer",
                    remedy="set model.chat_template to one that writes the contents of messages as they are",
                )
        return pieces(text, begin, end)

    def _turn(
        self, messages: Sequence[Message], calls: Sequence[Mapping[str, Any]], where: str
    ) -> tuple[Message, str, str]:
        """A stand-in for a turn with such calls, what the template writes from its content to its end, and what after
        it: the messages, and the beginning of the next turn."""
        # With calls, some templates leave the content out, others write turns without one differently.
        contents = ("", _SAID) if calls else (_SAID,)
        for content in contents:
            said = Message("assistant", content, tool_calls=tuple(calls))
            before = _since(self._render([_ASKED, said], where), content)
            after = _since(self._render([_ASKED, said, *messages], where, next_turn=True), content)
            if after.startswith(before):
                return said, before, after[len(before) :]
        raise DataError(
            f"{where}: the chat template writes the assistant's turn differently when {messages[0].role!r} follows",
            remedy="set model.chat_template to one that leaves earlier turns as they are",
        )

    def _render(
        self, messages: Sequence[Message], where: str = "the run's chat template", *, next_turn: bool = False
    ) -> str:
        return self.template.render(messages, where=where, add_generation_prompt=next_turn)

    def _ways_to_answer(self) -> Iterator[Message]:
        """Turns that the policy may write: a text, one after some thinking, and a call."""
        yield Message("assistant", _SAID)
        opening = self._render([_ASKED], next_turn=True)[len(self._render([_ASKED])) :]
        if "</think>" not in opening:  # else the template has thought for the policy
            yield Message("assistant", f"<think>\n{_THOUGHT}\n</think>\n\n{_SAID}")
        for tool in self.template.tools[:1]:
            function = tool.get("function", tool)
            call: dict[str, Json] = {"type": "function", "function": {"name": function["name"], "arguments": {}}}
            yield Message("assistant", "", tool_calls=(call,))

    def _rewritten(self, said: Message, observer: Observer, where: str) -> str:
        if observer == "tool" and self.template.tools and not said.tool_calls:
            return ""  # no tool answers a turn that calls none
        observed = Message(observer, _OBSERVED)
        asked = self._render([_ASKED], where, next_turn=True)
        alone = self._render([_ASKED, said], where)
        followed = self._render([_ASKED, said, observed], where, next_turn=True)
        wrote = "" if said.tool_calls else said.content
        # White space in front of it, which some templates put there, the policy writes as well.
        is_kept = alone.startswith(asked) and alone[len(asked) :].lstrip().startswith(wrote)
        if is_kept and followed.startswith(alone):
            return ""
        return "a turn that calls a tool" if said.tool_calls else "thinking" if _THOUGHT in said.content else "a turn"


@dataclass(frozen=True, slots=True)
class _Frame:
    """What a template writes around the contents of messages that follow a turn.

    said: the stand-in for the turn. before: from its content to its end. texts: in front of each content, and after
    the last one. tokens: of these.
    """

    said: Message
    before: str
    texts: tuple[str, ...]
    tokens: tuple[tuple[int, ...], ...]

    def around(self, contents: Sequence[str]) -> str:
        """The text of messages with these contents."""
        return "".join(around + content for around, content in zip(self.texts, (*contents, ""), strict=True))


def _shape(messages: Sequence[Message], calls: Sequence[Mapping[str, Any]]) -> str:
    """All but the contents of the messages that follow a turn with such calls."""
    around = [(m.role, m.extra, m.tool_calls, m.reasoning_content) for m in messages]
    return json.dumps([list(calls), around], default=repr)


def _keep(memory: dict[_Key, _Value], key: _Key, value: _Value, most: int) -> None:
    """Remember a value, and forget all others before they become too many."""
    if len(memory) >= most:
        memory.clear()
    memory[key] = value


def _since(text: str, content: str) -> str:
    """What follows the content of the stand-in. What it is answered may contain the same words."""
    _, found, after = text.partition(content) if content else ("", "", "")
    return after if found else text
