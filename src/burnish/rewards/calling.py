"""Calls a loaded reward on one response, on many at once or concurrently, and turns what happens into outcomes.

Checking what a reward returned can run its code too, so that happens inside the same guard as the call.
"""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from burnish.errors import BurnishError
from burnish.plugins import describe_failure
from burnish.rewards.loading import LoadedReward
from burnish.rewards.outcome import Outcome, failure, read_batch, read_result
from burnish.types import RewardStatus

Arguments = dict[str, Any]
Report = Callable[[int, Outcome], None]

IN_TRAINING: tuple[type[BaseException], ...] = (Exception, SystemExit)
"""What a reward may raise in the training process, where a KeyboardInterrupt is the user's."""
IN_WORKER: tuple[type[BaseException], ...] = (BaseException,)
"""What a reward may raise in a worker: everything, for Ctrl-C does not reach it."""


class TracebackInWorkerError(Exception):
    """Stands in for an exception of the worker process: its traceback as text, for `--debug`."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Caller:
    """Runs rewards; keeps one event loop for the asynchronous ones, so that their clients survive between calls."""

    def __init__(self, guarded: tuple[type[BaseException], ...] = IN_TRAINING) -> None:
        self._guarded = guarded
        self._loop: asyncio.AbstractEventLoop | None = None

    def one(self, reward: LoadedReward, arguments: Arguments) -> Outcome:
        """One response. An exception becomes ERROR with its traceback; a wrong return type raises RewardError."""
        try:
            return read_result(self._value(reward.call(**arguments)), reward.spec.label)
        except BurnishError:
            raise
        except self._guarded as error:  # boundary: user code may raise anything
            return raised(error, reward.spec.label)

    def batch(self, reward: LoadedReward, arguments: Arguments, count: int) -> list[Outcome]:
        """One call on `count` responses. An exception is the ERROR of all; a wrong length raises RewardError."""
        try:
            return read_batch(self._value(reward.call(**arguments)), count, reward.spec.label)
        except BurnishError:
            raise
        except self._guarded as error:  # boundary: user code may raise anything
            return [raised(error, reward.spec.label)] * count

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
                return read_result(await reward.call(**arguments), reward.spec.label)
        except BurnishError:
            raise
        except self._guarded as error:  # boundary: user code may raise anything
            if clock.expired():
                return failure(RewardStatus.TIMEOUT, timeout_detail(reward.spec.label, limit))
            return raised(error, reward.spec.label)

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


def raised(error: BaseException, label: str) -> Outcome:
    """The outcome of a call that raised: a line that says what and where, and below it the traceback."""
    return failure(RewardStatus.ERROR, f"reward {label!r} raised {in_a_line(error)}\n{traceback_of(error)}")


def in_a_line(error: BaseException) -> str:
    """`ValueError: no number (/home/me/rewards.py:3)`."""
    try:
        return " ".join(describe_failure(error).split())
    except BaseException:  # noqa: BLE001  boundary: the exception's __str__ is code of the user
        return type(error).__qualname__


def traceback_of(error: BaseException) -> str:
    """The traceback as text; of an exception whose own text cannot be made, its class."""
    try:
        return "".join(traceback.format_exception(error))
    except BaseException as second:  # noqa: BLE001  boundary: the exception's __str__ is code of the user
        return f"{type(error).__qualname__}, whose traceback cannot be shown ({type(second).__qualname__})"


def timeout_detail(label: str, seconds: float) -> str:
    """Why a response has the status TIMEOUT."""
    return f"reward {label!r} did not finish within timeout_seconds {seconds:g}; raise it, or make the reward faster"
