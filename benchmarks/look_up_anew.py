"""The tool of `peers/look_up.py` with answers that are never the same, so that remembering them does not help."""

from __future__ import annotations

import secrets

from workloads import FIRST_SPOKEN_WORD, MODELS, WORKLOADS

WORKLOAD = WORKLOADS["W8"]


def look_up(words: str) -> str:
    """Look up words.

    Args:
        words: Words, apart by blanks.
    """
    assert WORKLOAD.turns is not None
    known = MODELS[WORKLOAD.model].vocabulary - FIRST_SPOKEN_WORD
    # Not `random`, which gives all samples of a group the same numbers.
    found = (secrets.randbelow(known) for _ in range(WORKLOAD.turns.answered))
    return " ".join(f"w{FIRST_SPOKEN_WORD + number}" for number in found)
