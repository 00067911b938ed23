"""What a reward may hand back, however odd: one clear status or error each, and never the end of the worker's loop."""

from pathlib import Path

import pytest

from burnish.errors import RewardError
from burnish.types import RewardStatus

HELPERS = """
import asyncio, math, os, resource, signal, sys, threading
from decimal import Decimal
from fractions import Fraction
import numpy
from burnish.types import Score

class Raises(float):
    def __float__(self): raise ValueError("no number today")
class Hangs(float):
    def __float__(self):
        while True:
            pass
class Exits(float):
    def __float__(self): raise SystemExit(3)
class Mute(Exception):
    def __str__(self): raise ValueError("no text either")
class Word(str): __str__ = Mute.__str__
class Half(Score):
    @property
    def __class__(self): raise KeyError("class")
    def __reduce__(self): return (os.system, ("touch " + PLACE,))
class Poison: __reduce__ = Half.__reduce__
PLACE = __file__ + ".pwned"

def endless():
    while True:
        yield 1.0

def failing():
    yield 1.0
    raise ValueError("out of numbers")

def recurse(n): return recurse(n + 1) + 1

def raising(error): raise error

def odd(response): return 2.0 if response == "good" else CASES[response]()
def odd_batch(responses): return CASES[responses[0]]()
async def odd_async(response): return 2.0 if response == "good" else CASES[response]()
"""

FAILED = {  # what a reward does, and what is said of it
    "huge": ("10**400", "too large for a float"),
    "minus huge": ("-(10**400)", "too large for a float"),
    "huge fraction": ("Fraction(10**400, 3)", "too large for a float"),
    "huge part": ('Score(1.0, parts={"a": 10**400})', "as part 'a'"),
    "nan part": ('Score(1.0, parts={"a": math.nan})', "nan as part 'a'"),
    "float raises": ("Raises(1.0)", "no number today"),
    "part raises": ('Score(1.0, parts={"a": Raises(1.0)})', "no number today"),
    "token raises": ("Score(1.0, token_rewards=(Raises(1.0),))", "no number today"),
    "float exits": ("Exits(1.0)", "SystemExit: 3"),
    "interrupt": ("raising(KeyboardInterrupt())", "KeyboardInterrupt"),
    "generator exit": ("raising(GeneratorExit())", "GeneratorExit"),
    "cancelled": ("raising(asyncio.CancelledError())", "CancelledError"),
    "mute": ("raising(Mute())", "Mute"),
    "long text": ('raising(ValueError("x" * 100_000_000))', "characters left out"),
    "recursion": ("recurse(0)", "RecursionError"),
    "long name": (
        'Score(0.0, parts={"n" * 80_000_000: 0.5})',
        "(80,000,000 characters), where a name has 1 to 120 printable ones",
    ),
    "no name": ('Score(0.0, parts={"": 0.5})', "(0 characters)"),
    "name of controls": ('Score(0.0, parts={"a" + chr(27) + "[2J" + chr(10): 0.5})', "a part named 'a\\x1b[2J\\n'"),
    "many numbers": ("Score(0.0, parts={str(i) * 40: 0.5 for i in range(300_000)})", "more than 256 parts"),
    "long answer": ("Score(0.0, token_rewards=(0.1234567890123456,) * 3_600_000)", "returned too much"),
    "abort": ("os.abort()", "killed by SIGABRT"),
    "closes": ("os.closerange(3, 5000)", "closed the file descriptors"),
    "closes and opens": (
        "(os.closerange(3, 5000), [open(__file__) for _ in range(300)]) and 1.0",
        "closed the file descriptors",
    ),
    "memory": ("bytearray(1 << 60)", "Error"),
    "limit": ("(resource.setrlimit(resource.RLIMIT_CPU, (0, 0)), sum(range(10**9)))[1]", "killed by SIG"),
    "half": ("Half(2.0)", "KeyError"),
}
FINE = {
    "fork": "2.0 if os.fork() else 3.0",
    "thread exits": "(threading.Thread(target=sys.exit).start(), 2.0)[1]",
    "prints": '(print("x" * 50_000_000, flush=True), 2.0)[1]',
    "writes low descriptors": '[os.write(fd, b"hello") for fd in (1, 2)] and 2.0',
    "no streams": '(setattr(sys, "stdout", None), setattr(sys, "stderr", None), 2.0)[2]',
    "handlers": "[signal.signal(n, lambda *_: None) for n in (15, 10, 14)] and 2.0",
    "elsewhere": '(os.chdir("/"), 2.0)[1]',
    "int": "2",
    "numpy": "numpy.float32(2.0)",
    "numpy bool": 'Score(2.0, {"whole": numpy.bool_(True)})',
    "array without dimensions": "numpy.array(2.0)",
    "fraction": "Fraction(4, 2)",
    "subclass": 'Score(type("F", (float,), {})(2.0), parts={Word("a"): 1})',
    "coroutine": "asyncio.sleep(0, 2.0)",
}
BROKEN = {
    "text": ('Word("good")', "returned Word"),
    "decimal": ('Decimal("1.5")', "returned Decimal"),
    "array": ("numpy.zeros(3)", "returned ndarray"),
    "generator": ("endless()", "returned generator"),
    "poison": ("Poison()", "returned Poison"),
    "parts list": ("Score(1.0, parts=[1.0])", "parts are list"),
    "parts nested": ('Score(1.0, parts={"a": {"b": 1.0}})', "part 'a' dict"),
    "part names": ("Score(1.0, parts={1: 1.0})", "name is int"),
    "part text": ('Score(1.0, parts={"a": "1.0"})', "part 'a' str"),
    "part poison": ('Score(1.0, parts={"a": Poison()})', "part 'a' Poison"),
    "value": ("Score(None)", "NoneType"),
    "tokens": ("Score(1.0, token_rewards=1.0)", "token_rewards of type float"),
    "tokens endless": ("Score(1.0, token_rewards=endless())", "token_rewards of type generator"),
    "batch endless": ("endless()", "more than 1 scores for 1"),
    "batch set": ("{1.0}", "returned set"),
    "batch number": ("1.0", "returned float"),
    "batch long": ("[1.0, 2.0]", "returned 2 scores for 1"),
    "batch coroutines": ("[None, asyncio.sleep(0)][1:]", "returned coroutine"),
    "batch poison": ("[Poison()]", "returned Poison"),
}
OTHERS = {
    "float hangs": "Hangs(1.0)",
    "part hangs": 'Score(1.0, parts={"a": Hangs(1.0)})',
    "bool": "True",
    "none": "None",
    "batch raises": "failing()",
    "batch float raises": "[Raises(1.0)]",
    "batch generator": "(1.0 for _ in range(1))",
}
CODES = {**{name: code for name, (code, _) in (FAILED | BROKEN).items()}, **FINE, **OTHERS}
REWARDS = HELPERS + "CASES = {" + "".join(f"{name!r}: lambda: {code}, " for name, code in CODES.items()) + "}\n"


