"""Sentiment of a response by VADER (Hutto & Gilbert 2014, https://doi.org/10.1609/icwsm.v8i1.14550).

It needs a package: `pip install vaderSentiment`. In a run file:

    rewards: examples/rewards/sentiment.py:sentiment
"""

from __future__ import annotations

import re

from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

_ANALYZER = SentimentIntensityAnalyzer()


def sentiment(response: str, last_sentences: int | None = None) -> float:
    """VADER's compound score, from -1 to 1, of the whole response or of its last sentences only."""
    text = response if last_sentences is None else ending(response, last_sentences)
    return float(_ANALYZER.polarity_scores(text)["compound"])


def ending(text: str, sentences: int) -> str:
    """The last sentences of a text; a sentence ends in `.`, `!` or `?` (with closing quotes) or at the text's end."""
    found = re.findall(r"[^.!?]+[.!?]*[\"'”’)]*", text.strip())
    return "".join(found[-sentences:]).strip()
