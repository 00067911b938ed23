"""Misspelt words: the nearest known one, for every message that names one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word most like this one, in whatever case, or None when none is like it."""
    folded = {choice.casefold(): choice for choice in known}
    near = difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=0.6)
    return folded[near[0]] if near else None


def did_you_mean(word: str, known: Iterable[str], *, before: str = "") -> str:
    """`did you mean 'x'?` for the nearest known word, or nothing when none is near. `before`: what the known words
    leave out, such as the folder of file names."""
    near = nearest(word, known)
    return f"did you mean {before + near!r}?" if near else ""


def suggestion(word: str, known: Iterable[str]) -> str:
    """The remedy for a misspelt word: the nearest known one, and all of them."""
    names = list(known)
    if not names:
        return "there is none to choose from; remove it"
    return f"{did_you_mean(word, names)} known: {', '.join(names)}".lstrip()
