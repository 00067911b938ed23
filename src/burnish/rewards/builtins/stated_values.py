"""Values as a text states them: the end of a formula, an expression or a list of them, with its unit."""

from __future__ import annotations

import re
from dataclasses import dataclass

from burnish.rewards.builtins import answer_words as words
from burnish.rewards.builtins.expressions import MATH_WORDS
from burnish.rewards.builtins.units import SCALES, UNITS


@dataclass(frozen=True, slots=True)
class Statement:
    """A place that says what the answer is. answer: None if it names no single one."""

    answer: str | None


# A formula may not contain its own opening sign: finding the end of many would take quadratic time.
FORMULA = re.compile(
    r"\$\$(.+?)\$\$|(?<![\\$])\$((?:\\\$|[^$\n])+?)(?<![\\=+*/-])(?<![=+*/-]\s)\$(?!(?<=\s\$)\d)|\\\(((?:(?!\\\().)+?)\\\)|\\\[((?:(?!\\\[).)+?)\\\]"
    r"|(\\begin\{(?P<display>align\*?|gather\*?|equation\*?)\}(?:(?!\\begin).)+?\\end\{(?P=display)\})",
    re.DOTALL,
)
DECIMAL = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+"
_SHORT_WORDS = (
    "is|an|of|in|or|to|by|so|as|at|if|we|he|it|on|no|be|do|my|up|us|am|pm|st|nd|rd|th|not|but|and|the|for|per|are|was"
    "|has|had|her|his|its|she|you|our|all|any|one|two|six|ten|out|off|get|got|let|can|may|now|yes|each"
)
_LETTERS = rf"(?<![A-Za-z\\])(?!(?:{_SHORT_WORDS})\b)[A-Za-z]{{2,3}}(?![A-Za-z])"
# Letters side by side are a product next to a digit, a bracket or a sign, or alone: `2ab`, `mx + 2`, `$ab$`.
_ATTACHED = (
    rf"(?<=[\d)}}\]])(?!(?:st|nd|rd|th|am|pm|{'|'.join(filter(str.isalpha, UNITS))})(?![A-Za-z]))"
    r"[A-Za-z]{2,3}(?![A-Za-z])"
)
_BEFORE_OPERATOR = (
    rf"{_LETTERS}(?=(?:\s?[+*/=^_]\s?|\s-\s|-)(?![A-Za-z]{{3}})[\dA-Za-z({{\\])"  # not `es -5`, `dix-sept`
)
_PRODUCT_IN_TEXT = re.compile(
    rf"\A{_LETTERS}\Z|{_ATTACHED}|(?:(?<=[+*/=^_(-])|(?<=[+*/=(-]\s)){_LETTERS}|{_BEFORE_OPERATOR}"
)
_PROSE = re.compile(
    rf"(?<![\\A-Za-z{{])(?!(?:{'|'.join(sorted(MATH_WORDS))}|[cmdk]m|kg|m[gLl]|[A-Z]{{2,3}})\b)[A-Za-z]{{2,}}|[^\x00-\x7fα-ωΑ-Ω\W\d_°²³¹⁰-⁹₀-₉½¼¾]"
    r"|[⇒→∴\u2600-\u27bf\U0001f300-\U0001faff]"
)
_WORDS_IN_FORMULA = re.compile(r"\\(?:text|mbox|mathrm|textbf|operatorname|begin|end)\s*\{[^{}]*\}")
_LIST_SIGN = re.compile(rf"\s*(?:{words.AND})\s*", re.IGNORECASE)
_BRACKETED = re.compile(r"\s+\((?=[*+.-9×-]+%?\))")
_KINDS = {
    "clock": r"\d{1,2}:\d{2}\s?[apAP]\.?[mM]\b\.?",
    "matrix": r"\\begin\s*\{[a-zA-Z]*matrix\}.*?\\end\s*\{[a-zA-Z]*matrix\}",
    "share": r"\d+\s(?:out\sof|in)\s\d+(?![\d.,]?\d)",
    "ratio": r"\d+(?:\s:\s\d+|:\d+)+",
    "number": rf"\d{{1,3}}(?:[ \u00a0\u202f]\d{{3}})+(?!\d)|(?:{DECIMAL})(?:[eE][-+]?\d+)?|[½⅓⅔¼¾⅛⅜⅝⅞]",
    "words": r"\\(?:text|mbox|mathrm|textbf)\s*\{[^{}]*\}",
    "command": r"\\[A-Za-z]+|\\[%${},;!: \\]",
    "function": rf"(?:{'|'.join(sorted(MATH_WORDS))})(?![A-Za-z])",
    "sign": r"[-+*/^_=!%()\[\]{}|<>≤≥±×÷·√π∞∪∩°⁻²³⁰¹⁴⁵⁶⁷⁸⁹₀-₉−–&∈∛]|(?<!\d)'|[$€£¥₹](?=\s*[-\d.(\\])",
    "times": r"x(?=\s*\d)",
    "choice": r"[A-J](?=[で입])",
    "letter": r"[A-Za-zα-ω](?![^\W\d_²³¹⁰-⁹ⁿ₀-₉]|['’][^\W\d_]|\.[a-z]\b)",
}
"""Kinds of tokens of an expression within prose. Of two that match, the first counts."""
_TOKEN = re.compile(rf"\s*(?:{'|'.join(f'(?P<{kind}>{shape})' for kind, shape in _KINDS.items())})", re.DOTALL)
_WANTS_MORE = re.compile(r"[-+*/^_=(\[{<>×÷·−–]|\\(?:times|cdot|div|text|approx)")
_PRODUCT = re.compile(rf"\s*{_LETTERS}(?!\s*[A-Za-z]{{3}})")
_FIRST = re.compile(_BEFORE_OPERATOR)
_FACTOR = re.compile(rf"{_ATTACHED}(?<![A-Z][a-z])")
_UPPER = re.compile(r"(?:(?<!\d)\s+)?(?:[A-Z]{2,4}|(?![bm]y|th|st|[nr]d)[b-df-hj-np-tv-z]{2,3})(?![A-Za-z])")
# A single letter is a unit only behind a space: `5 m`, but not `5m`.
_UNIT_WORD = re.compile(
    r"\s*(?:per\b|%|°)|(?P<word>\s*/\s?[A-Za-z]+|\s+(?!in\s[a-z])[^\W\d_²³]+|[^\W\d_²³]{2,}|[^\W\d_a-zA-Z²³])(?:\^\{?\d\}?|[²³])?"
)
_OF_UNITS = ("square", "cubic", "squared", "cubed", "sq", "percent")
_SMALLER_UNIT = re.compile(r"\s+\d+(?:\.\d+)?(?=\s*[A-Za-z])")
_CLOCK_WORD = re.compile(r"\s*[ap]\.?\s?m\b\.?", re.IGNORECASE)


