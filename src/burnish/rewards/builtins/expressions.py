"""Formulas as functions of their letters: read from LaTeX or plain text, and compared by their values.

Two formulas are equal if they have the same value wherever the letters are given numbers (identity testing by
evaluation: Schwartz, J. ACM 27(4), 1980). Rational values are exact; others have 40 digits. What would become too large
or too deep is refused before it is computed, so that no formula costs more than a fraction of a second.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from burnish.rewards.builtins.typography import GREEK

Number = Any  # Fraction, or a real or complex number of mpmath, which has no types
Values = Mapping[str, Number]
Node = Callable[[Values], Number]

MAX_TOKENS = 2000
MAX_DEPTH = 40
MAX_BITS = 120_000
MAX_FACTORIAL = 5_000
POINTS = 6
TOLERANCE = Fraction(1, 10**6)  # where a decimal is given for a value that has none: 0.333333 for 1/3
_EXACT_TOLERANCE = Fraction(1, 10**25)  # of values that are computed with 40 digits
IMAGINARY = "i"


class UnreadableError(ValueError):
    """The text is not a formula that can be read, or it has no value that can be computed."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A formula. names: its letters. rounded: whether it has a decimal point, so that its value may be rounded."""

    evaluate: Node
    names: frozenset[str]
    rounded: bool

    def constant(self) -> Number:
        """Its value. UnreadableError if it has letters, or none."""
        if self.names - {IMAGINARY}:
            raise UnreadableError("it has letters")
        try:
            return self.evaluate({IMAGINARY: _mp().mpc(0, 1)})
        except (ArithmeticError, ValueError) as error:
            raise UnreadableError(str(error)) from error


def same(gold: Expression, other: Expression) -> bool:
    """Return whether two formulas have the same value at every point at which the gold one has a (real) value."""
    imaginary = IMAGINARY in gold.names
    names = sorted((gold.names | other.names) - ({IMAGINARY} if imaginary else set()))
    compared = 0
    for point in range(POINTS if names else 1):
        values = {name: _value_at(point, index) for index, name in enumerate(names)}
        if imaginary:
            values[IMAGINARY] = _mp().mpc(0, 1)
        expected, found = _value(gold.evaluate, values), _value(other.evaluate, values)
        if expected is None or (names and not imaginary and not _is_real(expected)):
            continue  # a root of a negative number: outside the domain of the letters
        if found is None or not close(expected, found, rounded=gold.rounded or other.rounded):
            return False
        if (expected == 0) != (found == 0):  # sin(pi), computed as 1e-41, shrinks with more digits; exp(-100) does not
            with _mp().workdps(80):
                if abs(_plus(gold.evaluate(values), other.evaluate(values))) * 10**10 > abs(_plus(expected, found)):
                    return False
        compared += 1
    return compared > 0


def proportional(first: Expression, second: Expression) -> bool:
    """Return whether one formula is a constant times the other: whether `first = 0` and `second = 0` say the same."""
    names = sorted(first.names | second.names)
    ratio: Number = None
    for point in range(POINTS):
        values = {name: _value_at(point, index) for index, name in enumerate(names)}
        try:
            here = _divided(first.evaluate(values), second.evaluate(values))
        except (ArithmeticError, ValueError):
            return False
        if here == 0 or (ratio is not None and not close(ratio, here, rounded=False)):
            return False
        ratio = here
    return bool(names)


def close(gold: Number, other: Number, *, rounded: bool) -> bool:
    """Equality of two values: exact for fractions; with 40 digits for others; to six digits if one is a decimal and the
    other equals no decimal."""
    if isinstance(gold, Fraction) and isinstance(other, Fraction):
        if gold == other:
            return True
        if not rounded or (_terminates(gold) and _terminates(other) and 1 in (gold.denominator, other.denominator)):
            return False
        return abs(gold - other) <= TOLERANCE * abs(gold)
    first, second = _inexact(gold), _inexact(other)
    if 0 in (gold, other):  # sin(pi) is computed as 1e-41
        return bool(abs(first - second) <= _inexact(_EXACT_TOLERANCE))
    return bool(abs(first - second) <= _inexact(TOLERANCE if rounded else _EXACT_TOLERANCE) * abs(first))


