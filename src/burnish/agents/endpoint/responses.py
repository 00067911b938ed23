"""OpenAI's `/v1/responses`, translated to chat completions. Nothing is stored: a request brings its history."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from burnish.agents.endpoint.answers import Body, Reply, event, message_body
from burnish.agents.endpoint.requests import ChatRequest, Terms, among, object_in, read_chat
from burnish.outside.listening import RefusedError, wrong

_READ = frozenset(
    {"input", "instructions", "tools", "tool_choice", "text", "reasoning", "include"}
    | {"max_output_tokens", "max_tool_calls"}
)
_REFUSED: Mapping[str, tuple[tuple[object, ...], str]] = {
    "previous_response_id": ((), "nothing is kept here: send the whole conversation as input"),
    "conversation": ((), "nothing is kept here: send the whole conversation as input"),
    "prompt": ((), "this server has no templates of prompts"),
    "background": ((False,), "answers are not kept here"),
    "truncation": (("disabled",), "what is too long is refused"),
    "n": ((1,), "a response is one answer"),
    **dict.fromkeys(("messages", "max_tokens", "logprobs"), ((), "it is a field of chat completions")),
    **dict.fromkeys(("response_format", "reasoning_effort", "verbosity"), ((), "it is a field of chat completions")),
}
"""Fields that are refused, with the values that are accepted, and why."""
_INCLUDED = {"message.output_text.logprobs": True, "reasoning.encrypted_content": False}
"""Accepted values of `include`, and whether each requests log-probabilities."""


def read_response(asked: Mapping[str, object], terms: Terms) -> ChatRequest:
    """Read `POST /v1/responses`. RefusedError for a request that cannot be answered."""
    given = {name: value for name, value in asked.items() if value is not None}
    for name, (harmless, why) in _REFUSED.items():
        if name in given and not among(given.pop(name), harmless):
            raise wrong(name, f"{name} cannot be {asked[name]!r:.60}: {why}")
    text, reasoning = (object_in(given, name) for name in ("text", "reasoning"))
    chat = {name: value for name, value in given.items() if name not in _READ}
    chat |= {"max_tokens": given.get("max_output_tokens"), "reasoning_effort": reasoning.get("effort")}
    chat |= {"verbosity": text.get("verbosity"), "response_format": _format(text.get("format"))}
    chat |= {"tools": _tools(given.get("tools")), "tool_choice": _nested(given.get("tool_choice"))}
    chat |= {"messages": _messages(given), "logprobs": _included(given.get("include", []))}
    try:
        return read_chat(chat, terms)
    except RefusedError as error:
        if error.param == "messages":
            error.param = "input"
        raise


def _included(names: object) -> bool:
    if not isinstance(names, list) or not all(isinstance(name, str) and name in _INCLUDED for name in names):
        raise wrong("include", f"include may hold {' and '.join(_INCLUDED)}, not {names!r:.80}")
    return any(_INCLUDED[name] for name in names)


def _format(form: object) -> object:
    """A format in the form of chat completions, whose schema is one level deeper."""
    return {"type": "json_schema", "json_schema": form} if _type_of(form) == "json_schema" else form


def _nested(function: object) -> object:
    """A function in the form of chat completions: `{"type": "function", "function": {...}}`."""
    if not isinstance(function, dict) or function.get("type") != "function" or "function" in function:
        return function
    return {"type": "function", "function": {name: value for name, value in function.items() if name != "type"}}


def _tools(tools: object) -> object:
    return [_nested(tool) for tool in tools] if isinstance(tools, list) else tools


def _type_of(value: object) -> object:
    return value.get("type") if isinstance(value, dict) else None


def _messages(given: Mapping[str, object]) -> list[Body]:
    """The input as messages. Text and calls of one turn of the model are one message."""
    items = given.get("input", [])
    items = [{"role": "user", "content": items}] if isinstance(items, str) else items
    if not isinstance(items, list):
        raise wrong("input", "input has to be a text or a list")
    found: list[Body] = [{"role": "system", "content": given["instructions"]}] if "instructions" in given else []
    for number, item in enumerate(items):
        message = _message(item, number)
        last = found[-1] if found else {}
        if message.get("role") == "assistant" == last.get("role") and "tool_calls" in message:
            last["tool_calls"] = [*last.get("tool_calls", []), *message["tool_calls"]]
        else:
            found.append(message)
    return found


def _message(given: object, number: int) -> Body:
    item: Body = given if isinstance(given, dict) else {}
    kind = item.get("type") or ("message" if isinstance(given, dict) else None)
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if kind == "function_call_output":
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": _content(item.get("output"))}
    if kind != "message":
        raise wrong("input", f"input[{number}] is of the type {kind!r:.60}, which is not supported")
    return {"role": item.get("role"), "content": _content(item.get("content"))}


def _content(value: object) -> object:
    """A content in the form of chat completions. Parts that are not text stay, and are refused there."""
    if not isinstance(value, list):
        return value
    return [{**part, "type": "text"} if _type_of(part) in ("input_text", "output_text") else part for part in value]


@dataclass(frozen=True, slots=True)
class Response:
    """An answer in the form of `/v1/responses`."""

    reply: Reply

    def body(self, *, output: bool = True) -> Body:
        """The response as JSON. output: True for the finished response, False for its state at the beginning."""
        is_cut, reply = self.reply.finish_reason == "length", self.reply
        body: Body = {"id": f"resp-{reply.number}", "object": "response", "created_at": reply.created}
        body |= {"model": reply.model, "status": "in_progress", "output": [], "error": None, "incomplete_details": None}
        body |= {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "metadata": {}, "store": False}
        if output:
            body |= {"status": "incomplete" if is_cut else "completed", "output": self._items()}
            body |= {"incomplete_details": {"reason": "max_output_tokens"} if is_cut else None}
            body |= {"usage": self._usage()}
            if reply.asked.wish.token_ids:
                body |= {"prompt_token_ids": list(reply.prompt), "token_ids": list(reply.said.tokens)}
        return body

    def events(self) -> Iterator[str]:
        """The response as a stream of events."""
        numbers = itertools.count()

        def say(kind: str, **more: object) -> str:
            return f"event: {kind}\n" + event({"type": kind, "sequence_number": next(numbers), **more})

        for kind in ("response.created", "response.in_progress"):
            yield say(kind, response=self.body(output=False))
        for index, item in enumerate(self._items()):
            empty: Body = {"content": []} if item["type"] == "message" else {"arguments": ""}
            yield say("response.output_item.added", output_index=index, item={**item, **empty, "status": "in_progress"})
            at = {"item_id": item["id"], "output_index": index}
            if item["type"] == "message":
                (part,) = item["content"]
                at |= {"content_index": 0}
                yield say("response.content_part.added", **at, part={**part, "text": "", "logprobs": []})
                yield say("response.output_text.delta", **at, delta=part["text"], logprobs=part["logprobs"])
                yield say("response.output_text.done", **at, text=part["text"], logprobs=part["logprobs"])
                yield say("response.content_part.done", **at, part=part)
            else:
                said = item["arguments"]
                yield say("response.function_call_arguments.delta", **at, delta=said)
                yield say("response.function_call_arguments.done", **at, name=item["name"], arguments=said)
            yield say("response.output_item.done", output_index=index, item=item)
        whole = self.body()
        yield say(f"response.{whole['status']}", response=whole)

    def _items(self) -> list[Body]:
        reply, message = self.reply, message_body(self.reply.said.message)
        entries = (reply.chat_logprobs() or {}).get("content", [])
        calls = message.get("tool_calls", [])
        items: list[Body] = []
        if message["content"] or not calls:
            part = {"type": "output_text", "text": message["content"] or "", "annotations": [], "logprobs": entries}
            said = {"type": "message", "role": "assistant", "status": "completed", "content": [part]}
            items.append({"id": f"msg-{reply.number}", **said})
        for index, call in enumerate(calls):
            made = {"type": "function_call", "call_id": call["id"], "status": "completed", **call["function"]}
            items.append({"id": f"fc-{reply.number}-{index}", **made})
        return items

    def _usage(self) -> Body:
        before, after = len(self.reply.prompt), len(self.reply.said.tokens)
        details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        return {"input_tokens": before, "output_tokens": after, "total_tokens": before + after, **details}
