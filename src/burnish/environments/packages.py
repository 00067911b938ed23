"""Environments of packages that make them from an ID: Gymnasium, GEM and TextArena. Each package is imported here, when
a run file names it."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from types import ModuleType
from typing import Any

from burnish.environments.games import GameSource
from burnish.environments.instance import Instance, Maker
from burnish.environments.protocol import Step
from burnish.environments.values import flag_of, number_of, type_name
from burnish.errors import ConfigError, EnvironmentFailedError
from burnish.plugins import calling_outside
from burnish.types import Json
from burnish.words import did_you_mean

_PLAYER = 0
_LISTED = 5


def gymnasium_source(name: str, options: Mapping[str, Json], wanted: str) -> GameSource:
    """Games that `gymnasium.make(ID)` makes. `reset` gets the seed alone. Raises ConfigError for an unknown ID."""
    package = _imported("gymnasium", "gymnasium", wanted)
    with calling_outside(f"{wanted}: looking it up in Gymnasium", ConfigError):
        try:
            package.spec(name)
        except package.error.Error as error:
            raise ConfigError(
                f"{wanted}, which Gymnasium does not have: {error}", remedy="check the spelling"
            ) from error
    maker = Maker(f"gym:{name}", lambda **given: package.make(name, **given), options)
    return GameSource(maker, package.Env, wanted, takes_row=False)


def gem_source(name: str, options: Mapping[str, Json], wanted: str) -> GameSource:
    """Games that `gem.make(ID)` makes. `reset` gets the seed alone. Raises ConfigError for an unknown ID."""
    package = _imported("gem", "gem-llm", wanted)
    _check_id(name, _imported("gem.envs.registration", "gem-llm", wanted).ENV_REGISTRY, "GEM", wanted)
    maker = Maker(f"gem:{name}", lambda **given: package.make(name, **given), options)
    return GameSource(maker, package.Env, wanted, takes_row=False)


def textarena_source(name: str, options: Mapping[str, Json], wanted: str) -> TextArenaSource:
    """Games that `textarena.make(ID)` makes, for one player. Raises ConfigError for an unknown ID."""
    package = _imported("textarena", "textarena", wanted)
    registry = _imported("textarena.envs.registration", "textarena", wanted).ENV_REGISTRY
    _check_id(name, registry, "TextArena", wanted)
    return TextArenaSource(Maker(f"textarena:{name}", lambda **given: package.make(name, **given), options), package)


class TextArenaSource:
    """Games of TextArena, which have an interface of their own: `reset(num_players, seed)`, `get_observation`, `step`,
    and rewards when they are closed."""

    answers_text = True
    schemas: tuple[Mapping[str, Json], ...] = ()

    def __init__(self, maker: Maker, package: ModuleType) -> None:
        self._maker = maker
        self._package = package

    def start(self, row: Mapping[str, Json], seed: int) -> TextArenaGame:
        """A new game for one player. Nothing of the row is used: these games have no data."""
        with ExitStack() as undo:
            game = TextArenaGame(self._maker.make(seed), self._maker.name, self._package)
            undo.callback(game.give_up)
            game.begin(seed)
            undo.pop_all()
        return game


class TextArenaGame(Instance):
    """One game of one player."""

    def __init__(self, thing: Any, name: str, package: ModuleType) -> None:
        super().__init__(thing, name)
        self._package = package
        self._rewards: Mapping[int, object] | None = None
        self._is_closed = False

    def begin(self, seed: int) -> None:
        """Deal, and read what the player is told."""
        with calling_outside(f"starting the environment {self._name} with one player", EnvironmentFailedError):
            self._thing.reset(num_players=1, seed=seed)
        self.opening = self._observed()

    def call(self, name: str, arguments: Mapping[str, Json]) -> object:
        """Never called: games have no tools."""
        raise EnvironmentFailedError(f"the environment {self._name} is a game and has no tool {name!r}")

    def step(self, text: str) -> Step:
        """Say a text, and read what the game answers. Turns have no rewards, only the game as a whole."""
        returned = self._asked("step", self._thing.step, text)
        what = f"step of the environment {self._name}"
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise EnvironmentFailedError(f"{what} returned {type_name(returned)}, not (done, info)")
        ended = flag_of(returned[0], f"`done` of {what}")
        return self._noted(Step(self._observed(), ended=ended))

    def reward(self) -> float | None:
        """The player's, or None if the game is not over."""
        self._end()
        if not self._rewards or _PLAYER not in self._rewards:
            return None
        return number_of(self._rewards[_PLAYER], f"the reward of the environment {self._name}")

    def close(self) -> None:
        """End the game."""
        self._end()
        self._loop.stop()

    def _end(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self.opening is None:  # it has not begun, and cannot be closed
            return
        returned = self._asked("close", self._thing.close)
        self._rewards = returned[0] if isinstance(returned, tuple) else returned

    def _observed(self) -> str:
        """What the game has said since it was last asked, without the player's own words.

        IDs are registered with wrappers that repeat the whole game at every turn. The conversation has that already, so
        the game within the wrappers is asked.
        """
        inner = self._thing
        while isinstance(inner, self._package.Wrapper):
            inner = inner.env
        player, said = self._asked("get_observation", inner.get_observation)
        if player != _PLAYER:
            raise EnvironmentFailedError(
                f"the environment {self._name} waits for player {player}", remedy="use a game for one player"
            )
        if isinstance(said, str):
            return said
        own = self._package.ObservationType.PLAYER_ACTION  # some games send these in their own name
        return "\n".join(text for _, text, kind in said if kind != own)


def _imported(module: str, package: str, wanted: str) -> ModuleType:
    try:
        with calling_outside(f"{wanted}, but importing {module}", ConfigError):
            return importlib.import_module(module)
    except ConfigError as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and cause.name == module.partition(".")[0]:
            raise ConfigError(f"{wanted}, but {package} is not installed", remedy=f"pip install {package}") from cause
        raise


def _check_id(name: str, known: Iterable[str], package: str, wanted: str) -> None:
    names = list(known)
    if name not in names:
        some = f"it has {len(names)}, such as {', '.join(names[:_LISTED])}"
        raise ConfigError(
            f"{wanted}, which {package} does not have", remedy=f"{did_you_mean(name, names)} {some}".lstrip()
        )
