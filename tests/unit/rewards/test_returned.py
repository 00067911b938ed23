"""What a reward may hand back, however odd: one clear status or error each, and never the end of the worker's loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from burnish.errors import RewardError
from burnish.types import RewardStatus

REWARDS = """
    import asyncio, math, os, resource, signal, sys, threading
    from collections import namedtuple
    from decimal import Decimal
    from fractions import Fraction
    import numpy
    from burnish.types import Score

    class Raises(float):
        def __float__(self): raise ValueError("no number today")
    class Hangs(float):
        def __float__(self):
            while True: pass
    class Exits(float):
        def __float__(self): raise SystemExit(3)
    class Mute(Exception):
        def __str__(self): raise ValueError("no text either")
    class Word(str):
        def __str__(self): raise ValueError("no text either")
    class Half(Score):
        @property
        def __class__(self): raise KeyError("class")
        def __reduce__(self): return (os.system, ("touch " + PLACE,))
    class Poison:
        def __reduce__(self): return (os.system, ("touch " + PLACE,))
    PLACE = __file__ + ".pwned"

    def endless():
        while True: yield 1.0

    def failing():
        yield 1.0
        raise ValueError("out of numbers")

    def recurse(n): return recurse(n + 1) + 1

    def raising(error): raise error

    CASES = {
        "huge": lambda: 10**400,
        "minus huge": lambda: -(10**400),
        "huge fraction": lambda: Fraction(10**400, 3),
        "huge part": lambda: Score(1.0, parts={"a": 10**400}),
        "nan part": lambda: Score(1.0, parts={"a": math.nan}),
        "float raises": lambda: Raises(1.0),
        "part raises": lambda: Score(1.0, parts={"a": Raises(1.0)}),
        "token raises": lambda: Score(1.0, token_rewards=(Raises(1.0),)),
        "float exits": lambda: Exits(1.0),
        "float hangs": lambda: Hangs(1.0),
        "part hangs": lambda: Score(1.0, parts={"a": Hangs(1.0)}),
        "interrupt": lambda: raising(KeyboardInterrupt()),
        "generator exit": lambda: raising(GeneratorExit()),
        "cancelled": lambda: raising(asyncio.CancelledError()),
        "mute": lambda: raising(Mute()),
        "long text": lambda: raising(ValueError("x" * 100_000_000)),
        "recursion": lambda: recurse(0),
        "many numbers": lambda: Score(0.0, parts={str(i) * 40: 0.5 for i in range(300_000)}),
        "long name": lambda: Score(0.0, parts={"n" * 80_000_000: 0.5}),
        "no name": lambda: Score(0.0, parts={"": 0.5}),
        "name of controls": lambda: Score(0.0, parts={"a" + chr(27) + "[2J" + chr(10): 0.5}),
        "long answer": lambda: Score(0.0, token_rewards=(0.1234567890123456,) * 3_600_000),
        "abort": lambda: os.abort(),
        "closes": lambda: os.closerange(3, 5000),
        "closes and opens": lambda: (os.closerange(3, 5000), [open(__file__) for _ in range(300)]) and 1.0,
        "memory": lambda: bytearray(1 << 60),
        "limit": lambda: (resource.setrlimit(resource.RLIMIT_CPU, (0, 0)), sum(range(10**9)))[1],
        # fine
        "fork": lambda: 2.0 if os.fork() else 3.0,
        "thread exits": lambda: (threading.Thread(target=sys.exit).start(), 2.0)[1],
        "prints": lambda: (print("x" * 50_000_000, flush=True), 2.0)[1],
        "writes low descriptors": lambda: [os.write(fd, b"hello") for fd in (1, 2)] and 2.0,
        "no streams": lambda: (setattr(sys, "stdout", None), setattr(sys, "stderr", None), 2.0)[2],
        "handlers": lambda: [signal.signal(n, lambda *_: None) for n in (15, 10, 14)] and 2.0,
        "elsewhere": lambda: (os.chdir("/"), 2.0)[1],
        "bool": lambda: True,
        "int": lambda: 2,
        "numpy": lambda: numpy.float32(2.0),
        "numpy bool": lambda: Score(2.0, {"whole": numpy.bool_(True)}),
        "array without dimensions": lambda: numpy.array(2.0),
        "fraction": lambda: Fraction(4, 2),
        "subclass": lambda: Score(type("F", (float,), {})(2.0), parts={Word("a"): 1}),
        "coroutine": lambda: asyncio.sleep(0, 2.0),
        "half": lambda: Half(2.0),
        "none": lambda: None,
        # broken contracts
        "text": lambda: Word("good"),
        "decimal": lambda: Decimal("1.5"),
        "array": lambda: numpy.zeros(3),
        "generator": lambda: endless(),
        "poison": lambda: Poison(),
        "parts list": lambda: Score(1.0, parts=[1.0]),
        "parts nested": lambda: Score(1.0, parts={"a": {"b": 1.0}}),
        "part names": lambda: Score(1.0, parts={1: 1.0}),
        "part text": lambda: Score(1.0, parts={"a": "1.0"}),
        "part poison": lambda: Score(1.0, parts={"a": Poison()}),
        "value": lambda: Score(None),
        "tokens": lambda: Score(1.0, token_rewards=1.0),
        "tokens endless": lambda: Score(1.0, token_rewards=endless()),
        # of a batched reward
        "batch raises": lambda: failing(),
        "batch float raises": lambda: [Raises(1.0)],
        "batch endless": lambda: endless(),
        "batch set": lambda: {1.0},
        "batch number": lambda: 1.0,
        "batch long": lambda: [1.0, 2.0],
        "batch coroutines": lambda: [None, asyncio.sleep(0)][1:],
        "batch poison": lambda: [Poison()],
        "batch generator": lambda: (1.0 for _ in range(1)),
    }

    def odd(response): return 2.0 if response == "good" else CASES[response]()
    def odd_batch(responses): return CASES[responses[0]]()
    async def odd_async(response): return 2.0 if response == "good" else CASES[response]()
