"""The tool `calculator`: exact arithmetic."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from decimal import Context
from fractions import Fraction

from burnish.agents.tools.plain import parse_expression

MAX_CHARACTERS = 300
"""Longest expression."""
MAX_BITS = 4000
"""Largest numerators and denominators, about 1,200 digits."""
_MAX_EXPONENT = 1000
_MAX_DECIMALS = 50
_ROUNDED_DIGITS = 15
_ALLOWED = re.compile(r"[0-9eE_.+\-*/%()\s]*\Z")
_INSTEAD = {"^": "**", "×": "*", "·": "*", "÷": "/", "−": "-", ",": "no separator in numbers", "=": "only one side"}


class _NoResultError(Exception):
    """An expression has no result. The message is for the model."""


def calculator(expression: str) -> str:
    """Calculate the exact value of an arithmetic expression.

    Args:
        expression: Numbers, + - * / // % ** and parentheses, such as (12.5 + 3) * 4. Results with endless decimals
            are rounded to 15 digits.

    Returns:
        The value, or a text that begins with Error.
    """
    try:
        return _as_text(_value(_parsed(expression), expression))
    except _NoResultError as error:
        return f"Error: {error}"
    except RecursionError:  # the caller may already be deep in the stack
        return "Error: the expression is nested too deep"


def _parsed(expression: str) -> ast.expr:
    if len(expression) > MAX_CHARACTERS:
        raise _NoResultError(f"the expression has {len(expression)} characters; {MAX_CHARACTERS} are allowed")
    if not _ALLOWED.match(expression):
        odd = next(character for character in expression if not _ALLOWED.match(character))
        raise _NoResultError(f"use {_INSTEAD.get(odd, 'only numbers and + - * / // % ** ( )')} instead of {odd!r}")
    try:
        return parse_expression(" ".join(expression.split()))
    except SyntaxError as error:
        raise _NoResultError(f"the expression cannot be read ({error.msg})") from None
    except MemoryError:  # the parser's own limit on nesting
        raise _NoResultError("the expression is nested too deep") from None


def _value(node: ast.expr, expression: str) -> Fraction:
    match node:
        case ast.Constant(value=int() | float()):
            return _number(ast.get_source_segment(" ".join(expression.split()), node) or "")
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            value = _value(operand, expression)
            return -value if isinstance(sign, ast.USub) else value
        case ast.BinOp(left=left, op=sign, right=right):
            return _bounded(_combined(_value(left, expression), sign, _value(right, expression)))
        case _:
            raise _NoResultError("use only numbers and + - * / // % ** ( ), and write * for products")


def _number(text: str) -> Fraction:
    """Read a number exactly as it is written: 0.1 is a tenth, which no float is."""
    exponent = text.lower().partition("e")[2]
    if exponent and abs(int(exponent)) > _MAX_EXPONENT:
        raise _NoResultError(f"the number {text} is too large or too small")
    return _bounded(Fraction(text))


def _combined(left: Fraction, sign: ast.operator, right: Fraction) -> Fraction:
    if right == 0 and isinstance(sign, (ast.Div, ast.FloorDiv, ast.Mod)):
        raise _NoResultError("division by zero")
    if type(sign) not in _EXACT:
        raise _NoResultError("use only the operators + - * / // % **")
    return _EXACT[type(sign)](left, right)


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise _NoResultError("exponents must be whole numbers")
    if base == 0 and exponent < 0:
        raise _NoResultError("division by zero")
    # Before the power is computed: 9**9**9 would take gigabytes.
    if base not in (-1, 0, 1) and _bits(base) * abs(exponent) > 2 * MAX_BITS:
        raise _NoResultError("the result is too large or too small")
    return Fraction(base ** int(exponent))


_EXACT: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda left, right: Fraction(left // right),
    ast.Mod: operator.mod,
    ast.Pow: _power,
}


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _bounded(value: Fraction) -> Fraction:
    if _bits(value) > MAX_BITS:
        raise _NoResultError("a number is too large or too small, or has too many digits")
    return value


def _as_text(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    decimals = _decimals(value.denominator)
    if decimals is None or decimals > _MAX_DECIMALS:
        context = Context(prec=_ROUNDED_DIGITS, Emin=-9999, Emax=9999)
        return str(context.normalize(context.divide(value.numerator, value.denominator)))
    digits = str(abs(value.numerator) * 10**decimals // value.denominator).zfill(decimals + 1)
    return f"{'-' if value < 0 else ''}{digits[:-decimals]}.{digits[-decimals:]}"


def _decimals(denominator: int) -> int | None:
    """Number of decimals of a fraction with this denominator, or None if they do not end."""
    twos = (denominator & -denominator).bit_length() - 1
    fives, rest = 0, denominator >> twos
    while rest % 5 == 0:
        fives, rest = fives + 1, rest // 5
    return max(twos, fives) if rest == 1 else None
