"""Programs against tests, many at once, each in its own process, which can do nothing but compute."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import Any

from burnish.errors import SandboxError
from burnish.outside.supervise import Closing
from burnish.sandbox.confinement import Tier
from burnish.sandbox.job import AssertTests, FunctionTests, Limits, Output, Program, ProgramTests, Status, Verdict
from burnish.sandbox.messages import plain_job
from burnish.sandbox.parent import WarmParent

WAIT_SECONDS = 600.0
"""For a warm parent to become free."""
_OUT_OF_MEMORY = "MemoryError"
_SOME_OUTPUT = 1 << 16
_DETAIL = 300
START_SHARE, LEAST_START_SECONDS = 0.5, 2.0
"""Time for starting programs, beyond the seconds of a job: this share of those seconds, and at least so many."""


class Sandbox(Closing):
    """Runs jobs under one tier of confinement. A context manager, which ends its processes.

    processes: jobs at the same time. Several threads may call `run`. Raises TierRefusedError where the machine does not
    allow the tier (`trial.strongest` finds the one that it does).
    """

    def __init__(self, tier: Tier, *, processes: int = 1, limits: Limits | None = None) -> None:
        self.tier = tier
        self.limits = limits or Limits()
        self.processes = processes
        self._lock = threading.Lock()
        self._closed = False
        self._busy: dict[int, WarmParent] = {}  # by the thread that waits for it
        self._idle: queue.Queue[WarmParent | None] = queue.Queue()
        for _ in range(processes - 1):
            self._idle.put(None)  # started when it is needed
        self._idle.put(WarmParent(tier))

    def close(self) -> None:
        """End all processes. Jobs that run, and threads that wait for a process, get a SandboxError. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for parent in list(self._busy.values()):  # a job that ends leaves it meanwhile
                parent.stop()
        for kept in [self._free() for _ in range(self.processes)]:
            if kept is not None:
                kept.close()
            self._idle.put(None)  # for a thread that waits: it finds the sandbox closed

    def stop(self, thread: int) -> None:
        """End the job that this thread waits for: it gets a SandboxError. Nothing if it waits for none."""
        parent = self._busy.get(thread)
        if parent is not None:
            parent.stop()

    def run(self, job: FunctionTests | AssertTests | ProgramTests, limits: Limits | None = None) -> Verdict:
        """Judge a candidate. Raises SandboxError when the sandbox fails, or the tests cannot run or test nothing."""
        limits = limits or self.limits
        if isinstance(job, ProgramTests):
            return judge_programs(self.output, job, limits)
        tests = {name: part for name, part in plain_job(job).items() if name != "code"}
        with self._parent() as parent:
            lines, ended = parent.tests(job.code, tests, limits)
        return verdict_of_lines(lines, ended)

    def output(self, job: Program, limits: Limits | None = None) -> Output:
        """Run a program once. Raises SandboxError."""
        with self._parent() as parent:
            return parent.program(job.code, job.stdin, limits or self.limits)

    @contextmanager
    def _parent(self) -> Iterator[WarmParent]:
        """A warm parent for this thread alone. After any error, Ctrl-C too, it is replaced at the next need: its answer
        may still be to come, and would be taken for the answer to the next job."""
        kept = self._free()
        try:
            if kept is None and not self._closed:
                kept = WarmParent(self.tier)
            yield self._begin(kept)
            self._busy.pop(threading.get_ident(), None)
        except BaseException as error:
            if kept is not None:
                self._busy.pop(threading.get_ident(), None)
                kept.close()
                kept = None
            if self._closed and isinstance(error, SandboxError):
                raise _closed() from error
            raise
        finally:
            self._idle.put(kept)

    def _begin(self, parent: WarmParent | None) -> WarmParent:
        """Register a parent that `close` ends from now on. SandboxError if `close` has been called."""
        with self._lock:
            if parent is None or self._closed:
                raise _closed()
            self._busy[threading.get_ident()] = parent
        return parent

    def _free(self) -> WarmParent | None:
        """The next one that nobody uses; None for one that is still to be started."""
        try:
            return self._idle.get(timeout=WAIT_SECONDS)
        except queue.Empty:
            raise SandboxError(
                f"no process of the sandbox became free within {WAIT_SECONDS:g} seconds",
                remedy="open it with more processes, or give shorter limits",
            ) from None