def below(first: Number, second: Number) -> bool:
    """Return whether a real value is below another; False if one of them is complex."""
    return _is_real(first) and _is_real(second) and bool(_mp().re(_inexact(first)) < _mp().re(_inexact(second)))


def _terminates(value: Fraction) -> bool:
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest == 1


def _value_at(point: int, index: int) -> Fraction:
    """A number for a letter: positive at the first points, of both signs at the others."""
    seed = (point * 7919 + index * 104_729 + 12_345) * 2_654_435_761 % 2**32
    value = Fraction(seed % 997 + 2, 211 + seed % 13)
    return -value if point >= POINTS // 2 and (seed >> 7) % 2 else value


@functools.cache
def _mp() -> Any:
    from mpmath.ctx_mp import MPContext

    context = MPContext()
    context.dps = 40
    return context


def _inexact(value: Number) -> Number:
    return _mp().mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def _is_real(value: Number) -> bool:
    return isinstance(value, Fraction) or abs(_mp().im(value)) <= abs(value) * _mp().mpf(10) ** -25


def _bounded(value: Number) -> Number:
    """The value, if it is not too large to go on with. An exact result of a complex computation becomes real."""
    if isinstance(value, Fraction):
        if value.numerator.bit_length() + value.denominator.bit_length() > MAX_BITS:
            raise UnreadableError("a number of too many digits")
        return value
    if value != value or abs(value) == _mp().inf:
        raise UnreadableError("no value")
    if value != 0 and abs(_mp().mag(value)) > MAX_BITS:
        raise UnreadableError("a number of too many digits")
    return value


def _divided(top: Number, bottom: Number) -> Number:
    if bottom == 0:
        raise ZeroDivisionError
    return _both(operator.truediv, top, bottom)


def _both(operation: Callable[[Number, Number], Number], first: Number, second: Number) -> Number:
    if not (isinstance(first, Fraction) and isinstance(second, Fraction)):
        first, second = _inexact(first), _inexact(second)
    return _bounded(operation(first, second))


_plus = functools.partial(_both, operator.add)
_times = functools.partial(_both, operator.mul)
_reciprocal = functools.partial(_divided, Fraction(1))


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction):
        if exponent.denominator == 1:
            bits = max(base.numerator.bit_length(), base.denominator.bit_length())
            if (bits - 1) * abs(exponent) > MAX_BITS:
                raise UnreadableError("a power of too many digits")
            return _bounded(base**exponent.numerator)
        root = _exact_root(base, exponent.denominator) if base >= 0 else None
        if root is not None:
            return _power(root, Fraction(exponent.numerator))
    first, second = _inexact(base), _inexact(exponent)
    if first == 0:
        if _mp().re(second) <= 0:
            raise ZeroDivisionError
        return Fraction(0)
    if abs(_mp().mag(first) * second) > MAX_BITS or abs(_mp().mag(second)) > 60:
        raise UnreadableError("a power of too many digits")
    return _bounded(_mp().power(first, second))


def _root(value: Number, degree: Number) -> Number:
    """The real root of a negative number where the degree is odd; else the principal one."""
    if not isinstance(degree, Fraction) or degree.denominator != 1 or not 0 < degree <= 1000:
        raise UnreadableError("a root of an unusual degree")
    if isinstance(value, Fraction):
        exact = _exact_root(value, degree.numerator)
        if exact is not None:
            return exact
    if _is_real(value) and _mp().re(_inexact(value)) < 0 and degree.numerator % 2:
        return -_power(-value, 1 / degree)
    return _power(value, 1 / degree)


def _exact_root(value: Fraction, degree: int) -> Fraction | None:
    if value < 0:
        below = _exact_root(-value, degree) if degree % 2 else None
        return None if below is None else -below
    top, bottom = _integer_root(value.numerator, degree), _integer_root(value.denominator, degree)
    return None if top is None or bottom is None else Fraction(top, bottom)


