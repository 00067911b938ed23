"""Requests to an OpenAI-compatible endpoint: one pooled client, which bounds the time and the size of each answer."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx2

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
_TRANSIENT = frozenset({408, 429})


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    """Status and text of a final answer. The key is masked in the text of an error."""

    status: int
    text: str

    @property
    def reason(self) -> str:
        """Status and beginning of the text, for a message."""
        return f"status {self.status}: {' '.join(self.text.split())[:300]}"


@dataclass(frozen=True, slots=True)
class Trouble:
    """Reason why a request has no answer, which may be over at the next try. wait: seconds that the endpoint asks for
    before it."""

    reason: str
    wait: float = 0.0
    timeout: bool = False


class EndpointClient:
    """A client of one address, which connects on the first request. `concurrency`: connections that are kept."""

    def __init__(self, address: str, key: str | None, *, concurrency: int) -> None:
        self._address, self._key = address, key
        self._http = httpx2.AsyncClient(
            headers={"Accept-Encoding": "identity"} | ({} if key is None else {"Authorization": f"Bearer {key}"}),
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),  # no endpoint may set cookies
            timeout=None,  # our own deadlines and limits apply, and the pool only has to follow them
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=concurrency),
        )

    async def post(
        self, body: Mapping[str, Any], *, seconds: float, max_bytes: int, limit: str = "timeout_seconds"
    ) -> FinalAnswer | Trouble:
        """Send a request and read the whole answer. Connection errors, 408, 429, 5xx, and answers that are late,
        compressed (they could unpack to any size) or longer than `max_bytes` are trouble. limit: name of `seconds`."""
        content = bytearray()
        try:
            async with asyncio.timeout(seconds), self._http.stream("POST", self._address, json=body) as response:
                encoding = response.headers.get("Content-Encoding", "identity")
                if encoding.casefold() not in ("identity", ""):
                    return Trouble(f"an answer in the encoding {encoding[:20]!r}, which was not asked for")
                async for piece in response.aiter_raw():
                    content += piece
                    if len(content) > max_bytes:
                        return Trouble(f"an answer of more than {max_bytes >> 20} MiB")
        except TimeoutError:
            return Trouble(f"no answer within {limit}", timeout=True)
        except httpx2.RequestError as error:
            return Trouble(self._hidden(f"{type(error).__name__}: {error}"))
        code, text = response.status_code, content.decode("utf-8-sig", "replace")
        # Masked before anything cuts a key in two.
        answer = FinalAnswer(code, text if code == 200 else self._hidden(text))
        if code in _TRANSIENT or code >= 500:
            return Trouble(answer.reason, retry_after(response.headers.get("Retry-After")))
        return answer

    async def close(self) -> None:
        await self._http.aclose()

    def _hidden(self, text: str) -> str:
        """Mask the key, which an endpoint may repeat in its errors."""
        return text.replace(self._key, "(masked)") if self._key else text


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


def growing_pause(request: str, tries: int) -> float:
    """Pause before the next try: exponential backoff, times 0.5 to 1 by a hash of the request, so that requests that
    failed together do not return together."""
    longest = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** (tries - 1))
    return longest * (0.5 + zlib.crc32(f"{tries} {request}".encode()) / 2**33)
