"""What processes say is checked before anything uses it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

from burnish.environments import messages
from burnish.environments.messages import GarbledError, LineReader, count, encode, flag, number, opening, text


def read(*parts: bytes) -> list[dict[str, Any]]:
    reader, found = LineReader(), []
    for part in parts:
        reader.feed(part)
        found += list(reader.messages())
    return found


def test_messages_survive_however_they_are_cut() -> None:
    sent = [{"a": 1}, {"b": "line\nbreak é ☃"}, {}, {"c": [None, True]}]
    data = b"".join(encode(message) for message in sent)
    for size in (1, 2, 7, len(data)):
        assert read(*(data[start : start + size] for start in range(0, len(data), size))) == sent


def test_values_that_json_does_not_have_become_texts() -> None:
    assert json.loads(encode({"day": date(2024, 5, 1)})) == {"day": "2024-05-01"}


@pytest.mark.parametrize("line", [b"nothing\n", b"\n", b"[1]\n", b"3\n", b"\xff\xfe\n", b"[" * 100_000 + b"\n"])
def test_what_is_no_message(line: bytes) -> None:
    with pytest.raises(GarbledError):
        read(line)


def test_messages_in_front_of_what_is_none_are_read() -> None:
    reader = LineReader()
    reader.feed(b'{"a": 1}\nnothing\n')
    found = reader.messages()
    assert next(found) == {"a": 1}
    with pytest.raises(GarbledError, match="b'nothing', which is not JSON"):
        next(found)


def test_a_line_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_LINE_BYTES", 10)
    reader = LineReader()
    reader.feed(b"0123456789")
    with pytest.raises(GarbledError, match="more than 10 bytes"):
        reader.feed(b"0")


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
