"""A reward that costs nothing and differs between the responses of a group."""

from __future__ import annotations


def score(response: str) -> float:
    """The last digit of the first word's number, over 10."""
    words = response.split(maxsplit=1)
    return int(words[0][-1]) / 10 if words else 0.0
