"""Misspelt words: the nearest known word, for error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Find the known word most similar to this one, ignoring case; None if none is similar."""
    folded = {choice.casefold(): choice for choice in known}
    near = difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=0.6)
    return folded[near[0]] if near else None


def did_you_mean(word: str, known: Iterable[str], then: str = "", *, before: str = "") -> str:
    """`did you mean 'x'?` with the nearest known word, if one is near, and `then`.

    `before` is put in front of the word, such as the folder of a file name.
    """
    near = nearest(word, known)
    return f"did you mean {before + near!r}? {then}".rstrip() if near else then


def suggestion(word: str, known: Iterable[str]) -> str:
    """Remedy for a misspelt word: the nearest known one, and the list of all."""
    names = list(known)
    if not names:
        return "there is nothing to choose from; remove it"
    return did_you_mean(word, names, f"known: {', '.join(names)}")
