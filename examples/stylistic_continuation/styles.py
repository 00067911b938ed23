"""A rule that replaces annotators, also a reward: `examples/stylistic_continuation/styles.py:descriptiveness`."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

WORD_LIST = Path(__file__).with_name("descriptive_words.txt")


def descriptiveness(response: str) -> float:
    """Share of the words that are in descriptive_words.txt, 0 to 1; 0 for a text without words."""
    words = re.findall(r"[a-z]+", response.lower())
    return sum(word in _descriptive_words() for word in words) / max(1, len(words))


@cache
def _descriptive_words() -> frozenset[str]:
    lines = WORD_LIST.read_text(encoding="utf-8").splitlines()
    return frozenset(word for line in lines if not line.startswith("#") for word in line.split())
