"""What tools return and raise, as text for the model."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.agents.tools.results import ToolResult, error_of, result_of
from burnish.errors import ConfigError

ITSELF: list[Any] = []
ITSELF.append(ITSELF)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is\n", "as it is\n"),
        (None, "null"),
        (2.5, "2.5"),
        ({"a": [1, None], "ü": "ö"}, '{"a": [1, null], "ü": "ö"}'),
        ((1, 2), "[1, 2]"),
        ("caf\udce9", "caf\\udce9"),
    ],
)
def test_values_as_text(value: Any, text: str) -> None:
    assert result_of(value, 1000) == ToolResult(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"x", "something that is not text or plain data: Object of type bytes"),
        ({1, 2}, "something that is not text or plain data: Object of type set"),
        ({(1, 2): 3}, "something that is not text or plain data: keys must be"),
        (math.nan, "something that JSON does not have: a number that is not finite"),
        (ITSELF, "something that JSON does not have: a number that is not finite, or data that contain themselves"),
    ],
)
def test_other_values_are_errors(value: Any, text: str) -> None:
    found = result_of(value, 1000)
    assert found.failed
    assert found.text.startswith(f"Error: the tool returned {text}")


def test_long_results_are_cut() -> None:
    found = result_of("x" * 1000, 100)
    # Room for a mark with four digits, 37 characters, of which the number itself needs only three.
    assert found == ToolResult("x" * 63 + "\n[937 more characters are not shown]", cut=937)
    assert result_of("x" * 100, 100) == ToolResult("x" * 100)
    with pytest.raises(ValueError, match="at least 64"):
        result_of("x", 63)


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(64, 200), st.integers(1, 100))
def test_no_result_is_longer_than_the_limit(text: str, limit: int, times: int) -> None:
    found = result_of(text * times, limit)
    assert len(found.text) <= limit
    assert (found.cut == 0) == (len(text * times) <= limit)
    assert found.text.startswith((text * times)[: len(text * times) - found.cut])


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("too hot"), "Error: ValueError: too hot"),
        (KeyError("x"), "Error: KeyError: 'x'"),
        (OSError("no file: '/home/me/run/a.txt'"), "Error: OSError: no file: 'a.txt'"),
        (RuntimeError("cannot read ~/data/x.csv or /tmp"), "Error: RuntimeError: cannot read x.csv or /tmp"),
        (OSError("https://example.org/a/b, 1/2/3"), "Error: OSError: https://example.org/a/b, 1/2/3"),
        (TypeError("<object object at 0x7f00aa> is odd"), "Error: TypeError: <object object> is odd"),
        (ConfigError("wrong", remedy="do right"), "Error: ConfigError: wrong -> do right"),
    ],
)  # fmt: skip
def test_errors_are_one_line_without_paths(error: Exception, text: str) -> None:
    assert error_of(error, 1000) == ToolResult(text, failed=True)


def test_errors_that_cannot_be_printed_or_are_long() -> None:
    class Sulky(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert error_of(Sulky(), 100).text == "Error: Sulky: (its message cannot be shown: RuntimeError)"
    found = error_of(ValueError("x" * 1000), 100)
    assert len(found.text) == 99
    assert found.failed
    assert found.cut > 0
