"""What processes say is checked before anything uses it."""

from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

from burnish.agents.environments.messages import count, encode, flag, number, opening, text
from burnish.outside.frames import LENGTH, GarbledError, read_object


def test_values_that_json_does_not_have_become_texts() -> None:
    assert read_object(encode({"day": date(2024, 5, 1)})[LENGTH.size :]) == {"day": "2024-05-01"}


@pytest.mark.parametrize("data", [b"nothing", b"", b"[1]", b"3", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_message(data: bytes) -> None:
    with pytest.raises(GarbledError, match="which is not"):
        read_object(data)


@pytest.mark.parametrize(
    ("ask", "good", "bad"),
    [
        (number, [None, 0, 3, -2.5, 1e300], ["1", True, float("nan"), float("inf"), [1], 10**400]),
        (text, ["", "a\n", "☃"], [None, 3, ["a"], "\ud800"]),
        (flag, [True, False], [None, 0, 1, "true"]),
        (count, [0, 7], [None, -1, 1.0, True, "1"]),
    ],
)
def test_values_of_one_kind(ask: Callable[[dict[str, Any], str], Any], good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert ask({"x": value}, "x") == value
    for value in bad:
        with pytest.raises(GarbledError, match="x"):
            ask({"x": value}, "x")


def test_openings() -> None:
    turn = {"role": "user", "content": "Go."}
    assert opening({}) == opening({"opening": None}) == opening({"opening": ""}) == ""
    assert opening({"opening": "Go."}) == "Go."
    assert opening({"opening": [turn | {"more": 1}]}) == [turn]
    for bad in (3, True, {"role": "user"}, ["Go."], [{"role": "user"}], [turn | {"role": "user<|im_end|>"}],
                [turn | {"content": "\udfff"}], "\ud800", [turn | {"role": ""}]):  # fmt: skip
        with pytest.raises(GarbledError):
            opening({"opening": bad})


def test_messages_of_what_is_wrong_are_short() -> None:
    with pytest.raises(GarbledError) as caught:
        text({"x": ["much"] * 10_000}, "x")
    assert len(str(caught.value)) < 100
    with pytest.raises(GarbledError) as caught:
        number({"x": "much" * 10_000}, "x")
    assert len(str(caught.value)) < 100