def values_at(text: str, limit: int) -> tuple[str, int]:
    """The values that a text begins with, with signs of a list between them, and where they end."""
    answers = joined = ""
    position = end = 0
    while (found := value_at(text, position, limit)) is not None:
        if answers and joined != " or " and _is_remark(found[0], answers, text[found[1] :]):
            break
        answers, end = f"{answers}{joined}{found[0]}", found[1]
        sign = _LIST_SIGN.match(text, end, max(end, limit))
        if sign is None or words.DENIED.match(text, sign.end()):
            break
        joined = " ≈ " if re.fullmatch(words.NEARLY, sign[0]) else " or " if "or" in sign[0] else ", "
        position = sign.end()
    return answers, end


def _is_remark(item: str, values: str, behind: str) -> bool:
    """Return whether an item behind values is a remark and no further value: `5, and 2 + 3 = 5`, `5, QED`."""
    word = item.isalpha() and (len(item) > 1 or re.match(r"\s+(?!(?:and|or)\b)[a-z]{2}", behind))
    return ("=" in item and "=" not in values) or bool(word and re.search(r"\d", values))


def value_at(text: str, start: int, end: int) -> tuple[str, int] | None:
    """An answer at a place of a sentence: a formula or an expression, with its unit; and where it ends."""
    space = len(text[start:]) - len(text[start:].lstrip())
    formula = FORMULA.match(text, start + space)
    if formula is not None and not has_prose(content_of(formula)):
        said, position = content_of(formula), formula.end()
    else:
        length = expression_end(text[start:end], end - start)
        if not length:
            return None
        said, position = text[start : start + length].strip(), start + length
    unit = _unit_end(text, position)
    while unit > position and (smaller := _SMALLER_UNIT.match(text, unit)) is not None:  # `3 hours 20 minutes`
        further = _unit_end(text, smaller.end())
        if further == smaller.end():
            break
        unit = further
    return f"{said} {text[position:unit].strip()}".rstrip(), unit


def expression_end(text: str, limit: int) -> int:
    """Return the length of the expression at the beginning of a text; 0 if there is none that has a digit, a sign or a
    command."""
    position, depth, last, telling = 0, 0, 0, False
    while position < limit:
        match = _next_token(text, position, limit, in_brackets=depth > 0)
        if match is None and depth and text[position] in ",; ":
            position += 1
            continue
        if match is None:
            break
        sign = match[0].strip()
        if sign in ("a", "A", "I", "s") and re.match(r"\s+[A-Za-z]{2}", text[match.end() :]) and not depth:
            break
        closed = sum(map(sign.count, ")]}"))
        if last and not depth and (closed or _BRACKETED.match(text, position)):
            break
        depth += sum(map(sign.count, "([{")) - closed
        position = match.end()
        telling = telling or not sign.isalpha() or len(sign) == 1 or sign.isupper() or sign in MATH_WORDS
        if depth <= 0 and not _WANTS_MORE.fullmatch(sign):
            last = position
    return last if telling and last and text[:last].strip(" -–'*_") else 0


def _next_token(text: str, position: int, limit: int, *, in_brackets: bool) -> re.Match[str] | None:
    """Read a token, or letters side by side that are a product, or the name of a point or a segment."""
    found = _TOKEN.match(text, position, limit) or (_PRODUCT if in_brackets else _UPPER).match(text, position, limit)
    return found or (_FACTOR if position else _FIRST).match(text, position)


def _unit_end(text: str, position: int) -> int:
    """The end of the words behind a value that say its unit or its scale."""
    clock = _CLOCK_WORD.match(text, position)
    if clock is not None:
        return clock.end()
    while (match := _UNIT_WORD.match(text, position)) is not None:
        word = (match["word"] or "square").strip(" /")
        if not any(known in table for known in (word, word.casefold()) for table in (SCALES, UNITS, _OF_UNITS)):
            break
        position = match.end()
    return position


def has_prose(text: str) -> bool:
    """Return whether a text has words that are neither names of functions nor products of letters."""
    return _PROSE.search(_LIST_SIGN.sub(", ", _PRODUCT_IN_TEXT.sub("1", _WORDS_IN_FORMULA.sub("", text)))) is not None


def content_of(formula: re.Match[str]) -> str:
    """The text between the signs of a formula."""
    return next(group for group in formula.groups() if group is not None).strip()
