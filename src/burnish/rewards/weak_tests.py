"""Rows whose tests accept a trivial response, found before training exploits them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from burnish.rewards.builtins.code_tests import task_of_row, trivial_programs
from burnish.rewards.builtins.reading_rows import NoScoreError
from burnish.rewards.gold import as_rollout
from burnish.rewards.protocol import RewardScorer
from burnish.rewards.success import TOLERANCE
from burnish.types import Prompt


@dataclass(frozen=True, slots=True)
class WeakTests:
    """A row that gives a trivial response full score, and what that response is or does."""

    prompt_id: str
    response: str


def find_weak_tests(prompts: Sequence[Prompt], scorer: RewardScorer, name: str, label: str) -> list[WeakTests]:
    """Score trivial responses with the reward of this label, and return the responses with its best score. name: the
    built-in that the reward is, a key of `TRIVIAL_RESPONSES`."""
    trivial = TRIVIAL_RESPONSES[name]
    tried = [(prompt, what, text) for prompt in prompts for what, text in trivial(prompt).items()]
    scored = scorer.score([(prompt, as_rollout(prompt, text, None)) for prompt, _, text in tried])
    return [
        WeakTests(prompt.id, what)
        for (prompt, what, _), rollout in zip(tried, scored, strict=True)
        if rollout.reward_parts.get(label, 0.0) >= 1 - TOLERANCE
    ]


def _programs(prompt: Prompt) -> dict[str, str]:
    try:
        task = task_of_row(prompt.columns, prompt.answer)
    except NoScoreError:  # reported when the gold answer is scored
        task = None
    if task is None:
        return {}
    # In a block, so that an empty one is a program, too, and is not taken for the rest of the row's beginning.
    return {what: f"```python\n{code}```" for what, code in trivial_programs(task).items()}


def _values(prompt: Prompt) -> dict[str, str]:
    return {f"is {text}": text for text in ("null", "{}", "[]", "0", '""')}


TRIVIAL_RESPONSES: Mapping[str, Callable[[Prompt], dict[str, str]]] = {
    "code": _programs,
    "json_schema": _values,
}
"""Name of a built-in reward -> function that gives trivial responses to a row, by what they are or do."""
