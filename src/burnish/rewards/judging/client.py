"""Requests to an OpenAI-compatible endpoint: one pooled client, retries of transient failures, errors for others."""

from __future__ import annotations

import asyncio
import json
import os
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx2

from burnish.config.secrets import hidden_name
from burnish.errors import ConfigError, RewardError
from burnish.rewards.judging.limits import RateLimiter, Sent
from burnish.rewards.judging.options import JudgeOptions
from burnish.rewards.judging.prompts import Messages, encodable
from burnish.rewards.judging.tally import Tally
from burnish.types import RewardStatus

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
BYTES_PER_TOKEN = 3  # a cautious estimate: 4 letters in English, one character in Chinese
MAX_ANSWER_BYTES = 4 << 20
"""Limit on one body. Longer ones are refused, and so are compressed ones, which could unpack to any size."""
MOST_TOKENS = 10**9
"""Reported numbers of tokens above this are ignored as impossible."""
TRANSIENT = frozenset({408, 429})
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


@dataclass(frozen=True, slots=True)
class _Trouble:
    """The reason why a request has no answer, and the pause in seconds that the endpoint wants before the next one."""

    reason: str
    wait: float = 0.0
    timeout: bool = False


class _BodyError(Exception):
    """A body that is refused: too long, or compressed."""


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
        self._key = read_key(options)
        self._address = f"{(options.url or '').rstrip('/')}/chat/completions"
        self._http = httpx2.AsyncClient(
            headers={"Accept-Encoding": "identity"}
            | ({} if self._key is None else {"Authorization": f"Bearer {self._key}"}),
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),  # no endpoint may set cookies
            timeout=None,  # our own deadlines and limits apply, and the pool only has to follow them
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=options.concurrency),
        )
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
            if tries > self._options.retries:
                status = RewardStatus.TIMEOUT if found.timeout else RewardStatus.ERROR
                raise NoVerdictError(f"no answer after {tries} tries; last: {found.reason}", status)
            await patience.pause(max(found.wait, _pause(body, tries)), found.reason)
            self._tally.retries += 1

    async def close(self) -> None:
        await self._http.aclose()

    async def _try(self, body: Mapping[str, Any], tokens: int, patience: RetryPatience) -> str | _Trouble:
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
                async with asyncio.timeout(allowed):
                    response, text = await self._post(body)
            except TimeoutError:
                return _Trouble(f"no answer within {limit}", timeout=True)
            except _BodyError as error:
                return _Trouble(str(error))
            except httpx2.RequestError as error:
                return _Trouble(self._hidden(f"{type(error).__name__}: {error}"))
            finally:
                seconds = time.monotonic() - began
                patience.seconds -= seconds
                self._tally.seconds += seconds
            return self._read(response, text, sent)

    async def _post(self, body: Mapping[str, Any]) -> tuple[httpx2.Response, str]:
        """Send a request and read the whole body. _BodyError for more than MAX_ANSWER_BYTES, or a compressed body."""
        async with self._http.stream("POST", self._address, json=body) as response:
            encoding = response.headers.get("Content-Encoding", "identity")
            if encoding.casefold() not in ("identity", ""):
                raise _BodyError(f"an answer in the encoding {encoding[:20]!r}, which was not asked for")
            content = bytearray()
            async for piece in response.aiter_raw():
                content += piece
                if len(content) > MAX_ANSWER_BYTES:
                    raise _BodyError(f"an answer of more than {MAX_ANSWER_BYTES >> 20} MiB")
        return response, content.decode("utf-8-sig", "replace")

    def _read(self, response: httpx2.Response, text: str, sent: Sent) -> str | _Trouble:
        code = response.status_code
        if code == 200:
            self._has_answered = True
            return self._content(text, sent)
        # Masked first: a key that is cut in two would not be recognised.
        reason = f"status {code}: {' '.join(self._hidden(text).split())[:300]}"
        if code in TRANSIENT or code >= 500:
            return _Trouble(reason, retry_after(response.headers.get("Retry-After")))
        said = text.casefold()
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

    def _hidden(self, text: str) -> str:
        """Mask the key, which an endpoint may repeat in its errors."""
        return text.replace(self._key, "(masked)") if self._key else text


def read_key(options: JudgeOptions) -> str | None:
    """Read the key of the endpoint from its variable. ConfigError, which does not show it, if the variable is not set
    or its value cannot be part of a header."""
    name = options.key_variable
    if name is None:
        return None
    key = os.environ.get(name, "").strip()
    if not key:
        raise ConfigError(
            f"option key_variable of reward 'judge' names {hidden_name(name)}, which is not set",
            remedy=f"export {hidden_name(name)}=... where the run is started; the option holds its name, not the key",
        )
    if not (key.isascii() and key.isprintable()):  # the HTTP library would repeat it in its own error
        raise ConfigError(
            f"the environment variable {name}, which holds the key of a judge, has a line break or other characters "
            "that a key cannot have",
            remedy="export the key alone, on one line and in ASCII",
        )
    return key


def cut_off(options: JudgeOptions) -> str:
    """Message for an answer without a verdict because it reached its limit of tokens, with the remedy."""
    return (
        f"its answer was cut off at its token limit (max_tokens is {options.max_tokens:,}); raise the option "
        "max_tokens, or the field of extra that replaces it, or have it reason less"
    )


def retry_after(text: str | None) -> float:
    """Seconds that a Retry-After header asks for, given as seconds or as a date; 0 if it is missing or unreadable."""
    if text is None:
        return 0.0
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError, OverflowError):
            return 0.0
    return max(0.0, seconds) if seconds == seconds else 0.0


def _tokens(usage: object, name: str) -> int:
    """Read a number of tokens from an endpoint's report; 0 for an impossible one."""
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) and 0 < count <= MOST_TOKENS else 0


def _pause(body: Mapping[str, Any], tries: int) -> float:
    """Pause before the next try: exponential backoff, times 0.5 to 1 by a hash of the prompt, so that requests that
    failed together do not return together."""
    longest = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** (tries - 1))
    text = f"{tries} {json.dumps(body['messages'])}"
    return longest * (0.5 + zlib.crc32(text.encode()) / 2**33)
