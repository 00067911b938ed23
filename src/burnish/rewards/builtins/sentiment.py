"""Sentiment of a response by VADER (Hutto & Gilbert 2014, https://doi.org/10.1609/icwsm.v8i1.14550)."""

from __future__ import annotations

import re

from burnish.errors import ConfigError, RewardError


class Sentiment:
    """VADER's compound score, from -1 to 1, of the whole response or of its last sentences."""

    def __init__(self, part: str = "all", sentences: int = 2) -> None:
        if part not in ("all", "ending"):
            raise ConfigError(f"option part of reward 'sentiment' is {part!r}", remedy="use all or ending")
        if sentences < 1:
            raise ConfigError(f"option sentences of reward 'sentiment' is {sentences}", remedy="use at least 1")
        try:
            from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer
        except ImportError as error:
            raise RewardError(
                "reward 'sentiment' needs the package vaderSentiment", remedy="pip install 'burnish[sentiment]'"
            ) from error
        self._analyzer = SentimentIntensityAnalyzer()
        self._sentences = sentences if part == "ending" else None

    def __call__(self, response: str) -> float:
        text = response if self._sentences is None else ending(response, self._sentences)
        return float(self._analyzer.polarity_scores(text)["compound"])


def ending(text: str, sentences: int) -> str:
    """The last sentences of a text; a sentence ends in `.`, `!` or `?` (with closing quotes) or at the text's end."""
    found = re.findall(r"[^.!?]+[.!?]*[\"'”’)]*", text.strip())
    return "".join(found[-sentences:]).strip()
