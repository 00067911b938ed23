"""Checks before training: gold answers must score well as responses, and trivial responses must fail tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from burnish.rewards.builtins.choice_rows import question_of_row
from burnish.rewards.builtins.code_tests import json_or, task_of_row, trivial_programs
from burnish.rewards.builtins.reading_rows import NoScoreError
from burnish.rewards.protocol import RewardScorer
from burnish.rewards.success import TOLERANCE, Success
from burnish.types import FinishReason, Prompt, RewardStatus, Rollout

BATCH_SIZE = 512
OTHER_SOLUTIONS = 4
"""Number of a row's solutions that are tried after the first."""
TOTAL = "(total)"
"""The name of the weighted sum among the parts."""
Encode = Callable[[Prompt, str], Sequence[int]]


@dataclass(frozen=True, slots=True)
class GoldFailure:
    """A row whose gold answer does not reach the top score."""

    prompt_id: str
    domain: str
    gold: str
    score: float | None
    status: RewardStatus
    detail: str


@dataclass(frozen=True, slots=True)
class GoldPart:
    """The gold answers' scores from one reward or one of its parts, unweighted, or (`TOTAL`) their weighted sum."""

    name: str
    mean: float
    lowest: float
    count: int


@dataclass(frozen=True, slots=True)
class GoldReport:
    """Result of a gold check. `without_gold` lists the ids of rows without a gold answer. `solved` is the number of
    answers that the run would count as solved, if `check_gold` was given `success`."""

    checked: int
    top_score: float
    failures: tuple[GoldFailure, ...]
    without_gold: tuple[str, ...]
    parts: tuple[GoldPart, ...] = ()
    solved: int = 0


def _holds_tests(answer: object) -> bool:
    """Return whether the answer holds the tests of a programming task, as in data of verl and ROLL, and no solution."""
    held = json_or(None, answer)
    return isinstance(held, Mapping) and ({"inputs", "outputs"} <= held.keys() or "assert_case" in held)


def gold_response(prompt: Prompt, options_column: str | None = None, state: Callable[[str], str] = str) -> str | None:
    """Response of a perfect model: the column `gold_response`, else `completion`, else the answer unchanged (in GSM8K
    this is the whole worked solution), else the solution of a programming task (`canonical_solution` in HumanEval,
    `code` in MBPP, the first of `solutions` in APPS and TACO). None if the row has none of them.

    An answer that is the position of an option becomes the option's label. options_column: the column with the
    options, as the reward `choice` takes it. state: writes an answer as the reward reads it, such as in a box.
    """
    columns = prompt.columns
    solution = columns.get("code") if "test_list" in columns else columns.get("canonical_solution")
    solution = solution or next(iter(solutions_of(prompt)), None)
    answer = _label_of_answer(prompt, options_column) or (None if _holds_tests(prompt.answer) else prompt.answer)
    for value in (columns.get("gold_response"), columns.get("completion"), answer, solution):
        first = next(iter(value), None) if isinstance(value, (list, tuple)) else value
        if first is not None and str(first).strip():
            return state(str(first)) if value is answer else str(first)
    return None


def solutions_of(prompt: Prompt) -> list[str]:
    """Programs in the column `solutions`, a list or its JSON text, as APPS and TACO have them. Not all are right."""
    held = prompt.columns.get("solutions")
    held = json_or([held], held)
    return [text for text in held if isinstance(text, str) and text.strip()] if isinstance(held, list) else []


def _label_of_answer(prompt: Prompt, options_column: str | None) -> str | None:
    if not isinstance(prompt.answer, int) or isinstance(prompt.answer, bool):
        return None
    try:
        question = question_of_row(prompt.columns, prompt.answer, options_column)
    except NoScoreError:  # reported when the answer is scored
        return None
    return None if question is None else question.labels[question.gold]


