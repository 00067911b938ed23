"""The format between the training process and its workers: types kept one way, nothing believed the other way."""

import datetime
import enum
import math
import uuid
from collections import OrderedDict
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.outside.frames import LENGTH, FrameReader, GarbledError
from burnish.rewards import wire
from burnish.rewards.inputs import Signature
from burnish.rewards.messages import Idle, Judged, Ready, Refused, Violation, read_answer
from burnish.rewards.outcome import Outcome
from burnish.types import RewardStatus, Score


def there(value: Any) -> Any:
    return wire.decode_request(wire.encode_request(value)[LENGTH.size :])


def same(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and np.array_equal(left, right)
    return type(left) is type(right) and (left == right or (left != left and right != right))


KEPT = [
    None, True, 0, -7, 2**31, 10**5000, -(10**5000), 1.5, -0.0, math.inf, math.nan, "", "ünïcode ☃ \u0000\u2028",
    "a lone \udc80", "two halves \ud83d\ude00 that stay apart", (), (1, (2, "x")), [], [(1,), [2]], [True, 1, 1.0],
    [10**5000, 1], list(range(100)), [*range(100), 2**40], [*range(100), True], {}, {"a": {"b": [None]}}, {1: "one"},
    {(1, 2): "pair"}, {"$tuple": [1]}, {"$": 1, "b": 2}, b"\xff\x00", bytearray(b"ab"), {1, 2}, frozenset({"a"}),
    datetime.datetime(2024, 2, 29, 1, 2, 3, 4), datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
    datetime.datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1), datetime.date(2024, 2, 29),
    datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=3, minutes=7))),
    datetime.time(1, 2, 3), datetime.timedelta(days=-1, microseconds=5), Decimal("1.10"), Fraction(1, 3), 1 + 2j,
    uuid.UUID(int=5), Path("/tmp/x"), np.float32(1.5), np.int64(7), np.bool_(True), np.arange(6).reshape(2, 3),
    np.array(["a", "bcd"]), np.array([], dtype=np.float16), np.datetime64("2020-01-01"),
    pd.Timestamp(1234567890123456789, tz="Europe/Berlin"), pd.Timedelta(5),
]  # fmt: skip


@pytest.mark.parametrize("value", KEPT, ids=range(len(KEPT)))
def test_values_reach_a_worker_as_they_are(value: Any) -> None:
    assert same(value, there(value))
    assert same(value, there({"column": value})["column"])


def test_subclasses_arrive_as_the_plain_type() -> None:
    class Colour(enum.StrEnum):
        RED = "red"

    for value, plain in ((Colour.RED, "red"), (OrderedDict(a=1), {"a": 1}), (enum.IntEnum("E", "A")(1), 1)):
        assert same(plain, there(value))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)) | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.sampled_from(["$", "$tuple", "$ids"]), inner)
    ),
)


@pytest.mark.slow
@given(VALUES)
def test_any_plain_value_arrives_unchanged(value: Any) -> None:
    assert repr(there(value)) == repr(value)  # repr tells 1 from True and 1.0, and takes nan for nan


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"row": [1, object()]}, r"row\[1\] is of type builtins.object"),
        ({"f": print}, "f is of type"),
        (np.array([object()], dtype=object), "numpy.ndarray"),
        (np.zeros(2, dtype=[("a", "f4")]), "named fields"),
    ],
)
def test_what_cannot_travel_is_named(value: Any, words: str) -> None:
    with pytest.raises(wire.UnsendableError, match=words):
        wire.encode_request(value)


def test_what_holds_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(wire.UnsendableError, match="nested too deeply"):
        wire.encode_request(value)


SIGNATURE = Signature("size", ("response",), ("answer",), ("factor",), True, False, False)
ANSWERS = [
    Ready({0: SIGNATURE, 3: SIGNATURE}),
    Refused("ConfigError", "no option", None, "Traceback"),
    Violation(7, "returned text", "return a number"),
    Judged(7, 3, Outcome(RewardStatus.OK, Score(0.1, {"a\udc80": 1e-300}, (0.05, 0.05)))),
    Judged(7, 3, Outcome(RewardStatus.OK, Score(-0.0, {}, None))),
    Judged(7, 3, Outcome(RewardStatus.TIMEOUT, None, "too slow")),
    Idle(7),
]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: type(answer).__name__)
def test_answers_come_back_equal(answer: Any) -> None:
    assert read_answer(wire.decode_answer(wire.encode_answer(answer.plain())[LENGTH.size :])) == answer


GARBAGE = [
    b"", b"hello", b"[", b"[" * 200_000, b"NaN", b'["outcome",1,2,"ok",[NaN,{},null],""]', b"9" * 10_000, b"\xff\xfe",
    b'["outcome",1,2,"ok",[1e999,{},null],""]', b'["outcome",1,2,"ok",[1,{},null],""]',
    b'["outcome",1,2,"ok",[true,{},null],""]', b'["outcome",1,2,"ok",null,""]',
    b'["outcome",1,2,"error",[1.0,{},null],""]', b'["outcome",1,2,"pending",null,""]',
    b'["outcome",1,2,"ok",[1.0,{"a":"b"},null],""]', b'["outcome",1,2,"ok",[1.0,{"a":{"b":1.0}},null],""]',
    b'["outcome",1,2,"ok",[1.0,[],null],""]', b'["outcome",1,2,"ok",[1.0,{},[null]],""]',
    b'["outcome",1,2,"ok",[1.0,{},1.0],""]', b'["outcome",1,2,"ok",[1.0,{}],""]', b'["outcome",1,"2","error",null,""]',
    b'["outcome",1,2,["ok"],null,""]', b'["outcome",1,2,"error",null,null]', b'["idle"]',
    b'["ready",[[0,{"label":1}]]]', b'["ready",[[0,null]]]', b'["ready",null]', b'["refused",null,"","",""]', b"{}",
    b"7", b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x02ls\x94\x85\x94R\x94.",
]  # fmt: skip


@pytest.mark.parametrize("data", GARBAGE, ids=lambda data: repr(data[:30]))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(GarbledError):
        read_answer(wire.decode_answer(data))


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_but_be_refused(data: bytes) -> None:
    reader = FrameReader(wire.MAX_ANSWER_BYTES)
    reader.feed(data)
    try:
        for frame in reader.frames():
            read_answer(wire.decode_answer(frame))
    except GarbledError:
        pass