@pytest.mark.slow
def test_what_cannot_be_a_score_is_an_error_of_its_response(make_scorer, make_items, file: Path) -> None:
    scorer = make_scorer({"name": f"{file}:odd", "timeout_seconds": 60})
    responses = [word for bad in FAILED for word in (bad, "good")]
    scored = scorer.score(make_items(responses))
    for rollout, (bad, (_, words)) in zip(scored[::2], FAILED.items(), strict=True):
        assert (rollout.status, rollout.reward) == (RewardStatus.ERROR, None), bad
        assert words in rollout.status_detail, bad
        assert len(rollout.status_detail) < 25_000, bad
    assert [rollout.reward for rollout in scored[1::2]] == [2.0] * len(FAILED)


@pytest.mark.slow
@pytest.mark.parametrize("bad", ["float hangs", "part hangs"])
def test_reading_a_score_has_the_time_limit_of_the_call(make_scorer, make_items, file: Path, bad: str) -> None:
    scorer = make_scorer({"name": f"{file}:odd", "timeout_seconds": 1})
    statuses = [rollout.status for rollout in scorer.score(make_items([bad, "good"]))]
    assert statuses == [RewardStatus.TIMEOUT, RewardStatus.OK]


@pytest.mark.slow
@pytest.mark.parametrize("bad", ["huge", "float raises", "interrupt", "cancelled", "mute", "float exits"])
def test_asynchronous_rewards_are_guarded_alike(make_scorer, make_items, file: Path, bad: str) -> None:
    scored = make_scorer(f"{file}:odd_async").score(make_items([bad, "good"]))
    assert [rollout.status for rollout in scored] == [RewardStatus.ERROR, RewardStatus.OK]


@pytest.mark.slow
def test_odd_habits_that_harm_nobody(make_scorer, make_items, file: Path) -> None:
    fine = [*FINE, "good"]
    scored = make_scorer({"name": f"{file}:odd", "timeout_seconds": 60}).score(make_items([*fine, "bool", "none"]))
    assert {r.response: r.reward for r in scored} == {**dict.fromkeys(fine, 2.0), "bool": 1.0, "none": None}
    assert scored[-1].status is RewardStatus.MISSING
    assert dict(scored[fine.index("subclass")].reward_parts) == {"odd": 2.0, "odd/a": 1.0}
    assert all(type(name) is str for name in scored[fine.index("subclass")].reward_parts)


@pytest.mark.slow_cases(*BROKEN.keys() - {"text", "batch poison"})
@pytest.mark.parametrize("bad", BROKEN)
def test_a_broken_contract_is_named_and_no_code_runs_here(make_scorer, make_items, file: Path, bad: str) -> None:
    function = "odd_batch" if bad.startswith("batch") else "odd"
    with pytest.raises(RewardError, match=BROKEN[bad][1]):
        make_scorer(f"{file}:{function}").score(make_items([bad]))
    assert not file.with_name(file.name + ".pwned").exists()


@pytest.mark.slow
def test_a_batch_whose_reading_raises(make_scorer, make_items, file: Path) -> None:
    scorer = make_scorer(f"{file}:odd_batch")
    for bad, words in (("batch raises", "out of numbers"), ("batch float raises", "no number today")):
        (scored,) = scorer.score(make_items([bad]))
        assert scored.status is RewardStatus.ERROR
        assert words in scored.status_detail
    assert scorer.score(make_items(["batch generator"]))[0].reward == 1.0
