"""An event loop for the asynchronous methods of an environment, and for asynchronous tools."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable


class OwnLoop:
    """A loop in its own thread, which starts when it is first needed.

    Clients for HTTP and databases belong to the loop in which they were first used. Everything that an environment or
    the tools of a process await runs in this one, whether or not the caller has its own loop.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()

    def settle(self, value: object) -> object:
        """The value, or its result if it is awaitable. Waits as long as that takes: the process has a time limit."""
        if not inspect.isawaitable(value):
            return value
        return asyncio.run_coroutine_threadsafe(_awaited(value), self._started()).result()

    async def run(self, value: Awaitable[object]) -> object:
        """The same for callers with their own loop, which goes on meanwhile."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_awaited(value), self._started()))

    def stop(self) -> None:
        """End the thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._starting:  # calls of one turn come from several threads
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="awaiting", daemon=True).start()
            return self._loop


async def _awaited(value: Awaitable[object]) -> object:
    try:
        return await value
    except (SystemExit, KeyboardInterrupt) as error:  # they would end the loop, and whoever waits would wait for ever
        raise RuntimeError(f"{type(error).__name__}: {error}") from error
