"""Protocols of environments, whatever they were written for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from burnish.types import Json


@dataclass(frozen=True, slots=True)
class Step:
    """Answer to a turn, or the result of a tool of an environment instead of a text.

    text: for the model. reward: of the turn alone. ended: whether nothing can follow.
    """

    text: str
    reward: float | None = None
    ended: bool = False


Opening = str | Sequence[Mapping[str, Json]] | None
"""What an environment adds to the prompt of its conversation: a text, which is appended to the last message of the
user, messages (`{"role", "content"}`), which follow the prompt's, or nothing."""


class Environment(Protocol):
    """One game, one task, one session: what a conversation is held with. It belongs to one conversation alone, and all
    calls come from one process, one at a time unless a turn has several calls."""

    opening: Opening

    def call(self, name: str, arguments: Mapping[str, Json]) -> object:
        """Call one of the tools. The result is a text, plain data or a `Step`, or an awaitable of one. Raises what the
        tool raises."""

    def step(self, text: str) -> Step:
        """Answer a turn that calls no tool. Only called where `EnvironmentSource.answers_text`."""

    def ended(self) -> bool:
        """Return whether nothing can follow. Asked after calls and steps."""

    def reward(self) -> float | None:
        """Of the whole conversation, asked once, at its end. None if this environment gives none, or none yet."""

    def close(self) -> None:
        """Let go of everything. Called once, however the conversation ended."""


class EnvironmentSource(Protocol):
    """Starts environments.

    schemas: of the tools, as `burnish.agents.tools.schema.schema_of` writes them; may be empty. answers_text: whether
    turns without a call are answered by `step` (in games); otherwise such a turn is the last one.
    """

    @property
    def schemas(self) -> tuple[Mapping[str, Json], ...]: ...

    @property
    def answers_text(self) -> bool: ...

    def start(self, row: Mapping[str, Json], seed: int) -> Environment:
        """An environment for a row of data. `seed` (from 0 to 2**31 - 1) is equal within a group."""
