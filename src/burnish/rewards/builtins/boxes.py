"""Answers in `\\boxed{}`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from burnish.rewards.builtins import answer_words as words
from burnish.rewards.builtins.stated_values import FORMULA, Statement
from burnish.rewards.builtins.units import SCALES

_BOXED = re.compile(r"\\(?:boxed|fbox|framebox)\s*(\{|[^\s{])")
_BETWEEN_BOXES = re.compile(r"[\s$\\()]*(?:,|and|or|,\s*(?:and|or))[\s$\\()]*(?:[a-z]\s*=\s*)?")
# What changes the value of a box within a formula: `-\boxed{3}`, `\frac{1}{\boxed{3}}`, `\boxed{3}\frac12`.
_GLUED_BEFORE = re.compile(
    r"(?:[-+*/^\d]|\\(?:times|cdot|div|pm|mp|sqrt)|(?:\\(?:sqrt|[dt]?frac(?:\s*\{[^{}]*\})?)\s*|\^)\{)\s*$"
)
_GLUED_BEHIND = re.compile(
    r"\s*(?:\^|!|[-+*/](?=\s*[\w\\({])|[.,]?\d|[a-zA-Z](?![A-Za-z])"
    r"|\\(?:[dt]?frac|sqrt|pi|times|cdot|div|pm|mp)(?![A-Za-z]))"
)
_SCALE_BEHIND = re.compile(rf"[ $\\)\]]*(?:\\text\{{\s*)?({'|'.join(SCALES)})(?![A-Za-z])")
_DENIED_BOX = re.compile(rf"(?:{words.DENIED.pattern}|{words.CONTRAST})[ \t$\\(]*$", re.IGNORECASE)


def boxed(text: str) -> Statement | None:
    """The content of the last `\\boxed{...}` that is closed (or of `\\boxed 5`), with what is written around it in a
    formula; of several in a row all of them."""
    ends = _ends_of_braces(text)
    found = [_in_box(text, match, ends) for match in _BOXED.finditer(text)]
    boxes = [box for box in found if box is not None and box[1]]
    stated = [box for box in boxes if not _DENIED_BOX.search(text, max(0, box[0] - 30), box[0])]
    stated = [box for box in stated if not words.DENIED_BEHIND.match(text[box[2] : box[2] + 40].lstrip("$\\)]}"))]
    if not stated:
        return Statement(None) if boxes or None in found else None
    begins, content, end = stated.pop()
    said = [_in_formula(text, begins, content, end)]
    for start, content, end in reversed(stated):
        if end > begins or not _BETWEEN_BOXES.fullmatch(text, end, begins):
            break
        said.insert(0, content)
        begins = start
    return Statement(", ".join(said))


def _in_formula(text: str, begins: int, content: str, end: int) -> str:
    """Read a box together with its formula: `-\\boxed{3}` is -3, `\\boxed{3}` million is 3 million."""
    formula = next((found for found in FORMULA.finditer(text) if found.start() < begins < found.end()), None)
    if formula is None:
        before = re.split(r"[\s=:$]", text[max(0, begins - 40) : begins])[-1].strip("*_")
        behind = re.split(r"[\s=;$]", text[end : end + 40])[0].strip("*_").rstrip(".,!?)")
    else:
        opened, closed = formula.span(formula.lastindex or 0)
        before = re.split(r"\\\\|&", text[opened:begins])[-1]
        behind = re.split(r"\\\\|&", text[end:closed])[0]
    if _GLUED_BEFORE.search(before) or _GLUED_BEHIND.match(behind):
        return f"{before}{content if content.isdigit() else f'({content})'}{behind}"
    scale = _SCALE_BEHIND.match(text, end)
    return content if scale is None else f"{content} {scale[1]}"


def _in_box(text: str, match: re.Match[str], ends: Mapping[int, int]) -> tuple[int, str, int] | None:
    """Return the beginning, content and end of a box; None if the response was cut off before its end."""
    if match[1] != "{":
        return match.start(), match[1], match.end()
    end = ends.get(match.end() - 1)
    return None if end is None else (match.start(), text[match.end() : end].strip(), end + 1)


def _ends_of_braces(text: str) -> dict[int, int]:
    """Map the position of each opening brace to the position of its closing brace."""
    opened: list[int] = []
    ends = {}
    for position, letter in enumerate(text):
        if letter in "{}" and text[position - 1 : position] != "\\":
            if letter == "{":
                opened.append(position)
            elif opened:
                ends[opened.pop()] = position
    return ends
