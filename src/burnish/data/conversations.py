"""Read prompts and conversations from rows: check messages, fill in templates, add system prompts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from burnish.config.schema_data import DataSource
from burnish.data.rows import Row, column_names, describe, hint, lookup, optional_text_at, value_at, wrong_value
from burnish.data.turns import checked_message
from burnish.errors import DataError
from burnish.outside.reading import strict_json
from burnish.types import Message

_ANSWERS = ("completion", "responses")
_PRINTED_TURNS = re.compile(r"\s*(?:array\()?\[\s*\{'(?:role|content|from|value)': ")
_BRACES = re.compile(r"\{\{|\}\}|\{([^{}]+)\}")


def messages_at(row: Row, path: str) -> tuple[Message, ...]:
    """The conversation in a column: a list of `{role, content}` (or `{from, value}`), or that list as a JSON string."""
    value = value_at(row, path, role="messages")
    if isinstance(value, str):
        value = parsed(value, row, path, "messages")
    return checked_messages(value, row, path)


def text_or_turns(value: Any, row: Row, path: str, *, role: str) -> str | tuple[Message, ...]:
    """Text as it stands, or turns: a message, a list of messages, or either as a JSON string."""
    if isinstance(value, str):
        if _PRINTED_TURNS.match(value) and role not in _ANSWERS:
            raise DataError(
                f"{row.where}: column {path!r} ({role}) holds a conversation as Python prints it: {describe(value)}",
                remedy="save it with json.dumps, or the whole table as JSON lines or Parquet",
            )
        if not _is_turns_in_json(value, role):
            return value
        value = parsed(value, row, path, "messages")
    if not isinstance(value, (list, dict)):
        remedy = "fix the row, or build the text with prompt_template"
        raise wrong_value(row, path, role, value, "text or messages", remedy=remedy)
    return checked_messages([value] if isinstance(value, dict) else value, row, path)


def _is_turns_in_json(text: str, role: str) -> bool:
    """Return whether a text is a message, or a list of messages, in JSON.

    A model may learn to write conversations: an answer is read as turns only if the first is the assistant's.
    """
    try:
        said = json.loads(text) if re.match(r"\s*(\[\s*)?\{", text) else None
    except (ValueError, RecursionError):
        return False
    is_one = isinstance(said, Mapping) and not said.keys().isdisjoint({"content", "value"}) and role != "text"
    turns = [said] if is_one else said
    if not isinstance(turns, list) or not all(isinstance(t, Mapping) and t.keys() & {"role", "from"} for t in turns):
        return False
    is_answer = role in _ANSWERS or (is_one and role != "prompt")
    return not is_answer or turns[0].get("role", turns[0].get("from")) in ("assistant", "gpt")


def tools_at(row: Row, roles: Mapping[str, str]) -> tuple[Mapping[str, Any], ...]:
    """The functions that the row offers to the model: a list of JSON schemas, or that list as a JSON string."""
    if "tools" not in roles:
        return ()
    path = roles["tools"]
    value = lookup(row.values, path, None)
    if isinstance(value, str) and value.strip():
        value = parsed(value, row, path, "tools")
    if not value:
        return ()
    if not isinstance(value, list) or any(not isinstance(tool, Mapping) or not tool for tool in value):
        remedy = (
            'a tool is {"type": "function", "function": {"name": ..., "parameters": {...}}}; if the column '
            "`tools` means something else, rename it"
        )
        raise wrong_value(row, path, "tools", value, "a list of JSON schemas", remedy=remedy)
    return tuple(_without_nulls(tool) if row.typed else tool for tool in value)


def checked_messages(value: Any, row: Row, path: str) -> tuple[Message, ...]:
    """The list of turns as messages. DataError, naming row, column and turn, for anything else."""
    if not isinstance(value, list) or not value:
        raise DataError(
            f"{row.where}: column {path!r} holds {describe(value)}, not a list of messages",
            remedy='a conversation is [{"role": "user", "content": "..."}, ...]',
        )
    return tuple(
        checked_message(
            _without_nulls(item) if row.typed else item,
            f"{row.where}: column {path!r}, message {i}",
            may_mark=row.may_mark,
        )
        for i, item in enumerate(value, start=1)
    )


def parsed(value: str, row: Row, path: str, what: str) -> Any:
    """The value of a JSON text, which should be a list of what is named."""
    try:
        return strict_json(value)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{row.where}: column {path!r} is text but not a JSON list of {what} ({error}): {describe(value)}",
            remedy="write it with json.dumps, or name another column (columns: {...}), or rename it",
        ) from error


def _without_nulls(value: Any) -> Any:
    """The value without keys that are null: in a typed table, these are keys that only other rows have."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def fill_template(template: str, row: Row, roles: Mapping[str, str], *, field: str = "prompt_template") -> str:
    """The template with each `{column}` or `{role}` replaced by the row's value (`{outer.inner}` for nested values).

    `{{` and `}}` give braces. `{}` is left unchanged, so that `\\boxed{}` needs no escaping. DataError for a column
    that is missing or holds neither text nor a number. field: the template's, for messages.
    """

    def value(match: re.Match[str]) -> str:
        if match[0] in ("{{", "}}"):
            return match[0][0]
        return _value_text(match[1], row, roles, field)

    return _BRACES.sub(value, template)


