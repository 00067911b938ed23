"""Boundaries of English sentences and words, by rules alone: no model, no download."""

from __future__ import annotations

import re

# fmt: off
_BEFORE_NAMES = {"mr", "mrs", "ms", "dr", "prof", "st", "rev", "gen", "col", "sgt", "capt", "lt", "gov", "sen", "vs"}
_BEFORE_NUMBERS = {
    "no", "nos", "vol", "fig", "eq", "p", "pp", "ch", "sec", "jan", "feb", "aug", "sept", "oct", "nov", "dec"
}
# fmt: on
# These end a sentence as often as not: the case of the next letter decides, as after e.g. and other single letters.
_EITHER = {"etc", "al", "cf", "inc", "ltd", "co", "corp", "jr", "sr", "approx", "dept", "est"}
# Matches only from the first mark of a run, so that a thousand dots take no longer than a thousand words.
_END = re.compile(r"(?<![.!?…])(?P<mark>[.!?…]++)[\"'”’»)\]*_]*+(?=\s|$)|[。！？]+[”’」』）]*")
_WORD = re.compile(r"\w")
_WORD_BEFORE = re.compile(r"[^\s\"'“‘(\[]*$")
_NEXT = re.compile(r"[\s\"'“‘«(\[*_]*(\w?)")
_LIST_MARKER = re.compile(r"(?:^|\n)[ \t]*\(?(?:\d{1,3}|[A-Za-z])$")
_LETTERS = re.compile(r"[a-z](?:\.[a-z])*")
_WINDOW = 40

_BETWEEN_WORDS = re.compile(r"[\s,;:?!()\[\]{}<>\"“”«»$%&@#…]+|--+|\.{2,}")
_CONTRACTION = re.compile(r"(?i)(?<=\w)(n['’]t|['’](?:s|m|d|ll|re|ve))$")


def count_sentences(text: str) -> int:
    """Count sentences: they end in `.`, `!`, `?` or `…` before white space, but not after an abbreviation, an initial
    or the number of a list. The end of a line does not end a sentence. Words left over at the end count as one."""
    count = start = 0
    for match in _END.finditer(text):
        if _WORD.search(text, start, match.start()) is None:
            start = match.end()
        elif _ends_sentence(text, match):
            count, start = count + 1, match.end()
    return count + (_WORD.search(text, start) is not None)


def words_as_printed(text: str) -> list[str]:
    """Words without the punctuation around them, contractions in two parts (`do`, `n't`), as in the Penn Treebank."""
    words = []
    for word in _BETWEEN_WORDS.split(text):
        bare = word.strip("'`‘’")
        bare = bare if "." in bare[:-1] else bare.rstrip(".")  # U.S. keeps its own
        found = _CONTRACTION.search(bare)
        words += [bare[: found.start()], found[1]] if found else [bare]
    return [word for word in words if word]


def _ends_sentence(text: str, match: re.Match[str]) -> bool:
    mark, before = match["mark"], text[max(0, match.start() - _WINDOW) : match.start()]
    if mark is None or "!" in mark or "?" in mark:
        return True
    following = _NEXT.match(text, match.end())
    first = following[1] if following else ""
    if mark != ".":  # dots, which may stand for a pause
        return not first.islower()
    found = _WORD_BEFORE.search(before)
    word = found[0].lower() if found else ""
    if word in _BEFORE_NAMES or _LIST_MARKER.search(before):
        return first == ""
    if word in _BEFORE_NUMBERS and first.isdigit():
        return False
    if len(word) == 1 and word.isalpha() and word != "i":  # an initial
        return first == ""
    return not (first.islower() and (word in _EITHER or _LETTERS.fullmatch(word)))
