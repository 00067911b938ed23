"""The built-in tool `calculator`."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.agents.tools.calculator import calculator


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3", "7"),
        ("(1 + 2) * 3", "9"),
        ("0.1 + 0.2", "0.3"),
        ("-2.50", "-2.5"),
        ("7 // 2", "3"),
        ("-7 // 2", "-4"),
        ("-7 % 3", "2"),
        ("7.5 % 2", "1.5"),
        ("1 / 8", "0.125"),
        ("1 / 3", "0.333333333333333"),
        ("1 / 3 * 3", "1"),
        ("10**20 / 3", "3.33333333333333E+19"),
        ("2 ** 10", "1024"),
        ("2 ** -2", "0.25"),
        ("-2 ** 2", "-4"),
        ("2 ** 3 ** 2", "512"),
        ("(-1) ** 99999999999999999999", "-1"),
        ("1_000 + 1", "1001"),
        ("1e3", "1000"),
        ("2.5E-3", "0.0025"),
        (".5 + 5.", "5.5"),
        (" 1 +\n 1 ", "2"),
        ("12345678901234567890 * 98765432109876543210", "1219326311370217952237463801111263526900"),
        ("2 ** 3999 % 1000", str(pow(2, 3999, 1000))),
        ("1 / 2 ** 50", "0.00000000000000088817841970012523233890533447265625"),
        ("1 / 2 ** 51", "4.44089209850063E-16"),
        ("(" * 149 + "1" + ")" * 149, "1"),
    ],
)
def test_values(expression: str, value: str) -> None:
    assert calculator(expression) == value


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("", "the expression cannot be read"),
        ("(1", "the expression cannot be read"),
        ("1 / 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("2 ** 0.5", "exponents must be whole numbers"),
        ("9 ** 9 ** 9", "the result is too large or too small"),
        ("2 ** 5000", "too large"),
        ("2 ** 3000 * 2 ** 3000", "too large"),
        ("1e9999", "the number 1e9999 is too large or too small"),
        ("1" * 301, "the expression has 301 characters; 300 are allowed"),
        ("2 ^ 3", "use ** instead of '^'"),
        ("1,000", "use no separator in numbers instead of ','"),
        ("1 + 1 = 2", "use only one side instead of '='"),
        ("x + 1", "use only numbers and + - * / // % ** ( ) instead of 'x'"),
        ("sqrt(2)", "instead of 's'"),
        ("2(3)", "write * for products"),
        ("٣", "instead of '٣'"),
        ("1\0", "instead of '\\x00'"),
        ("__import__('os')", "instead of"),
    ],
)
def test_errors_are_texts(expression: str, error: str) -> None:
    found = calculator(expression)
    assert found.startswith("Error: ")
    assert error in found
    assert "\n" not in found


@given(st.text("0123456789.+-*/%()eE _", max_size=40))
@settings(deadline=None)
def test_nothing_is_raised_or_large(expression: str) -> None:
    assert len(calculator(expression)) < 1300


@given(st.integers(-(10**30), 10**30), st.sampled_from("+-*"), st.integers(-(10**30), 10**30))
def test_integers_are_exact(left: int, operator: str, right: int) -> None:
    expected = {"+": left + right, "-": left - right, "*": left * right}[operator]
    assert calculator(f"({left}) {operator} ({right})") == str(expected)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=8), st.decimals(-(10**9), 10**9, places=8))
def test_decimals_are_exact(left: object, right: object) -> None:
    text = calculator(f"({left:f}) + ({right:f})")
    assert Fraction(text) == Fraction(str(left)) + Fraction(str(right))
