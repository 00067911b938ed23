"""Call a loaded reward on one response, on a batch or concurrently, and turn results and errors into outcomes.

Checking a returned value can run the user's code too, so it happens inside the same `try` as the call.
"""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from burnish.errors import BurnishError
from burnish.outside.plugins import describe_failure
from burnish.rewards.loading import LoadedReward, RewardSpec
from burnish.rewards.outcome import Outcome, failure, read_batch, read_result
from burnish.types import RewardStatus

Arguments = dict[str, Any]
Report = Callable[[int, Outcome], None]

IN_TRAINING: tuple[type[BaseException], ...] = (Exception, SystemExit)
"""Exceptions caught from a reward in the training process, where KeyboardInterrupt comes from the user."""
IN_WORKER: tuple[type[BaseException], ...] = (BaseException,)
"""Exceptions caught from a reward in a worker: all of them, because Ctrl-C does not reach a worker."""


class TracebackInWorkerError(Exception):
    """An exception of the worker process, shown by its traceback as text, for `--debug`."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class RewardCaller:
    """Runs rewards. Asynchronous ones share one event loop, so that their network clients survive between calls."""

    def __init__(self, guarded: tuple[type[BaseException], ...] = IN_TRAINING) -> None:
        self._guarded = guarded
        self._loop: asyncio.AbstractEventLoop | None = None

    def one(self, reward: LoadedReward, arguments: Arguments) -> Outcome:
        """Score one response. An exception becomes ERROR with its traceback. A wrong return type raises RewardError,
        unless the reward is an audit."""
        try:
            return read_result(self._value(reward.call(**arguments)), reward.spec.label)
        except self._guarded as error:  # boundary: user code may raise anything
            return failed(error, reward.spec)

    def batch(self, reward: LoadedReward, arguments: Arguments, count: int) -> list[Outcome]:
        """Score `count` responses in one call. An exception makes all ERROR; a wrong length raises RewardError, unless
        the reward is an audit."""
        try:
            return read_batch(self._value(reward.call(**arguments)), count, reward.spec.label)
        except self._guarded as error:  # boundary: user code may raise anything
            return [failed(error, reward.spec)] * count

    def concurrently(self, reward: LoadedReward, rows: Sequence[tuple[int, Arguments]], report: Report) -> None:
        """Await an asynchronous reward on all rows at once, each with its own time limit."""

        async def one(item: int, arguments: Arguments) -> None:
            report(item, await self._await_one(reward, arguments))

        async def all_rows() -> None:
            await asyncio.gather(*(one(item, arguments) for item, arguments in rows))

        self._event_loop().run_until_complete(all_rows())

    async def _await_one(self, reward: LoadedReward, arguments: Arguments) -> Outcome:
        limit = reward.spec.timeout_seconds
        clock = asyncio.timeout(limit)
        try:
            async with clock:
                return read_result(await reward.call(**arguments), reward.spec.label)
        except self._guarded as error:  # boundary: user code may raise anything
            if clock.expired() and not isinstance(error, BurnishError):
                return failure(RewardStatus.TIMEOUT, timeout_detail(reward.spec.label, limit))
            return failed(error, reward.spec)  # also for a TimeoutError of the reward's own

    def _value(self, result: Any) -> Any:
        """Return the result itself, or await a coroutine and return its result."""
        if not inspect.isawaitable(result):
            return result

        async def wait() -> Any:
            return await result

        return self._event_loop().run_until_complete(wait())

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop


def failed(error: BaseException, spec: RewardSpec) -> Outcome:
    """The outcome of a call that raised: one line that says what happened and where, then the traceback.

    A BurnishError says that the reward breaks its contract: the function is wrong, not this response. It is raised
    again, except for an audit, because an audit ends no run.
    """
    if not isinstance(error, BurnishError):
        said = f"reward {spec.label!r} raised {in_a_line(error)}\n{traceback_of(error)}"
        return failure(RewardStatus.ERROR, said)
    if not spec.audit:
        raise error
    return failure(RewardStatus.ERROR, error.line)


def in_a_line(error: BaseException) -> str:
    """`ValueError: no number (/home/me/rewards.py:3)`."""
    try:
        return " ".join(describe_failure(error).split())
    except BaseException:  # noqa: BLE001  boundary: the exception's __str__ may be the user's code
        return type(error).__qualname__


def traceback_of(error: BaseException) -> str:
    """The traceback as text, or the exception's class if formatting it fails."""
    try:
        return "".join(traceback.format_exception(error))
    except BaseException as second:  # noqa: BLE001  boundary: the exception's __str__ may be the user's code
        return f"{type(error).__qualname__}, whose traceback cannot be shown ({type(second).__qualname__})"


def timeout_detail(label: str, seconds: float) -> str:
    """The explanation of status TIMEOUT."""
    return f"reward {label!r} did not finish within timeout_seconds {seconds:g}; raise it, or make the reward faster"
