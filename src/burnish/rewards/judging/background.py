"""One event loop on a thread of its own, for as long as a run lasts."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

CLOSING_SECONDS = 5.0

T = TypeVar("T")


class Background:
    """Runs coroutines for other threads. The thread starts with the first one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closing: list[Callable[[], Awaitable[None]]] = []

    @property
    def is_running(self) -> bool:
        return self._loop is not None

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin this now. Cancelling what is returned cancels the work."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
            self._thread.start()
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def at_the_end(self, call: Callable[[], Awaitable[None]]) -> None:
        """Have this awaited on the loop when it is closed."""
        self._closing.append(call)

    def close(self) -> None:
        """Cancel what is under way, release what belongs to the loop, and end the thread. Idempotent."""
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is None or thread is None:
            return
        ended = asyncio.run_coroutine_threadsafe(self._wind_up(), loop)
        with contextlib.suppress(TimeoutError):  # a connection that cannot be closed in time ends with the process
            ended.result(CLOSING_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CLOSING_SECONDS)
        if not thread.is_alive():
            loop.close()

    async def _wind_up(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for call in self._closing:
            await call()
