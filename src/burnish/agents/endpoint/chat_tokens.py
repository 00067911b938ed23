"""Messages as tokens, and turns of the policy as messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from functools import cached_property

from burnish.agents.endpoint.requests import Others, Terms, texts_in
from burnish.agents.observations import ObservationFormat, keep
from burnish.agents.tools.calls import Parsed, ToolCall, id_of_calls
from burnish.agents.tools.parsers.protocol import ToolParser
from burnish.agents.tools.parsers.registry import AUTO, Render, find_parser, recognise
from burnish.data.chat import encode_bare, encode_text, text_of_tokens
from burnish.data.histories import HistoryEncoder, PlainEncoder
from burnish.data.template import Template, readable_options
from burnish.errors import ConfigError, DataError
from burnish.outside.listening import RefusedError, wrong
from burnish.rollouts.engine import Sampling
from burnish.types import Json, Message, Tokenizer

Schemas = tuple[Mapping[str, Json], ...]
_WHERE = "messages"
_KEPT_FORMATS = 64


@dataclass(frozen=True)
class Speech:
    """A model's tokenizer and chat template, as a server uses them. Only one thread may: encoding changes a tokenizer.

    options: arguments of the chat template. stop_token_ids: tokens that end a turn. parser: reads calls of tools.
    without_parser: why there is no parser, for clients that offer tools. plain: encodes texts of clients; None makes
    one, with a copy of the tokenizer.
    """

    tokenizer: Tokenizer
    stop_token_ids: frozenset[int]
    options: Mapping[str, Json] = field(default_factory=dict)
    parser: ToolParser | None = None
    without_parser: str = "this server has no parser of tool calls"
    plain: InitVar[PlainEncoder | None] = None
    _plain: PlainEncoder = field(init=False, repr=False)
    _formats: dict[str, ObservationFormat] = field(default_factory=dict, init=False, repr=False)
    _others: dict[str, Speech] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self, plain: PlainEncoder | None) -> None:
        object.__setattr__(self, "_plain", plain or PlainEncoder(self.tokenizer))

    @staticmethod
    def of(
        tokenizer: Tokenizer, stop_token_ids: Iterable[int], options: Mapping[str, Json], *, parser: str = AUTO
    ) -> Speech:
        """Make one with the parser of this name, `auto` for the format of the chat template. If there is none for it,
        only tools are refused. ConfigError for an unknown name."""
        stop = frozenset(stop_token_ids)
        if parser != AUTO:
            return Speech(tokenizer, stop, options, find_parser(parser))
        try:
            parser = recognise(renderer(tokenizer, options, "the chat template"))
            return Speech(tokenizer, stop, options, find_parser(parser))
        except (ConfigError, DataError) as error:
            return Speech(tokenizer, stop, options, None, without_parser=error.message)

    def terms(self, sampling: Sampling, model: str, context: int, others: Others) -> Terms:
        """The terms for clients that use this template."""
        reads = readable_options(self.tokenizer) or frozenset()
        return Terms(sampling, model, context, others, self.options, reads, self._message_tokens)

    @cached_property
    def _message_tokens(self) -> int:
        """Lower bound of a message's tokens: half of what the template adds for a short one."""
        question, answer = Message("user", "1"), Message("assistant", "1")
        try:
            one, three = (self.encode(some, ()) for some in ([question], [question, answer, question]))
        except RefusedError:
            return 1
        return max((len(three) - len(one)) // 4, 1)

    def under(self, options: Mapping[str, Json]) -> Speech:
        """A copy with other arguments of the chat template."""
        key = json.dumps(options, sort_keys=True)
        if options and key not in self._others:
            other = replace(self, options={**self.options, **options}, plain=self._plain)
            keep(self._others, key, other, _KEPT_FORMATS)
        return self._others[key] if options else self

    def encode(self, messages: Sequence[Message], tools: Schemas) -> tuple[int, ...]:
        """The whole history in the chat template's form, with the generation prompt. Messages of others than the policy
        are encoded as text, without special tokens. RefusedError if the template cannot write it."""
        try:
            heard = {number: 0 for number, message in enumerate(messages) if self._is_heard(message)}
            tokens = self._histories.encode(_named(messages), heard, tools, where=_WHERE)
        except DataError as error:
            raise wrong("messages", str(error)) from error
        if not tokens:
            raise wrong("messages", "the messages are zero tokens")
        return tokens

    def following(
        self, messages: Sequence[Message], calls: Sequence[Mapping[str, Json]], last_token: int, tools: Schemas
    ) -> tuple[int, ...] | None:
        """Encode messages that follow a turn which ended with `last_token` and made these calls. None if they cannot be
        appended, because the template rewrites earlier turns."""
        form = self._format(tools)
        if not form.appends(messages, where=_WHERE):
            return None
        said = Message("assistant", "", tool_calls=tuple(calls))
        try:
            return form.tokens(_named((said, *messages))[1:], calls, last_token, where=_WHERE)
        except DataError:
            return None  # the whole history may still be encodable; if not, encoding it gives the reason

    def encode_text(self, text: str, *, begins: bool) -> tuple[int, ...]:
        """A text without template: a prompt (`begins`), or an addition to one."""
        try:
            tokens = encode_text(text, self.tokenizer) if begins else encode_bare(text, self.tokenizer)
        except DataError as error:
            raise wrong("prompt", str(error)) from error
        if begins and not tokens:
            raise wrong("prompt", "the prompt is zero tokens")
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of sampled tokens with its special ones, without the one that ended the turn."""
        return self.decode_raw(tokens[:-1] if tokens and tokens[-1] in self.stop_token_ids else tokens)

    def decode_raw(self, tokens: Sequence[int]) -> str:
        """The text of any tokens, special ones included."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=False))

    @cached_property
    def _histories(self) -> HistoryEncoder:
        return HistoryEncoder(self.tokenizer, self.options, self._plain)

    @cached_property
    def _special(self) -> Sequence[str]:
        """Texts of the special tokens, which no text of a client may become. Tags that are tokens but not special
        (`<think>`) are allowed from user and system, who may write about them."""
        added = (str(token) for token in self.tokenizer.added_tokens_decoder.values() if token.special)
        return sorted({*added, *self.tokenizer.all_special_tokens})

    @cached_property
    def text(self) -> Callable[[int], str]:
        """The text of one token inside a text."""
        return text_of_tokens(self.tokenizer)

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """Raise RefusedError for a token that the model does not have."""
        if max(tokens) >= len(self.tokenizer):
            raise RefusedError(400, f"there is no token {max(tokens)}: the vocabulary has {len(self.tokenizer):,}")

    def read(self, text: str, tools: Schemas, number: int) -> Message:
        """Parse the policy's turn into the message for its agent. number: of the turn, for the ids of calls.

        A call that cannot be read is part of the content, as it was written.
        """
        parsed = Parsed(text) if not tools or self.parser is None else self.parser.parse(text, tools)
        calls = [call for call in parsed.calls if isinstance(call, ToolCall)]
        if not calls:
            return Message("assistant", text)
        written = tuple(
            {"id": f"{id_of_calls(number)}{index % 100:02d}", **call.to_dict()} for index, call in enumerate(calls)
        )
        return Message("assistant", parsed.content_with_unread, tool_calls=written)

    def _format(self, tools: Schemas) -> ObservationFormat:
        key = json.dumps(tools, sort_keys=True)
        if key not in self._formats:  # agents may offer other tools each time
            template = Template(self.tokenizer, self.options, tools)
            keep(self._formats, key, ObservationFormat(template, self.stop_token_ids, self._plain), _KEPT_FORMATS)
        return self._formats[key]

    def check(self, messages: Sequence[Message], tools: Schemas) -> None:
        """Raise RefusedError for tools that cannot be called, and for special tokens where templates write names."""
        if tools and self.parser is None:
            raise wrong("tools", self.without_parser)
        others = [message for message in messages if message.role != "assistant"]
        names = [(one.role, one.extra, one.reasoning_content, one.tool_calls) for one in others]
        for param, value in (("messages", names), ("tools", tools)):
            if any(map(self._is_special, texts_in(value))):
                raise wrong(param, f"{param} hold a special token outside their contents")

    def _is_heard(self, message: Message) -> bool:
        """Return whether a content is encoded separately from the template's text."""
        return message.role == "tool" or (message.role != "assistant" and self._is_special(message.content))

    def _is_special(self, text: str) -> bool:
        return any(name in text for name in self._special)


def renderer(tokenizer: Tokenizer, options: Mapping[str, Json], where: str) -> Render:
    """Return a writer of turns by the chat template, for `recognise`. where: for messages."""

    def render(turns: Sequence[Mapping[str, Json]], offered: Sequence[Mapping[str, Json]]) -> str:
        messages = [Message.from_dict(turn) for turn in turns]
        template = Template(tokenizer, options, tuple(offered))
        return template.render(messages, where=where, add_generation_prompt=False)

    return render


def _named(messages: Sequence[Message]) -> list[Message]:
    """Add the names of tools to their results: some templates need them, and OpenAI's form leaves them out."""
    names: dict[Json, Json] = {}
    found = []
    for message in messages:
        for call, called in zip(message.tool_calls, message.called(), strict=True):
            names[str(call.get("id"))] = called
        name = names.get(message.extra.get("tool_call_id"))  # type: ignore[arg-type]
        if message.role == "tool" and name is not None and "name" not in message.extra:
            message = replace(message, extra={**message.extra, "name": name})
        found.append(message)
    return found
