"""Demands of a client on an answer: that it calls a tool, makes at most one call, or is JSON.

Nothing is forced on the policy or added to its prompt, because training data has to be what the policy samples. So an
answer is checked and refused if it does not meet the demands; it is a turn of its trajectory all the same. A truncated
answer is returned as it is, with `finish_reason: length`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burnish.errors import BurnishError
from burnish.outside.listening import RefusedError, wrong
from burnish.rewards.builtins.json_schema import JsonSchema, read_json
from burnish.rewards.builtins.reading_rows import NoScoreError
from burnish.types import Json, Message

DEMANDS = ("tool_choice", "parallel_tool_calls", "response_format")
_STATUS = 422
"""Status for an answer that does not meet the demands. Clients do not retry by themselves, as they do after 5xx."""


@dataclass(frozen=True, slots=True)
class Demands:
    """Conditions that an answer must meet.

    calls: whether calls are read at all. tool: the one that must be called, "" for any. one_call: at most one call.
    form: the type of a response format, with the validator of its schema, if it has one.
    """

    calls: bool = True
    tool: str | None = None
    one_call: bool = False
    form: str = "text"
    schema: JsonSchema | None = None

    @property
    def fields(self) -> list[str]:
        """The request fields whose demands an answer may fail."""
        may_fail = (self.tool is not None, self.one_call, self.form != "text")
        return [*itertools.compress(DEMANDS, may_fail)]

    def check(self, message: Message) -> None:
        """Raise RefusedError for an answer that does not meet the demands."""
        names = message.called()
        if self.tool is not None and not (self.tool in names if self.tool else names):
            called = f"does not call {self.tool!r}" if self.tool else "calls no tool"
            raise _unmet("tool_choice", called, message)
        if self.one_call and len(names) > 1:
            raise _unmet("parallel_tool_calls", f"makes {len(names)} calls", message)
        if self.form != "text" and not names:
            self._check_form(message)

    def _check_form(self, message: Message) -> None:
        try:
            value = read_json(message.content)
        except ValueError:
            raise _unmet("response_format", "is not JSON", message) from None
        if self.form == "json_object" and not isinstance(value, dict):
            raise _unmet("response_format", "is not a JSON object", message)
        try:
            fits = self.schema is None or self.schema.accepts(value)
        except NoScoreError as error:
            raise wrong("response_format", f"response_format: {error}") from error
        if not fits:
            raise _unmet("response_format", "is not valid against the schema", message)


def read_demands(asked: Mapping[str, Any], tools: Sequence[Mapping[str, Json]]) -> Demands:
    """The demands of a request. RefusedError for an invalid one."""
    choice, one_call = asked.get("tool_choice"), asked.get("parallel_tool_calls")
    if not isinstance(one_call, (bool, type(None))):
        raise wrong("parallel_tool_calls", "parallel_tool_calls has to be true or false")
    form, schema = _response_format(asked.get("response_format"))
    return Demands(choice != "none", _tool(choice, tools), one_call is False, form, schema)


def _tool(choice: Any, tools: Sequence[Mapping[str, Json]]) -> str | None:
    """The tool that must be called, "" for any, None if a call is optional."""
    if choice in (None, "none", "auto"):
        return None
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if choice != "required" and not (isinstance(name, str) and name):
        raise wrong(
            "tool_choice", f"tool_choice has to be none, auto, required or a function by name, not {choice!r:.60}"
        )
    offered = [function["name"] for tool in tools if isinstance(function := tool["function"], dict)]
    if not offered or (name and name not in offered):
        raise wrong("tool_choice", f"tool_choice asks for {name or 'a tool'}, which is not in tools")
    return name or ""


def _response_format(value: Any) -> tuple[str, JsonSchema | None]:
    form = value.get("type") if isinstance(value, dict) else "text" if value is None else None
    if form in ("text", "json_object"):
        return form, None
    named = value.get("json_schema") if form == "json_schema" else None
    if not isinstance(named, dict):
        raise wrong(
            "response_format", "response_format has to be of the type text, json_object, or json_schema with a schema"
        )
    try:
        return "json_schema", JsonSchema(named.get("schema") or {})
    except BurnishError as error:
        raise wrong("response_format", f"response_format: {error}") from error


def _unmet(field: str, how: str, message: Message) -> RefusedError:
    return RefusedError(
        _STATUS,
        f"the answer {how}, as {field} demands ({message.content!r:.100}). Answers are sampled freely here and then "
        "checked: ask again, or say in the messages what is wanted",
        code="answer_does_not_fit",
        param=field,
    )