def judge_programs(run: Callable[[Program, Limits], Output], job: ProgramTests, limits: Limits) -> Verdict:
    """The verdict on a program that `run` runs once for each input. What it should write never goes there."""
    if not job.pairs:
        raise _no_tests()
    longest = max(len(expected.encode(errors="surrogatepass")) for _, expected in job.pairs)
    limits = replace(limits, output_bytes=max(limits.output_bytes, 2 * longest + _SOME_OUTPUT))
    passed, seconds, first = 0, 0.0, ("passed", "")
    most = limits.seconds + max(START_SHARE * limits.seconds, LEAST_START_SECONDS)
    end = time.monotonic() + most
    for number, (stdin, expected) in enumerate(job.pairs, start=1):
        left, time_left = limits.seconds - seconds, end - time.monotonic()
        if time_left <= 0:
            raise _slow_start(number - 1, len(job.pairs), seconds, most)
        output = run(Program(job.code, stdin), replace(limits, seconds=min(left, time_left)))
        seconds += output.seconds
        if output.timed_out and time_left < left:
            raise _slow_start(number, len(job.pairs), seconds, most)
        if output.timed_out or seconds >= limits.seconds:
            detail = f"input {number}: stopped after {seconds:.1f} s"
            return Verdict("timed_out", passed, len(job.pairs), seconds, first[1] or detail)
        if same_output(expected, output.stdout) and output.code == 0:
            passed += 1
        elif first[0] == "passed":
            first = _why(output, number, expected)
            if job.until_failure:
                break
    status: Status = first[0]  # type: ignore[assignment]
    return Verdict(status, passed, len(job.pairs), seconds, first[1])


def same_output(expected: str, found: str) -> bool:
    """Return whether a program wrote what it should: line by line, without white space at the ends and empty lines at
    the end; a line that differs may have the same words, where numbers count by value (1.0 is 1)."""
    wanted, lines = _lines(expected), _lines(found)
    return len(wanted) == len(lines) and all(a == b or _same_words(a, b) for a, b in zip(wanted, lines, strict=True))


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


def _same_words(expected: str, found: str) -> bool:
    wanted, words = expected.split(), found.split()
    if len(wanted) != len(words):
        return False
    return all(
        a == b or (_number(a) is not None and _number(a) == _number(b)) for a, b in zip(wanted, words, strict=True)
    )


def _number(word: str) -> Decimal | None:
    try:
        number = Decimal(word)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def verdict_of_lines(lines: list[dict[str, Any]], ended: dict[str, Any], *, as_they_come: bool = True) -> Verdict:
    """Combine the tester's lines and its end into a verdict. SandboxError if the tests could not
    decide. as_they_come: the lines are there until the moment of the end, so that without any the tests were not
    ready."""
    results = [line for line in lines if "passed" in line]
    passed = sum(line["passed"] for line in results)
    details = [clean(line["detail"]) for line in results if "detail" in line]
    planned = [line["total"] for line in lines if "total" in line]
    total = len(results) if lines and "end" in lines[-1] else max([len(results), *planned])
    seconds = float(ended["seconds"])
    last = lines[-1] if lines else {}
    # The tests say how many they are before they ask the code anything.
    if ended["timed_out"] and as_they_come and not planned:
        raise SandboxError(
            f"the tests were not ready within {seconds:.1f} s", remedy="give them more seconds, or leave the row out"
        )
    if ended["timed_out"]:
        return Verdict("timed_out", passed, max(total, passed + 1), seconds, f"stopped after {seconds:.1f} s")
    if "not_loaded" in last:
        status: Status = "out_of_memory" if last["not_loaded"].startswith(_OUT_OF_MEMORY) else "not_loaded"
        return Verdict(status, 0, max(total, 1), seconds, clean(last["not_loaded"]))
    if "ended" in last:
        return Verdict("ended", passed, max(total, passed + 1), seconds, clean(last["ended"]))
    if "broken" in last or not planned:
        why = clean(last.get("broken", f"their process has ended with status {ended['code']}"))
        raise SandboxError(f"the tests gave no verdict: {why}", remedy="fix the tests, or leave the row out")
    if "end" not in last:  # what the code returned was too much for them
        return Verdict("ended", passed, max(total, passed + 1), seconds, "the tests' process has ended")
    if total == 0:
        raise _no_tests()
    if passed == total:
        return Verdict("passed", passed, total, seconds)
    memory = any("MemoryError" in detail for detail in details)
    return Verdict("out_of_memory" if memory else "failed", passed, total, seconds, details[0])


def _why(output: Output, number: int, expected: str) -> tuple[Status, str]:
    said = clean(output.stderr.strip().rpartition("\n")[2])
    if output.code:
        memory = said.startswith(_OUT_OF_MEMORY)
        detail = f"input {number}: ended with status {output.code}{': ' + said if said else ''}"
        return ("out_of_memory" if memory else "ended"), detail
    return "failed", f"input {number}: wrote {output.stdout.strip()!r:.100}, not {expected.strip()!r:.100}"


def clean(text: str) -> str:
    """A detail that can be printed and saved."""
    return text.encode(errors="replace").decode()[:_DETAIL]


def _slow_start(number: int, total: int, seconds: float, most: float) -> SandboxError:
    return SandboxError(
        f"{number} of {total} programs ran for {seconds:.1f} s, which took {most:g} s with their start",
        remedy="give fewer inputs, more seconds, or more processors",
    )


def _closed() -> SandboxError:
    return SandboxError("the sandbox has been closed", remedy="open another one; the candidate has no verdict")


def _no_tests() -> SandboxError:
    return SandboxError(
        "the tests test nothing: no assertion about the code, no test function and no case was found in them",
        remedy="check the columns that hold the tests",
    )
