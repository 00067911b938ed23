"""An engine from outside: what it raises or returns wrongly is named as the engine's."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import pytest

from burnish.errors import RolloutError
from burnish.rollouts.engine import Sampling, StoppableEngine
from burnish.rollouts.outside_engine import OutsideEngine, OutsideStoppableEngine, outside_engine
from burnish.types import FinishReason, Rollout, RolloutRequest

REQUESTS = [RolloutRequest.of("p", 0, (1,), (0, 1))]
LEFT: list[str] = []


def rollout(index: int, logprobs: tuple[float, ...] = (-0.5,), token: int = 2) -> Rollout:
    return Rollout("p", 0, index, (1,), (token,), logprobs, FinishReason.STOP, 0)


class Engine:
    """Returns, or raises, what it is told to."""

    def __init__(self, result: Any) -> None:
        self.result = result

    def generate(self, *_: Any, **__: Any) -> Any:
        return self._answer()

    def sync(self, weights: Any) -> None:
        self._answer()

    def take_metrics(self) -> Any:
        return self._answer()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        LEFT.append("left")
        self._answer()

    def _answer(self) -> Any:
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


def generate(result: Any) -> list[Rollout]:
    engine = OutsideEngine(Engine(result), "mine:Engine", 8)
    return engine.generate(REQUESTS, Sampling(4), seed=0, step=1)


def test_the_rollouts_asked_for_pass() -> None:
    assert generate((rollout(0), rollout(1))) == [rollout(0), rollout(1)]


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (None, "generate returned a NoneType, not a list of rollouts"),
        ("text", "generate returned a str"),
        ([rollout(0), "text"], "a list with a str in it"),
        ([rollout(0)], "1 rollouts that are not, in order, the 2 samples asked for"),
        ([rollout(1), rollout(0)], "2 rollouts that are not, in order"),
        ([rollout(0), rollout(1, ())], "a response of 1 tokens with 0 log-probabilities"),
        ([rollout(0), rollout(1, token=8)], "token 8, but the tokenizer's ids end at 7"),
        (ValueError("odd"), r"rollout.engine 'mine:Engine', generate failed: ValueError: odd \(.*test_outside_engine"),
        (SystemExit(3), "generate failed: SystemExit: 3"),
    ],
)
def test_what_is_wrong_is_named(result: Any, told: str) -> None:
    with pytest.raises(RolloutError, match=told):
        generate(result)


def test_the_other_methods_are_guarded_too() -> None:
    broken = OutsideEngine(Engine(KeyError("x")), "mine:Engine", 8)
    with pytest.raises(RolloutError, match="sync failed: KeyError"):
        broken.sync(None)  # type: ignore[arg-type]
    with pytest.raises(RolloutError, match="metrics failed: KeyError"):
        broken.take_metrics()
    with pytest.raises(RolloutError, match="metrics returned 3"):
        OutsideEngine(Engine(3), "mine:Engine", 8).take_metrics()
    with pytest.raises(RolloutError, match="__exit__ failed"), broken:
        pass
    assert LEFT == ["left"]


def test_memory_that_cannot_be_had_is_not_the_engines_fault() -> None:
    with pytest.raises(MemoryError):
        generate(MemoryError())


class CanStop(Engine, StoppableEngine):
    def generate_until(self, *_: Any, **__: Any) -> Any:
        return self._answer()


def generate_until(result: Any) -> Any:
    engine = outside_engine(CanStop(result), "mine:Engine", 8)
    assert isinstance(engine, OutsideStoppableEngine)
    return engine.generate_until(REQUESTS, Sampling(4), seed=0, step=1, stopped=lambda: True)


LEFT_OVER = RolloutRequest.of("p", 0, (1,), (1,))


def test_what_is_finished_and_what_is_left_over_pass() -> None:
    assert generate_until(([rollout(0)], [LEFT_OVER])) == ([rollout(0)], [LEFT_OVER])
    assert generate_until(([], REQUESTS)) == ([], REQUESTS)
    assert not isinstance(outside_engine(Engine(None), "mine:Engine", 8), StoppableEngine)


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ([], "not a list of rollouts and a list of requests"),
        (([rollout(0)], [1]), "something other than burnish.types.RolloutRequest"),
        (([rollout(0)], []), "1 rollouts that are not, in order, the 2 samples asked for"),
        (([rollout(0), rollout(1)], [LEFT_OVER]), "2 rollouts that are not, in order, the 1 samples asked for"),
        (([rollout(0)], [RolloutRequest.of("p", 0, (1,), (2,))]), "requests for samples that were not asked for"),
        (RuntimeError("no"), "RuntimeError: no"),
    ],
)
def test_what_an_engine_that_stops_returns_wrongly_is_named(result: Any, said: str) -> None:
    with pytest.raises(RolloutError, match=said):
        generate_until(result)
