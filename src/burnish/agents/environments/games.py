"""Games: classes with `step`, whose turns are texts. Gymnasium's form, and the older Gym's.

An action is the text of a turn, or an integer that is in it.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burnish.agents.environments.instance import Instance, Maker
from burnish.agents.environments.protocol import Opening, Step
from burnish.agents.environments.tool_class import public_methods
from burnish.agents.environments.values import messages_of, step_of, text_of, type_name
from burnish.errors import ConfigError, EnvironmentFailedError, needing
from burnish.types import Json

_LIBRARIES = ("gymnasium", "gym")
_METHODS = frozenset({"reset", "step", "get_reward", "close", "render", "seed"})


def is_game(kind: type) -> bool:
    """Return whether a class is a game, whose `step` answers turns, and not a class whose public methods are tools.

    It is one if it has `step` and derives from the base class of Gymnasium or Gym. Without such a base it is one if
    `step` is its only public method, except for the usual methods of games (`reset`, `get_reward`, `close`, `render`,
    `seed`), and is not annotated to return a text (`-> str`), as tools are.
    """
    methods = public_methods(kind)
    if "step" not in methods:
        return False
    if is_of_library(kind):
        return True
    returns = inspect.signature(inspect.getattr_static(kind, "step")).return_annotation
    return _METHODS.issuperset(methods) and returns not in (str, "str")


def is_of_library(kind: type) -> bool:
    """Return whether a class derives from the base class of Gymnasium or Gym."""
    return any(base.__module__.partition(".")[0] in _LIBRARIES for base in kind.__mro__)


def gymnasium_source(name: str, options: Mapping[str, Json], wanted: str) -> GameSource:
    """Games that `gymnasium.make(ID)` makes. `reset` gets the seed alone. Raises ConfigError for an unknown ID, or
    if none can be made with the options."""
    with needing("gymnasium", ConfigError, f"{wanted}, but gymnasium is not installed"):
        package = importlib.import_module("gymnasium")
    try:
        package.spec(name)
    except package.error.Error as error:
        raise ConfigError(f"{wanted}, which Gymnasium does not have: {error}", remedy="check the spelling") from error
    maker = Maker(f"gym:{name}", lambda **given: package.make(name, **given), options)
    maker.class_made(wanted)
    return GameSource(maker, package.Env, wanted, takes_row=False)


class GameSource:
    """Games whose objects `maker` makes.

    takes_row: whether `reset` is given columns of the row, except for columns in `without`; otherwise it gets the seed
    alone. Raises ConfigError if the class has no `reset`.
    """

    answers_text = True
    schemas: tuple[Mapping[str, Json], ...] = ()

    def __init__(
        self, maker: Maker, kind: type, wanted: str, *, takes_row: bool = True, without: Sequence[str] = ()
    ) -> None:
        if "reset" not in public_methods(kind):
            raise ConfigError(f"{wanted}, which has step, but no method reset", remedy="add reset(self, **row)")
        self._maker = maker
        self._wanted = wanted
        self._takes_row = takes_row
        self._without = without

    def start(self, row: Mapping[str, Json], seed: int) -> Game:
        """A new game, after its `reset`."""
        thing = self._maker.make(seed)
        game = Game(thing, self._maker.name)
        with game.closed_if_it_fails():
            game.actions = actions_of(getattr(thing, "action_space", None), self._wanted)
            game.begin(row if self._takes_row else {}, seed, without=self._without)
        return game


class Game(Instance):
    """A user's game. Its turns are texts, and each step has a reward. actions: None if they are any texts."""

    actions: Integers | None = None
    _has_stepped = False

    def read_opening(self, returned: Any, what: str) -> Opening:
        """Read the first observation: a text, messages, None, or plain data as JSON."""
        if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping):
            returned = returned[0]
        is_list = isinstance(returned, list) and returned
        if is_list and all(isinstance(item, Mapping) and item.keys() >= {"role", "content"} for item in returned):
            return messages_of(returned, what)
        return None if returned is None else text_of(returned, what)

    def call(self, name: str, arguments: Mapping[str, Json]) -> object:
        """Never called: games have no tools."""
        raise EnvironmentFailedError(f"the environment {self._name} is a game and has no tool {name!r}")

    def reward(self) -> float | None:
        """Return the result of `get_reward`, or else the sum of the rewards of steps, which is 0 before the first one:
        a turn that is cut never becomes a step. None if there were steps, and none of them had a reward."""
        paid = super().reward()
        return 0.0 if paid is None and not self._has_stepped else paid

    def step(self, text: str) -> Step:
        """Take the action that a turn is or holds. A turn that holds none is answered with what is expected."""
        self._has_stepped = True
        action = text if self.actions is None else self.actions.read(text)
        if action is None:
            return self._noted(Step(f"Error: {self.actions}.", reward=0.0))
        returned = self._asked("step", self._thing.step, action)
        return self._noted(step_of(returned, f"step of the environment {self._name}"))


_INTEGER = re.compile(r"-?[0-9]+")
_LONGEST = 18  # digits; no action space is larger, and converting long texts to integers is slow


@dataclass(frozen=True, slots=True)
class Integers:
    """The actions are the integers from `first` to `last`."""

    first: int
    last: int

    def read(self, text: str) -> int | None:
        """The one integer in the text, or None if there is none, more than one, or one that is not an action."""
        found = _INTEGER.findall(text)
        if len(found) != 1 or len(found[0]) > _LONGEST:
            return None
        action = int(found[0])
        return action if self.first <= action <= self.last else None

    def __str__(self) -> str:
        """Tell the model what to write."""
        return f"write one integer from {self.first} to {self.last}"


def actions_of(space: Any, wanted: str) -> Integers | None:
    """The actions of a game with this `action_space`, if it has one. None if they are texts. Raises ConfigError for
    spaces of Gymnasium other than Discrete and Text."""
    # By name, so that neither Gymnasium nor the older Gym need be installed.
    kinds = {kind.__name__ for kind in type(space).__mro__ if kind.__module__.partition(".")[0] in ("gymnasium", "gym")}
    if "Discrete" in kinds:
        first = int(getattr(space, "start", 0))
        return Integers(first, first + int(space.n) - 1)
    if not kinds or "Text" in kinds:
        return None
    raise ConfigError(
        f"{wanted}, whose actions are {space} ({type_name(space)})",
        remedy="only Discrete and Text can be written as a turn: wrap it in a class with step(text)",
    )
