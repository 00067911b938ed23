"""Hanging, dying and orphaned rewards: the item pays, its neighbours do not, and no process is left behind."""

import itertools
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from watching import runs, wait_for

from burnish.errors import RewardError
from burnish.rewards.worker_process import WorkerProcess
from burnish.types import RewardStatus

REWARDS = """
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


@pytest.mark.slow_cases("crash-*", "exit-*", "*-timeout-*")
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
def test_one_bad_response_among_good_ones(make_scorer, make_items, file, bad, status, words) -> None:
    scorer = make_scorer({"name": f"{file}:nasty", "timeout_seconds": 1.0})
    scored = scorer.score(make_items(["ab"] * 5 + [bad] + ["abc"] * 6))
    assert (scored[5].status, scored[5].reward) == (status, None)
    assert words in scored[5].status_detail
    assert [r.reward for r in scored[:5] + scored[6:]] == [2.0] * 5 + [3.0] * 6


@pytest.mark.slow
def test_all_kinds_at_once_on_two_workers(make_scorer, make_items, file: Path) -> None:
    scorer = make_scorer({"name": f"{file}:nasty", "timeout_seconds": 1.0}, workers=2)
    scored = scorer.score(make_items(["exit", "ab", "loop", "exit", "loop", "ab", "crash", "ab"]))
    assert [r.status.value for r in scored] == ["error", "ok", "timeout", "error", "timeout", "ok", "error", "ok"]
    assert scorer.take_metrics()["reward/timeout_fraction"].result() == pytest.approx(0.25)
    assert [r.reward for r in scorer.score(make_items(["abcd"] * 3))] == [4.0] * 3


@pytest.mark.slow_cases("exit-error", "loop-timeout")
@pytest.mark.parametrize(
    ("bad", "status"), [("loop", RewardStatus.TIMEOUT), ("exit", RewardStatus.ERROR), ("raise", RewardStatus.ERROR)]
)
def test_a_batched_call_fails_as_a_whole(make_scorer, make_items, file: Path, bad: str, status: RewardStatus) -> None:
    scorer = make_scorer({"name": f"{file}:nasty_batch", "timeout_seconds": 1.0})
    assert [r.status for r in scorer.score(make_items(["ab", bad, "cd"]))] == [status] * 3
    assert [r.reward for r in scorer.score(make_items(["ab", "c"]))] == [2.0, 1.0]


@pytest.mark.slow
def test_asynchronous_rewards_pay_one_by_one(make_scorer, make_items, file: Path) -> None:
    scorer = make_scorer({"name": f"{file}:nasty_async", "timeout_seconds": 1.0})
    scored = scorer.score(make_items(["ab", "sleep", "raise", "abc"]))
    assert [r.status.value for r in scored] == ["ok", "timeout", "error", "ok"]
    scored = scorer.score(make_items(["block", "ab", "exit"]))
    assert [r.status.value for r in scored] == ["timeout", "ok", "error"]


@pytest.mark.slow
def test_an_error_leaves_no_worker(make_scorer, make_items, reward_file) -> None:
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
    wait_for(lambda: not any(map(runs, pids)))


@pytest.mark.slow
def test_a_worker_killed_between_two_calls_is_replaced(make_scorer, make_items, file: Path) -> None:
    scorer = make_scorer(f"{file}:nasty")
    (pid,) = scorer.worker_pids
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not runs(pid))
    assert [r.reward for r in scorer.score(make_items(["ab", "abc"]))] == [2.0, 3.0]


@pytest.mark.slow
def test_works_off_the_main_thread(make_scorer, make_items) -> None:
    scored: list[Any] = []
    scorer = make_scorer({"name": "math", "timeout_seconds": 60})
    thread = threading.Thread(target=lambda: scored.extend(scorer.score(make_items(["\\boxed{\\sqrt{49}}"]))))
    thread.start()
    thread.join()
    assert scored[0].reward == 1.0


DAEMONS = """
    import ctypes, os, subprocess, sys, time

    def twice_forked():
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                ctypes.CDLL(None).prctl(1, 0)  # not even a signal at its parent's end
                with open(HERE, "a") as file: file.write(f"{os.getpid()}\\n")
                os.execvp("sleep", ["sleep", "1000"])
            os._exit(0)
        os.wait()

    def sessions():
        quiet = "stdout=s.DEVNULL, stderr=s.DEVNULL, start_new_session=True"
        code = f"import subprocess as s; print(s.Popen(['sleep', '1000'], {quiet}).pid)"
        for _ in range(3):
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, start_new_session=True)
            with open(HERE, "a") as file: file.write(done.stdout)

    def stopper():
        twice_forked()
        os.kill(os.getppid(), 19)  # SIGSTOP to whoever watches over this worker

    HERE = __file__ + ".pids"
    open(HERE, "a").close()
    WAYS = {"twice forked": twice_forked, "sessions": sessions, "stopper": stopper}

    def nasty(response):
        way, _, ending = response.partition("/")
        WAYS[way]()
        while len(open(HERE).read().split()) < {"sessions": 3}.get(way, 1): time.sleep(0.01)
        if ending == "loop":
            while True: pass
        if ending == "exit": os._exit(3)
        return 1.0