def _integer_root(value: int, degree: int) -> int | None:
    if value < 2 or degree == 1:
        return value
    if not degree <= value.bit_length() <= 4096:  # a higher degree has a root below 2
        return None
    low, high = 1, 1 << (value.bit_length() // degree + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**degree <= value else (low, middle - 1)
    return low if low**degree == value else None


def _factorial(value: Number) -> Number:
    if not isinstance(value, Fraction) or value.denominator != 1 or value < 0:
        if not isinstance(value, Fraction) or not -50 <= value <= 50:
            raise UnreadableError("a factorial of another number")
        return _mp().gamma(_inexact(value) + 1)
    if value > MAX_FACTORIAL:
        raise UnreadableError("a factorial of too many digits")
    return Fraction(math.factorial(value.numerator))


def _binomial(top: Number, bottom: Number) -> Number:
    whole = all(isinstance(value, Fraction) and value.denominator == 1 for value in (top, bottom))
    if whole and 0 <= top <= 2 * MAX_FACTORIAL and 0 <= bottom <= 2 * MAX_FACTORIAL:
        return Fraction(math.comb(top.numerator, bottom.numerator))
    if whole or abs(_inexact(top)) > 10**6 or abs(_inexact(bottom)) > 10**6:
        raise UnreadableError("a binomial coefficient of too many digits")
    return _bounded(_mp().binomial(_inexact(top), _inexact(bottom)))


def _of_mpmath(name: str) -> Callable[[Number], Number]:
    def apply(value: Number) -> Number:
        number = _inexact(value)
        if abs(_mp().mag(number)) > 1000 and number != 0:
            raise UnreadableError(f"{name} of a number of too many digits")
        return _bounded(getattr(_mp(), name)(number))

    return apply


def _logarithm(value: Number) -> Number:
    if value == 0:
        raise ZeroDivisionError
    return Fraction(0) if value == 1 else _of_mpmath("log")(value)


def _exponential(value: Number) -> Number:
    return Fraction(1) if value == 0 else _power(+_mp().e, value)


def _rounding(up: bool) -> Callable[[Number], Number]:
    def apply(value: Number) -> Number:
        if isinstance(value, Fraction):
            return Fraction(math.ceil(value) if up else math.floor(value))
        if not _is_real(value):
            raise UnreadableError("no order")
        return Fraction(int((_mp().ceil if up else _mp().floor)(_mp().re(value))))

    return apply


_FUNCTIONS: dict[str, Callable[[Number], Number]] = {
    **{
        name: _of_mpmath(name)
        for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "asin", "acos", "atan")
    },
    **{f"arc{name}": _of_mpmath(f"a{name}") for name in ("sin", "cos", "tan")},
    **{"log": _logarithm, "ln": _logarithm, "exp": _exponential, "abs": abs},
    "lg": lambda value: _divided(_logarithm(value), _logarithm(Fraction(10))),
}
_OF_TWO = {"frac": _divided, "binom": _binomial, "dbinom": _binomial, "tbinom": _binomial}
_INVERSES = {name: _FUNCTIONS[f"arc{name}"] for name in ("sin", "cos", "tan")}
_SPELT_GREEK = ("alpha", "beta", "gamma", "delta", "theta", "lambda", "sigma", "omega", "phi")
MATH_WORDS = frozenset({*_FUNCTIONS, *_SPELT_GREEK, "sqrt", "pi", "mod"})
GREEK_NAMES = frozenset((*GREEK.values(), "ell", "Psi")) - {"pi"}

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d*)?(?:\\overline\s*\{\d+\})?|\.\d+)
        (?:(?P<exponent>[eE][-+]?\d{1,6})(?![\d.]))?
    | (?P<word>arcsin|arccos|arctan|asin|acos|atan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|sqrt|log|lg|ln|exp|pi|abs)
    | \\(?P<command>[A-Za-z]+)
    | (?P<letter>[A-Za-z]'*)
    | (?P<sign>\*\*|[-+*/^_!()\[\]{}|])
    )""",
    re.VERBOSE,
)
_TIMES, _OVER = {"*", "\\cdot", "\\times"}, {"/", "\\div"}
_NO_FACTOR = {*_TIMES, *_OVER, "\\rfloor", "\\rceil"}
_CLOSING = {"(": ")", "[": "]", "{": "}", "|": "|"}


def read_expression(text: str) -> Expression:
    """The formula in a tidy text (`burnish.rewards.builtins.typography`). UnreadableError if it is not one."""
    return _Reader(text).read()


class _Signs:
    """The signs of a text, read one after the other."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._next = 0

    @property
    def next(self) -> str:
        """The next sign, as `\\name` for a command; empty at the end."""
        return self._tokens[self._next][1] if self._next < len(self._tokens) else ""

    @property
    def kind(self) -> str:
        return self._tokens[self._next][0] if self._next < len(self._tokens) else ""

    @property
    def follows_number(self) -> bool:
        return self._tokens[self._next - 1][0] == "number"

    def starts_factor(self, *, within_bars: bool) -> bool:
        """Return whether a factor comes next. Within bars another bar closes them."""
        kind, sign = self.kind, self.next
        if kind == "sign":
            return sign in ("(", "[", "{") or (sign == "|" and not within_bars)
        return kind in ("number", "word", "letter") or (kind == "command" and sign not in _NO_FACTOR)

    @property
    def ends_argument(self) -> bool:
        """True before a function or a bracket: the argument of a function without brackets ends there."""
        return self.kind == "word" or self.next.removeprefix("\\") in _FUNCTIONS or self.next in ("(", "[")

    @property
    def opens_bracket(self) -> bool:
        """True before a bracket, also within braces: `\\log{(9)}`."""
        ahead = "".join(sign for _, sign in self._tokens[self._next : self._next + 2])
        return ahead == "{(" or ahead[:1] in ("(", "[", "|")

    def take(self) -> str:
        self._next += 1
        return self._tokens[self._next - 1][1]

    def skip(self, *signs: str) -> bool:
        """Take the next sign if it is one of these. Returns whether it was."""
        found = self.next in signs
        self._next += found
        return found

    def expect(self, sign: str) -> None:
        if not self.skip(sign):
            raise UnreadableError(f"{sign!r} is missing")

    def mixed_part(self, whole: str) -> Fraction | None:
        """The fraction of a mixed number: `\\frac{1}{2}` behind a whole one, or `1/2`."""
        if not whole.isdigit():
            return None
        ahead = [sign for _, sign in self._tokens[self._next : self._next + 7]]
        for pattern in (("\\frac", "{", None, "}", "{", None, "}"), (None, "/", None)):
            if len(ahead) >= len(pattern) and all(a == p or p is None for a, p in zip(ahead, pattern, strict=False)):
                top, bottom = (ahead[index] for index, wanted in enumerate(pattern) if wanted is None)
                if top.isdigit() and bottom.isdigit() and 0 < int(top) < int(bottom):
                    self._next += len(pattern)
                    return Fraction(int(top), int(bottom))
        return None

    def subscript(self) -> str:
        self.expect("_")
        if not self.skip("{"):
            return self.take() if self.next else ""
        parts = []
        while self.next not in ("}", ""):
            parts.append(self.take())
        self.expect("}")
        return "".join(parts)

    def first_digit(self) -> int | None:
        """The first of several digits, which is taken from them."""
        digits = self.next
        if self.kind != "number" or len(digits) < 2 or not digits.isdigit():
            return None
        self._tokens[self._next] = ("number", digits[1:])
        return int(digits[0])


