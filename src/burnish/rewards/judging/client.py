"""Requests of judges, through `outside.endpoint_client`: transient failures are tried again, others RewardErrors."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from burnish.config.secrets import key_in
from burnish.errors import RewardError
from burnish.outside.endpoint_client import EndpointClient, FinalAnswer, Trouble, growing_pause
from burnish.rewards.judging.limits import RateLimiter, Sent
from burnish.rewards.judging.options import JudgeOptions
from burnish.rewards.judging.prompts import Messages, encodable
from burnish.types import Metric, Reduction, RewardStatus

BYTES_PER_TOKEN = 3  # a cautious estimate: 4 letters in English, one character in Chinese
MAX_ANSWER_BYTES = 4 << 20
"""Limit on one body."""
MOST_TOKENS = 10**9
"""Reported numbers of tokens above this are ignored as impossible."""
_TOO_LONG = ("context length", "context_length", "maximum context", "too long", "too many tokens", "max_model_len")
_REMEDIES = {
    **dict.fromkeys((401, 403), "check the key in the environment variable that key_variable names"),
    404: "check the options url (up to and with /v1) and model",
    **dict.fromkeys(
        (400, 422),
        "check the options model and extra: the endpoint does not understand a field, or refused this prompt",
    ),
}
_FILTERED = ("content_filter", "content_policy", "content management policy")


class NoVerdictError(Exception):
    """A response got no verdict; others are not affected. A missing verdict is never turned into a number."""

    def __init__(self, detail: str, status: RewardStatus = RewardStatus.ERROR) -> None:
        super().__init__(detail)
        self.detail = detail
        self.status = status


@dataclass(slots=True)
class RetryPatience:
    """Seconds left for one verdict. Waiting for a free slot among our own requests does not count."""

    seconds: float

    async def pause(self, seconds: float, before: str) -> None:
        """Wait before the next try. NoVerdictError (timeout), with the last failure, if too little time is left."""
        if seconds >= self.seconds:
            raise NoVerdictError(f"no answer within timeout_seconds; last: {before}", RewardStatus.TIMEOUT)
        self.seconds -= seconds
        await asyncio.sleep(seconds)


class ChatClient:
    """An `Endpoint` behind HTTP. It connects on the first request.

    Connection errors, timeouts, 408, 429 and 5xx are retried, with growing pauses and as the endpoint's Retry-After
    says. Another 4xx stops the run (RewardError), unless only the prompt is refused: then it has no verdict. A prompt
    counts as refused if the endpoint says that it is too long or filtered, or if an earlier request was answered: the
    wording of errors differs between endpoints, and no single response may stop a run.
    """

    def __init__(self, options: JudgeOptions, gate: RateLimiter, tally: Tally) -> None:
        self.name = options.model or ""
        """Name of the model in the cache."""
        self._options, self._gate, self._tally = options, gate, tally
        key = key_in(options.key_variable, "option key_variable of reward 'judge'")
        address = f"{(options.url or '').rstrip('/')}/chat/completions"
        self._http = EndpointClient(address, key, concurrency=options.concurrency)
        self._refusal: RewardError | None = None  # set by the answer that ends the run: no request is sent after it
        self._has_answered = False  # whether the endpoint has taken a request with these fields
        extra = options.extra or {}
        fields = {"temperature": options.temperature, "max_tokens": options.max_tokens, "seed": options.seed, **extra}
        # Without `max_tokens: null`, for endpoints that refuse it.
        self.sampling: Mapping[str, Any] = {name: value for name, value in fields.items() if value is not None}
        """Everything else that an answer depends on, for the cache."""

    async def reply(self, messages: Messages, patience: RetryPatience) -> str:
        """Get the answer. NoVerdictError if there is none, RewardError if there will be none for any prompt."""
        body = {"model": self.name, "messages": list(messages), **self.sampling}
        tokens = self._estimate(body)
        tries = 0
        while True:
            found = await self._try(body, tokens, patience)
            if isinstance(found, str):
                return found
            tries += 1
            reason = f"{found.reason} ({self._options.url})"
            if tries > self._options.retries:
                status = RewardStatus.TIMEOUT if found.timeout else RewardStatus.ERROR
                raise NoVerdictError(f"no answer after {tries} tries; last: {reason}", status)
            await patience.pause(max(found.wait, growing_pause(json.dumps(body["messages"]), tries)), reason)
            self._tally.retries += 1

    async def close(self) -> None:
        await self._http.close()

    async def _try(self, body: Mapping[str, Any], tokens: int, patience: RetryPatience) -> str | Trouble:
        async with self._gate.place(tokens) as sent:
            if self._refusal is not None:
                raise self._refusal
            if patience.seconds <= 0:
                raise NoVerdictError("no answer within timeout_seconds", RewardStatus.TIMEOUT)
            allowed = min(patience.seconds, self._options.request_timeout_seconds or patience.seconds)
            limit = "timeout_seconds" if allowed == patience.seconds else "request_timeout_seconds"
            began = time.monotonic()
            self._tally.requests += 1
            try:
                found = await self._http.post(body, seconds=allowed, max_bytes=MAX_ANSWER_BYTES, limit=limit)
            finally:
                seconds = time.monotonic() - began
                patience.seconds -= seconds
                self._tally.seconds += seconds
            return found if isinstance(found, Trouble) else self._read(found, sent)

    def _read(self, answer: FinalAnswer, sent: Sent) -> str:
        code, reason = answer.status, answer.reason
        if code == 200:
            self._has_answered = True
            return self._content(answer.text, sent)
        said = answer.text.casefold()
        if code == 413 or (code == 400 and any(word in said for word in _TOO_LONG)):
            raise NoVerdictError(f"the prompt is too long for the endpoint: {reason}")
        if code == 400 and any(word in said for word in _FILTERED):
            raise NoVerdictError(f"the endpoint filters this prompt: {reason}")
        if code < 400:
            raise NoVerdictError(f"the endpoint gives no answer; redirects are not followed: {reason}")
        if self._has_answered:
            raise NoVerdictError(f"the endpoint refuses this prompt, and has answered others: {reason}")
        self._refusal = RewardError(
            f"the endpoint of a judge, {self._options.url}, refuses requests: {reason}",
            remedy=_REMEDIES.get(code, "check the option url"),
        )
        raise self._refusal

    def _content(self, body: str, sent: Sent) -> str:
        """Read the text of the answer; empty if it has none, so that it fails as unreadable. NoVerdictError if it was
        cut off, because a repair would be cut off, too."""
        try:
            data = json.loads(body)
            choice = data["choices"][0]
            content = choice["message"]["content"]
        except (ValueError, RecursionError, KeyError, IndexError, TypeError):
            return ""
        # A good answer counts even if the report of its tokens is wrong.
        tokens_in, tokens_out = (_tokens(data.get("usage"), name) for name in ("prompt_tokens", "completion_tokens"))
        self._tally.tokens_in += tokens_in
        self._tally.tokens_out += tokens_out
        sent.tokens = tokens_in + tokens_out or sent.tokens
        if choice.get("finish_reason") == "length":
            raise NoVerdictError(cut_off(self._options))
        return encodable(content) if isinstance(content, str) else ""

    def _estimate(self, body: Mapping[str, Any]) -> int:
        """Estimate a bound on the tokens of a request and its answer. NoVerdictError above a whole minute's limit."""
        text = "".join(message["content"] for message in body["messages"])
        tokens = len(text.encode(errors="replace")) // BYTES_PER_TOKEN + self._options.max_tokens
        allowed = self._options.tokens_per_minute
        if allowed is not None and tokens > allowed:
            raise NoVerdictError(f"a request of about {tokens:,} tokens exceeds tokens_per_minute {allowed:,}")
        return tokens