"""


@pytest.mark.slow_cases("sessions/-ok", "sessions/loop-timeout", "stopper/loop-timeout", "twice forked/loop-timeout")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process adopt the orphans below it")
@pytest.mark.parametrize(
    ("response", "status"),
    [
        ("twice forked/", RewardStatus.OK),
        ("twice forked/loop", RewardStatus.TIMEOUT),
        ("twice forked/exit", RewardStatus.ERROR),
        ("sessions/", RewardStatus.OK),
        ("sessions/loop", RewardStatus.TIMEOUT),
        ("stopper/loop", RewardStatus.TIMEOUT),
    ],
)
def test_what_leaves_its_session_ends_with_its_worker(make_scorer, make_items, reward_file, response, status) -> None:
    path = reward_file(DAEMONS)
    limit = 5.0 if status is RewardStatus.TIMEOUT else 60.0
    scorer = make_scorer({"name": f"{path}:nasty", "timeout_seconds": limit})
    (scored,) = scorer.score(make_items([response]))
    assert scored.status is status
    pids = [int(word) for word in Path(f"{path}.pids").read_text().split()]
    assert len(pids) == (3 if "sessions" in response else 1)
    if status is RewardStatus.OK:
        assert all(map(runs, pids))
        scorer.close()
    assert not any(map(runs, pids))


TALKERS = """
    import gc, os, socket

    def channel():
        found = [s for s in gc.get_objects() if isinstance(s, socket.socket) and s.fileno() >= 0]
        assert found
        return found[0]

    def framed(sent): return len(sent).to_bytes(8, "big") + sent

    SENT = {
        "garbage": b"not what it should be",
        "partial": framed(b"[" * 50)[:9],
        "no answer": framed(b"[{}]"),
        "another task": framed(b'["outcome",0,0,"ok",[100.0,{},null],""]'),
        "ready again": framed(b'["ready",[]]'),
        "endless": b"\\x7f" * 8,
    }

    def talker(response):
        if response in SENT: channel().send(SENT[response])
        if response == "child": os.system("for fd in $(ls /proc/self/fd); do echo x >&$fd; done 2>/dev/null")
        return len(response)
