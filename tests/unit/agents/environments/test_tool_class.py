"""Classes in the form of TRL's `environment_factory`: methods are tools."""

import asyncio
from typing import Any

import pytest

from burnish.agents.environments.loading import find_environment
from burnish.agents.environments.protocol import Environment, EnvironmentSource, Step
from burnish.errors import ConfigError, EnvironmentFailedError
from burnish.types import Json

OWN_CODE = '''
from __future__ import annotations
import asyncio
import random
import numpy as np
from burnish.agents.environments.protocol import Step

class Counter:
    """The form of TRL's documentation: no arguments, reset(**kwargs), a method that is a tool, get_reward()."""

    def reset(self, **kwargs) -> str | None:
        self.count = 0
        return "The counter is 0.\\n"

    def increment(self, step: int) -> int:
        """
        Add to the counter.

        Args:
            step: How much to add.

        Returns:
            The new value of the counter.
        """
        self.count += step
        return self.count

    def get_reward(self) -> float:
        return float(self.count)

    def _helper(self):
        return None

class Keeper:
    """The form of TRL's page on OpenEnv: `reward` and `done` are attributes, and a tool raises when all is over."""
    def __init__(self):
        self.client = "client"
    def reset(self, **kwargs) -> str | None:
        self.reward, self.done = 0.0, False
    def guess(self, word: str) -> str:
        """Guess."""
        if self.done:
            raise ValueError("Game over.")
        self.done = word == "end"
        self.reward += 0.5
        return f"You said {word}."

class Stepping:
    """Tools that return steps; one is called `step`, as its hint says that it returns a text."""
    def reset(self): ...
    def step(self, action: str) -> str:
        """Act."""
        return Step(f"did {action}", reward=0.25)
    def finish(self) -> str:
        """End."""
        return Step("over", reward=1, ended=True)

class Asynchronous:
    def reset(self, **row):
        self.loops = set()
    async def wait(self, times: int) -> str:
        """Wait."""
        for _ in range(times):
            await asyncio.sleep(0)
        self.loops.add(id(asyncio.get_running_loop()))
        return f"waited {times}"
    async def stop(self) -> str:
        """Stop."""
        return Step("stopped", ended=True)
    async def get_reward(self) -> float:
        self.loops.add(id(asyncio.get_running_loop()))
        return 10.0 * len(self.loops)

class Named:
    def __init__(self, start: int = 1, *, step: int = 2):
        self.start = start
    def reset(self, question, answer=None):
        return f"{question} {answer} {self.start}"

class Seeded:
    def reset(self, seed, **row):
        return f"{seed} {sorted(row)}"

class Unseeded:
    def __init__(self):
        self.first = random.random()
    def reset(self, **row):
        return f"{self.first} {random.random()} {np.random.rand()}"

class Closing:
    log = []
    def reset(self, fail: bool = False):
        if fail:
            raise RuntimeError("no room")
    def close(self):
        self.log.append("closed")
    @staticmethod
    def add(first: int, second: int) -> int:
        """Add."""
        return first + second
    @property
    def wrong(self) -> int:
        raise AssertionError("a property is not a tool and is not read")
    @classmethod
    def count(cls) -> int:
        return 0

def counting(start: int = 0):
    counter = Counter()
    counter.start = start
    return counter

class NoReset:
    def act(self) -> str:
        """Act."""
        return ""

class NoHint:
    def reset(self, **row): ...
    def act(self, what) -> str:
        """Act."""
        return ""

class NoDocstring:
    def reset(self, **row): ...
    def act(self, what: str) -> str:
        return ""

class Raises:
    def __init__(self): raise KeyError("no key")
    def reset(self, **row): ...

class Leaves:
    def reset(self, **row): raise SystemExit(3)

class Wants:
    def reset(self, anwser): return None

class FailingReward:
    def reset(self, **row): return None
    def get_reward(self): return 1 / 0

class NanAttribute:
    reward = float("nan")
    def reset(self, **row): return None

class WrongStep:
    def reset(self, **row): return None
    def act(self) -> str:
        """Act."""
        return Step(3)

number = 5
def broken(): raise OSError("no disk")
'''


def started(place: str, name: str, row: dict[str, Json] | None = None, seed: int = 0) -> Environment:
    return find_environment(f"{place}:{name}", {}).start(row or {}, seed)


def names(source: EnvironmentSource) -> list[object]:
    return [schema["function"]["name"] for schema in source.schemas]  # type: ignore[index, call-overload]


def test_a_class_of_trls_documentation_runs_unchanged(place: str) -> None:
    source = find_environment(f"{place}:Counter", {})
    assert not source.answers_text
    step = {"type": "integer", "description": "How much to add."}
    function = {
        "name": "increment",
        "description": "Add to the counter.",
        "parameters": {"type": "object", "properties": {"step": step}, "required": ["step"]},
        "return": {"type": "integer", "description": "The new value of the counter."},
    }
    assert source.schemas == ({"type": "function", "function": function},)
    environment = source.start({"prompt": [{"role": "user", "content": "Count."}], "target": 3}, 1)
    assert environment.opening == "The counter is 0.\n"
    assert environment.call("increment", {"step": 2}) == 2
    assert environment.call("increment", {"step": 3}) == 5
    assert (environment.ended(), environment.reward()) == (False, 5.0)
    assert source.start({}, 1).reward() == 0.0  # every conversation has an object of its own
    environment.close()


def test_reward_and_done_as_attributes(place: str) -> None:
    environment = started(place, "Keeper")
    assert environment.opening is None
    assert environment.call("guess", {"word": "crane"}) == "You said crane."
    assert (environment.ended(), environment.reward()) == (False, 0.5)
    environment.call("guess", {"word": "end"})
    assert (environment.ended(), environment.reward()) == (True, 1.0)
    with pytest.raises(ValueError, match="Game over"):
        environment.call("guess", {"word": "more"})


