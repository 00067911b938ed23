"""Limits on concurrent requests, and on requests and tokens a minute."""

from __future__ import annotations

from asyncio import Lock, Semaphore, sleep
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic

MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of an endpoint; None for no limit."""

    concurrency: int
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


@dataclass(slots=True)
class Sent:
    """A request that was sent, and its tokens: an estimate until the answer reports the number."""

    at: float
    tokens: int


class RateLimiter:
    """Enforces the limits of one endpoint for all judges that ask it. Requests are admitted in the order of their
    arrival, such that no 60 seconds hold more than the bounds allow."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._places = Semaphore(bounds.concurrency)
        self._sent: deque[Sent] = deque()
        self._turn = Lock()

    @asynccontextmanager
    async def place(self, tokens: int) -> AsyncIterator[Sent]:
        """Hold one of the concurrent requests, once the bounds allow it."""
        async with self._places:
            yield await self.admit(tokens)

    async def admit(self, tokens: int) -> Sent:
        """Wait until a request with this many tokens may be sent, and count it as sent."""
        async with self._turn:
            while (wait := self.seconds_until(tokens)) > 0:
                await sleep(wait)
            sent = Sent(monotonic(), tokens)
            self._sent.append(sent)
            return sent

    def seconds_until(self, tokens: int) -> float:
        """Seconds until the bounds allow a request with this many tokens; 0 if they already do."""
        now = monotonic()
        while self._sent and self._sent[0].at + MINUTE <= now:
            self._sent.popleft()
        last = -1  # the newest request that has to be a minute old
        if self.bounds.requests_per_minute is not None:
            last = len(self._sent) - self.bounds.requests_per_minute
        if self.bounds.tokens_per_minute is not None:
            last = max(last, self._last_in_the_way(tokens, self.bounds.tokens_per_minute))
        return 0.0 if last < 0 else self._sent[last].at + MINUTE - now

    def _last_in_the_way(self, tokens: int, allowed: int) -> int:
        total = tokens + sum(sent.tokens for sent in self._sent)
        for index, sent in enumerate(self._sent):
            if total <= allowed:
                return index - 1
            total -= sent.tokens
        return len(self._sent) - 1
