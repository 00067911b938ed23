"""Reward models in another process: asked at once, started again when that is lost, and given up in the end."""

import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from burnish.distributed.peers import RoleLostError
from burnish.distributed.reward_models import RewardModelProcess
from burnish.errors import RewardError

SECONDS = 30


class FakePeer:
    """Answers with the request's label; `fate` is asked before and may raise."""

    name = "reward model"
    standing = "idle"

    def __init__(self, fate: Callable[[], None] = lambda: None) -> None:
        self.fate = fate
        self.closed = False

    def ask(self, message: tuple[Any, ...], *, what: str, seconds: float) -> list[str]:
        self.fate()
        label, items = message[3]
        return [f"{what}: {label} {item}" for item in items]

    def close(self) -> None:
        self.closed = True


def lost() -> None:
    raise RoleLostError("reward 'a': process 'reward model' ended", remedy="", process="reward model")


def models_of(first: Any, *later: Any, restarts: int = 3, **start: Any) -> tuple[Any, list[str]]:
    said: list[str] = []
    given = {"start": Mock(side_effect=later), **start}
    return RewardModelProcess(first, **given, restarts=restarts, seconds=SECONDS, say=said.append), said


def test_it_is_asked_at_once_and_answers_later() -> None:
    asked, may_answer = threading.Event(), threading.Event()

    def wait() -> None:
        asked.set()
        assert may_answer.wait(SECONDS)

    peer = FakePeer(wait)
    with models_of(peer)[0] as models:
        outcomes = models.begin("a", [1, 2])
        assert asked.wait(SECONDS), "nobody has asked for the outcomes yet"
        may_answer.set()
        assert outcomes() == ["reward 'a': a 1", "reward 'a': a 2"]
        assert (models.name, models.standing) == ("reward model", "idle")
    assert peer.closed


def test_a_lost_process_is_started_again_and_asked_again() -> None:
    last = FakePeer()
    models, said = models_of(FakePeer(lost), FakePeer(lost), last, restarts=2)
    with models:
        assert models.begin("a", [1])() == ["reward 'a': a 1"]
    assert len(said) == 2
    assert "process 'reward model' ended; it is started again" in said[0]
    assert said[0].endswith(": nothing to do")
    assert last.closed


def test_one_that_is_lost_too_often_ends_the_run_with_the_name_of_the_reward() -> None:
    models, said = models_of(FakePeer(lost), FakePeer(lost), restarts=1)
    with models, pytest.raises(RewardError, match=r"reward 'a' cannot be scored: .*: 1 restarts an hour is the limit"):
        models.begin("a", [1])()
    assert len(said) == 1


def test_an_error_while_it_starts_again_is_the_reason() -> None:
    gone = RewardError("the folder is gone", remedy="bring it back")
    models, _ = models_of(FakePeer(lost), start=Mock(side_effect=gone))
    with models, pytest.raises(RewardError, match="the folder is gone"):
        models.begin("a", [])()


def test_where_another_launcher_starts_processes_the_loss_ends_the_run() -> None:
    models, said = models_of(FakePeer(lost), start=None)
    with models, pytest.raises(RoleLostError):
        models.begin("a", [1])()
    assert said == []


def test_nothing_is_started_again_at_the_end_of_a_run() -> None:
    asked, may_end = threading.Event(), threading.Event()

    def ends() -> None:
        asked.set()
        assert may_end.wait(SECONDS)
        lost()

    models, said = models_of(FakePeer(ends))
    with models:
        outcomes = models.begin("a", [1])
        assert asked.wait(SECONDS)
    may_end.set()
    with pytest.raises(RoleLostError):
        outcomes()
    assert said == []


def test_the_end_gives_up_a_start_that_is_in_progress() -> None:
    begun = threading.Event()

    def start(given_up: threading.Event) -> Any:
        begun.set()
        assert given_up.wait(SECONDS)
        raise RoleLostError("start: given up", remedy="", process="reward model")

    models, _ = models_of(FakePeer(lost), start=start)
    with models:
        outcomes = models.begin("a", [1])
        assert begun.wait(SECONDS)
    with pytest.raises(RoleLostError):
        outcomes()
