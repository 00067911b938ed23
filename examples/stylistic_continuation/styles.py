"""The two rules that replace annotators, also rewards: `examples/stylistic_continuation/styles.py:sentiment`."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

WORD_LIST = Path(__file__).with_name("descriptive_words.txt")


def descriptiveness(response: str) -> float:
    """Share of the words that are in descriptive_words.txt, 0 to 1; 0 for a text without words."""
    words = re.findall(r"[a-z]+", response.lower())
    return sum(word in _descriptive_words() for word in words) / max(1, len(words))


def sentiment(response: str) -> float:
    """VADER's compound score, -1 to 1 (Hutto & Gilbert 2014, https://doi.org/10.1609/icwsm.v8i1.14550)."""
    return float(_analyzer().polarity_scores(response)["compound"])


@cache
def _descriptive_words() -> frozenset[str]:
    lines = WORD_LIST.read_text(encoding="utf-8").splitlines()
    return frozenset(word for line in lines if not line.startswith("#") for word in line.split())


@cache
def _analyzer() -> SentimentIntensityAnalyzer:
    from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

    return SentimentIntensityAnalyzer()


STYLES = {"sentiment": sentiment, "descriptiveness": descriptiveness}
