"""Games: classes with `step`, whose turns are texts. Gymnasium's form, the older Gym's, and SkyRL-gym's."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from burnish.environments.actions import Integers, Texts, actions_of
from burnish.environments.instance import Instance, Maker, reset_arguments
from burnish.environments.protocol import Opening, Step
from burnish.environments.tool_class import public_methods
from burnish.environments.values import messages_of, opening_of, step_of, text_of, type_name
from burnish.errors import ConfigError, EnvironmentFailedError
from burnish.types import Json

_LIBRARIES = ("gymnasium", "gym", "gem", "skyrl_gym")
_METHODS = frozenset({"reset", "init", "step", "get_reward", "close", "render", "seed", "sample_random_action"})


def is_game(kind: type) -> bool:
    """Whether a class is a game, whose `step` answers turns, and not a class whose public methods are tools.

    It is one if it has `step` and derives from the base class of Gymnasium, Gym, GEM or SkyRL-gym. Without such a base
    it is one if `step` is its only public method, except for those that games have (`reset`, `init`, `get_reward`,
    `close`, `render`, `seed`, `sample_random_action`), and is not annotated to return a text (`-> str`), as tools are.
    """
    methods = public_methods(kind)
    if "step" not in methods:
        return False
    if is_of_library(kind):
        return True
    returns = inspect.signature(inspect.getattr_static(kind, "step")).return_annotation
    return _METHODS.issuperset(methods) and returns not in (str, "str")


def is_of_library(kind: type) -> bool:
    """Whether a class derives from one of Gymnasium, Gym, GEM or SkyRL-gym."""
    return any(base.__module__.partition(".")[0] in _LIBRARIES for base in kind.__mro__)


def takes_extras(found: object) -> bool:
    """Whether this is a class in the form of SkyRL-gym whose constructor takes the row as `extras`."""
    if not inspect.isclass(found):
        return False
    methods = public_methods(found)
    return "init" in methods and "reset" not in methods and "extras" in inspect.signature(found).parameters


class GameSource:
    """Games whose objects `maker` makes.

    takes_row: whether `reset` is given columns of the row, except for those in `without`; otherwise it gets the seed
    alone. Raises ConfigError if the class has neither `reset` nor `init`.
    """

    answers_text = True
    schemas: tuple[Mapping[str, Json], ...] = ()

    def __init__(
        self, maker: Maker, kind: type, wanted: str, *, takes_row: bool = True, without: Sequence[str] = ()
    ) -> None:
        methods = public_methods(kind)
        if "reset" not in methods and "init" not in methods:
            raise ConfigError(f"{wanted}, which has step, but no method reset", remedy="add reset(self, **row)")
        self._maker = maker
        self._wanted = wanted
        self._takes_row = takes_row
        self._without = without

    def start(self, row: Mapping[str, Json], seed: int) -> Game:
        """A new game, after its `reset` or `init`."""
        with ExitStack() as undo:
            thing = self._maker.make(seed, **self._extras(row))
            game = Game(thing, self._maker.name)
            undo.callback(game.give_up)
            game.actions = actions_of(getattr(thing, "action_space", None), self._wanted)
            game.begin(row if self._takes_row else {}, seed, without=self._without)
            undo.pop_all()
        return game

    def _extras(self, row: Mapping[str, Json]) -> dict[str, object]:
        given = "extras" in self._maker.options
        return {"extras": dict(row)} if takes_extras(self._maker.call) and not given else {}


class Game(Instance):
    """A game of a user's. Its turns are texts, and each step has a reward."""

    actions: Texts | Integers = Texts()

    def begin(self, row: Mapping[str, Json], seed: int, *, without: Sequence[str] = ()) -> None:
        """Call `reset`, or else SkyRL-gym's `init`."""
        reset = getattr(self._thing, "reset", None)
        if not callable(reset):
            self.opening = self._init(row)
            return
        given = reset_arguments(reset, row, seed, self._name, without=without)
        returned = self._asked("reset", reset, **given)
        what = f"what reset of the environment {self._name} returned"
        if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping):
            returned = returned[0]
        self.opening = _opening(returned, what)

    def call(self, name: str, arguments: Mapping[str, Json]) -> object:
        """Never called: games have no tools."""
        raise EnvironmentFailedError(f"the environment {self._name} is a game and has no tool {name!r}")

    _has_stepped = False

    def reward(self) -> float | None:
        """What `get_reward` returns, or else the sum of what steps were paid, which is 0 before the first one: a turn
        that is cut never becomes a step. None if there were steps, and none of them was paid."""
        paid = super().reward()
        return 0.0 if paid is None and not self._has_stepped else paid

    def step(self, text: str) -> Step:
        """Take the action that a turn is or holds. A turn that holds none is answered with what is expected."""
        self._has_stepped = True
        action = self.actions.read(text)
        if action is None:
            return self._noted(Step(f"Error: {self.actions.expected()}.", reward=0.0))
        what = f"step of the environment {self._name}"
        return self._noted(step_of(self._asked("step", self._thing.step, action), what))

    def _init(self, row: Mapping[str, Json]) -> Opening:
        """What `init(prompt)` adds to the prompt."""
        prompt: Any = row.get("prompt")
        asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        what = f"init of the environment {self._name}"
        if not isinstance(asked, list):
            raise EnvironmentFailedError(
                f"{what} wants the prompt, but the row has {type_name(prompt)} as its prompt",
                remedy="give the rows a column `prompt`, a text or messages",
            )
        returned = self._asked("init", self._thing.init, [dict(message) for message in asked])
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise EnvironmentFailedError(f"{what} returned {type_name(returned)}", remedy="return (prompt, info)")
        said = opening_of(returned[0], f"the prompt of {what}")
        if said is None or isinstance(said, str):
            return said
        if list(said[: len(asked)]) != asked:
            raise EnvironmentFailedError(
                f"{what} changed the prompt of the row", remedy="it may only add messages; change the data instead"
            )
        return said[len(asked) :] or None


def _opening(returned: Any, what: str) -> Opening:
    """The first observation of a game: a text, messages, None, or plain data as JSON."""
    if returned is None or isinstance(returned, str):
        return returned
    is_list = isinstance(returned, list) and returned
    if is_list and all(isinstance(item, Mapping) and item.keys() >= {"role", "content"} for item in returned):
        return messages_of(returned, what)
    return text_of(returned, what)