def check_gold(
    prompts: Iterable[Prompt],
    scorer: RewardScorer,
    *,
    top_score: float = 1.0,
    labels: Sequence[str] = (),
    response: Callable[[Prompt], str | None] = gold_response,
    encode: Encode | None = None,
    judge: Success | None = None,
    success: Success | None = None,
) -> GoldReport:
    """Score the gold response of every prompt and report those below `top_score`.

    labels: compare the sum of these parts with `top_score` instead of the whole reward. With
    `ProcessRewardScorer.answer_labels` this leaves out rewards for length or format.
    judge: compare each of some rewards with its own threshold instead (`burnish check` uses `full_marks`).
    success: what a run would count as solved.
    encode: gives the tokens that a policy would sample for the gold response, for rewards that read tokens. Without it,
    each word counts as one token.

    Give the scorer a `max_failure_fraction` of 1. Otherwise it stops at the first bad batch instead of reporting all.
    """
    answered = [(prompt, response(prompt)) for prompt in prompts]
    golds = [(prompt, gold) for prompt, gold in answered if gold is not None]
    failures: list[GoldFailure] = []
    readings: dict[str, list[float]] = {}
    solved = 0

    judging = labels if judge is None else tuple(judge.thresholds)

    def passes(rollout: Rollout) -> bool:
        if judge is not None:
            return judge.solved(rollout) is True
        score = _judged_score(rollout, judging)
        return score is not None and score >= top_score - TOLERANCE

    for start in range(0, len(golds), BATCH_SIZE):
        batch = golds[start : start + BATCH_SIZE]
        scored = scorer.score([(prompt, as_rollout(prompt, gold, encode)) for prompt, gold in batch])
        for (prompt, gold), first in zip(batch, scored, strict=True):
            rollout = first if passes(first) else _other_solution(prompt, gold, scorer, encode, passes) or first
            for name, value in (*rollout.reward_parts.items(), (TOTAL, rollout.reward)):
                if value is not None:
                    readings.setdefault(name, []).append(value)
            solved += success is not None and success.solved(rollout) is True
            if not passes(rollout):
                score = _judged_score(rollout, judging)
                detail = rollout.status_detail or ("" if judge is None else "; ".join(judge.shortfalls(rollout)))
                failures.append(GoldFailure(prompt.id, prompt.domain, gold, score, rollout.status, detail))
    without = tuple(prompt.id for prompt, gold in answered if gold is None)
    parts = tuple(GoldPart(name, sum(v) / len(v), min(v), len(v)) for name, v in sorted(readings.items()))
    return GoldReport(len(golds), top_score, tuple(failures), without, parts, solved)


def _other_solution(
    prompt: Prompt, gold: str, scorer: RewardScorer, encode: Encode | None, passes: Callable[[Rollout], bool]
) -> Rollout | None:
    """Score further solutions of the row, some of which may be wrong, and return the first that passes."""
    solutions = solutions_of(prompt)
    for text in solutions[1 : 1 + OTHER_SOLUTIONS] if gold in solutions[:1] else ():
        rollout = scorer.score([(prompt, as_rollout(prompt, text, encode))])[0]
        if passes(rollout):
            return rollout
    return None


def _judged_score(rollout: Rollout, labels: Sequence[str]) -> float | None:
    if not labels:
        return rollout.reward
    found = [rollout.reward_parts[label] for label in labels if label in rollout.reward_parts]
    return sum(found) if len(found) == len(labels) else None


def as_rollout(prompt: Prompt, gold: str, encode: Encode | None) -> Rollout:
    """A rollout with the gold response, as if the policy had sampled it."""
    tokens = (0,) * len(gold.split()) if encode is None else tuple(encode(prompt, gold))
    return as_if_sampled(prompt.id, 0, 0, (), tokens, gold)


def as_if_sampled(
    prompt_id: str, group: int, number: int, prompt_tokens: tuple[int, ...], tokens: tuple[int, ...], response: str
) -> Rollout:
    """A rollout as if the policy had sampled these tokens and then stopped. number: of the sample in its group."""
    logprobs = (0.0,) * len(tokens)
    return Rollout(prompt_id, group, number, prompt_tokens, tokens, logprobs, FinishReason.STOP, 0, response)


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


TRIVIAL_RESPONSES: Mapping[str, Callable[[Prompt], dict[str, str]]] = {"code": _programs, "json_schema": _values}
"""Name of a built-in reward -> function that gives trivial responses to a row, by what they are or do."""
