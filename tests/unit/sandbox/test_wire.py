"""Only exact plain values cross, and whatever arrives is one."""

import datetime
import math
import os
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.sandbox.warm import Pipe
from burnish.sandbox.wire import ClosedError, NotPlainError, decode, encode

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
)


def alike(a: Any, b: Any) -> bool:
    """Equal with equal types, to the last bit of a float."""
    return type(a) is type(b) and repr(a) == repr(b)


@pytest.mark.slow
@given(PLAIN)
def test_plain_values_arrive_as_they_were(value: Any) -> None:
    assert alike(decode(encode(value)), value)


@pytest.mark.parametrize(
    "value",
    [
        {1, 2},
        frozenset("a"),
        bytearray(b"a"),
        deque([1, 2]),
        range(1, 9, 2),
        Decimal("1.50"),
        Fraction(2, 3),
        datetime.date(2026, 1, 2),
        datetime.datetime(2026, 1, 2, 3, 4, 5),
        datetime.timedelta(days=1, microseconds=3),
        -(2**53),
        math.inf,
        -0.0,
        "\ud800",
        {(1, "a"): [None]},
    ],
)
def test_so_do_those_that_json_lacks(value: Any) -> None:
    assert type(decode(encode(value))) is type(value)
    assert decode(encode(value)) == value


def test_so_do_integers_that_cannot_be_written_in_decimal() -> None:
    assert decode(encode(-(10**5000))) == -(10**5000)


def test_dictionaries_of_the_standard_library_are_dictionaries() -> None:
    assert decode(encode(Counter("aab"))) == {"a": 2, "b": 1}


class EqualToAll(int):
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


class Letter(IntEnum):
    A = 1


@pytest.mark.parametrize("value", [EqualToAll(3), Letter.A, object(), [EqualToAll(3)], {EqualToAll(3): 1}, len])
def test_nothing_else_leaves(value: object) -> None:
    with pytest.raises(NotPlainError, match="not plain"):
        encode(value)


def test_what_is_nested_too_deep_stays() -> None:
    value: list[Any] = []
    for _ in range(300):
        value = [value]
    with pytest.raises(NotPlainError, match="more than 200 deep"):
        encode(value)


@pytest.mark.parametrize(
    "message",
    [
        {"int": "x"},
        {"float": 1},
        {"object": 1},
        {"handle": 0},
        {"int": "1", "float": "1"},
        {},
        1.5,
        {"dict": [[[], 1]]},
        {"set": [[1]]},
        {"decimal": "x"},
        {"dict": 3},
    ],
)
def test_what_no_encoder_writes_is_refused(message: Any) -> None:
    with pytest.raises(NotPlainError):
        decode(message)


@pytest.fixture
def pipes() -> Iterator[tuple[Pipe, Pipe]]:
    there, back = os.pipe(), os.pipe()
    yield Pipe(back[0], there[1], 100), Pipe(there[0], back[1], 100)
    for descriptor in (*there, *back):
        with suppress(OSError):  # a test has closed it
            os.close(descriptor)


def test_messages_go_both_ways(pipes: tuple[Pipe, Pipe]) -> None:
    here, there = pipes
    here.send({"a": [1]})
    assert there.receive() == {"a": [1]}
    there.send(None)
    assert here.receive() is None


def test_a_message_that_is_too_long_is_neither_sent_nor_read(pipes: tuple[Pipe, Pipe]) -> None:
    here, there = pipes
    with pytest.raises(NotPlainError, match="102 bytes; 100 are allowed"):
        here.send("x" * 100)
    os.write(here._write_end, (2**31 - 1).to_bytes(8, "big"))  # announces 2 GB
    with pytest.raises(NotPlainError, match="2,147,483,647 bytes; 100 are allowed"):
        there.receive()


def test_what_is_not_json_is_no_message(pipes: tuple[Pipe, Pipe]) -> None:
    here, there = pipes
    os.write(here._write_end, (2).to_bytes(8, "big") + b"{]")
    with pytest.raises(NotPlainError, match="not JSON"):
        there.receive()


def test_a_closed_end_is_told(pipes: tuple[Pipe, Pipe]) -> None:
    here, there = pipes
    os.close(here._write_end)
    with pytest.raises(ClosedError):
        there.receive()
    os.close(there._read_end)
    os.close(here._read_end)
    with pytest.raises(ClosedError):
        there.send(1)


@pytest.mark.parametrize(
    "text", ["1e10000000", "1.5", " 1/2", "1_0/3", "+1/2", "1/0", "1/", "\u0661/2", "1/" + "9" * 4301]
)
def test_a_fraction_is_two_integers_of_bounded_length(text: str) -> None:
    """`Fraction("1e10000000")` alone takes many seconds, in which a server would answer nobody."""
    with pytest.raises(NotPlainError):
        decode({"fraction": text})


def test_fractions_that_are_longer_do_not_cross() -> None:
    longest = Fraction(10**4299 + 1, 10**4299)
    assert decode(encode(longest)) == longest
    assert decode({"fraction": "-3"}) == -3
    with pytest.raises(NotPlainError, match="more digits than Python writes"):
        encode(Fraction(1, 10**4300))
