"""Find the final answer in a worked solution.

Places are tried in this order: the last `\\boxed{}`, the last `####`, the last "answer is", the whole response if it is
only an answer, the last formula or number. The first one found decides, right or wrong, so that a response cannot hedge
with several answers.
"""

from __future__ import annotations

import re

from burnish.rewards.builtins.numbers import DECIMAL

_BOXED = re.compile(r"\\(?:boxed|fbox)\s*(\{|[^\s{])")
_HASH = re.compile(r"####[ \t]*([^\n]+)")
# Repeats are bounded, and formulas may not contain their own opening sign. Otherwise some responses would make these
# expressions take quadratic time or worse.
_PHRASE = re.compile(
    r"\banswers?\b[*_]{0,3}\s{0,3}(?:is|are|equals|was|=|:)[*_]{0,3}\s{0,3}:?[*_]{0,3}\s{0,3}(?=\S)", re.IGNORECASE
)
_FORMULA = re.compile(
    r"\$\$([^$]+)\$\$|(?<![\\$])\$([^$\n]+?)(?<!\\)\$|\\\(((?:(?!\\\().)+?)\\\)|\\\[((?:(?!\\\[).)+?)\\\]", re.DOTALL
)
_NUMBER_IN_TEXT = re.compile(
    rf"(?<![\w.\\])(?P<sign>(?<![\w)\]}}])[-−]\s?)?\$?(?P<body>\\[dt]?frac\{{-?\d+\}}\{{\d+\}}|"
    rf"(?:{DECIMAL})(?:\s*/\s*\d+(?![\d/]))?)(?P<percent>\s?\\?%)?"
)
_PROSE = re.compile(r"(?<![\\A-Za-z{])(?!(?:pi|sin|cos|tan|cot|sec|csc|log|ln|exp|sqrt|mod)\b)[A-Za-z]{2,}")
_LISTED = re.compile(r",?\s+(?:and|or)\s+")
_SENTENCE_END = re.compile(r"(?<!\d)[.!?](?:\s|$)|(?<=\d)[.!?](?:\s|$)|\n")
SHORT_ANSWER = 200


def boxed(text: str) -> str | None:
    """Content of the last `\\boxed{...}`, with balanced braces (or of `\\boxed 5`); None without one."""
    matches = list(_BOXED.finditer(text))
    if not matches:
        return None
    match = matches[-1]
    if match[1] != "{":
        return match[1]
    depth = 0
    for position in range(match.end() - 1, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0) if text[position - 1] != "\\" else 0
        if depth == 0:
            return text[match.end() : position].strip()
    return text[match.end() :].strip()  # the response was cut off before the closing brace


def hashed(text: str) -> str | None:
    """The rest of the line after the last `####`, the convention of GSM8K; None without one."""
    found = _HASH.findall(text)
    return found[-1].strip() if found else None


def phrased(text: str) -> str | None:
    """The rest of the sentence after the last "answer is" or "answer:", or the formula or number in it, if any."""
    matches = list(_PHRASE.finditer(text))
    if not matches:
        return None
    rest = text[matches[-1].end() :].strip()
    formula = _FORMULA.match(rest)
    if formula is not None:
        return _content(formula)
    sentence = _LISTED.sub(", ", _SENTENCE_END.split(rest, maxsplit=1)[0].strip(" .*"))
    if _PROSE.search(sentence):
        formulas = list(_FORMULA.finditer(sentence))
        return _content(formulas[-1]) if formulas else first_number(sentence) or sentence
    return sentence


def whole(text: str) -> str | None:
    """The response itself, if it is short and contains no prose: `72`, `3/4`, `x = 5`, `(3, \\frac{\\pi}{2})`."""
    text = text.strip()
    if not text or len(text) > SHORT_ANSWER or "\n" in text:
        return None
    bare = _LISTED.sub(", ", re.sub(r"\\(?:text|mbox|mathrm)\s*\{[^{}]*\}", "", text))
    return None if _PROSE.search(bare) else text


def last(text: str) -> str | None:
    """The last number in a text, or the formula that contains it."""
    numbers = list(_NUMBER_IN_TEXT.finditer(text))
    if not numbers:
        return None
    final = numbers[-1]
    for formula in _FORMULA.finditer(text):
        if formula.start() <= final.start("body") < formula.end() and not _PROSE.search(_content(formula)):
            return _content(formula)
    return _number(final)


def first_number(text: str) -> str | None:
    """The first number in a text; None without one."""
    match = _NUMBER_IN_TEXT.search(text)
    return None if match is None else _number(match)


def _number(match: re.Match[str]) -> str:
    return f"{'-' if match['sign'] else ''}{match['body'].rstrip('.,')}{'%' if match['percent'] else ''}"


def _content(formula: re.Match[str]) -> str:
    return next(group for group in formula.groups() if group is not None).strip()
