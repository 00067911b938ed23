"""A game of TextArena (https://github.com/LeonGuertler/TextArena) for one player: `pip install textarena`.

environment: examples/environments/textarena_game.py:Game
environment_options: {id: GuessTheNumber-v0}
"""

from __future__ import annotations

from typing import Any

import textarena

from burnish.agents.environments.protocol import Step

PLAYER = 0


class Game:
    """One game. The reward is the player's when the game is over, none before; turns have none."""

    def __init__(self, id: str, **options: Any) -> None:
        """options: further arguments of `textarena.make`."""
        self._game = textarena.make(id, **options)

    def reset(self, seed: int) -> str:
        self._game.reset(num_players=1, seed=seed)
        return self._said()

    def step(self, text: str) -> Step:
        ended, _ = self._game.step(text)
        return Step(self._said(), ended=ended)

    def get_reward(self) -> float | None:
        rewards, _ = self._game.close()
        return None if rewards is None else rewards.get(PLAYER)

    def _said(self) -> str:
        """What the game has said since it was last asked, without the player's own words.

        IDs are registered with wrappers that repeat the whole game at every turn. The conversation has that already, so
        the game within the wrappers is asked.
        """
        inner = self._game
        while isinstance(inner, textarena.Wrapper):
            inner = inner.env
        player, said = inner.get_observation()
        if player != PLAYER:
            raise ValueError(f"the game waits for player {player}: use one for one player")
        if isinstance(said, str):
            return said
        own = textarena.ObservationType.PLAYER_ACTION  # some games send these in their own name
        return "\n".join(text for _, text, kind in said if kind != own)
