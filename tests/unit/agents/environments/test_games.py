"""Classes with `step`: the forms of Gymnasium and of the older Gym."""

import pytest

from burnish.agents.environments.games import Integers, actions_of
from burnish.agents.environments.loading import find_environment
from burnish.agents.environments.protocol import Environment, Step
from burnish.errors import ConfigError, EnvironmentFailedError
from burnish.types import Json

OWN_CODE = '''
import random
import numpy as np
from burnish.agents.environments.protocol import Step

class Game:
    """Five values; the number is drawn with the seed."""
    log = []
    def __init__(self, last: int = 9):
        self.last = last
    def reset(self, *, seed=None, options=None):
        self.number = random.Random(seed).randint(0, self.last)
        return f"Guess from 0 to {self.last}. {options}", {"info": 1}
    def step(self, action):
        found = action.strip() == str(self.number)
        return ("correct" if found else "wrong"), 1.0 if found else -0.25, found, action == "quit", {}
    def close(self):
        self.log.append("closed")

class Old:
    """Four values, a plain observation, no seed."""
    def reset(self): return {"left": np.int64(3), "first": random.random()}
    def step(self, action): return [action, np.int8(1)], 1, action == "quit", {}

class OfRow:
    """Reset takes the row; step returns steps; get_reward is what counts; it is asynchronous."""
    def reset(self, number: int, **row):
        self.number = number
        return [{"role": "user", "content": "Guess."}]
    async def step(self, text): return Step("x", reward=0.5, ended=text == str(self.number))
    async def get_reward(self): return 7

class Unpaid:
    def reset(self): return None
    def step(self, text): return Step(text)

class NoReset:
    def step(self, action): return "", 0.0, True, False, {}

class Raises:
    def reset(self): return ""
    def step(self, action): return "", 0.0, True, False, {}[action]

class Helped:
    """A game with a public helper: it is taken for a class of tools, and the message says what to do."""
    def reset(self): return ""
    def moves(self): return []
    def step(self, action): return "", 0.0, True, False, {}

class Names:
    def reset(self, what, function, **row): return f"{what} {function} {sorted(row)}"
    def step(self, action): return "", 0.0, True, False, {}

class Broken:
    def reset(self): raise ValueError("no board")
    def step(self, action): ...
    def close(self): raise ValueError("nothing to close")
'''


def started(place: str, name: str, row: dict[str, Json] | None = None, seed: int = 0) -> Environment:
    source = find_environment(f"{place}:{name}", {})
    assert (source.answers_text, source.schemas) == (True, ())
    return source.start(row or {}, seed)


def test_five_values(place: str) -> None:
    game = started(place, "Game", seed=3)
    number = game._thing.number  # type: ignore[attr-defined]
    assert started(place, "Game", seed=3)._thing.number == number  # type: ignore[attr-defined]
    assert game.opening == "Guess from 0 to 9. None"
    assert game.reward() == 0.0  # a turn that is cut never becomes a step
    assert game.step("ten") == Step("wrong", -0.25, False)
    assert game.step(f" {number}\n") == Step("correct", 1.0, True)
    assert (game.ended(), game.reward()) == (True, 0.75)
    game.close()
    assert game._thing.log == ["closed"]  # type: ignore[attr-defined]
    quitting = started(place, "Game")
    assert quitting.step("quit") == Step("wrong", -0.25, True)  # truncated ends it, too
    with pytest.raises(EnvironmentFailedError, match="is a game and has no tool 'guess'"):
        quitting.call("guess", {})


def test_options_are_those_of_the_constructor(place: str) -> None:
    small = find_environment(f"{place}:Game", {"last": 0}).start({"options": ["A", "B"]}, 3)
    assert small.opening == "Guess from 0 to 0. ['A', 'B']"  # without a base class, a column as any other
    with pytest.raises(ConfigError, match=r"cannot be called with the options {'largest': 3}.*\n  -> it takes last"):
        find_environment(f"{place}:Game", {"largest": 3})