def cut_off(options: JudgeOptions) -> str:
    """Message for an answer without a verdict because it reached its limit of tokens, with the remedy."""
    return (
        f"its answer was cut off at its token limit (max_tokens is {options.max_tokens:,}); raise the option "
        "max_tokens, or the field of extra that replaces it, or have it reason less"
    )


def _tokens(usage: object, name: str) -> int:
    """Read a number of tokens from an endpoint's report; 0 for an impossible one."""
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) and 0 < count <= MOST_TOKENS else 0


@dataclass(slots=True)
class Tally:
    """Counts of requests, verdicts, tokens and costs of one judge since the last reading. Only the thread of the judges
    changes them."""

    requests: int = 0
    retries: int = 0
    verdicts: int = 0
    cached: int = 0
    repaired: int = 0
    failed: int = 0
    compared: int = 0
    inconsistent: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    seconds: float = 0.0
    price_in: float = 0.0
    price_out: float = 0.0

    def take(self) -> dict[str, Metric]:
        """Return the counts as metrics, and reset them."""
        asked = self.verdicts - self.cached
        cost = (self.tokens_in * self.price_in + self.tokens_out * self.price_out) / 1e6
        metrics = {
            "judge/requests": Metric(Reduction.SUM, float(self.requests)),
            "judge/retries": Metric(Reduction.SUM, float(self.retries)),
            "judge/cached_fraction": Metric(Reduction.MEAN, float(self.cached), float(self.verdicts)),
            "judge/repaired_fraction": Metric(Reduction.MEAN, float(self.repaired), float(asked)),
            "judge/failed_fraction": Metric(Reduction.MEAN, float(self.failed), float(self.verdicts)),
            "judge/inconsistent_fraction": Metric(Reduction.MEAN, float(self.inconsistent), float(self.compared)),
            "judge/tokens_in": Metric(Reduction.SUM, float(self.tokens_in)),
            "judge/tokens_out": Metric(Reduction.SUM, float(self.tokens_out)),
            "judge/seconds": Metric(Reduction.MEAN, self.seconds, float(self.requests)),
        }
        if self.price_in or self.price_out:
            metrics["judge/cost"] = Metric(Reduction.SUM, cost)
        for entry in fields(self):
            if not entry.name.startswith("price"):
                setattr(self, entry.name, 0)
        return metrics
