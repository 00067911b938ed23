"""A call to a model of another process goes on while the caller does something else; one of its own waits."""

import threading
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest

from burnish.errors import DivergenceError
from burnish.trainers.rl.setup.roles import ALONE, Beside

SECONDS = 30


@pytest.mark.parametrize("models", [(), ("reference",)])
def test_a_model_that_shares_its_process_is_asked_when_the_result_is(models: tuple[str, ...]) -> None:
    asked: list[str] = []
    with ThreadPoolExecutor(1) as threads:
        beside = Beside(models, threads) if models else ALONE
        result = beside.begin("critic", lambda: asked.append("critic"))
        assert asked == []
        result()
    assert asked == ["critic"]


def test_a_model_of_its_own_process_is_asked_at_once() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def values() -> int:
        begun.set()
        assert may_end.wait(SECONDS)
        return 3

    with ThreadPoolExecutor(1) as threads:
        result = Beside(("critic",), threads).begin("critic", values)
        assert begun.wait(SECONDS), "nobody has asked for the result yet"
        may_end.set()
        assert result() == 3


def test_its_error_is_that_of_the_one_who_waits() -> None:
    with ThreadPoolExecutor(1) as threads, pytest.raises(DivergenceError, match="the value loss is nan"):
        Beside(("critic",), threads).begin(
            "critic", Mock(side_effect=DivergenceError("the value loss is nan", remedy="lower critic.learning_rate"))
        )()
