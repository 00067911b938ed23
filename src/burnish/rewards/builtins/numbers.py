"""Plain numbers as people and models write them, as exact fractions, without computer algebra.

`read_number` reads `72`, `-1,234.50`, `$18`, `18 dollars`, `5%`, `3/4`, `1 1/2`, `\\frac{3}{4}`, `145.0`, `x = 7`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

DECIMAL = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d*)?|\.\d+"
_INTEGER = r"\d+"
_FRACTION_TEX = (
    r"\\[dtc]?frac\s*(?:\{\s*(?P<top>-?\d+)\s*\}|(?P<top1>\d))\s*(?:\{\s*(?P<bottom>\d+)\s*\}|(?P<bottom1>\d))"
)
_CURRENCY = r"(?:\\?\$|€|£|¥|₹|USD\s)"
_UNIT = r"(?P<unit>\\?%|percent\b|\^?\s*\\circ|°|[A-Za-z][A-Za-z.²³]+(?:[ /-][A-Za-z][A-Za-z.²³]*){0,5})?"

_NUMBER = re.compile(
    rf"""^(?P<sign>[-+−])?\s*{_CURRENCY}?\s*(?P<sign2>[-−])?\s*
    (?: (?P<whole>{_INTEGER})\s+(?P<mixed_top>{_INTEGER})\s*/\s*(?P<mixed_bottom>{_INTEGER})
      | (?P<tex_whole>{_INTEGER})?\s*{_FRACTION_TEX}
      | (?P<ratio_top>{DECIMAL})\s*/\s*(?P<ratio_bottom>{DECIMAL})
      | (?P<decimal>{DECIMAL})(?P<exponent>[eE][-+]?\d{{1,3}})?
    )\s*{_UNIT}\s*\.?$""",
    re.VERBOSE,
)
_NAME_EQUALS = re.compile(r"^\s*\\?[A-Za-z][A-Za-z_ ]{0,30}\s*(?:=|\\approx|≈)\s*")
_NOT_A_UNIT = {"and", "or", "to", "by", "times", "plus", "minus", "over", "is", "mod", "pi", "sqrt", "i"}
MAX_DIGITS = 400  # characters; a longer text is not a plain number


@dataclass(frozen=True, slots=True)
class Number:
    """An exact value. `percent`: whether it was written with a percent sign."""

    value: Fraction
    percent: bool = False


def read_number(text: str) -> Number | None:
    """The number, if the whole text is one number, ignoring currency, unit and `name =`; else None."""
    text = _NAME_EQUALS.sub("", plain(text))
    match = _NUMBER.match(text) if len(text) <= MAX_DIGITS else None
    if match is None:
        return None
    unit = match["unit"] or ""
    if not _NOT_A_UNIT.isdisjoint(re.split(r"[ /-]", unit.lower())):
        return None
    value = _value(match)
    if value is None:
        return None
    negative = (match["sign"] in ("-", "−")) != (match["sign2"] is not None)
    return Number(-value if negative else value, percent="%" in unit or unit.startswith("percent"))


def same(gold: Number, other: Number) -> bool:
    """Equality of numbers: exact for integers, else to six decimals (or six digits if smaller than one).

    A percent sign may be missing on one side, and 5% may be written as 0.05.
    """
    if _close(gold.value, other.value):
        return True
    if gold.percent == other.percent:
        return False
    if gold.percent:
        return _close(gold.value / 100, other.value)
    return _close(gold.value, other.value / 100)


def plain(text: str) -> str:
    """Remove what typesetting adds to a number: math delimiters, spacing, bold, text boxes around units."""
    text = text.strip().strip("*_`").strip()  # Markdown's bold, italic and code
    for left, right in (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")):
        if text.startswith(left) and text.endswith(right) and len(text) >= len(left) + len(right) + 1:
            text = text[len(left) : -len(right)].strip()
    text = re.sub(r"(?<=\d)\s*(?:\{,\}|\\[,!;]\s*,?|,\\!)\s*(?=\d{3}(?!\d))", "", text)
    text = re.sub(r"\\(?:text|mbox|mathrm|textbf|mathbf)\s*\{([^{}]*)\}", r" \1 ", text)
    text = re.sub(r"\\[,!;: ]|~", " ", text)
    text = re.sub(r"\^\s*\{\s*(\\circ)\s*\}", r"^\1", text)
    return re.sub(r"\s+", " ", text).strip()


def _value(match: re.Match[str]) -> Fraction | None:
    groups = match.groupdict()
    if groups["whole"] is not None:
        return _ratio(groups["mixed_top"], groups["mixed_bottom"], groups["whole"])
    if groups["ratio_top"] is not None:
        return _ratio(groups["ratio_top"], groups["ratio_bottom"])
    if groups["decimal"] is not None:
        return Fraction(_digits(groups["decimal"]) + (groups["exponent"] or ""))
    top = groups["top"] or groups["top1"]
    return _ratio(top, groups["bottom"] or groups["bottom1"], groups["tex_whole"] or "0")


def _ratio(top: str, bottom: str, whole: str = "0") -> Fraction | None:
    divisor = Fraction(_digits(bottom))
    return None if divisor == 0 else Fraction(whole) + Fraction(_digits(top)) / divisor


def _digits(text: str) -> str:
    text = text.replace(",", "").rstrip(".")
    return f"0{text}" if text.startswith(".") else text


def _close(gold: Fraction, other: Fraction) -> bool:
    if gold == other:
        return True
    if gold.denominator == 1 and other.denominator == 1:
        return False
    return abs(gold - other) <= Fraction(1, 1_000_000) * min(Fraction(1), abs(gold))
