"""The two rules that stand in for annotators, as rewards: `examples/stylistic_continuation/styles.py:descriptiveness`."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

_WORDS = (
    # colours, light
    """red blue green yellow orange purple pink brown black white gray golden silver colorful bright dark shiny sparkly
    sparkling pale glowing"""
    # size, shape, age
    """ big small little tiny huge large tall short long wide thin thick round flat deep high low old new young fat giant
    heavy light empty full"""
    # touch, temperature
    """ soft hard smooth rough fluffy furry fuzzy sharp wet dry sticky slippery warm hot cold cool icy hairy muddy dusty
    clean dirty"""
    # sound, smell, taste
    """ loud quiet noisy silent sweet sour bitter salty tasty yummy delicious juicy spicy smelly fresh ripe"""
    # look and weather
    """ pretty beautiful ugly lovely nice cute fancy sunny rainy cloudy windy stormy snowy foggy strange funny silly broken
    strong weak fast slow brave gentle"""
    # sense verbs
    """ saw see sees looked look looks heard hear hears smelled smell smells felt feel feels tasted taste tastes touched
    touch watched watch listened shining twinkled sparkled glowed"""
)
DESCRIPTIVE_WORDS = frozenset(_WORDS.split())
"""Our own list: adjectives of the five senses and of size, and verbs of perceiving, as small stories use them."""


def descriptiveness(response: str) -> float:
    """Share of the words that are in DESCRIPTIVE_WORDS, 0 to 1; 0 for a text without words."""
    words = re.findall(r"[a-z]+", response.lower())
    return sum(word in DESCRIPTIVE_WORDS for word in words) / max(1, len(words))


def sentiment(response: str) -> float:
    """VADER's compound score, -1 to 1 (Hutto & Gilbert 2014, https://doi.org/10.1609/icwsm.v8i1.14550)."""
    return float(_analyzer().polarity_scores(response)["compound"])


@cache
def _analyzer() -> SentimentIntensityAnalyzer:
    from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

    return SentimentIntensityAnalyzer()


STYLES = {"sentiment": sentiment, "descriptiveness": descriptiveness}
