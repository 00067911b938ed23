"""Recorded rollouts of a run as typed values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from burnish.api.pictures import tinted_html
from burnish.errors import DataError
from burnish.observability.recorder import read_rollouts
from burnish.reading import reading
from burnish.types import FinishReason, Json, RewardStatus, Rollout


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
        asked = (
            self.prompt
            if isinstance(self.prompt, str)
            else "\n".join(f"{t['role']}: {t['content']}" for t in self.prompt)
        )
        scored = "not scored" if self.reward is None else f"reward {self.reward:.4g}"
        advantage = "" if self.advantage is None else f", advantage {self.advantage:.3g}"
        answer = tinted_html(self.token_texts, self.rollout_logprobs) if self.token_texts else escape(self.response)
        return f"<div><code>{escape(asked)}</code> {answer} <small>{scored}{advantage}</small></div>"


def recorded(path: Path) -> list[RecordedRollout]:
    """The rollouts of a file, in order. DataError if the file is damaged or missing."""
    with reading(f"{path}: reading recorded rollouts", DataError, remedy="remove it, or record that step again"):
        return [_rollout(line) for line in read_rollouts(path)]


def _rollout(line: Mapping[str, Any]) -> RecordedRollout:
    prompt, per_token = line["prompt"], line.get("token_advantages")
    dense = line["token_rewards"]
    return RecordedRollout(
        prompt_id=line["prompt_id"],
        group_id=line["group_id"],
        sample_index=line["sample_index"],
        prompt_tokens=tuple(line["prompt_tokens"]),
        response_tokens=tuple(line["response_tokens"]),
        rollout_logprobs=tuple(map(float, line["rollout_logprobs"])),
        finish_reason=FinishReason(line["finish_reason"]),
        policy_version=line["policy_version"],
        response=line["response"],
        reward=line["reward"],
        reward_parts=line["reward_parts"],
        token_rewards=None if dense is None else tuple(dense),
        status=RewardStatus(line["status"]),
        status_detail=line["status_detail"],
        versions=tuple((first, version) for first, version in line.get("versions", ())),
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
