"""A game of GEM (https://github.com/axon-rl/gem): `pip install gem-llm`.

environment: examples/environments/gem_game.py:Game
environment_options: {id: "game:GuessTheNumber-v0-easy"}
"""

from __future__ import annotations

from typing import Any

import gem


class Game:
    """One game, whose steps have rewards. Most games want their actions in \\boxed{}, and say so."""

    def __init__(self, id: str, **options: Any) -> None:
        """options: further arguments of `gem.make`."""
        self._game = gem.make(id, **options)

    def reset(self, seed: int) -> str:
        said, _ = self._game.reset(seed=seed)
        return said

    def step(self, text: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return self._game.step(text)
