"""Turns of the policy in the forms of OpenAI's and vLLM's servers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burnish.agents.endpoint.requests import ChatRequest, TokenRequest, TurnRequest
from burnish.agents.endpoint.trajectory import Said
from burnish.forward.divergences import PromptScores
from burnish.outside.listening import RefusedError
from burnish.types import FinishReason, Json, Message

Body = dict[str, Any]
_IGNORED_HEADER = "x-burnish-ignored"
_NO_CHARACTER = "\ufffd"
_OF_TOKEN = ("logprob", "rank", "decoded_token")


@dataclass(frozen=True, slots=True)
class Reply:
    """A turn that was sampled. prompt: the tokens that it follows. texts: of each sampled token, if requested. number:
    of the turn among all of this server, for ids. created: seconds since 1970. prompt_logprobs: of the prompt, if
    requested."""

    asked: TurnRequest
    said: Said
    prompt: tuple[int, ...]
    texts: tuple[str, ...]
    model: str
    number: int
    created: int
    prompt_logprobs: Sequence[Body | None] | None = None

    @property
    def headers(self) -> dict[str, str]:
        """Headers, with the fields of the request that had no effect."""
        ignored = self.asked.wish.ignored
        return {_IGNORED_HEADER: ", ".join(ignored)} if ignored else {}

    @property
    def finish_reason(self) -> str:
        if self.said.reason is FinishReason.LENGTH:
            return "length"
        return "tool_calls" if isinstance(self.asked, ChatRequest) and self.said.message.tool_calls else "stop"

    def body(self) -> Body:
        """The answer as one JSON object."""
        if isinstance(self.asked, TokenRequest) and not self.asked.as_text:
            return self._of_tokens()
        if isinstance(self.asked, ChatRequest):
            choice: Body = {"message": message_body(self.said.message), "logprobs": self.chat_logprobs()}
            head = self._head("chat.completion")
        else:
            choice = {"text": self.said.text, "logprobs": self._text_logprobs()}
            if self.prompt_logprobs is not None:
                choice["prompt_logprobs"] = self.prompt_logprobs
            head = self._head("text_completion")
        choice |= {"index": 0, "finish_reason": self.finish_reason}
        if self.asked.wish.token_ids:
            head["prompt_token_ids"] = list(self.prompt)
            choice["token_ids"] = list(self.said.tokens)
            if not isinstance(self.asked, ChatRequest):
                choice["prompt_token_ids"] = list(self.prompt)  # where vLLM has them
        return {**head, "choices": [choice], "usage": self._usage()}

    def _head(self, kind: str) -> Body:
        prefix = "chatcmpl" if isinstance(self.asked, ChatRequest) else "cmpl"
        return {"id": f"{prefix}-{self.number}", "object": kind, "created": self.created, "model": self.model}

    def _usage(self) -> Body:
        before, after = len(self.prompt), len(self.said.tokens)
        return {"prompt_tokens": before, "completion_tokens": after, "total_tokens": before + after}

    def chat_logprobs(self) -> Body | None:
        """Log-probability of each sampled token, if requested."""
        if not self.asked.wish.logprobs:
            return None
        return {"content": [_entry(*one) for one in zip(self.texts, self.said.logprobs, strict=True)], "refusal": None}

    def _text_logprobs(self) -> Body | None:
        if not self.asked.wish.logprobs:
            return None
        offsets, at = [], 0
        for text in self.texts:
            offsets.append(at)
            at += len(text)
        logprobs = list(self.said.logprobs)
        return {"tokens": list(self.texts), "token_logprobs": logprobs, "top_logprobs": None, "text_offset": offsets}

    def _of_tokens(self) -> Body:
        """The choice in the form of vLLM's `/inference/v1/generate`: tokens are named by their ids."""
        entries = [_entry(*one) for one in zip(map(_name_of, self.said.tokens), self.said.logprobs, strict=True)]
        choice = {
            "index": 0,
            "token_ids": list(self.said.tokens),
            "logprobs": {"content": entries},
            "finish_reason": self.finish_reason,
        }
        return {
            "request_id": f"gen-{self.number}",
            "model": self.model,
            "choices": [choice],
            "prompt_token_ids": list(self.prompt),
            "usage": self._usage(),
        }


