"""Six rewards for one task (put the letters of the prompt in order), one for each form that a reward may have.

The parameter names of a reward say what it wants; docs/rewards.md lists them all.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from burnish.types import Score


def solved(response: str, answer: str) -> float:
    """The plain form: one response per call, one number back."""
    return float(response == answer)


def overlap(responses: list[str], answers: list[str]) -> list[float]:
    """Batched: `responses` instead of `response` makes it one call per step, which returns one number per response.

    The share of the answer's letters that the response has, in any order; an extra letter costs as much as a wrong one.
    """
    return [
        _shared_letters(response, answer) / max(len(response), len(answer))
        for response, answer in zip(responses, answers, strict=True)
    ]


async def judged(response: str, answer: str) -> float:
    """Asynchronous: many are awaited at once, which suits calls to a service over the network.

    Here the service is a pause; it accepts a response whose letters never step back.
    """
    await asyncio.sleep(0.001)
    return float(len(response) == len(answer) and list(response) == sorted(response))


class Brief:
    """A class: built once in each worker with the `options` of the run file, then called like a function."""

    def __init__(self, longest: int, cost: float = 0.1) -> None:
        self.longest = longest
        self.cost = cost

    def __call__(self, num_tokens: int) -> float:
        """Every token beyond `longest` costs. Tokens, not letters, because some tokens leave no letter in the text."""
        return -self.cost * max(0, num_tokens - self.longest)


def prefix(response: str, answer: str, num_tokens: int) -> Score:
    """Dense: one number for each token of the response, so that credit goes to the letter that earned it.

    Each right letter earns its share of 1, up to the first wrong one. One character is one token of this model.
    """
    right = next((i for i, letter in enumerate(answer) if response[i : i + 1] != letter), len(answer))
    token_rewards = tuple(1 / len(answer) if position < right else 0.0 for position in range(num_tokens))
    return Score(sum(token_rewards), token_rewards=token_rewards)


def details(response: str, answer: str, truncated: bool) -> Score:
    """With parts: only the value trains; the parts are logged, as `reward/part/details/length` and so on."""
    parts = {
        "length": float(len(response) == len(answer)),
        "letters": float(Counter(response) == Counter(answer)),
        "ended": float(not truncated),
    }
    return Score(sum(parts.values()) / len(parts), parts=parts)


def _shared_letters(response: str, answer: str) -> int:
    return (Counter(response) & Counter(answer)).total()
