"""A conversation's process answers what it is asked, in this process here."""

import random
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pytest

from burnish.agents.environments.protocol import Opening, Step
from burnish.agents.environments.session import Session
from burnish.agents.tools.loading import LoadedTool
from burnish.errors import EnvironmentFailedError
from burnish.outside.plugins import FIX_IT


@dataclass
class Toy:
    """An environment that does what the row says."""

    row: Mapping[str, Any]
    seed: int
    over: bool = False
    closed: int = 0
    order: list[str] = field(default_factory=list)

    @property
    def opening(self) -> Opening:
        return self.row.get("opening")

    def call(self, name: str, arguments: Mapping[str, Any]) -> object:
        self.order.append(name)
        errors = {"broken": EnvironmentFailedError("of no use", remedy="make another"), "wrong": ValueError("not so")}
        if name in errors:
            raise errors[name]
        if name == "later":
            return self._later()
        return Step("last", 2.0, True) if name == "end" else f"{name} {dict(arguments)}"

    async def _later(self) -> Step:
        return Step("later", 0.5)

    def step(self, said: str) -> Any:
        return self.row.get("step", Step(f"heard {said}", 1.0, self.over))

    def ended(self) -> bool:
        return self.over

    def reward(self) -> Any:
        if isinstance(paid := self.row.get("reward", 3.0), Exception):
            raise paid
        return paid

    def close(self) -> None:
        self.closed += 1
        if self.row.get("hangs"):
            threading.Event().wait()
        if self.row.get("stuck"):
            raise RuntimeError("stuck")


class Source:
    schemas = ()
    answers_text = True

    def __init__(self) -> None:
        self.started: list[Toy] = []

    def start(self, row: Mapping[str, Any], seed: int) -> Any:
        if "raises" in row:
            raise row["raises"]
        self.started.append(Toy(row, seed))
        return self.started[-1]


@dataclass
class Asked:
    """A session and its environments."""

    session: Session
    source: Source

    def ask(self, do: str, **given: Any) -> list[dict[str, Any]]:
        sent: list[Any] = []
        self.session._answer({"do": do, **given}, lambda *messages: sent.extend(messages))
        return sent

    def call(self, *names: str) -> list[dict[str, Any]]:
        return self.ask("calls", calls=[[i, name, {"a": i}] for i, name in enumerate(names)], limit=100, seed=1)


def plain(a: int) -> str:
    return f"plain {a}"


@pytest.fixture
def asked() -> Asked:
    source = Source()
    return Asked(Session({"plain": LoadedTool("plain", {}, plain)}, source), source)


def test_a_conversation(asked: Asked) -> None:
    assert asked.ask("open", row={"opening": "Go."}, seed=5) == [{"opening": "Go."}]
    toy = asked.source.started[0]
    assert toy.seed == 5
    (heard,) = asked.ask("step", text="hi", limit=100)
    assert heard.pop("seconds") >= 0
    assert heard == {"text": "heard hi", "cut": 0, "reward": 1.0, "ended": False}
    assert asked.ask("reward") == [{"reward": 3.0, "clean": True}]
    assert toy.closed == 1
    assert asked.session.environment is None  # another one may follow
    assert asked.ask("open", row={"seed": 77}, seed=5) == [{"opening": None}]
    assert random.random() == random.Random(77).random()


def test_calls_of_the_environment_keep_their_order(asked: Asked) -> None:
    asked.ask("open", row={}, seed=0)
    *found, over = asked.call("one", "two", "later", "wrong", "end", "three")
    said = ["one {'a': 0}", "two {'a': 1}", "later", "Error: ValueError: not so", "last", "three {'a': 5}"]
    assert [(message["result"], message["text"]) for message in found] == list(enumerate(said))
    assert asked.source.started[0].order == ["one", "two", "later", "wrong", "end", "three"]
    assert (over["called"], over["ended"], over["reward"]) == (True, True, 2.5)


def test_the_last_result_and_the_end_of_the_calls_are_sent_at_once(asked: Asked) -> None:
    asked.ask("open", row={}, seed=0)
    sent: list[Any] = []
    request = {"do": "calls", "calls": [[0, "one", {"a": 4}], [1, "end", {"a": 4}]], "limit": 100}
    asked.session._answer(request, lambda *messages: sent.append(messages))
    said = [[message.get("text", message.get("ended")) for message in messages] for messages in sent if messages]
    assert said == [["one {'a': 4}"], ["last", True]]
    assert sent[-1][1]["reward"] == 2.0


def test_a_call_of_a_function(asked: Asked) -> None:
    (sent,) = asked.ask("call", name="plain", arguments={"a": 4}, limit=100, seed=1)
    assert sent.pop("seconds") >= 0
    assert sent == {"text": "plain 4", "failed_call": False, "cut": 0, "told": False, "clean": True}
    (sent,) = asked.ask("call", name="plain", arguments={"a": 4, "b": 5}, limit=100, seed=1)
    assert sent["failed_call"]


def test_an_environment_that_breaks_in_a_call_ends_the_conversation(asked: Asked) -> None:
    asked.ask("open", row={}, seed=0)
    sent = asked.call("one", "broken", "two")
    assert [message.get("result") for message in sent] == [0, None]
    assert sent[-1] == {"failed": "calls: of no use: make another"}
    assert asked.source.started[0].closed == 1


@pytest.mark.parametrize(
    ("row", "do", "why"),
    [
        ({"raises": ValueError("no")}, "open", "open: ValueError: no"),
        ({"raises": KeyboardInterrupt()}, "open", "open: KeyboardInterrupt"),
        ({"raises": EnvironmentFailedError("raised", remedy=FIX_IT)}, "open", "open: raised"),
        ({"raises": ValueError("\ud800")}, "open", r"open: ValueError: \ud800"),
        ({"stuck": True}, "reward", "reward: RuntimeError: stuck"),
    ],
)
def test_failures(asked: Asked, row: dict[str, Any], do: str, why: str) -> None:
    (sent,) = asked.ask("open", row=row, seed=0)
    if do != "open":
        (sent,) = asked.ask("reward")
    assert sent["failed"].startswith(why)
    assert "--debug" not in sent["failed"]
    assert asked.session.environment is None
    assert all(toy.closed == 1 for toy in asked.source.started)


def test_an_environment_that_fails_and_cannot_be_closed_does_not_keep_its_reason(asked: Asked) -> None:
    asked.ask("open", row={"reward": ValueError("no"), "hangs": True}, seed=0)
    with patch("burnish.agents.environments.session._CLOSE_SECONDS", 0.05):
        (sent,) = asked.ask("reward")
    assert sent["failed"].startswith("reward: ValueError: no")


def test_texts_and_openings_are_whole(asked: Asked) -> None:
    assert asked.ask("open", row={"opening": "a\ud800"}, seed=0) == [{"opening": r"a\ud800"}]
    turns = [{"role": "user", "content": "b\ud800", "more": 1}]
    assert asked.ask("open", row={"opening": turns}, seed=0) == [{"opening": [{"role": "user", "content": r"b\ud800"}]}]
    asked.ask("open", row={"step": Step("\ud800" * 80, None)}, seed=0)
    (sent,) = asked.ask("step", text="a", limit=100)
    assert sent["text"].startswith(r"\ud800\ud800")
    assert sent["cut"] == 80 * 6 - len(sent["text"].partition("\n")[0])