def test_tools_may_return_steps(place: str) -> None:
    source = find_environment(f"{place}:Stepping", {})
    assert (names(source), source.answers_text) == (["finish", "step"], False)
    environment = source.start({}, 0)
    assert environment.reward() is None
    assert environment.call("step", {"action": "look"}) == Step("did look", 0.25)
    assert not environment.ended()
    assert environment.call("finish", {}) == Step("over", 1.0, True)
    assert (environment.ended(), environment.reward()) == (True, 1.25)


def test_all_that_is_awaited_runs_in_one_loop(place: str) -> None:
    environment = started(place, "Asynchronous")

    async def called(name: str, *given: dict[str, Json]) -> list[Any]:
        return await asyncio.gather(*(environment.call(name, arguments) for arguments in given))  # type: ignore[call-overload]

    assert asyncio.run(called("wait", {"times": 2}, {"times": 1})) == ["waited 2", "waited 1"]
    assert asyncio.run(called("wait", {"times": 0})) == ["waited 0"]  # another loop of the caller
    assert environment.reward() == 10.0
    assert not environment.ended()
    assert asyncio.run(called("stop", {})) == [Step("stopped", None, True)]
    assert environment.ended()
    environment.close()


def test_reset_gets_the_columns_that_it_takes(place: str) -> None:
    row: dict[str, Json] = {"question": "2+2", "answer": "4", "prompt": "x", "other": 1}
    assert started(place, "Named", row).opening == "2+2 4 1"
    assert started(place, "Named", {"question": "2+2"}).opening == "2+2 None 1"
    assert find_environment(f"{place}:Named", {"start": 7}).start(row, 0).opening == "2+2 4 7"
    assert started(place, "Seeded", {"a": 1}, seed=5).opening == "5 ['a']"
    assert started(place, "Seeded", {"a": 1, "seed": 9}, seed=5).opening == "9 ['a']"  # the row's own, as in TRL


def test_a_group_starts_equal_without_a_seed_of_its_own(place: str) -> None:
    first, second, other = (started(place, "Unseeded", seed=seed).opening for seed in (3, 3, 4))
    assert first == second
    assert first != other


def test_which_methods_are_tools(place: str) -> None:
    source = find_environment(f"{place}:Closing", {})
    assert names(source) == ["add"]
    environment = source.start({}, 0)
    log = type(environment._thing).log  # type: ignore[attr-defined]
    assert environment.call("add", {"first": 1, "second": 2}) == 3
    environment.close()
    assert log == ["closed"]
    with pytest.raises(EnvironmentFailedError, match=r"reset of the .*:Closing failed: RuntimeError: no room"):
        source.start({"fail": True}, 0)
    assert log == ["closed", "closed"]
    with pytest.raises(EnvironmentFailedError, match="has no tool 'close'"):
        source.start({}, 0).call("close", {})
    with pytest.raises(EnvironmentFailedError, match="answers calls of its tools, not texts"):
        source.start({}, 0).step("hello")


def test_a_function_that_makes_the_objects(place: str) -> None:
    source = find_environment(f"{place}:counting", {"start": 4})
    assert names(source) == ["increment"]
    assert source.start({}, 0).call("increment", {"step": 1}) == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NoReset", r"NoReset', which has no method reset\n  -> add reset\(self, \*\*row\)"),
        ("NoHint", "the parameter 'what' of the tool 'act' has no type hint.*begin its name with _"),
        ("NoDocstring", "whose public methods are its tools, but the tool 'act' has no description"),
        ("Countr", "has no Countr\n  -> did you mean 'Counter'?"),
        ("number", "which is a int\n  -> name a class, or a function that makes its objects"),
        ("broken", "but calling it failed: OSError: no disk"),
        ("", "which names no class\n  -> use path/to/file.py:Class"),
    ],
)
def test_classes_that_are_refused_when_they_are_found(place: str, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){message}") as raised:
        find_environment(f"{place}:{name}", {}, where="domains.game.environment")
    assert str(raised.value).startswith(f"domains.game.environment is '{place}:{name}'")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Raises", r"making the environment .*:Raises failed: KeyError: 'no key' \(.*own_code.py:\d+\)"),
        ("Leaves", "reset of the environment .*:Leaves failed: SystemExit: 3"),
        ("Wants", "needs 'anwser', which the row .*\n  -> did you mean 'answer'\\? columns of the row: answer"),
    ],
)
def test_objects_that_do_not_start(place: str, name: str, message: str) -> None:
    with pytest.raises(EnvironmentFailedError, match=message):
        started(place, name, {"answer": "4"})


def test_rewards_and_steps_are_checked(place: str) -> None:
    with pytest.raises(EnvironmentFailedError, match=r"get_reward of the .*:FailingReward failed: ZeroDivisionError"):
        started(place, "FailingReward").reward()
    with pytest.raises(EnvironmentFailedError, match=r"the attribute reward of the environment .*:NanAttribute is nan"):
        started(place, "NanAttribute").reward()
    with pytest.raises(EnvironmentFailedError, match=r"the text of what act of the environment .* is of the type int"):
        started(place, "WrongStep").call("act", {})


@pytest.mark.parametrize(
    ("name", "option", "message"),
    [
        ("Named", "strat", "called with the options {'strat': 2}: .*unexpected.*-> it takes start, step"),
        ("Counter", "start", "-> it takes no options"),
    ],
)
def test_options_that_do_not_fit(place: str, name: str, option: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        find_environment(f"{place}:{name}", {option: 2})