def whole_body(replies: Sequence[Reply]) -> Body:
    """The answers to one request as one JSON object."""
    body, *others = [reply.body() for reply in replies]
    for number, other in enumerate(others, start=1):
        body["choices"].append({**other["choices"][0], "index": number})
        for name in ("completion_tokens", "total_tokens"):  # the prompt was read once
            body["usage"][name] += other["usage"]["completion_tokens"]
    return body


def events(replies: Sequence[Reply]) -> Iterator[str]:
    """The answers as a stream of events (`stream: true`). A turn is sampled as a whole, so its text is sent as a
    whole."""
    is_chat = isinstance(replies[0].asked, ChatRequest)
    body = whole_body(replies)
    choices, usage = body.pop("choices"), body.pop("usage")
    if is_chat:
        body["object"] = "chat.completion.chunk"
    for choice in choices:
        finish = choice.pop("finish_reason")
        if is_chat:
            message = choice.pop("message")
            calls = [{"index": index, **call} for index, call in enumerate(message.get("tool_calls", ()))]
            choice["delta"] = {**message, **({"tool_calls": calls} if calls else {})}
        yield event({**body, "choices": [{**choice, "finish_reason": None}]})
        last: Body = {"index": choice["index"], "finish_reason": finish, "logprobs": None}
        yield event({**body, "choices": [{**last, **({"delta": {}} if is_chat else {"text": ""})}]})
    if replies[0].asked.wish.stream_usage:
        yield event({**body, "choices": [], "usage": usage})
    yield "data: [DONE]\n\n"


def token_texts(asked: TurnRequest, said: Said, text: Callable[[int], str]) -> tuple[str, ...]:
    """The name of each sampled token, if log-probabilities by name are requested: its text, or its id in vLLM's
    form."""
    if not asked.wish.logprobs or (isinstance(asked, TokenRequest) and not asked.as_text):
        return ()
    return tuple(map(_name_of if asked.wish.names_ids else text, said.tokens))


def prompt_body(tokens: Sequence[int], scores: PromptScores, text: Callable[[int], str]) -> list[Body | None]:
    """vLLM's `prompt_logprobs`: nothing for the first token, then the likeliest tokens and the prompt's own."""
    found: list[Body | None] = [None]
    columns = (scores.logprobs_N, scores.ranks_N, scores.likeliest.ids_NK, scores.likeliest.logprobs_NC)
    for token, own, rank, ids, logprobs in zip(tokens[1:], *(column.tolist() for column in columns), strict=True):
        known = {one: (logprobs[place], place + 1) for place, one in enumerate(ids)} | {token: (own, rank)}
        found.append({str(one): dict(zip(_OF_TOKEN, (*known[one], text(one)), strict=True)) for one in known})
    return found


def message_body(message: Message) -> Body:
    """A message of the policy. Arguments of calls are texts of JSON."""
    body: Body = {"role": "assistant", "content": message.content}
    if message.tool_calls:
        body["content"] = message.content or None
        body["tool_calls"] = [_call_body(call) for call in message.tool_calls]
    return body


def error_body(error: RefusedError) -> Body:
    """An error in OpenAI's form."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {"error": {"message": str(error), "type": kind, "param": error.param, "code": error.code}}


def model_body(model: str, context: int) -> Body:
    """`GET /v1/models/NAME`. `max_model_len` is vLLM's: prompt and answer together."""
    return {"id": model, "object": "model", "created": 0, "owned_by": "burnish", "max_model_len": context}


def _call_body(call: Mapping[str, Json]) -> Body:
    function = call["function"]
    assert isinstance(function, dict)
    written = {"name": function["name"], "arguments": json.dumps(function["arguments"], ensure_ascii=False)}
    return {"id": call["id"], "type": "function", "function": written}


def _name_of(token: int) -> str:
    return f"token_id:{token}"


def _entry(token: str, logprob: float) -> Body:
    # A token that is part of a character has no text that would give its bytes.
    known = None if _NO_CHARACTER in token else list(token.encode(errors="replace"))
    return {"token": token, "logprob": logprob, "bytes": known, "top_logprobs": []}


def event(body: Body) -> str:
    """One event of a stream."""
    return f"data: {json.dumps(body)}\n\n"
