"""Tests that pay for nothing, found before training finds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from burnish.rewards.builtins.code_tests import TestsError, task_of_row, trivial_programs
from burnish.rewards.gold import as_rollout
from burnish.rewards.protocol import RewardScorer
from burnish.rewards.success import TOLERANCE
from burnish.types import Prompt, Rollout


@dataclass(frozen=True, slots=True)
class WeakTests:
    """A row whose tests a program that does nothing passes, and what that program is."""

    prompt_id: str
    program: str


def find_weak_tests(prompts: Sequence[Prompt], scorer: RewardScorer, label: str) -> list[WeakTests]:
    """Score programs that solve no task with the reward of this label, a `code`, and return those that get its best."""
    tried = [(prompt, *program) for prompt in prompts for program in _programs(prompt)]
    scored = scorer.score([(prompt, as_rollout(prompt, code, None)) for prompt, _, code in tried])
    return [
        WeakTests(prompt.id, what)
        for (prompt, what, _), rollout in zip(tried, scored, strict=True)
        if _part(rollout, label) >= 1 - TOLERANCE
    ]


def _programs(prompt: Prompt) -> list[tuple[str, str]]:
    try:
        task = task_of_row(prompt.columns, prompt.answer)
    except TestsError:  # scoring the gold answer says so
        return []
    if task is None:
        return []
    # In a block, so that an empty one is a program too and does not continue the row's beginning.
    return [(what, f"```python\n{code}```") for what, code in trivial_programs(task).items()]


def _part(rollout: Rollout, label: str) -> float:
    score = dict(rollout.reward_parts).get(label)
    return 0.0 if score is None else score
