"""Observations as tokens: answers of tools or of an environment, to be appended after a turn of the policy.

A conversation only ever grows at its end. Nothing that the policy has seen or written is rendered or tokenised again,
because re-encoded text need not give the same tokens, and the policy would then train on a history that it never saw.
So a new message is rendered after a stand-in for the turn before it, and only the text after the stand-in is kept.

The content of a message is encoded as plain text: an end-of-turn token written by a tool must not end the turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeVar

from burnish.data.chat import encode_bare
from burnish.data.histories import PlainEncoder, marks, pieces
from burnish.data.template import Template, template_reads
from burnish.errors import DataError
from burnish.types import Json, Message

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
    """Encodes the messages that follow a turn of the policy, as the tokenizer's chat template writes them.

    stop_token_ids: tokens that end a turn when they are sampled. A turn that ended otherwise is closed first, as the
    template closes it. plain: encodes the contents; None makes one, with a copy of the tokenizer.
    """

    template: Template
    stop_token_ids: frozenset[int]
    plain: InitVar[PlainEncoder | None] = None
    _plain: PlainEncoder = field(init=False, repr=False)
    _frames: dict[str, _Frame | None] = field(default_factory=dict, init=False, repr=False, compare=False)
    _answers: dict[AnswerKey, tuple[int, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _kept: dict[Observer, bool] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self, plain: PlainEncoder | None) -> None:
        object.__setattr__(self, "_plain", plain or PlainEncoder(self.template.tokenizer))

    def tokens(
        self, messages: Sequence[Message], calls: Sequence[Mapping[str, Any]], last_token: int, *, where: str
    ) -> tuple[int, ...]:
        """Return the tokens to append after a turn that ended with `last_token` and made these calls: the rest of that
        turn, the messages, and the beginning of the next turn.

        Raises DataError, beginning with `where`, if the template refuses the messages or changes their contents.
        """
        key = _shape(messages, calls), last_token in self.stop_token_ids, tuple(m.content for m in messages)
        tokens = self._answers.get(key)  # environments often repeat an answer, and so do the calls of a group
        if tokens is None:
            tokens = self._new_tokens(key, messages, calls, where)
            if self._is_timeless and sum(map(len, key[2])) <= _LONGEST_ANSWER:
                keep(self._answers, key, tokens, _MOST_ANSWERS)
        return tokens

    def appends(self, messages: Sequence[Message], *, where: str) -> bool:
        """Return whether the template leaves earlier turns unchanged when such messages follow."""
        observers: set[Observer] = {"tool" if message.role == "tool" else "user" for message in messages}
        for observer in observers - self._kept.keys():
            try:
                self._kept[observer] = not rewrites(self.template, observer, where=where)
            except DataError:
                self._kept[observer] = False
        return all(self._kept[observer] for observer in observers)

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

    @cached_property
    def _closing_tokens(self) -> tuple[int, ...]:
        """Tokens that the template writes between the text of a turn and the next turn."""
        closing = _render(self.template, [_ASKED, Message("assistant", _SAID)]).rpartition(_SAID)[2]
        return encode_bare(closing, self.template.tokenizer) if closing else ()

    @cached_property
    def _after_the_end(self) -> tuple[int, ...]:
        """Closing tokens behind the token that ends a turn. (Llama 2's template also writes a space in front of it.)"""
        for place, token in enumerate(self._closing_tokens):
            if token in self.stop_token_ids or self._plain.control_tokens([token]):
                return self._closing_tokens[place + 1 :]
        return self._closing_tokens

    @cached_property
    def _is_timeless(self) -> bool:
        """True if the output of the template does not depend on the date."""
        reads = template_reads(self.template.source("the run's chat template"))
        return reads is not None and "strftime_now" not in reads.variables

    def _frame(self, shape: str, messages: Sequence[Message], calls: Sequence[Mapping[str, Any]]) -> _Frame | None:
        """Return the frame around contents of messages of this shape. None if the template changes even plain words."""
        if shape in self._frames:
            return self._frames[shape]
        frame = self._new_frame(messages, calls)
        keep(self._frames, shape, frame, _MOST_FRAMES)
        return frame

    def _new_frame(self, messages: Sequence[Message], calls: Sequence[Mapping[str, Any]]) -> _Frame | None:
        words = [replace(message, content=_OBSERVED) for message in messages]
        try:
            written = list(self._pieces(words, calls, ""))
            said, before, _ = self._turn(words, calls, "")
        except DataError:
            return None  # reported when the real contents are rendered
        texts = [text for text, is_content in written if not is_content]
        contents = [text for text, is_content in written if is_content and text]
        if contents != [_OBSERVED] * len(words):
            return None
        texts += [""] * (1 + len(words) - len(texts))  # where the template ends with a content
        return _Frame(said, before, tuple(texts), tuple(encode_bare(text, self.template.tokenizer) for text in texts))

    def _written_in(self, frame: _Frame, messages: Sequence[Message], where: str) -> list[str] | None:
        """Return the contents as the template writes them, checked by rendering them, because a template may treat some
        contents in a special way. None if it changes more than the frame and the white space around them."""
        written = self.template.write([_ASKED, frame.said, *messages], where=where, add_generation_prompt=True)
        text = _since(written, frame.said.content)
        for contents in ([m.content for m in messages], [m.content.strip() for m in messages]):
            if text == frame.before + frame.around(contents):
                return contents
        return None

    def _pieces(
        self, messages: Sequence[Message], calls: Sequence[Mapping[str, Any]], where: str
    ) -> Iterator[tuple[str, bool]]:
        """Split the template's text for the messages into pieces; True marks a piece that is content."""
        begin, end = marks(messages)
        plain = self._turn(messages, calls, where)[2]
        # Most templates that change a content remove the white space around it.
        for contents in ([m.content for m in messages], [m.content.strip() for m in messages]):
            marked = [replace(m, content=begin + content + end) for m, content in zip(messages, contents, strict=True)]
            text = self._turn(marked, calls, where)[2]
            if text.replace(begin, "").replace(end, "") == plain:
                return pieces(text, begin, end)
        raise DataError(
            f"{where}: the chat template changes what tools or environments answer",
            remedy="set model.chat_template to one that writes the contents of messages as they are",
        )

    def _turn(
        self, messages: Sequence[Message], calls: Sequence[Mapping[str, Any]], where: str
    ) -> tuple[Message, str, str]:
        """Return a stand-in for a turn with such calls, the text from its content to its end, and the text after it:
        the messages and the beginning of the next turn."""
        # With calls, some templates leave the content out; others write a turn without content differently.
        contents = ("", _SAID) if calls else (_SAID,)
        for content in contents:
            said = Message("assistant", content, tool_calls=tuple(calls))
            before = _since(_render(self.template, [_ASKED, said], where), content)
            after = _since(_render(self.template, [_ASKED, said, *messages], where, next_turn=True), content)
            if after.startswith(before):
                return said, before, after[len(before) :]
        raise DataError(
            f"{where}: the chat template writes the assistant's turn differently when {messages[0].role!r} follows",
            remedy="set model.chat_template to one that leaves earlier turns as they are",
        )


@dataclass(frozen=True, slots=True)
class _Frame:
    """Text of a template around the contents of messages that follow a turn.

    said: the stand-in for the turn. before: text from its content to its end. texts: text before each content, and
    after the last one. tokens: tokens of `texts`.
    """

    said: Message
    before: str
    texts: tuple[str, ...]
    tokens: tuple[tuple[int, ...], ...]

    def around(self, contents: Sequence[str]) -> str:
        """The text of messages with these contents."""
        return "".join(around + content for around, content in zip(self.texts, (*contents, ""), strict=True))


def rewrites(template: Template, observer: Observer, *, where: str) -> str:
    """Name the kind of turn that the template rewrites once a message of this role follows; empty if there is none.
    After training on turns as they were sampled, the policy would be used with histories that it never saw.

    Raises DataError, beginning with `where`, if the template refuses such a conversation.
    """
    kinds = (_rewritten(template, said, observer, where) for said in _ways_to_answer(template))
    return next((kind for kind in kinds if kind), "")


def _ways_to_answer(template: Template) -> Iterator[Message]:
    """Turns that the policy may write: text, thinking followed by text, and a call."""
    yield Message("assistant", _SAID)
    opening = _render(template, [_ASKED], next_turn=True)[len(_render(template, [_ASKED])) :]
    if "</think>" not in opening:  # else the generation prompt has closed the thinking
        yield Message("assistant", f"<think>\n{_THOUGHT}\n</think>\n\n{_SAID}")
    for tool in template.tools[:1]:
        function = tool.get("function", tool)
        call: dict[str, Json] = {"type": "function", "function": {"name": function["name"], "arguments": {}}}
        yield Message("assistant", "", tool_calls=(call,))


def _rewritten(template: Template, said: Message, observer: Observer, where: str) -> str:
    if observer == "tool" and template.tools and not said.tool_calls:
        return ""  # no tool answers a turn that calls none
    observed = Message(observer, _OBSERVED)
    asked = _render(template, [_ASKED], where, next_turn=True)
    alone = _render(template, [_ASKED, said], where)
    followed = _render(template, [_ASKED, said, observed], where, next_turn=True)
    wrote = "" if said.tool_calls else said.content
    # Some templates write white space in front of the text; the policy then samples it, too.
    is_kept = alone.startswith(asked) and alone[len(asked) :].lstrip().startswith(wrote)
    if is_kept and followed.startswith(alone):
        return ""
    return "a turn that calls a tool" if said.tool_calls else "thinking" if _THOUGHT in said.content else "a turn"


def _render(
    template: Template, messages: Sequence[Message], where: str = "the run's chat template", *, next_turn: bool = False
) -> str:
    return template.render(messages, where=where, add_generation_prompt=next_turn)


def _shape(messages: Sequence[Message], calls: Sequence[Mapping[str, Any]]) -> str:
    """Cache key of the messages after a turn with such calls: everything but their contents."""
    around = [(m.role, m.extra, m.tool_calls, m.reasoning_content) for m in messages]
    return json.dumps([list(calls), around], default=repr)


def keep(memory: dict[_Key, _Value], key: _Key, value: _Value, most: int) -> None:
    """Store a value. Empty the memory first if it holds `most` values."""
    if len(memory) >= most:
        memory.clear()
    memory[key] = value


def _since(text: str, content: str) -> str:
    """Return the text after the stand-in's content: its first occurrence, since an answer may repeat it."""
    _, found, after = text.partition(content) if content else ("", "", "")
    return after if found else text
