"""One verdict: from the cache, from a request that is on its way, or from the endpoint, with one try to repair it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from burnish.rewards.judging.cache import JudgementCache, cache_key
from burnish.rewards.judging.client import ChatClient, NoVerdictError, RetryPatience, Tally
from burnish.rewards.judging.local import LocalChat
from burnish.rewards.judging.prompts import Messages, repair
from burnish.rewards.judging.verdicts import AnswerForm, UnreadableVerdictError

SHOWN_OF_REPLY = 200
"""Number of characters from the end of an answer that the detail of a failure shows."""

T = TypeVar("T")
Endpoint: TypeAlias = ChatClient | LocalChat
"""Anything that answers conversations."""


@dataclass(slots=True)
class Asker:
    """Asks for the verdicts of one judge. Equal requests at the same time are sent once."""

    endpoint: Endpoint
    cache: JudgementCache | None
    tally: Tally
    timeout_seconds: float
    _on_their_way: dict[str, asyncio.Task[Any]] = field(default_factory=dict)

    async def verdict(self, messages: Messages, wanted: AnswerForm[T]) -> T:
        """Get a verdict. NoVerdictError if there is none in time or it cannot be read; RewardError ends the run."""
        self.tally.verdicts += 1
        key = cache_key(self.endpoint.name, messages, self.endpoint.sampling)
        task = self._on_their_way.get(key)
        if task is None:
            kept = self._kept(key, wanted)
            if kept is not None:
                self.tally.cached += 1
                return kept
            task = asyncio.create_task(self._ask(key, messages, wanted))
            self._on_their_way[key] = task
            task.add_done_callback(lambda done: self._arrived(key, done))
        else:
            self.tally.cached += 1  # the samples of a group are often the same text
        try:
            found: T = await asyncio.shield(task)  # others may wait for the same task
        except NoVerdictError:
            self.tally.failed += 1
            raise
        return found

    def _kept(self, key: str, wanted: AnswerForm[T]) -> T | None:
        answer = None if self.cache is None else self.cache.find(key)
        if answer is None:
            return None
        try:
            return wanted.read(answer)
        except UnreadableVerdictError:  # not an answer that this cache stored
            return None

    async def _ask(self, key: str, messages: Messages, wanted: AnswerForm[T]) -> T:
        patience = RetryPatience(self.timeout_seconds)
        reply = await self.endpoint.reply(messages, patience)
        try:
            found = wanted.read(reply)
        except UnreadableVerdictError as error:
            self.tally.repaired += 1
            again = repair(messages, reply, str(error), wanted.instruction)
            reply = await self.endpoint.reply(again, patience)
            found = _read_or_fail(reply, wanted)
        if self.cache is not None:
            self.cache.keep(key, self.endpoint.name, reply)
        return found

    def _arrived(self, key: str, task: asyncio.Task[Any]) -> None:
        del self._on_their_way[key]
        if not task.cancelled():
            task.exception()  # retrieve it, so that asyncio does not warn if nobody waits any more


def _read_or_fail(reply: str, wanted: AnswerForm[T]) -> T:
    try:
        return wanted.read(reply)
    except UnreadableVerdictError as error:
        shown = " ".join(reply.split())[-SHOWN_OF_REPLY:]
        raise NoVerdictError(
            f"its answer cannot be read even after a repair: {error}; it ends with {shown!r}"
        ) from None
