"""Requests and tokens a minute, by a clock that only moves when somebody waits."""

import asyncio
from collections.abc import Sequence

import pytest

from burnish.outside.endpoint_client import growing_pause, retry_after
from burnish.rewards.judging import limits
from burnish.rewards.judging.limits import Bounds, RateLimiter

START = 1000.0


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = START

    async def sleep(wait: float) -> None:
        nonlocal seconds
        assert wait > 0
        seconds += wait
        await asyncio.sleep(0)

    monkeypatch.setattr(limits, "monotonic", lambda: seconds)
    monkeypatch.setattr(limits, "sleep", sleep)


def admitted(bounds: Bounds, tokens: Sequence[int]) -> list[float]:
    """Seconds after which each of these requests, which all come at once, is let through."""

    async def run() -> list[float]:
        gate = RateLimiter(bounds)
        sent = await asyncio.gather(*(gate.admit(count) for count in tokens))
        return [one.at - START for one in sent]

    return asyncio.run(run())


def test_requests_a_minute() -> None:
    assert admitted(Bounds(99, requests_per_minute=3), [1] * 7) == [0, 0, 0, 60, 60, 60, 120]


def test_tokens_a_minute() -> None:
    assert admitted(Bounds(99, tokens_per_minute=100), [60, 40, 10, 90, 1]) == [0, 0, 60, 60, 120]


def test_both() -> None:
    bounds = Bounds(99, requests_per_minute=2, tokens_per_minute=100)
    assert admitted(bounds, [10, 10, 10, 95]) == [0, 0, 60, 120]


def test_no_limit() -> None:
    assert admitted(Bounds(99), [10**9] * 50) == [0.0] * 50


def test_any_sixty_seconds_hold_no_more_than_the_bounds() -> None:
    tokens = [7 * number % 50 + 1 for number in range(200)]
    times = admitted(Bounds(99, requests_per_minute=11, tokens_per_minute=120), tokens)
    assert times == sorted(times)
    for start in times:
        inside = [index for index, at in enumerate(times) if start <= at < start + 60]
        assert len(inside) <= 11
        assert sum(tokens[index] for index in inside) <= 120


def test_an_answer_with_fewer_tokens_than_estimated_makes_room() -> None:
    async def run() -> float:
        gate = RateLimiter(Bounds(9, tokens_per_minute=100))
        sent = await gate.admit(90)
        assert gate.seconds_until(20) == 60
        sent.tokens = 30
        return gate.seconds_until(20)

    assert asyncio.run(run()) == 0


def test_places() -> None:
    async def run() -> int:
        gate = RateLimiter(Bounds(3))
        inside = most = 0

        async def one() -> None:
            nonlocal inside, most
            async with gate.place(1):
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0)
                inside -= 1

        await asyncio.gather(*(one() for _ in range(20)))
        return most

    assert asyncio.run(run()) == 3


def test_pauses_grow_and_differ() -> None:
    requests = list(map(str, range(50)))
    for tries, longest in ((1, 0.5), (2, 1.0), (3, 2.0), (20, 30.0)):
        pauses = [growing_pause(request, tries) for request in requests]
        assert all(longest / 2 <= pause <= longest for pause in pauses)
        assert len(set(pauses)) == 50
        assert pauses == [growing_pause(request, tries) for request in requests]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(None, 0), ("2", 2), ("0.5", 0.5), ("-3", 0), ("soon", 0), ("nan", 0), ("Mon, 01 Jan 2001 00:00:00 GMT", 0)],
)
def test_retry_after(text: str | None, seconds: float) -> None:
    assert retry_after(text) == seconds


def test_retry_after_as_a_date_to_come() -> None:
    assert retry_after("Fri, 01 Jan 2100 00:00:00 GMT") > 1e9
