"""Hanging, dying and orphaned rewards: the item pays, its neighbours do not, and no process is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from burnish.errors import RewardError
from burnish.types import RewardStatus

NASTY = """
    import asyncio, os, re, signal, time

    def nasty(response):
        if response == "loop":
            while True: pass
        if response == "deaf":
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)
            while True: pass
        if response == "regex": re.match(r"(a+)+$", "a" * 60 + "b")  # holds the interpreter
        if response == "exit": os._exit(3)
        if response == "crash": os.kill(os.getpid(), signal.SIGSEGV)
        if response == "raise": raise ValueError("bad day")
        if response == "sysexit": raise SystemExit(4)
        return len(response)

    def nasty_batch(responses):
        if "loop" in responses:
            while True: pass
        if "exit" in responses: os._exit(3)
        if "raise" in responses: raise ValueError("bad day")
        return [len(response) for response in responses]

    async def nasty_async(response):
        if response == "sleep": await asyncio.sleep(1000)
        if response == "block": time.sleep(1000)
        if response == "exit": os._exit(3)
        if response == "raise": raise ValueError("bad day")
        await asyncio.sleep(0)
        return len(response)
"""


@pytest.fixture
def nasty(reward_file: Any) -> Path:
    return reward_file(NASTY)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _wait_gone(pids: list[int], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not any(_alive(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("bad", "status", "words"),
    [
        ("loop", RewardStatus.TIMEOUT, "timeout_seconds 1"),
        ("deaf", RewardStatus.TIMEOUT, "timeout_seconds 1"),
        ("regex", RewardStatus.TIMEOUT, "timeout_seconds 1"),
        ("exit", RewardStatus.ERROR, "exit status 3"),
        ("crash", RewardStatus.ERROR, "SIGSEGV"),
        ("raise", RewardStatus.ERROR, "ValueError: bad day"),
        ("sysexit", RewardStatus.ERROR, "SystemExit: 4"),
    ],
)
def test_one_bad_response_among_good_ones(
    make_scorer: Any, make_items: Any, nasty: Path, bad: str, status: RewardStatus, words: str
) -> None:
    scorer = make_scorer({"name": f"{nasty}:nasty", "timeout_seconds": 1.0})
    scored = scorer.score(make_items(["ab"] * 5 + [bad] + ["abc"] * 6))
    assert (scored[5].status, scored[5].reward) == (status, None)
    assert words in scored[5].status_detail
    assert [r.reward for r in scored[:5] + scored[6:]] == [2.0] * 5 + [3.0] * 6


def test_all_kinds_at_once_on_two_workers(make_scorer: Any, make_items: Any, nasty: Path) -> None:
    scorer = make_scorer({"name": f"{nasty}:nasty", "timeout_seconds": 1.0}, workers=2)
    scored = scorer.score(make_items(["exit", "ab", "loop", "exit", "loop", "ab", "crash", "ab"]))
    names = ["error", "ok", "timeout", "error", "timeout", "ok", "error", "ok"]
    assert [r.status.value for r in scored] == names
    assert scorer.metrics()["reward/timeout_fraction"].result() == pytest.approx(0.25)
    assert [r.reward for r in scorer.score(make_items(["abcd"] * 3))] == [4.0] * 3


@pytest.mark.parametrize(
    ("bad", "status"), [("loop", RewardStatus.TIMEOUT), ("exit", RewardStatus.ERROR), ("raise", RewardStatus.ERROR)]
)
def test_a_batched_call_fails_as_a_whole(
    make_scorer: Any, make_items: Any, nasty: Path, bad: str, status: RewardStatus
) -> None:
    scorer = make_scorer({"name": f"{nasty}:nasty_batch", "timeout_seconds": 1.0})
    assert [r.status for r in scorer.score(make_items(["ab", bad, "cd"]))] == [status] * 3
    assert [r.reward for r in scorer.score(make_items(["ab", "c"]))] == [2.0, 1.0]


def test_asynchronous_rewards_pay_one_by_one(make_scorer: Any, make_items: Any, nasty: Path) -> None:
    scorer = make_scorer({"name": f"{nasty}:nasty_async", "timeout_seconds": 1.0})
    scored = scorer.score(make_items(["ab", "sleep", "raise", "abc"]))
    assert [r.status.value for r in scored] == ["ok", "timeout", "error", "ok"]
    scored = scorer.score(make_items(["block", "ab", "exit"]))
    assert [r.status.value for r in scored] == ["timeout", "ok", "error"]


def test_closing_ends_the_workers(make_scorer: Any, make_items: Any, nasty: Path) -> None:
    scorer = make_scorer(f"{nasty}:nasty", workers=2)
    scorer.score(make_items(["ab"] * 20))
    pids = scorer.worker_pids
    assert pids
    assert all(_alive(pid) for pid in pids)
    scorer.close()
    assert _wait_gone(pids)


def test_an_error_leaves_no_worker(make_scorer: Any, make_items: Any, reward_file: Any) -> None:
    path = reward_file("""
        import time
        def wrong(response):
            if response == "wait": time.sleep(100)
            return "a text"
    """)
    scorer = make_scorer(f"{path}:wrong", workers=2)
    pids = scorer.worker_pids
    with pytest.raises(RewardError, match="returned str"):
        scorer.score(make_items(["wait", "b"]))
    assert scorer.worker_pids == []
    assert _wait_gone(pids)


def test_a_worker_killed_between_two_calls_is_replaced(make_scorer: Any, make_items: Any, nasty: Path) -> None:
    scorer = make_scorer(f"{nasty}:nasty")
    (pid,) = scorer.worker_pids
    os.kill(pid, signal.SIGKILL)
    assert _wait_gone([pid])
    assert [r.reward for r in scorer.score(make_items(["ab", "abc"]))] == [2.0, 3.0]


def test_works_off_the_main_thread(make_scorer: Any, make_items: Any) -> None:
    scored: list[Any] = []
    scorer = make_scorer({"name": "math", "timeout_seconds": 60})
    thread = threading.Thread(target=lambda: scored.extend(scorer.score(make_items(["\\boxed{\\sqrt{49}}"]))))
    thread.start()
    thread.join()
    assert scored[0].reward == 1.0


PARENT = """
    import signal, sys
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start background jobs with it ignored
    from burnish.config.schema import RewardConfig, ScoringConfig
    from burnish.rewards import ProcessRewardScorer
    from burnish.types import FinishReason, Prompt, Rollout

    reward = RewardConfig(name=sys.argv[1] + ":nasty", timeout_seconds=float(sys.argv[3]))
    scorer = ProcessRewardScorer([reward], ScoringConfig())
    print(*scorer.worker_pids, flush=True)
    items = [(Prompt(id="p", text="q"), Rollout("p", 0, 0, (), (1,), (0.0,), FinishReason.STOP, 0, sys.argv[2]))]
    scorer.score(items)
"""


def _end_parent(nasty: Path, number: signal.Signals, response: str, timeout_seconds: float) -> bool:
    """Whether the worker is gone soon after its parent, which waits for the score of `response`, got the signal."""
    program = [sys.executable, "-c", textwrap.dedent(PARENT), str(nasty), response, str(timeout_seconds)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        time.sleep(0.5)
        assert pids
        assert all(_alive(pid) for pid in pids)
        parent.send_signal(number)
        parent.wait(timeout=30)
    return _wait_gone(pids)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_the_parents_end_is_the_workers_end(nasty: Path, number: signal.Signals) -> None:
    assert _end_parent(nasty, number, "loop", 300)


@pytest.mark.slow
def test_an_orphan_that_never_yields_the_interpreter_ends_too(nasty: Path) -> None:
    """The kernel's timer ends it some seconds after its time limit, when no thread of it can run."""
    assert _end_parent(nasty, signal.SIGKILL, "regex", 2)


def test_workers_need_neither_torch_nor_configuration() -> None:
    code = "import sys, burnish.rewards.worker; print(*{'torch', 'pydantic'}.intersection(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
