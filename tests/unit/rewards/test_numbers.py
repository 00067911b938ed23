"""Plain numbers as people write them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.rewards.builtins.numbers import Number, read_number, same


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("72", 72),
        ("-5", -5),
        ("−5", -5),
        ("+5", 5),
        ("145.0", 145),
        ("1,234", 1234),
        ("1,234,567.50", Fraction("1234567.5")),
        ("32,\\!348", 32348),
        ("10{,}000", 10000),
        ("$5", 5),
        ("-$5", -5),
        ("$-5", -5),
        ("\\$18.50", Fraction("18.5")),
        ("18 dollars", 18),
        ("18\\text{ dollars}", 18),
        ("12 square feet", 12),
        ("90^\\circ", 90),
        ("90^{\\circ}", 90),
        ("$\\frac{3}{4}$", Fraction(3, 4)),
        ("\\dfrac{3}{4}", Fraction(3, 4)),
        ("\\frac34", Fraction(3, 4)),
        ("\\frac 59", Fraction(5, 9)),
        ("-\\frac{1}{2}", Fraction(-1, 2)),
        ("3/4", Fraction(3, 4)),
        ("1 1/2", Fraction(3, 2)),
        ("1\\frac{1}{2}", Fraction(3, 2)),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("1e-07", Fraction(1, 10**7)),
        ("x = 7", 7),
        ("**18**", 18),
        ("\\(7\\)", 7),
    ],
)
def test_reads_numbers(text: str, value: Fraction) -> None:
    assert read_number(text) == Number(Fraction(value))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "five",
        "5x",
        "5 and 6",
        "1,2",
        "(1,2)",
        "3 + 4",
        "2\\sqrt{3}",
        "52_8",
        "12:30",
        "1/0",
        "3R^2",
        "12,34",
        "1e999999999",
    ],
)
def test_leaves_other_things_alone(text: str) -> None:
    assert read_number(text) is None


@pytest.mark.parametrize(
    ("gold", "other", "equal"),
    [
        ("5%", "5", True),
        ("5%", "0.05", True),
        ("0.05", "5\\%", True),
        ("5%", "6%", False),
        ("5%", "0.05%", False),
        ("1000000", "1000001", False),
        ("0.8333333333", "5/6", True),
        ("0.3333", "1/3", False),
        ("0.00000001", "0.00000002", False),
        ("118558.5", "118558.6", False),
        ("0", "0.0000001", False),
    ],
)
def test_equality(gold: str, other: str, equal: bool) -> None:
    first, second = read_number(gold), read_number(other)
    assert first is not None
    assert second is not None
    assert same(first, second) is equal


@given(st.integers(-(10**12), 10**12))
def test_every_integer_in_its_spellings(value: int) -> None:
    for text in (str(value), f"{value:,}", f"{float(value)}" if abs(value) < 10**15 else str(value), f"{value} apples"):
        assert read_number(text) == Number(Fraction(value))


@given(st.integers(-(10**9), 10**9))
def test_one_more_is_never_equal(value: int) -> None:
    assert not same(Number(Fraction(value)), Number(Fraction(value + 1)))
