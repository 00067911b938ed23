"""What a server of OpenEnv says, put into words: its schemas as tools, its observations and errors as texts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from burnish.types import Json

_OF_EVERY_ACTION = "metadata"
_OF_EVERY_OBSERVATION = ("reward", "done", "metadata")
STEP = "step"
"""Name of the one tool of an environment whose actions have several fields."""


def fields_of(action: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The fields of an action's JSON schema that somebody must write: all but metadata and constants."""
    properties = action.get("properties", {})
    return {name: field for name, field in properties.items() if name != _OF_EVERY_ACTION and "const" not in field}


def text_field(action: Mapping[str, Any]) -> str | None:
    """The field of an action that is a text, if it has no other that must be given."""
    fields = fields_of(action)
    texts = [name for name, field in fields.items() if field.get("type") == "string" and "enum" not in field]
    required = set(action.get("required", ())) & fields.keys()
    return texts[0] if len(texts) == 1 and required <= {texts[0]} else None


def calls_tools(action: Mapping[str, Any]) -> bool:
    """Whether an action's schema is that of OpenEnv's `CallToolAction`."""
    return fields_of(action).keys() == {"tool_name", "arguments"}


def step_schema(action: Mapping[str, Any]) -> dict[str, Json]:
    """The tool `step`, whose parameters are the fields of the action."""
    fields = fields_of(action)
    required = [name for name in action.get("required", ()) if name in fields]
    parameters: dict[str, Any] = {"properties": fields, "required": required}
    if "$defs" in action:  # which the fields refer to
        parameters["$defs"] = action["$defs"]
    return tool_schema(STEP, str(action.get("description", "")) or "Act in the environment.", parameters)


def tool_schema(name: str, description: str, parameters: Mapping[str, Any]) -> dict[str, Json]:
    """A tool in the form of `burnish.tools.schema.schema_of`, where each parameter has a description, even if empty."""
    properties = {
        key: {"description": "", **{word: value for word, value in field.items() if word != "title"}}
        for key, field in parameters.get("properties", {}).items()
    }
    shape: dict[str, Any] = {"type": "object", "properties": properties}
    if parameters.get("required"):
        shape["required"] = list(parameters["required"])
    if "$defs" in parameters:
        shape["$defs"] = parameters["$defs"]
    inner: dict[str, Json] = {"name": name, "description": description.strip(), "parameters": shape}
    return {"type": "function", "function": inner}


def observation_text(observation: Mapping[str, Any]) -> str:
    """The text of an observation that is a single text, and otherwise all its fields as JSON. Reward, end and metadata
    are not the model's. An empty observation is an empty text."""
    fields = {name: value for name, value in observation.items() if name not in _OF_EVERY_OBSERVATION}
    if not fields:
        return ""
    values = list(fields.values())
    return values[0] if len(values) == 1 and isinstance(values[0], str) else json.dumps(fields, ensure_ascii=False)


def result_text(result: Any) -> str:
    """What a tool of an MCP server returned: the texts of its content, or else its data as JSON."""
    if isinstance(result, str):
        return result
    content = result.get("content") if isinstance(result, Mapping) else None
    texts = [block.get("text") for block in content or () if isinstance(block, Mapping) and block.get("type") == "text"]
    if texts and len(texts) == len(content or ()):
        return "\n".join(map(str, texts))
    return json.dumps(result, ensure_ascii=False)


def result_error(observation: Mapping[str, Any]) -> str | None:
    """Why a call of a tool failed, or None if it did not."""
    error = observation.get("error")
    if error:
        return str(error.get("message", error)) if isinstance(error, Mapping) else str(error)
    result = observation.get("result")
    is_error = isinstance(result, Mapping) and (result.get("is_error") or result.get("isError"))
    return result_text(result) if is_error else None


def error_text(data: Mapping[str, Any]) -> str:
    """What a server says about a message that it refuses: which fields of the action, and why."""
    fields = list(_refused(data.get("errors", ())))
    return "; ".join(fields) or str(data.get("message", "no reason given"))


def _refused(errors: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for error in errors:
        place = ".".join(map(str, error.get("loc", ())))
        yield f"{place}: {error.get('msg', '')}" if place else str(error.get("msg", ""))
