"""What is awaited runs in one loop, which nothing that is awaited can end."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from burnish.agents.environments.instance import OwnLoop
from burnish.agents.environments.session import Session
from burnish.agents.tools.loading import LoadedTool


@pytest.fixture
def loop() -> Iterator[OwnLoop]:
    own = OwnLoop()
    yield own
    own.stop()


async def current() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


async def end(error: BaseException) -> None:
    raise error


def test_several_threads_get_the_same_loop(loop: OwnLoop) -> None:
    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(lambda _: loop.settle(current()), range(64)))) == 1


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_nothing_ends_the_loop(loop: OwnLoop, error: BaseException) -> None:
    before = loop.settle(current())
    with pytest.raises(RuntimeError, match=type(error).__name__):
        loop.settle(end(error))
    assert loop.settle(current()) is before


def test_a_client_that_an_asynchronous_tool_keeps_can_be_used_again() -> None:
    """Like the clients of HTTP libraries, which belong to the loop of their first request."""
    kept: list[asyncio.AbstractEventLoop] = []

    async def ask() -> str:
        kept[:] = kept or [asyncio.get_running_loop()]
        return "same" if kept[0] is asyncio.get_running_loop() and not kept[0].is_closed() else "another"

    sent: list[Any] = []
    session = Session({"ask": LoadedTool("ask", {}, ask)}, None)
    for _ in range(2):
        request = {"do": "call", "name": "ask", "arguments": {}, "limit": 100, "seed": 0}
        session._answer(request, lambda *messages: sent.extend(messages))
    assert [message["text"] for message in sent] == ["same", "same"]