def test_four_values_and_a_plain_observation(place: str) -> None:
    game = started(place, "Old", seed=1)
    assert game.opening == started(place, "Old", seed=1).opening != started(place, "Old", seed=2).opening
    assert game.opening.startswith('{"left": 3, "first": 0.1')
    assert game.step("go") == Step('["go", 1]', 1.0, False)
    assert game.step("quit") == Step('["quit", 1]', 1.0, True)
    assert game.reward() == 2.0


def test_steps_of_a_row_and_get_reward(place: str) -> None:
    game = started(place, "OfRow", {"number": 4, "prompt": "p"})
    assert game.opening == [{"role": "user", "content": "Guess."}]
    assert game.step("3") == Step("x", 0.5, False)
    assert game.step("4") == Step("x", 0.5, True)
    assert game.reward() == 7.0
    game.close()


def test_no_rewards_are_not_a_zero(place: str) -> None:
    game = started(place, "Unpaid")
    assert game.step("hello") == Step("hello")
    assert game.reward() is None


def test_games_that_do_not_start_and_steps_that_fail(place: str) -> None:
    with pytest.raises(EnvironmentFailedError, match=r"reset of the environment .*:OfRow needs 'number', which the"):
        started(place, "OfRow")
    with pytest.raises(EnvironmentFailedError, match=r":Raises failed: KeyError: 'go' \(.*own_code.py:\d+\)") as raised:
        started(place, "Raises").step("go")
    assert raised.value.message.startswith("step of the environment ")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NoReset", "NoReset', which has step, but no method reset"),
        ("Helped", "its tools, but the tool 'moves' has no description.*begin its name with _"),
    ],
)
def test_classes_that_are_no_games(place: str, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        find_environment(f"{place}:{name}", {})


# Spaces as Gymnasium has them, which need not be installed: they are known by name and package.
Discrete = type("Discrete", (), {"__module__": "gymnasium.spaces.discrete", "n": 4, "start": 1})
Text = type("Text", (), {"__module__": "gymnasium.spaces.text"})
Box = type("Box", (), {"__module__": "gymnasium.spaces.box", "__repr__": lambda self: "Box(2,)"})
Own = type("Discrete", (), {"__module__": "my_games", "n": 4})


def test_action_spaces() -> None:
    assert actions_of(Discrete(), "it") == Integers(1, 4)
    assert [actions_of(space, "it") for space in (None, Text(), Own(), ["a", "b"])] == [None] * 4
    why = r"it, whose actions are Box\(2,\) \(gymnasium.spaces.box.Box\)\n  -> only Discrete"
    with pytest.raises(ConfigError, match=why):
        actions_of(Box(), "it")


@pytest.mark.parametrize(
    ("text", "action"),
    [("2", 2), ("I go 3.", 3), ("5", None), ("1 or 2", None), ("2.0", None), ("9" * 10_000, None), ("٣", None)],
)
def test_integers_in_a_text(text: str, action: int | None) -> None:
    assert Integers(1, 4).read(text) == action


def test_a_turn_without_an_action_is_told_what_is_expected(place: str) -> None:
    game = started(place, "Unpaid")
    game.actions = Integers(0, 3)  # type: ignore[attr-defined]
    assert game.step("left") == Step("Error: write one integer from 0 to 3.", 0.0, False)
    assert game.reward() == 0.0
    with pytest.raises(EnvironmentFailedError, match=r"the text of step of .* is of the type int"):
        game.step("2")  # the action is the number, which this game only repeats


def test_columns_may_have_any_name(place: str) -> None:
    game = started(place, "Names", {"what": "a", "function": "b", "given": "c", "name": "d"})
    assert game.opening == "a b ['given', 'name']"


def test_why_a_game_cannot_begin_is_told_even_if_it_cannot_be_closed(place: str) -> None:
    with pytest.raises(EnvironmentFailedError, match="no board"):
        started(place, "Broken")