class _Reader:
    """A recursive-descent reader: sum, product, power, atom."""

    def __init__(self, text: str) -> None:
        self._signs = _Signs(text)
        self._depth = 0
        self._names: set[str] = set()
        self._rounded = False
        self._bars = 0

    def read(self) -> Expression:
        node = self._sum()
        if self._signs.next:
            raise UnreadableError(f"{self._signs.next!r} is not expected")
        return Expression(node, frozenset(self._names), self._rounded)

    def _sum(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise UnreadableError("too deep")
        nodes = [self._signed(self._product)]
        while self._signs.next in ("+", "-"):
            sign, right = self._signs.take(), self._signed(self._product)
            nodes.append(right if sign == "+" else _unary(operator.neg, right))
        self._depth -= 1
        return _folded(_plus, nodes)

    def _signed(self, read: Callable[[], Node]) -> Node:
        """Read with a sign in front, if there is one."""
        if self._signs.next in ("+", "-"):
            return read() if self._signs.take() == "+" else _unary(operator.neg, read())
        return read()

    def _product(self) -> Node:
        nodes = [self._factor()]
        while True:
            if self._signs.skip(*_OVER):
                nodes.append(_unary(_reciprocal, self._factor()))
            elif self._signs.skip(*_TIMES):
                nodes.append(self._factor())
            elif self._signs.starts_factor(within_bars=self._bars > 0):
                if self._signs.kind == "number" and self._signs.follows_number:
                    raise UnreadableError("two numbers side by side")
                nodes.append(self._factor())
            else:
                return _folded(_times, nodes)

    def _factor(self) -> Node:
        if self._signs.next in ("-", "+"):
            return self._signed(self._factor)
        node = self._atom()
        while self._signs.next in ("!", "^", "**"):
            is_factorial = self._signs.take() == "!"
            if self._signs.skip("\\circ"):
                node = _binary(_times, node, lambda values: _mp().pi / 180)
                continue
            node = _unary(_factorial, node) if is_factorial else _binary(_power, node, self._exponent())
        return node

    def _exponent(self) -> Node:
        """Parse an exponent after `^`: in plain text all of a signed number, in LaTeX without braces a single digit or
        letter."""
        if self._signs.next in ("-", "+"):
            return self._signed(self._exponent)
        node = self._atom()
        return _binary(_power, node, self._exponent()) if self._signs.skip("^", "**") else node

    def _atom(self) -> Node:
        kind = self._signs.kind
        if kind == "number":
            return self._number()
        if kind == "letter":
            return self._letter()
        if kind in ("word", "command"):
            return self._command(self._signs.take().removeprefix("\\"))
        sign = self._signs.next
        if sign not in _CLOSING:
            raise UnreadableError(f"{sign!r} is not expected")
        self._signs.take()
        self._bars += sign == "|"
        inner = self._sum()
        self._signs.expect(_CLOSING[sign])
        self._bars -= sign == "|"
        return _unary(abs, inner) if sign == "|" else inner

    def _number(self) -> Node:
        text = self._signs.take()
        self._rounded = self._rounded or "." in text
        value = _decimal(text)
        if self._signs.next == "_":
            return self._named(text)
        return _always(value + (self._signs.mixed_part(text) or 0))

    def _letter(self) -> Node:
        letter = self._signs.take()
        if letter == "e" and self._signs.next != "_":
            return lambda values: +_mp().e
        return self._named(letter)

    def _named(self, name: str) -> Node:
        """A letter with its subscript, if it has one."""
        full = f"{name}_{self._signs.subscript()}" if self._signs.next == "_" else name
        self._names.add(full)
        return lambda values: values[full]

    def _command(self, name: str) -> Node:
        if name == "pi":
            return lambda values: +_mp().pi
        if name in _OF_TWO:
            return _binary(_OF_TWO[name], self._argument(), self._argument())
        if name == "sqrt":
            return self._radical()
        if name in ("lfloor", "lceil"):
            inner = self._sum()
            self._signs.expect("\\rfloor" if name == "lfloor" else "\\rceil")
            return _unary(_rounding(up=name == "lceil"), inner)
        if name in GREEK_NAMES:
            return self._named(name)
        if name in _FUNCTIONS:
            return self._applied(name)
        raise UnreadableError(f"\\{name} is not known")

    def _argument(self) -> Node:
        """In braces, or a single digit or letter: `\\frac12` is one half."""
        digit = self._signs.first_digit()
        return self._atom() if digit is None else _always(Fraction(digit))

    def _radical(self) -> Node:
        degree = _always(Fraction(2))
        if self._signs.skip("["):
            degree = self._sum()
            self._signs.expect("]")
        return _binary(_root, self._argument(), degree)

    def _applied(self, name: str) -> Node:
        """A function of what follows it: a bracket, or the product up to the next sum or function."""
        base = self._argument() if name == "log" and self._signs.skip("_") else None
        power = self._exponent() if self._signs.skip("^", "**") else None
        return _application(name, base, power, self._function_argument())

    def _function_argument(self) -> Node:
        if self._signs.opens_bracket or self._signs.next == "{":  # `\\sin(x)^2` is a power of the sine
            return self._atom() if self._signs.opens_bracket else self._factor()
        node = self._factor()
        while self._signs.starts_factor(within_bars=self._bars > 0) and not self._signs.ends_argument:
            node = _binary(_times, node, self._factor())
        if self._signs.skip("/"):
            node = _binary(_divided, node, self._factor())
        return node


def _tokens(text: str) -> list[tuple[str, str]]:
    """Kind and text of each sign. A command keeps its backslash."""
    found, position = [], 0
    text = text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise UnreadableError(f"{text[position : position + 10]!r} is not part of a formula")
        kind = match.lastgroup or ""
        if kind in ("number", "exponent"):
            kind, sign = "number", match["number"] + (match["exponent"] or "")
        else:
            sign = f"\\{match['command']}" if kind == "command" else match[kind]
        found.append((kind, sign))
        if len(found) > MAX_TOKENS:
            raise UnreadableError("too long")
        position = match.end()
    if not found:
        raise UnreadableError("empty")
    return found


def _decimal(text: str) -> Fraction:
    text = text.replace(",", "")
    digits, repeating = (*re.split(r"\\overline\s*\{", text.rstrip("}")), "")[:2]
    if not repeating:
        mantissa, _, exponent = digits.lower().partition("e")
        if exponent and abs(int(exponent)) > MAX_BITS // 4:
            raise UnreadableError("a number of too many digits")
        mantissa = f"0{mantissa}".rstrip(".")
        if len(mantissa) > 4000:
            raise UnreadableError("a number of too many digits")
        return _bounded(Fraction(f"{mantissa}e{exponent}" if exponent else mantissa))
    places = len(digits.partition(".")[2])
    return Fraction(digits.rstrip(".") or "0") + Fraction(int(repeating), (10 ** len(repeating) - 1) * 10**places)


def _value(node: Node, values: Values) -> Number:
    try:
        return node(values)
    except (KeyError, ArithmeticError, ValueError):
        return None


def _application(name: str, base: Node | None, power: Node | None, argument: Node) -> Node:
    """A function, or a power of it; `base` is the base of a logarithm."""
    inverse = _INVERSES.get(name) if power is not None and _value(power, {}) == -1 else None
    if inverse is not None:  # the inverse function is written like a power of -1
        return _unary(inverse, argument)
    node = _unary(_FUNCTIONS[name], argument)
    if base is not None:
        node = _binary(_divided, node, _unary(_logarithm, base))
    return node if power is None else _binary(_power, node, power)


def _always(value: Number) -> Node:
    return lambda values: value


def _unary(function: Callable[[Number], Number], argument: Node) -> Node:
    return lambda values: function(argument(values))


def _folded(operation: Callable[[Number, Number], Number], nodes: Sequence[Node]) -> Node:
    """Apply the operation to all nodes from left to right, in one call rather than nested ones."""
    if len(nodes) == 1:
        return nodes[0]
    return lambda values: functools.reduce(operation, (node(values) for node in nodes))


def _binary(operation: Callable[[Number, Number], Number], left: Node, right: Node) -> Node:
    return lambda values: operation(left(values), right(values))
