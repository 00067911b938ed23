"""Actions of a game: the text of a turn, or an integer that is in it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from burnish.agents.environments.values import type_name
from burnish.errors import ConfigError

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
