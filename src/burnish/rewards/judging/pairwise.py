"""Comparisons within a group: pairs, both orders, and win rates."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from burnish.rewards.inputs import Item
from burnish.rewards.judging.asking import Asker
from burnish.rewards.judging.client import NoVerdictError
from burnish.rewards.judging.forms import Judge
from burnish.rewards.judging.verdicts import better_wanted
from burnish.types import RewardStatus, Score

WIN, TIE, LOSS = 1.0, 0.5, 0.0
Found = Score | NoVerdictError


@dataclass(frozen=True, slots=True)
class Meeting:
    """Two responses of a group to compare, by their numbers. `for_first`: the result counts only for the first."""

    first: int
    second: int
    for_first: bool = False


def round_robin(count: int, opponents: int, seed: str) -> list[tuple[int, int]]:
    """Draw pairs such that each of `count` players meets `opponents` others, or all others if there are not more.

    With fewer opponents than others, these are the first rounds of a round robin in an order drawn from the seed: each
    round pairs everybody once (of an odd number one rests and has a meeting less), and nobody meets anybody twice.
    """
    if count - 1 <= opponents:
        return [(first, second) for first in range(count) for second in range(first + 1, count)]
    order: list[int | None] = [*range(count)]
    random.Random(seed).shuffle(order)
    if count % 2:
        order.append(None)  # the player paired with None rests
    pairs = []
    for _ in range(opponents):
        for first, second in zip(order[: len(order) // 2], reversed(order), strict=False):
            if first is not None and second is not None:
                pairs.append((min(first, second), max(first, second)))
        order = [order[0], order[-1], *order[1:-1]]
    return pairs


async def compare(judge: Judge, items: tuple[Item, Item], asker: Asker) -> float:
    """Return 1 if the first response is better, 0 if the second is, 0.5 for a tie. NoVerdictError without a verdict.

    Both orders are tried, and only a choice made in both counts, because judges have a position bias.
    """
    first, second = (judge.cleaned(rollout.response) for _, rollout in items)
    if first == second:
        return TIE
    values, wanted = judge.values(items[0]), better_wanted(judge.options.answer_format)
    orders = ({"response_a": first, "response_b": second}, {"response_a": second, "response_b": first})
    straight, swapped = await asyncio.gather(
        *(asker.verdict(judge.writer.write(values, order, [wanted.instruction]), wanted) for order in orders)
    )
    asker.tally.compared += 1
    if (straight, swapped) == ("A", "B"):
        return WIN
    if (straight, swapped) == ("B", "A"):
        return LOSS
    asker.tally.inconsistent += (straight, swapped) != ("tie", "tie")
    return TIE


async def win_rates(judge: Judge, group: Sequence[Item], asker: Asker) -> list[Found]:
    """Compute the mean result of each response of a group, or the error that left it without one.

    A greedy response (a baseline) meets the samples only for its own score. A response that is alone is compared with
    the answer of its row. A comparison without a verdict is left out.
    """
    samples = [index for index, (_, rollout) in enumerate(group) if not rollout.is_greedy]
    if len(group) == 1:
        return [await _against_answer(judge, group[0], asker)]
    pairs = round_robin(len(samples), judge.options.opponents, seed=group[0][0].id)
    meetings = [Meeting(samples[first], samples[second]) for first, second in pairs]
    for index in set(range(len(group))) - set(samples):
        others = samples or [other for other in range(len(group)) if other != index]
        meetings += [Meeting(index, other, for_first=True) for other in others[: judge.options.opponents]]
    outcomes = await asyncio.gather(
        *(_result(judge, (group[meeting.first], group[meeting.second]), asker) for meeting in meetings)
    )
    results: list[list[float]] = [[] for _ in group]
    problems: list[NoVerdictError | None] = [None] * len(group)
    for meeting, result in zip(meetings, outcomes, strict=True):
        for player in (meeting.first,) if meeting.for_first else (meeting.first, meeting.second):
            if isinstance(result, NoVerdictError):
                problems[player] = result
            else:
                results[player].append(result if player == meeting.first else 1 - result)
    return [_mean(own, problem) for own, problem in zip(results, problems, strict=True)]


def _mean(results: Sequence[float], problem: NoVerdictError | None) -> Found:
    if results:
        return Score(sum(results) / len(results))
    reason = "it was compared with no other response" if problem is None else problem.detail
    status = RewardStatus.MISSING if problem is None else problem.status
    return NoVerdictError(f"none of its comparisons has a result: {reason}", status)


async def _result(judge: Judge, items: tuple[Item, Item], asker: Asker) -> float | NoVerdictError:
    try:
        return await compare(judge, items, asker)
    except NoVerdictError as error:
        return error


async def _against_answer(judge: Judge, item: Item, asker: Asker) -> Found:
    prompt, rollout = item
    if not isinstance(prompt.answer, str) or not prompt.answer.strip():
        return NoVerdictError(
            "it is alone in its group, and its row has no answer to compare it with", RewardStatus.MISSING
        )
    result = await _result(judge, (item, (prompt, replace(rollout, response=prompt.answer))), asker)
    return result if isinstance(result, NoVerdictError) else Score(result)