"""


@pytest.mark.slow
@pytest.mark.parametrize("bad", ["garbage", "partial", "no answer", "another task", "ready again", "endless"])
def test_nonsense_on_the_socket_costs_one_response(make_scorer, make_items, reward_file, bad: str) -> None:
    scorer = make_scorer({"name": f"{reward_file(TALKERS)}:talker", "timeout_seconds": 20})
    scored = scorer.score(make_items(["ab", bad, "abc", "child"]))
    assert scored[1].status is RewardStatus.ERROR
    assert "instead of an answer" in scored[1].status_detail
    assert [scored[index].reward for index in (0, 2, 3)] == [2.0, 3.0, 5.0]


@pytest.mark.slow
def test_a_supervisor_that_is_killed_takes_its_worker_along(make_scorer, make_items, reward_file) -> None:
    path = reward_file("""
        import os
        def patricide(response):
            if response == "kill": os.kill(os.getppid(), 9)
            return len(response)
    """)
    scorer = make_scorer(f"{path}:patricide")
    (pid,) = scorer.worker_pids
    scored = scorer.score(make_items(["ab", "kill", "abc"]))
    lost = [r for r in scored if r.status is not RewardStatus.OK]  # the worker may still have given an answer or two
    assert len(lost) <= 1
    assert all("SIGKILL" in r.status_detail for r in lost)
    wait_for(lambda: not runs(pid))
    assert [r.reward for r in scorer.score(make_items(["ab", "abc"]))] == [2.0, 3.0]


def test_a_worker_that_cannot_be_started_is_one_clear_error(make_scorer, monkeypatch, file) -> None:
    monkeypatch.setattr(subprocess, "Popen", Mock(side_effect=BlockingIOError(11, "Resource temporarily unavailable")))
    with pytest.raises(RewardError, match="cannot start a reward worker: Resource temporarily unavailable"):
        make_scorer(f"{file}:nasty")


@pytest.mark.slow
def test_large_arguments_do_not_wait_for_a_worker_that_does_not_read(make_scorer, make_items, reward_file) -> None:
    path = reward_file('def size(response, **columns): return len(columns.get("blob", ""))')
    scorer = make_scorer({"name": f"{path}:size", "timeout_seconds": 2.0})
    (pid,) = scorer.worker_pids
    os.kill(pid, signal.SIGSTOP)
    items = make_items(["ab"], columns={"blob": "x" * 5_000_000})
    assert scorer.score(items)[0].status is RewardStatus.TIMEOUT
    assert scorer.score(items)[0].reward == 5e6


def test_workers_need_neither_torch_nor_configuration() -> None:
    code = "import sys, burnish.rewards.worker; print(*{'torch', 'pydantic'}.intersection(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def test_stop_signals_are_not_for_workers(make_scorer, make_items, reward_file, tmp_path: Path) -> None:
    """A scheduler sends them to every process of a job; the training process decides, and needs its workers."""
    path = reward_file("""
        import os, pathlib, time
        def slow(response, folder):
            pathlib.Path(folder, "pids").write_text(f"{os.getpid()} {os.getppid()}")
            time.sleep(0.5)
            return 1.0
    """)
    scorer = make_scorer({"name": f"{path}:slow", "options": {"folder": str(tmp_path)}})
    pids = tmp_path / "pids"

    def signal_all() -> None:
        wait_for(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        for pid, number in itertools.product(map(int, pids.read_text().split()), STOP_SIGNALS):
            os.kill(pid, number)

    sender = threading.Thread(target=signal_all)
    sender.start()
    scored = scorer.score(make_items(["ab"]))
    sender.join()
    assert [(r.reward, r.status) for r in scored] == [(1.0, RewardStatus.OK)]
    assert scorer.worker_pids == [int(pids.read_text().split()[0])]


def test_a_worker_that_is_only_just_born_outlives_them_too() -> None:
    """The signals are held back until the supervisor ignores them: there is no instant at which one would end it."""
    worker = WorkerProcess([], {"PATH": os.environ["PATH"]})
    supervisor = worker._process.pid
    for number in STOP_SIGNALS:
        os.kill(supervisor, number)
    try:
        assert runs(worker.pid)
        assert runs(supervisor)
    finally:
        worker.kill()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


@pytest.mark.parametrize("how", ["program", "fork"])
def test_what_a_reward_starts_can_be_ended_with_a_stop_signal(make_scorer, make_items, reward_file, how: str) -> None:
    path = reward_file("""
        import multiprocessing, subprocess, time
        def terminated(response):
            if response == "program":
                child = subprocess.Popen(["sleep", "60"])
                child.terminate()
                return child.wait()
            child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
            child.start()
            child.terminate()
            child.join()
            return child.exitcode
    """)
    scorer = make_scorer({"name": f"{path}:terminated", "timeout_seconds": 20.0})
    assert [r.reward for r in scorer.score(make_items([how]))] == [-signal.SIGTERM]