def _value_text(name: str, row: Row, roles: Mapping[str, str], field: str) -> str:
    try:
        value = lookup(row.values, name)
    except KeyError:
        if name not in roles:
            raise _unknown_column(name, row, field) from None
        value = value_at(row, roles[name], role=name)
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    raise DataError(
        f"{row.where}: {field} uses column {name!r}, which holds {describe(value)}",
        remedy="only text and numbers can be put in a template",
    )


def _unknown_column(name: str, row: Row, field: str) -> DataError:
    names = column_names([row])
    return DataError(
        f"{row.where}: {field} names the column {name!r}; the row has {', '.join(names)}{hint(name, names)}",
        remedy="correct the name, or write {{" + name + "}} for literal braces",
    )


def prompt_of(row: Row, roles: Mapping[str, str], source: DataSource) -> str | tuple[Message, ...]:
    """The prompt in a row: plain text, or a conversation if the row has one, a system prompt or a history."""
    asked = prompt_content(row, roles, source.prompt_template)
    if isinstance(asked, str) and not asked.strip():
        raise DataError(f"{row.where}: the prompt is empty", remedy="remove the row or name another prompt column")
    return in_context(asked, row, roles, source.system_prompt)


def prompt_content(row: Row, roles: Mapping[str, str], template: str | None) -> str | tuple[Message, ...]:
    """The question of the row without its context: text, and the column `input` on a line of its own, or turns."""
    if template is not None:
        return fill_template(template, row, roles)
    if "messages" in roles:
        return messages_at(row, roles["messages"])
    role = "prompt" if "prompt" in roles else "text"
    asked = text_or_turns(value_at(row, roles[role], role=role), row, roles[role], role=role)
    if not isinstance(asked, str):
        return asked
    return "\n".join(filter(None, (asked, optional_text_at(row, roles, "input"))))


def in_context(
    asked: str | tuple[Message, ...], row: Row, roles: Mapping[str, str], system_prompt: str | None
) -> str | tuple[Message, ...]:
    """Put the row's system prompt and history in front of the question; `system_prompt` is the default of a row without
    one. If a column holds either, all rows are conversations."""
    system, history = optional_text_at(row, roles, "system"), _history_at(row, roles)
    if isinstance(asked, str):
        if system_prompt is None and not {"system", "history"} & roles.keys():
            return asked
        asked = (Message("user", asked),)
    elif optional_text_at(row, roles, "input") is not None:
        raise DataError(f"{row.where}: the role input is only for text prompts", remedy="put it into the messages")
    own = next((message.content for message in asked if message.role == "system"), None)
    if system is not None and own not in (None, system):
        raise DataError(
            f"{row.where}: column {roles['system']!r} (system) and the conversation have different system prompts",
            remedy="keep one of them",
        )
    given = system_prompt if system is None else system
    if own is None and given is not None:
        asked = (Message("system", given), *asked)
    begin = 1 if asked[0].role == "system" else 0
    return (*asked[:begin], *history, *asked[begin:])


def _history_at(row: Row, roles: Mapping[str, str]) -> tuple[Message, ...]:
    """Earlier turns: a list of pairs of a question and its answer, or of messages; also as a JSON string."""
    value = lookup(row.values, roles["history"], None) if "history" in roles else None
    if isinstance(value, str) and value.strip():
        value = parsed(value, row, roles["history"], "pairs")
    if not value:
        return ()
    if isinstance(value, list) and isinstance(value[0], Mapping):
        return checked_messages(value, row, roles["history"])
    pairs = [item for item in value if isinstance(item, list) and [*map(type, item)] == [str, str]]
    if pairs != value:
        remedy = 'a history is [["question", "answer"], ...]; if the column means something else, rename it'
        raise wrong_value(row, roles["history"], "history", value, "pairs of texts", remedy=remedy)
    return tuple(Message(role, text) for pair in pairs for role, text in zip(("user", "assistant"), pair, strict=True))


def without_last_answer(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The conversation that a policy is to answer: without the assistant's turns at its end."""
    end = len(messages)
    while end and messages[end - 1].role == "assistant":
        end -= 1
    return tuple(messages[:end])
