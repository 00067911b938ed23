"""Recorded rollouts of a run as typed values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from html import escape
from pathlib import Path
from typing import Any

from burnish.api.pictures import tinted_html
from burnish.errors import DataError
from burnish.observability.recorder import RecordedLine, read_rollouts, recorded_rollout
from burnish.outside.reading import reading
from burnish.types import Json, Rollout, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRollout(Rollout):
    """A rollout as the run recorded it: with its prompt, and what the trainer did with it.

    `prompt` is text, or the turns of a conversation. `advantage` is None if the rollout was not trained on;
    `dropped_because` then says why. `token_texts` and `token_advantages` have one entry per response token.
    """

    step: int
    prompt: str | tuple[Mapping[str, Json], ...]
    answer: Json
    domain: str
    greedy: bool
    token_texts: tuple[str, ...] = ()
    kept: bool | None = None
    dropped_because: str = ""
    advantage: float | None = None
    token_advantages: tuple[float, ...] | None = None

    def _repr_html_(self) -> str:
        asked = self.prompt
        if not isinstance(asked, str):
            asked = "\n".join(f"{turn['role']}: {turn['content']}" for turn in asked)
        scored = "not scored" if self.reward is None else f"reward {self.reward:.4g}"
        advantage = "" if self.advantage is None else f", advantage {self.advantage:.3g}"
        answer = escape(self.short_text())
        if self.token_texts:
            answer = tinted_html(self.token_texts, self.rollout_logprobs, self.sampled_mask())
        ended = f", {self.finish_reason.value}: {self.status_detail}" if self.status_detail else ""
        return f"<div><code>{escape(asked)}</code> {answer} <small>{scored}{advantage}{escape(ended)}</small></div>"

    def short_text(self) -> str:
        """The response: its text, or its turns in one line (`calculator(expression='2*3') → 6 → six`)."""
        return " → ".join(map(_short_turn, self.turns)) if self.turns else self.response


_MOST_CHARACTERS = 60
"""Of what somebody says in a turn, in its short form."""


def recorded(path: Path) -> list[RecordedRollout]:
    """The rollouts of a file, in order. DataError if the file is damaged or missing."""
    with reading(f"{path}: reading recorded rollouts", DataError, remedy="remove it, or record that step again"):
        return [_rollout(line) for line in read_rollouts(path)]


def _short_turn(turn: Turn) -> str:
    said = [
        part
        for message in turn.messages
        if turn.author != "policy" or message.role == "assistant"
        for part in (message.content, *map(call_text, message.tool_calls))
        if part
    ]
    return " ".join(_shortened(" ".join(part.split())) for part in said)


def call_text(call: Mapping[str, Any]) -> str:
    """A call of a tool (`Message.tool_calls`) as Python would write it."""
    function = call["function"]
    return f"{function['name']}({', '.join(f'{name}={value!r}' for name, value in function['arguments'].items())})"


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"


def _rollout(line: RecordedLine) -> RecordedRollout:
    rollout, prompt, per_token = recorded_rollout(line), line["prompt"], line.get("token_advantages")
    return RecordedRollout(
        **{field.name: getattr(rollout, field.name) for field in fields(rollout)},
        step=line["step"],
        prompt=prompt if isinstance(prompt, str) else tuple(prompt),
        answer=line["answer"],
        domain=line["domain"],
        greedy=line["greedy"],
        token_texts=tuple(line.get("token_texts", ())),
        kept=line.get("kept"),
        dropped_because=line.get("dropped_because", ""),
        advantage=line.get("advantage"),
        token_advantages=None if per_token is None else tuple(map(float, per_token)),
    )
