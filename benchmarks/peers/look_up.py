"""A tool that costs nothing, with an answer whose length is known. Standard library only: both sides call it."""

from __future__ import annotations

from workloads import FIRST_SPOKEN_WORD, MODELS, WORKLOADS

WORKLOAD = WORKLOADS["W8"]


def look_up(words: str) -> str:
    """Look up words.

    Args:
        words: Words, apart by blanks.
    """
    assert WORKLOAD.turns is not None
    known = MODELS[WORKLOAD.model].vocabulary - FIRST_SPOKEN_WORD
    numbers = [int(word[1:]) for word in words.split()]
    found = (sum(numbers) + place for place in range(WORKLOAD.turns.answered))
    return " ".join(f"w{FIRST_SPOKEN_WORD + number % known}" for number in found)
