"""Equality of two answers: numbers, formulas, units, lists, points, intervals, sets, matrices, words.

`equal` reads both texts into values of these kinds and compares values of the same kind. What cannot be read is equal
only to the same spelling.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

from burnish.rewards.builtins.expressions import (
    IMAGINARY,
    MATH_WORDS,
    Expression,
    UnreadableError,
    below,
    close,
    proportional,
    read_expression,
    same,
)
from burnish.rewards.builtins.number_words import in_digits, leading_number
from burnish.rewards.builtins.typography import spelling, tidy
from burnish.rewards.builtins.units import Unit, read_unit, split_unit

MAX_CHARACTERS = 2000
MAX_ITEMS = 200


@dataclass(frozen=True, slots=True)
class Words:
    """`as_written` keeps capital letters: `qV` may be the product of q and V."""

    text: str
    as_written: str = field(compare=False)


@dataclass(frozen=True, slots=True)
class Quantity:
    expression: Expression
    unit: Unit | None


@dataclass(frozen=True, slots=True)
class Named:
    """`x = value`."""

    name: str
    value: Value
    equation: Equation | None


@dataclass(frozen=True, slots=True)
class Equation:
    """Two sides, of which `difference` is left - right."""

    difference: Expression
    last: Value | None
    """The last side, if it is the value of the others: `2 + 3 = 5`, `m + n = 73`, `x^2 - 1 = (x - 1)(x + 1)`."""


@dataclass(frozen=True, slots=True)
class Relation:
    """`left < right` or `left <= right` in a chain that is not an interval."""

    sides: tuple[Value, ...]
    signs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Several:
    """Values whose order does not count: `1, 2`, `{1, 2}` (braces), `1 or 2`, a union of intervals (union)."""

    values: tuple[Value, ...]
    kind: str


@dataclass(frozen=True, slots=True)
class Ordered:
    """A point, an interval or a vector, with its brackets."""

    opening: str
    values: tuple[Value, ...]
    closing: str


@dataclass(frozen=True, slots=True)
class Matrix:
    rows: tuple[tuple[Value, ...], ...]
    kind: str


@dataclass(frozen=True, slots=True)
class Clock:
    minutes: int
    half: str


@dataclass(frozen=True, slots=True)
class Ratio:
    """`3:2`, which is not reduced; `17:00` may also be a time of day."""

    parts: tuple[str, ...]

    def as_clock(self) -> Clock | None:
        """The time of day in hours and minutes; None if it is not one."""
        hour, minute = (*self.parts, "", "")[:2]
        if len(self.parts) != 2 or len(minute) != 2 or int(hour) > 23 or int(minute) > 59:
            return None
        return Clock(int(hour) % 12 * 60 + int(minute), "p" if int(hour) >= 12 else "a")


Value = Words | Quantity | Named | Equation | Relation | Several | Ordered | Matrix | Clock | Ratio

_MATRIX = re.compile(
    r"(?P<factor>.*?)\\begin\s*\{(?P<kind>[pbBvV])?(?:small)?(?:matrix|array)\}(?:\{[^{}]*\})?(?P<rows>.*)"
    r"\\end\s*\{[pbBvV]?(?:small)?(?:matrix|array)\}(?P<transposed>\s*\^\s*\{?\s*(?:T|\\top|\"T\")\s*\}?)?",
    re.DOTALL,
)
_BUILDER = re.compile(r"\\\{\s*[A-Za-z]\s*(?:\\in\s*\(-\\infty,\\infty\)\s*)?(?:\\mid|:|\|)\s*(.*)\\\}", re.DOTALL)
_CLOCK = re.compile(r'^(\d{1,2})(?::(\d{2}))?\s*"?\s*([ap])\.?\s?m\.?\s*"?$', re.IGNORECASE)
_RATIO = re.compile(r"(?<![:\d])\d+(?:\s*:\s*\d+)+$")
_JOINED = re.compile(r"\s*[,;]\s*(?:and|or)\b|\s*[,;]|\s+(?:and|or)\s+|\s*\\(?:land|lor|text|vee|wedge)\b")
_NAME = re.compile(
    r"^(?!\\(?:sqrt|log|l[gn]|exp|sin|cos|tan)\()(?:\\?[A-Za-z]+(?:_\{?\w+\}?)?'*(?:\^\{?-1\}?(?=\())?"
    r"(?:\((?:[A-Za-z]|-?\d+)(?:,\s*(?:[A-Za-z]|-?\d+))*\))?|\([a-z](?:,\s*[a-z])+\)|\|[A-Z]\||\"[^\"]+\")$"
)
_LIMIT = re.compile(r"\\(?:lim|sum|int|prod|max|min)(?![a-z])\s*(?:_\s*\{[^{}]*\})?")
# One value that is asked for: a limit, a sum, a function, a size, a ratio of what is named.
_MEASURE = re.compile(
    r"(?:\\?[A-Za-z]{1,2}(?:_\{?\w+\}?)?(?:\s*\+\s*\\?[A-Za-z]{1,2}(?:_\{?\w+\}?)?)+|\\(?:sin|cos|tan|ln|angle)\s*\\?[A-Za-z]+"
    rf"|\|[A-Za-z]\|.*|-?\\frac\s*\{{[A-Za-z_\d{{}}]+\}}\s*\{{[A-Za-z_\d{{}}]+\}})$|{_LIMIT.pattern}"
)
# What has a value but is no formula: `1 + \\dots + 10 = 55`, `P(A \\cap B) = 1/6`, `E[X^2] = 3`.
_ASKED_FOR = re.compile(
    r"^(?!.*\\(?:approx|neq|to|implies))(?:[^,;]*\\[lc]?dots[^,;]*=(?!.*dots)"
    r'|(?:[PEV]|\\(?:Pr|det|max|min)|"[A-Za-z ]+")\s*(?!\W(?:[a-z]|\d+)[)\]])[(\[](?:[^()[\]]|\([^()]*\))+[)\]]\s*=)'
)
_NAME_IN = re.compile(r"^(\\?[A-Za-z](?:_\{?\w+\}?)?)\s*\\in\s*")
_ORDER = re.compile(r"(\\leq|\\geq|<|>)")
_ALL_BUT = re.compile(
    r"^(?:(?:[A-Za-z]\s*\\in\s*\(-\\infty,\\infty\)\s*[,:]?\s*)?[A-Za-z]\s*\\neq"
    r"|\(-\\infty,\\infty\)\s*(?:\\setminus|\\backslash|-)\s*\\\{)\s*((?:[^,{}]|\{[^{}]*\})+?)\s*(?:\\\})?$"
)
_FLIPPED = {">": "<", "\\geq": "\\leq"}
_REFUSED = re.compile(r"\\approx|\\neq|\\sim\b|\?|\\to\b|\\implies|\\dots|\\ldots|\\cdots")
_LABELLED = re.compile(
    r"(?:\\(?:text|textbf|mathrm)\s*\{\s*)?(?:\(?([A-J]|(?<=\()[a-e])\)|([A-J])[.:](?=[\s}]))\s*~?\s*\}?"
    r"(?:\\[ ,;]|~|\\q?quad\b|\s)*(-?\s*(?:[\d$]|\\(?!cup|cap|in\b|times)).*)",
    re.DOTALL,
)
_MODULUS = re.compile(r'(.+?)\s*\(?\s*(?:\\p?mod\b|"mod"|(?<=[( ])mod )\s*\{?\s*(\d+)\s*\}?\s*\)?$')
_NEXT_UNIT = re.compile(r'(?<=[A-Za-z"])\s+(?=\d)')
_LETTERS = re.compile(r"(?=.*[a-z])[A-Za-z]{2,6}")
"""A word that may be the product of its letters, if the other answer is one. Capitals alone may be an order."""
_FUNCTION = re.compile(rf"(?<![\\A-Za-z])(?:{'|'.join(sorted(MATH_WORDS))})(?![A-Za-z])")
_INFINITY = read_expression(r"\alpha_{infinity}")
_BASE = re.compile(r"^\(?((?=\w*\d[\dA-F]*\)?\s*_|[A-F]{2})[\dA-F]+)\)?\s*_\s*\{?\d+\}?$")
_NOTHING = frozenset(("no solution", "no solutions", "no real solution", "no real solutions", "empty set", "empty"))


def equal(gold: str, answer: str) -> bool:
    """True if an answer says the same as the gold one."""
    if max(len(gold), len(answer)) > MAX_CHARACTERS:
        return gold.strip() == answer.strip()
    bare = _without_label(gold, answer), _without_label(answer, gold)
    if same_words(gold, answer) or same_words(*bare):
        return True
    try:
        wanted, said = map(tidy, bare)
        if _BASE.sub(r"\1", wanted) == said or _same(read_value(wanted), read_value(said)):  # `1011` for `1011_2`
            return True
        # Degrees are the number that they are in radians, and letters that could be a unit are factors: `2\\pi hr`.
        return "\\" in wanted and "\\" in said and same(read_expression(wanted), read_expression(said))
    except (UnreadableError, RecursionError):
        return False


def same_words(gold: str, answer: str) -> bool:
    """Return whether an answer is the gold one letter by letter, but for what `tidy` and `spelling` leave out."""
    if max(len(gold), len(answer)) > MAX_CHARACTERS:
        return False
    first, second = tidy(gold), tidy(answer)
    is_words = '"' in first + second
    return spelling(first, is_words=is_words) == spelling(second, is_words=is_words) != ""


def _without_label(text: str, other: str) -> str:
    """Without the letter of a choice, `(A) 5`, or that letter alone if the other text is one. As it is if both have
    one."""
    labelled = _LABELLED.match(text)
    if labelled is None or _LABELLED.match(other) is not None:
        return text
    return (labelled[1] or labelled[2]) if re.fullmatch(r"\W*[A-J]\W*", other) else labelled[3]


def read_value(text: str) -> Value:
    """The value that a tidy text says. UnreadableError if it says none."""
    text = re.split(r"\\(?:implies|Rightarrow)(?![A-Za-z])|⇒", text)[-1].strip().strip(",;").strip()
    while text.startswith("{") and _closes(text, 1):
        text = f"\\{text[:-1]}\\}}" if len(_split(text[1:-1], _JOINED)) > 1 else text[1:-1].strip()
    if not text:
        raise UnreadableError("empty")
    text = _in_digits(text if '"' in text else _FUNCTION.sub(r"\\\g<0>", text))
    if (words := _words(text)) is not None:
        return Several((), "set") if words.text in _NOTHING else words
    if (short := _short(text)) is not None:
        return short
    if (modulus := _MODULUS.match(text)) is not None:
        return _rest_of(modulus[2], read_value(modulus[1]))
    text = re.sub(r"^(\d+) (?:out of|in) (\d+)$", r"\1/\2", text)
    text = _ALL_BUT.sub(r"(-\\infty,\1) \\cup (\1,\\infty)", text)
    text = re.sub(r"^[A-Z]\s*(?=\([^()]*,[^()]*\)$)", "", text)  # a point with its name
    text = _ASKED_FOR.sub("", text).strip()
    text = re.sub(r'^[(\[]([^()\[\]]*,[^()\[\]]*)[)\]]\s*\^\s*\{?\s*(?:T|\\top|"T")\s*\}?$', r"(\1)", text)
    text = _NAME_IN.sub("", re.sub(r'^(?:\\approx|"(?:about|approximately)")\s*', "", text))
    structured = _of_brackets(text) or _several(text) or _stated(text)
    if structured is not None:
        return structured
    return _both_signs(text) if "\\pm" in text or "\\mp" in text else _quantity(text)


def _in_digits(text: str) -> str:
    """The text with digits for the number in words that it begins with, if a unit or nothing follows."""
    if re.fullmatch(r"\d+ (?:out of|in) \d+", share := in_digits(text.replace('"', "").strip())):
        return share
    found = leading_number(text.replace('"', ""))
    if found is None or (found[1] and read_unit(found[1]) is None):
        return text
    return f"{found[0]} {found[1]}".strip()


def _short(text: str) -> Clock | Ratio | None:
    """A time of day or a ratio; None for anything else."""
    clock = _CLOCK.match(text.lstrip('" '))
    if clock is not None:
        return Clock(int(clock[1]) % 12 * 60 + int(clock[2] or 0), clock[3].lower())
    return Ratio(tuple(re.split(r"\s*:\s*", text))) if _RATIO.fullmatch(text) else None


def _rest_of(modulus: str, value: Value) -> Value:
    """`5 \\pmod 7`: a number whose unit is the modulus; `14 mod 5` is 4."""
    rest = value.value if isinstance(value, Named) else value.last if isinstance(value, Equation) else value
    if not isinstance(rest, Quantity):
        raise UnreadableError("a modulus of something else")
    number, expression = rest.expression.constant(), rest.expression
    if isinstance(number, Fraction) and number >= int(modulus) > 0 and number.denominator == 1:
        expression = read_expression(str(number % int(modulus)))
    return Quantity(expression, Unit(((f"mod {modulus}", 1),)))


def _words(text: str) -> Words | None:
    """Words alone, such as a name or `yes`."""
    bare = re.sub(r'[\s"]+', " ", text).strip()
    if bare in MATH_WORDS or re.search(r"^-|[\d\\^_=+*/<>{}|]", bare) or not re.search(r"[^\W\d_]{2}", bare):
        return None
    if '"' not in text and not re.fullmatch(r"(?:a\s(?=\w{3}))?[^\W\d_]{2,}(?:[\s.,;:!'-]+[^\W\d_]+)*[.!]?", bare):
        return None
    return Words(re.sub(r"^(?:an?|the)\s|[\s.,;:!'-]+", " ", bare.casefold()).strip(), bare)


def _both_signs(text: str) -> Several:
    plus = text.replace("\\pm", "+").replace("\\mp", "-")
    minus = text.replace("\\pm", "-").replace("\\mp", "+")
    return Several((_quantity(plus), _quantity(minus)), "list")


def _of_brackets(text: str) -> Value | None:
    """A matrix, a union, a point, an interval or a set; None for anything else."""
    if "\\begin" in text:
        return _matrix(text)
    parts = _split(text, re.compile(r"\s*\\(?:big)?cup\s*"))
    if len(parts) > 1:
        return Several(tuple(map(read_value, parts)), "union")
    if text == "\\emptyset" or re.fullmatch(r"\\\{\s*\\\}", text):
        return Several((), "set")
    builder = _BUILDER.fullmatch(text)
    if builder is not None:
        return read_value(builder[1])
    if text.startswith("\\{") and _closes(text, 2):
        items = _split(text[2:-2], _JOINED)
        return Several(_read_all(items), "set")
    if re.fullmatch(r"[\[\](][^\[\]]*[,;][^\[\]]*[\[\])]", text):  # `]1, 2[`, as in French
        text = f"{text[0].replace(']', '(')}{text[1:-1]}{text[-1].replace('[', ')')}"
    if text.startswith(("(", "[")) and text[-1] in ")]" and _closes(text, 1):
        items = _split(text[1:-1], re.compile(r"\s*[,;]\s*"))
        if len(items) > 1:
            return Ordered(text[0], _read_all(items), text[-1])
    return None


def _matrix(text: str) -> Value | None:
    """A matrix, or a number times a matrix; None for a matrix within something else."""
    before, _, after = text.rpartition("=")
    if "\\begin" in before and "\\begin" in after:  # the last side
        text = after.strip()
    match = _MATRIX.fullmatch(text)
    if match is None:
        return None
    factor = match["factor"].strip().removesuffix("\\cdot").strip()
    if "=" in factor or "," in factor or "\\begin" in match["rows"]:
        return None
    kind = {"v": "determinant", "V": "norm"}.get(match["kind"] or "", "matrix")
    rows = [row for row in re.split(r"\\\\", match["rows"].replace("\\hline", "")) if row.strip()]
    if not rows or len(rows) > MAX_ITEMS:
        raise UnreadableError("a matrix of an unusual size")
    if factor:
        factor = "-1" if factor == "-" else factor
        rows = ["&".join(f"({factor})({entry})" for entry in row.split("&")) for row in rows]
    entries = tuple(_read_all(row.split("&")) for row in rows)
    return Matrix(tuple(zip(*entries, strict=False)) if match["transposed"] else entries, kind)


def _several(text: str) -> Several | Quantity | Named | None:
    items = [item for item in _split(text, _JOINED) if item.strip()]
    if len(items) < 2:
        items = [] if "\\" in text else _NEXT_UNIT.split(text)
        return _sum_of_units(_read_all(items)) if 1 < len(items) <= 4 else None
    values = _read_all(items)
    if re.search(r"\bor\b|\\lor|\\vee", text) and ("\\infty" in text or _ORDER.search(text)):  # `x < 1 or x > 2`
        return Several(tuple(value.value if isinstance(value, Named) else value for value in values), "union")
    return _between(values) or _sum_of_units(values) or Several(values, "list")


def _between(values: Sequence[Value]) -> Named | None:
    """The interval between two bounds of one name: `x > 1 and x < 2`; None for others."""
    for pair in (values, values[::-1]):
        match pair:
            case (
                Named(name, Ordered(opening, (Quantity() as low, top), _)),
                Named(other, Ordered(_, (bottom, Quantity() as high), closing)),
            ) if name == other and _is_infinite(top) and _is_infinite(bottom):
                lettered = low.expression.names | high.expression.names
                if lettered or below(low.expression.constant(), high.expression.constant()):
                    return Named(name, Ordered(opening, (low, high), closing), None)
    return None


def _is_infinite(value: Value) -> bool:
    return isinstance(value, Quantity) and value.expression.names == _INFINITY.names


def _sum_of_units(values: Sequence[Value]) -> Quantity | None:
    """One quantity in units that become smaller: `5 dollars and 50 cents`, `3 hours 20 minutes`; None for others."""
    found = [value for value in values if isinstance(value, Quantity) and not value.expression.names]
    units = [value.unit for value in found if value.unit is not None and value.unit.dimensions]
    if not len(values) == len(found) == len(units) or len({unit.dimensions for unit in units}) > 1:
        return None
    numbers = [value.expression.constant() for value in found]
    falling = all(0 < small.factor < large.factor for large, small in pairwise(units))
    if not falling or not all(isinstance(number, Fraction) for number in numbers):
        return None
    total = sum(number * unit.factor * unit.scale for number, unit in zip(numbers, units, strict=True))
    return Quantity(read_expression(str(total / units[0].factor)), Unit(units[0].dimensions, units[0].factor))


def _stated(text: str) -> Value | None:
    """A relation (as an interval where it is one), an equation, or `name = value`; None without such a sign."""
    if _REFUSED.search(_LIMIT.sub("", text)):
        exact, sign, near = text.rpartition("\\approx")
        if not sign or _REFUSED.search(exact + near):
            raise UnreadableError("it says no value")
        return read_value(near if _NAME.match(exact.strip()) and exact.strip() != "\\pi" else _exact(exact, near))
    sides = _ORDER.split(text)
    if len(sides) > 1:
        return _relation(sides)
    parts = [part.strip() for part in text.split("=")]
    if len(parts) == 1:
        return None
    if not all(parts):
        raise UnreadableError("an equation without a side")
    parts[0] = re.sub(r"^\{([A-Za-z])\}$", r"\1", parts[0])
    if len(parts) == 2 and _NAME.match(parts[1]) and not _NAME.match(parts[0]):
        parts.reverse()
    if _NAME.match(parts[0]):
        name = re.sub(r"\(.*|[{}\"]", "", parts[0])
        return Named(name, read_value(parts[-1]), _equation(parts))
    found = _equation(parts)
    if found is None:
        raise UnreadableError("an equation that cannot be read")
    return found


def _exact(exact: str, near: str) -> str:
    """The exact side of `5/6 \\approx 0.83`, of which the other one is the rounded value."""
    exact, near = exact.rpartition("=")[2], near.strip()
    decimals = len(near.partition(".")[2])
    if not abs(read_expression(f"({exact})-({near})").constant()) <= 0.5 * 10.0**-decimals:
        raise UnreadableError("it says two values")
    return exact


def _equation(parts: Sequence[str]) -> Equation | None:
    try:
        difference = read_expression(f"({parts[-2]})-({parts[-1]})")
    except UnreadableError:
        difference = None
    letters = re.search(r"(?<![\\A-Za-z])[A-Za-z](?![A-Za-z])", re.sub(r'"[^"]*"', "", parts[-2]))
    is_identity = difference is not None and difference.names and same(difference, read_expression("0"))
    is_value = len(parts) > 2 or not letters or is_identity or _MEASURE.match(parts[0])
    last = read_value(parts[-1]) if is_value else None
    return None if difference is None and last is None else Equation(difference or read_expression("0"), last)


def _relation(sides: Sequence[str]) -> Value:
    values, signs = list(sides[::2]), list(sides[1::2])
    if all(sign in _FLIPPED for sign in signs):
        values, signs = values[::-1], [_FLIPPED[sign] for sign in signs[::-1]]
    if any(sign in _FLIPPED for sign in signs):
        raise UnreadableError("signs of both directions")
    name = [value.strip() not in ("\\infty", "\\pi", "e") and bool(_NAME.match(value.strip())) for value in values]
    brackets = {"<": ("(", ")"), "\\leq": ("[", "]")}
    if name == [True, False]:
        values, signs, name = ["-\\infty", *values], ["<", *signs], [False, *name]
    elif name == [False, True]:
        values, signs, name = [*values, "\\infty"], [*signs, "<"], [*name, False]
    if name == [False, True, False]:
        ends = (read_value(values[0]), read_value(values[2]))
        return Named(values[1].strip(), Ordered(brackets[signs[0]][0], ends, brackets[signs[1]][1]), None)
    return Relation(tuple(map(read_value, values)), tuple(signs))


def _quantity(text: str) -> Quantity:
    if re.fullmatch(r"[-+]?\s*\\infty", text):
        return Quantity(_times(_INFINITY, Fraction(-1)) if "-" in text else _INFINITY, None)
    value, unit = split_unit(text)
    if '"' in value:
        raise UnreadableError(f"words in {value!r}")
    if re.fullmatch(r"-?\d{1,3}( \d{3})+(\.\d+)?", value):
        value = value.replace(" ", "")
    return Quantity(read_expression(value), unit)


def _read_all(items: Sequence[str]) -> tuple[Value, ...]:
    if len(items) > MAX_ITEMS:
        raise UnreadableError("too many values")
    found: list[Value] = []
    for value in map(read_value, items):
        found += value.values if isinstance(value, Several) and value.kind == "list" else [value]
    return tuple(found)


def _split(text: str, separator: re.Pattern[str]) -> list[str]:
    """The parts between separators outside brackets. Thousands (`1,000`) are no separators at the top."""
    parts, depth, start, position = [], 0, 0, 0
    while position < len(text):
        letter = text[position]
        depth += (letter in "([{") - (letter in ")]}")
        found = separator.match(text, position) if depth == 0 and letter not in "([{)]}" else None
        if found is not None and found.end() > position and not _is_thousands(text, position):
            parts.append(text[start:position])
            position = start = found.end()
        else:
            position += 1
    return [*parts, text[start:]]


def _is_thousands(text: str, comma: int) -> bool:
    """Return whether a comma separates thousands, as in `1,000`: no space behind it, and groups of three digits."""
    if text[comma] != ",":
        return False
    before = re.search(r"(?<![\d.,])\d{1,3}(?:,\d{3})*$", text[:comma])
    return before is not None and re.match(r",\d{3}(?!\d)", text[comma:]) is not None


def _closes(text: str, width: int) -> bool:
    """Return whether the bracket at the beginning is closed at the end, and not before."""
    depth = 0
    for position, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if depth == 0 and position >= width:
            return position == len(text) - 1
    return False


def _same(gold: Value, answer: Value) -> bool:
    """Return whether two values are the same. A name may be missing on one side."""
    if isinstance(gold, Equation) and gold.last is not None and not gold.difference.names:
        gold = gold.last
    is_equation = isinstance(gold, (Equation, Named))
    if isinstance(answer, Equation) and answer.last is not None and not (is_equation and answer.difference.names):
        answer = answer.last
    match gold, answer:
        case Named(), Named():
            if gold.name.casefold() != answer.name.casefold() and len(gold.name) == len(answer.name) == 1:
                return _same_equation(gold.equation, answer.equation)
            return _same(gold.value, answer.value) or _same_equation(gold.equation, answer.equation)
        case (Named(equation=first), Equation() as second) | (Equation() as first, Named(equation=second)):
            return _same_equation(first, second)
        case Named(), _:
            return _same(gold.value, answer)
        case _, Named():
            return _same(gold, answer.value)
        case Equation(), Equation():
            return _same_equation(gold, answer)
        case (Words(), Words()) | (Clock(), Clock()) | (Ratio(), Ratio()):
            return gold == answer
        case (Words(as_written=word), Quantity() as product) | (Quantity() as product, Words(as_written=word)):
            return bool(_LETTERS.fullmatch(word)) and _same_quantity(_quantity(" ".join(word)), product)
        case Quantity(), Ratio():
            return _same_ratio(gold, answer)
        case Ratio(), Quantity():
            return gold.as_clock() is None and _same_ratio(answer, gold)
        case Clock(), Ratio():
            return gold == answer.as_clock()
        case Ratio(), Clock():
            return int(gold.parts[0]) > 12 and gold.as_clock() == answer  # `12:30` may be a ratio
        case Quantity(), Quantity():
            return _same_quantity(gold, answer)
        case Matrix(), Matrix():
            return gold.kind == answer.kind and _same_rows(gold.rows, answer.rows)
        case Ordered(), Ordered():
            brackets = (gold.opening, gold.closing) == (answer.opening, answer.closing)
            return brackets and _all_same(gold.values, answer.values)
        case Several(), Several():
            kinds = {gold.kind, answer.kind}
            return (len(kinds) == 1 or kinds == {"list", "set"}) and _same_unordered(gold.values, answer.values)
        case Relation(), Relation():
            return gold.signs == answer.signs and _all_same(gold.sides, answer.sides)
        case (Matrix() as matrix, Ordered() as point) | (Ordered() as point, Matrix() as matrix):
            if point.opening == "[" and all(isinstance(row, Ordered) and row.opening == "[" for row in point.values):
                rows = tuple(row.values for row in point.values if isinstance(row, Ordered))
                return matrix.kind == "matrix" and _same_rows(matrix.rows, rows)
            return point.opening == "(" and _same_rows(matrix.rows, [(value,) for value in point.values])
        case _, Several(kind="list") if all(_same(gold, value) for value in answer.values):  # `0.5 (or 1/2)`
            return not isinstance(gold, Several)
        case (Several(), Ordered()) | (Ordered(), Several()):
            return _same_point(gold, answer)
        case (Several((only,), "set"), other) | (other, Several((only,), "set")):
            return _same(only, other)
    return False


def _same_equation(gold: Equation | None, answer: Equation | None) -> bool:
    return gold is not None and answer is not None and proportional(gold.difference, answer.difference)


def _same_point(gold: Value, answer: Value) -> bool:
    """Return whether a point equals `x = 1, y = 2` in the order of the names."""
    point, stated = (gold, answer) if isinstance(gold, Ordered) else (answer, gold)
    if not isinstance(point, Ordered) or not isinstance(stated, Several):
        return False
    named = sorted((value for value in stated.values if isinstance(value, Named)), key=lambda value: value.name)
    distinct = len({value.name for value in named}) == len(stated.values)
    values = tuple(value.value for value in named)
    return distinct and (point.opening, point.closing) == ("(", ")") and _all_same(point.values, values)


def _same_rows(gold: Sequence[Sequence[Value]], answer: Sequence[Sequence[Value]]) -> bool:
    return len(gold) == len(answer) and all(map(_all_same, gold, answer))


def _all_same(gold: Sequence[Value], answer: Sequence[Value]) -> bool:
    return len(gold) == len(answer) and all(map(_same, gold, answer))


def _same_ratio(fraction: Quantity, ratio: Ratio) -> bool:
    """Return whether a fraction is a ratio in lowest terms. `3:07` is a time of day."""
    if len(ratio.parts) != 2 or ratio.parts[1].startswith("0") or fraction.unit or fraction.expression.rounded:
        return False
    top, bottom = map(int, ratio.parts)
    if bottom < 2 or math.gcd(top, bottom) > 1 or fraction.expression.names:
        return False
    return bool(fraction.expression.constant() == Fraction(top, bottom))


def _same_unordered(gold: Sequence[Value], answer: Sequence[Value]) -> bool:
    if len(gold) != len(answer):
        return False
    left = list(answer)
    for value in gold:
        found = next((index for index, other in enumerate(left) if _same(value, other)), None)
        if found is None:
            return False
        del left[found]
    return True


def _same_quantity(gold: Quantity, answer: Quantity) -> bool:
    """In the same unit where both have one that can be converted. A percent sign may be missing on one side, and 5% may
    be written as 0.05."""
    mine, theirs = gold.unit or Unit(), answer.unit or Unit()
    if mine.dimensions and theirs.dimensions:
        factors = mine.scale * mine.factor, theirs.scale * theirs.factor
        return mine.dimensions == theirs.dimensions and _close(gold.expression, answer.expression, *factors)
    if _close(gold.expression, answer.expression, Fraction(mine.scale), Fraction(theirs.scale)):
        return True
    hundredths = (Fraction(1, 100 if unit.percent else 1) for unit in (mine, theirs))
    return mine.percent != theirs.percent and _close(gold.expression, answer.expression, *hundredths)


def _close(gold: Expression, answer: Expression, mine: Fraction, theirs: Fraction) -> bool:
    if mine == theirs:
        return same(gold, answer)
    if (gold.names | answer.names) - {IMAGINARY}:
        return same(_times(gold, mine), _times(answer, theirs))
    rounded = gold.rounded or answer.rounded
    return close(gold.constant() * mine, answer.constant() * theirs, rounded=rounded)


def _times(expression: Expression, factor: Fraction | str) -> Expression:
    evaluate, number = expression.evaluate, read_expression(str(factor)).evaluate
    return Expression(lambda values: evaluate(values) * number(values), expression.names, expression.rounded)
