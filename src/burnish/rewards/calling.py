"""Calls a loaded reward on one response, on many at once or concurrently, and turns what happens into outcomes."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from burnish.errors import BurnishError
from burnish.rewards.loading import LoadedReward
from burnish.rewards.outcome import Outcome, failure, read_batch, read_result
from burnish.types import RewardStatus

Arguments = dict[str, Any]
Report = Callable[[int, Outcome], None]


class Caller:
    """Runs rewards; keeps one event loop for the asynchronous ones, so that their clients survive between calls."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def one(self, reward: LoadedReward, arguments: Arguments) -> Outcome:
        """One response. An exception becomes ERROR with its traceback; a wrong return type raises RewardError."""
        try:
            result = self._value(reward.call(**arguments))
        except BurnishError:
            raise
        except (Exception, SystemExit):  # noqa: BLE001  boundary: user code may raise anything
            return failure(RewardStatus.ERROR, traceback.format_exc())
        return read_result(result, reward.spec.label)

    def batch(self, reward: LoadedReward, arguments: Arguments, count: int) -> list[Outcome]:
        """One call on `count` responses. An exception is the ERROR of all; a wrong length raises RewardError."""
        try:
            results = self._value(reward.call(**arguments))
        except BurnishError:
            raise
        except (Exception, SystemExit):  # noqa: BLE001  boundary: user code may raise anything
            return [failure(RewardStatus.ERROR, traceback.format_exc())] * count
        return read_batch(results, count, reward.spec.label)

    def concurrently(self, reward: LoadedReward, rows: Sequence[tuple[int, Arguments]], report: Report) -> None:
        """Awaits an asynchronous reward on all rows at once, each under its own time limit."""

        async def one(item: int, arguments: Arguments) -> None:
            report(item, await self._awaited(reward, arguments))

        async def all_rows() -> None:
            await asyncio.gather(*(one(item, arguments) for item, arguments in rows))

        self._event_loop().run_until_complete(all_rows())

    async def _awaited(self, reward: LoadedReward, arguments: Arguments) -> Outcome:
        limit = reward.spec.timeout_seconds
        clock = asyncio.timeout(limit)
        try:
            async with clock:
                result = await reward.call(**arguments)
        except BurnishError:
            raise
        except (Exception, SystemExit):  # noqa: BLE001  boundary: user code may raise anything
            if clock.expired():
                return failure(RewardStatus.TIMEOUT, timeout_detail(reward.spec.label, limit))
            return failure(RewardStatus.ERROR, traceback.format_exc())
        return read_result(result, reward.spec.label)

    def _value(self, result: Any) -> Any:
        """The result itself, or what a coroutine comes to."""
        if not inspect.isawaitable(result):
            return result

        async def wait() -> Any:
            return await result

        return self._event_loop().run_until_complete(wait())

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop


def timeout_detail(label: str, seconds: float) -> str:
    """Why a response has the status TIMEOUT."""
    return f"reward {label!r} did not finish within timeout_seconds {seconds:g}; raise it, or make the reward faster"
