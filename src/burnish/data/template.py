"""Calls of the chat template, with the run file's options and a row's tools, and checks that it drops nothing.

A template is a program that came with the model. It may silently ignore what it does not know (a role, tool calls, an
option), and the run would then train on a damaged conversation. So two things are checked: which names the template's
source reads, and whether its output contains what it was given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Literal

import jinja2
from jinja2 import ext, meta, nodes, parser

from burnish.config.schema_data import DataConfig
from burnish.data.rows import check_length, describe
from burnish.errors import DataError, did_you_mean
from burnish.outside.reading import reason_of
from burnish.types import Message, Tokenizer

Chat = Literal["auto", "always", "never"]

_GENERATION_MARK = re.compile(r"\{%-?\s*generation\s*-?%\}")
# Arguments that every template receives, so they cannot be options of the run file.
_GIVEN = {"messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now"}
# `transformers` passes reasoning to a template under each of these names, so a template needs to read only one.
_REASONING = {"reasoning_content", "reasoning", "thinking"}
_PROBE = " burnish7probe"


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """Use of the chat template: for which prompts, and with which arguments.

    chat: `auto` uses the template for conversations, `always` for plain text as well, `never` not at all.
    options: `data.template_options`, such as `{"enable_thinking": False}`.
    """

    chat: Chat = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, config: DataConfig) -> ChatFormat:
        return cls(config.chat, config.template_options)


@dataclass(frozen=True, slots=True)
class Template:
    """A tokenizer's chat template, with the options and tools to call it with."""

    tokenizer: Tokenizer
    options: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[Mapping[str, Any], ...] = ()

    def render(self, messages: Sequence[Message], *, where: str, add_generation_prompt: bool) -> str:
        """The conversation as the template writes it. Errors begin with `where`.

        Raises DataError if there is no template, it refuses the conversation, it does not read an option, or it leaves
        something out: a turn, a tool call, reasoning, or the tools.
        """
        source = self.source(where)
        check_options(self.options, self.tokenizer, where=where)
        text = self.write(messages, where=where, add_generation_prompt=add_generation_prompt)
        self._check_read(messages, source, where)
        self._check_written(messages, text, where)
        return text

    def write(self, messages: Sequence[Message], *, where: str, add_generation_prompt: bool) -> str:
        """Like `render`, but without the checks, for a caller that knows what the text must be."""
        text = self._written(messages, where, add_generation_prompt=add_generation_prompt)[0]
        check_length(text)
        return text

    def tokens_and_marks(self, messages: Sequence[Message], *, where: str) -> tuple[list[int], list[bool]]:
        """Return the tokens, and a mask that is True inside `{% generation %}` blocks."""
        turns = self._written(messages, where, add_generation_prompt=False)[1]
        encoding = self._apply(turns, where, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
        return list(encoding["input_ids"]), [bool(flag) for flag in encoding["assistant_masks"]]

    @property
    def has_marks(self) -> bool:
        """True if the template marks the assistant's text and the tokenizer is fast: others cannot use the marks."""
        template = self.tokenizer.chat_template
        return isinstance(template, str) and bool(_GENERATION_MARK.search(template)) and self.tokenizer.is_fast

    def source(self, where: str) -> str:
        """The Jinja source for this conversation. A tokenizer may have a separate template for rows with tools."""
        if not self.tokenizer.chat_template:
            raise DataError(
                f"{where}: this is a conversation, but the tokenizer {self.tokenizer.name_or_path or '(unnamed)'} has "
                "no chat template",
                remedy="set model.chat_template (inline or a file), or data.chat: never to write turns as plain text",
            )
        return str(_call_template(where, lambda: self.tokenizer.get_chat_template(None, self._tools())))

    def _tools(self) -> list[dict[str, Any]] | None:
        return [dict(tool) for tool in self.tools] or None

    def _written(
        self, messages: Sequence[Message], where: str, *, add_generation_prompt: bool
    ) -> tuple[str, list[Any]]:
        """Return the conversation as the template writes it, and the turns that were given to it.

        Most templates want the arguments of a call as a mapping. Some want JSON text, and fail on a mapping or write
        it as Python does.
        """
        parted = _roles_with_parts(self.tokenizer, self.source(where))
        turns: list[Any] = [_turn_of(message, in_parts=message.role in parted) for message in messages]
        as_text = [_with_arguments_as_text(turn) for turn in turns]
        write = partial(self._apply, where=where, tokenize=False, add_generation_prompt=add_generation_prompt)
        try:
            text = str(write(turns))
        except DataError:
            with suppress(DataError):
                return str(write(as_text)), as_text
            raise
        if any(_is_in_python(call, messages, text) for message in messages for call in message.tool_calls):
            return str(write(as_text)), as_text
        return text, turns

    def _apply(self, turns: list[Any], where: str, **wanted: bool) -> Any:
        apply = partial(self.tokenizer.apply_chat_template, turns, tools=self._tools(), **wanted, **self.options)
        return _call_template(where, apply)

    def _check_read(self, messages: Sequence[Message], source: str, where: str) -> None:
        reads = template_reads(source)
        if reads is None:
            return
        if self.tools and "tools" not in reads.variables:
            raise _left_out_error(where, "tools are offered")
        for number, message in enumerate(messages, start=1):
            if message.tool_calls and "tool_calls" not in reads.attributes:
                raise _left_out_error(where, f"message {number} ({message.role}) has tool_calls")
            if message.reasoning_content and not _REASONING & reads.attributes:
                raise _left_out_error(where, f"message {number} ({message.role}) has reasoning_content")

    def _check_written(self, messages: Sequence[Message], text: str, where: str) -> None:
        begin = 0  # turns are in order, so each search goes on behind the turn before: linear in the total length
        for number, message in enumerate(messages):
            missing = [name for name in message.called() if name not in text]
            if missing:
                raise _left_out_error(where, f"message {number + 1} ({message.role}) calls {missing[0]}")
            content = message.content.strip()
            found = text.find(content, begin)
            if found >= 0:
                begin = found + len(content)
            elif not _is_in(message, text) and self._ignores(messages, number, where):
                if message.role == "assistant":
                    raise _left_out_error(where, f"message {number + 1} (assistant) says {describe(message.content)}")
                raise _left_out_error(where, f"message {number + 1} has the role {message.role!r}", what="such a turn")

    def _ignores(self, messages: Sequence[Message], number: int, where: str) -> bool:
        """Return whether changing the content of this turn leaves the output unchanged."""
        changed = list(messages)
        changed[number] = replace(messages[number], content=messages[number].content + _PROBE)
        try:
            before, after = (self.write(some, where=where, add_generation_prompt=False) for some in (messages, changed))
            return before == after
        except DataError:
            return False  # the template refused the changed content, so it does read it


@dataclass(frozen=True, slots=True)
class TemplateReads:
    """Names that a template looks up: in its arguments (`variables`), and in messages and tools (`attributes`)."""

    variables: frozenset[str]
    attributes: frozenset[str]


class _Generation(ext.Extension):
    """Parses `{% generation %}` blocks as their content."""

    tags = {"generation"}  # noqa: RUF012 (jinja's own interface)

    def parse(self, parser: parser.Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@lru_cache(maxsize=64)
def template_reads(source: str) -> TemplateReads | None:
    """The names that a template looks up; None if it cannot be parsed, because rendering reports that better."""
    try:
        tree = jinja2.Environment(extensions=["jinja2.ext.loopcontrols", _Generation]).parse(source)
        variables = meta.find_undeclared_variables(tree)
    except (jinja2.TemplateError, RecursionError):
        return None
    attributes = {node.attr for node in tree.find_all(nodes.Getattr)}
    # `message["tool_calls"]` and `message.get("tool_calls")`, and `"tool_calls" in message`
    attributes |= {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
    return TemplateReads(frozenset(variables), frozenset(attributes))


def check_options(options: Mapping[str, Any], tokenizer: Tokenizer, *, where: str) -> None:
    """Raise DataError for an option that no template of the tokenizer reads, because it would have no effect."""
    known = readable_options(tokenizer) if options else None
    if known is None:
        return
    takes = sorted(known)
    for name in options:
        if name not in known:
            raise DataError(
                f"{where}: data.template_options sets {name!r}, which the chat template does not read",
                remedy=did_you_mean(name, takes, f"it takes {', '.join(takes) or 'no option at all'}"),
            )


def readable_options(tokenizer: Tokenizer) -> frozenset[str] | None:
    """The options that the templates of a tokenizer read; None if one of them cannot be parsed."""
    templates = tokenizer.chat_template
    sources = list(templates.values()) if isinstance(templates, dict) else [templates]
    reads = [template_reads(source) for source in sources if isinstance(source, str)]
    if any(read is None for read in reads):
        return None
    known = frozenset[str]().union(*(read.variables for read in reads if read is not None))
    return known - _GIVEN - set(tokenizer.special_tokens_map)


def refuse_unused_options(chat: ChatFormat, *, applied: int, field: str = "data.template_options") -> None:
    """Raise DataError for options of a template that is applied to no row."""
    if chat.options and not applied:
        why = "data.chat is never" if chat.chat == "never" else "the rows are plain text, not conversations"
        raise DataError(
            f"{field} is set, but no chat template is applied: {why}",
            remedy=f"remove {field}, or set data.chat: always",
        )


def notes_on(messages: Sequence[Message], template: Template) -> list[str]:
    """Notes for the user on this conversation: fields of its turns that have no effect, and a text that contains
    today's date, so that it changes from day to day."""
    reads = template_reads(template.source(""))
    if reads is None:
        return []
    unread = {name for message in messages for name in message.extra} - reads.attributes
    notes = [f"conversations with fields that the chat template does not read: {', '.join(sorted(unread))}"]
    dated = "strftime_now" in reads.variables and "date_string" not in template.options
    today = "conversations that contain today's date (data.template_options: {date_string: ...} fixes it)"
    return (notes if unread else []) + ([today] if dated else [])


def _call_template(where: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # boundary: a template is a program that came with the model
        reason = str(error) if isinstance(error, jinja2.TemplateError) else reason_of(error)
        raise DataError(
            f"{where}: the chat template refuses this conversation: {reason}",
            remedy="change the turns (roles, order, system message) or set model.chat_template",
        ) from error


def _with_arguments_as_text(turn: dict[str, Any]) -> dict[str, Any]:
    """The turn with the arguments of all calls as JSON text."""
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(arguments, ensure_ascii=False)}}
        for call in turn.get("tool_calls", ())
        for arguments in (call["function"]["arguments"],)
    ]
    return {**turn, "tool_calls": calls} if calls else turn


def _turn_of(message: Message, *, in_parts: bool) -> dict[str, Any]:
    turn: dict[str, Any] = message.to_dict()
    return {**turn, "content": [{"type": "text", "text": message.content}]} if in_parts and message.content else turn


@lru_cache(maxsize=64)
def _roles_with_parts(tokenizer: Tokenizer, source: str) -> frozenset[str]:
    """Roles whose content the template writes only if it is a list of parts, as templates of multimodal models may
    require."""
    reads = template_reads(source)
    if reads is None or not {"type", "text"} <= reads.attributes:
        return frozenset()

    def said(roles: Sequence[str], in_parts: Collection[str]) -> set[str]:
        """Roles whose turn is written."""
        turns = [_turn_of(Message(role, f"{role}{_PROBE}"), in_parts=role in in_parts) for role in roles]
        apply = partial(tokenizer.apply_chat_template, turns, chat_template=source, tokenize=False)
        try:
            text = str(_call_template("", apply))
        except DataError:
            return set()
        # Not as Python writes a list.
        return {role for role in roles if f"{role}{_PROBE}" in text and f"'{role}{_PROBE}'" not in text}

    for roles in (("system", "user", "assistant"), ("user", "assistant")):
        left = frozenset(roles) - said(roles, ())
        if left and left <= said(roles, left):
            return left
    return frozenset()


def _is_in_python(call: Mapping[str, Any], messages: Sequence[Message], text: str) -> bool:
    """True if the text holds the arguments as Python writes them, more often than the contents of the messages do."""
    arguments = call["function"]["arguments"]
    said = sum(message.content.count(str(arguments)) for message in messages)
    return str(arguments) != json.dumps(arguments, ensure_ascii=False) and text.count(str(arguments)) > said


def _is_in(message: Message, text: str) -> bool:
    """Return whether the text has the content: unchanged, as JSON, or without thinking, which some templates remove."""
    content = message.content.strip()
    after_thinking = content.rpartition("</think>")[2].strip()
    quoted = (json.dumps(content, ensure_ascii=flag)[1:-1] for flag in (False, True))
    return any(form in text for form in (content, after_thinking, *quoted))


def _left_out_error(where: str, has: str, *, what: str = "it") -> DataError:
    return DataError(
        f"{where}: {has}, but the chat template leaves {what} out",
        remedy="set model.chat_template to one that writes it, or do without it (in the data, or in conversation)",
    )