"""


FAILED = {
    "huge": "too large for a float",
    "minus huge": "too large for a float",
    "huge fraction": "too large for a float",
    "huge part": "as part 'a'",
    "nan part": "nan as part 'a'",
    "float raises": "no number today",
    "part raises": "no number today",
    "token raises": "no number today",
    "float exits": "SystemExit: 3",
    "interrupt": "KeyboardInterrupt",
    "generator exit": "GeneratorExit",
    "cancelled": "CancelledError",
    "mute": "Mute",
    "long text": "characters left out",
    "recursion": "RecursionError",
    "long name": "(80,000,000 characters), where a name has 1 to 120 printable ones",
    "no name": "(0 characters)",
    "name of controls": "a part named 'a\\x1b[2J\\n'",
    "many numbers": "more than 256 parts",
    "long answer": "returned too much",
    "abort": "killed by SIGABRT",
    "closes": "closed the file descriptors",
    "closes and opens": "closed the file descriptors",
    "memory": "Error",
    "limit": "killed by SIG",
    "half": "KeyError",
}


@pytest.mark.slow
def test_what_cannot_be_a_score_is_an_error_of_its_response(make_scorer: Any, make_items: Any, file: Path) -> None:
    scorer = make_scorer({"name": f"{file}:odd", "timeout_seconds": 60})
    responses = [word for bad in FAILED for word in (bad, "good")]
    scored = scorer.score(make_items(responses))
    for rollout, (bad, words) in zip(scored[::2], FAILED.items(), strict=True):
        assert (rollout.status, rollout.reward) == (RewardStatus.ERROR, None), bad
        assert words in rollout.status_detail, bad
        assert len(rollout.status_detail) < 25_000, bad
    assert [rollout.reward for rollout in scored[1::2]] == [2.0] * len(FAILED)


@pytest.mark.slow
@pytest.mark.parametrize("bad", ["float hangs", "part hangs"])
def test_reading_a_score_has_the_time_limit_of_the_call(
    make_scorer: Any, make_items: Any, file: Path, bad: str
) -> None:
    scorer = make_scorer({"name": f"{file}:odd", "timeout_seconds": 1})
    statuses = [rollout.status for rollout in scorer.score(make_items([bad, "good"]))]
    assert statuses == [RewardStatus.TIMEOUT, RewardStatus.OK]


@pytest.mark.slow
@pytest.mark.parametrize("bad", ["huge", "float raises", "interrupt", "cancelled", "mute", "float exits"])
def test_asynchronous_rewards_are_guarded_alike(make_scorer: Any, make_items: Any, file: Path, bad: str) -> None:
    scored = make_scorer(f"{file}:odd_async").score(make_items([bad, "good"]))
    assert [rollout.status for rollout in scored] == [RewardStatus.ERROR, RewardStatus.OK]


@pytest.mark.slow
def test_odd_habits_that_harm_nobody(make_scorer: Any, make_items: Any, file: Path) -> None:
    fine = ["fork", "thread exits", "prints", "writes low descriptors", "handlers", "elsewhere", "int", "numpy"]
    fine += ["numpy bool", "array without dimensions", "fraction", "subclass", "coroutine", "no streams", "good"]
    scored = make_scorer({"name": f"{file}:odd", "timeout_seconds": 60}).score(make_items([*fine, "bool", "none"]))
    assert {r.response: r.reward for r in scored} == {**dict.fromkeys(fine, 2.0), "bool": 1.0, "none": None}
    assert scored[-1].status is RewardStatus.MISSING
    assert dict(scored[fine.index("subclass")].reward_parts) == {"odd": 2.0, "odd/a": 1.0}
    assert all(type(name) is str for name in scored[fine.index("subclass")].reward_parts)


BROKEN = {
    "text": "returned Word",
    "decimal": "returned Decimal",
    "array": "returned ndarray",
    "generator": "returned generator",
    "poison": "returned Poison",
    "parts list": "parts are list",
    "parts nested": "part 'a' dict",
    "part names": "name is int",
    "part text": "part 'a' str",
    "part poison": "part 'a' Poison",
    "value": "NoneType",
    "tokens": "token_rewards of type float",
    "tokens endless": "token_rewards of type generator",
    "batch endless": "more than 1 scores for 1",
    "batch set": "returned set",
    "batch number": "returned float",
    "batch long": "returned 2 scores for 1",
    "batch coroutines": "returned coroutine",
    "batch poison": "returned Poison",
}


@pytest.mark.slow_cases(*BROKEN.keys() - {"text", "batch poison"})
@pytest.mark.parametrize("bad", BROKEN)
def test_a_broken_contract_is_named_and_no_code_runs_here(
    make_scorer: Any, make_items: Any, file: Path, bad: str
) -> None:
    function = "odd_batch" if bad.startswith("batch") else "odd"
    with pytest.raises(RewardError, match=BROKEN[bad]):
        make_scorer(f"{file}:{function}").score(make_items([bad]))
    assert not file.with_name(file.name + ".pwned").exists()


@pytest.mark.slow
def test_a_batch_whose_reading_raises(make_scorer: Any, make_items: Any, file: Path) -> None:
    scorer = make_scorer(f"{file}:odd_batch")
    for bad, words in (("batch raises", "out of numbers"), ("batch float raises", "no number today")):
        (scored,) = scorer.score(make_items([bad]))
        assert scored.status is RewardStatus.ERROR
        assert words in scored.status_detail
    assert scorer.score(make_items(["batch generator"]))[0].reward == 1.0
