"""The warm parent: has imported what programs use, and forks a fresh process for every candidate and its tests.

It never reads code, tests, input or output: these are files whose descriptors it passes on. So nothing of one
candidate, and nothing of any test, is in the memory that the next candidate inherits.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import random
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from burnish.outside.frames import GarbledError, frame, read_frame, readable, reading
from burnish.outside.supervise import die_first, end_child, end_children, fork, has_children, wake_at_parents_end
from burnish.sandbox import candidate, kernel, tester
from burnish.sandbox.confinement import Confinement, confine, prepare
from burnish.sandbox.job import Limits
from burnish.sandbox.kernel import PR_SET_DUMPABLE, prctl
from burnish.sandbox.wire import ClosedError, NotPlainError, TooLargeError

MODULES = """
abc array base64 bisect calendar cmath collections contextlib copy csv dataclasses datetime decimal enum fractions
functools hashlib heapq io itertools json math numbers operator queue random re statistics string struct sys textwrap
threading time traceback typing types unittest uuid zlib numpy sortedcontainers
"""
HEADER_BYTES = 1 << 16
_DESCRIPTORS = 8
_HIGH = 200
_START_SECONDS = 30.0
"""For a process to confine itself, on a busy machine."""
_END_SECONDS = 5.0
_FAILED_TO_START = 97
"""Exit status of a process that could not be confined, or that could not begin for another reason of ours."""


def main(control: int, tier: str) -> None:
    """Serve jobs that come over this socket until it closes."""
    channel = socket.socket(fileno=control)
    confinement = make_ready(channel, tier)
    while confinement is not None:
        data, descriptors, _, _ = socket.recv_fds(channel, HEADER_BYTES, _DESCRIPTORS)
        if not data:
            return
        try:
            answer = _serve(json.loads(data), descriptors, confinement, channel)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        channel.send(json.dumps(answer).encode())


def make_ready(channel: socket.socket, tier: str) -> Confinement | None:
    """Import what programs use, and prepare the tier; says over the channel whether that went well. None if not."""
    for name in MODULES.split():
        with contextlib.suppress(ImportError):
            __import__(name)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    die_first()
    wake_at_parents_end()
    try:
        confinement = prepare(tier)  # type: ignore[arg-type]
    except OSError as error:
        channel.send(json.dumps({"refused": f"{error.strerror or error}"}).encode())
        return None
    prctl(PR_SET_DUMPABLE, 0)  # what runs as the same user may not look into it, nor into a tester
    gc.collect()
    gc.freeze()  # a candidate's collections then touch nothing of this process
    channel.send(json.dumps({"ready": True}).encode())
    return confinement


def _serve(
    header: dict[str, Any], descriptors: Sequence[int], confinement: Confinement, channel: socket.socket
) -> dict[str, Any]:
    """Run one job: fork its processes, wait for them within the limit, and leave nothing."""
    limits = Limits(**header["limits"])
    if header["kind"] == "tests":
        awaited, others = _start_split(descriptors, confinement, limits)
    else:
        code, stdin, stdout, stderr = descriptors
        given = stdin, stdout, stderr, code
        awaited, others = fork_confined(lambda: _program(code=3), given, confinement, limits), []
    confined = all([child.is_confined(channel) for child in (awaited, *others)])
    began = time.monotonic()  # the time of a candidate is its own
    timed_out = confined and not _ended(awaited.pid, limits.seconds, channel)
    seconds = time.monotonic() - began
    status = _leave_nothing([child.pid for child in (awaited, *others)], awaited.pid)
    return {"code": status, "timed_out": timed_out, "seconds": seconds, "confined": confined}


@dataclass(frozen=True, slots=True)
class Confined:
    """A process of a job, and the end of a pipe through which it says that it is confined."""

    pid: int
    ready: int

    def is_confined(self, channel: socket.socket) -> bool:
        """Return whether the process is confined; it then begins to read code. To be asked once."""
        try:
            found = readable((self.ready, channel.fileno()), _START_SECONDS)
            return self.ready in found and os.read(self.ready, 1) == b"1"
        finally:
            os.close(self.ready)


def _start_split(
    descriptors: Sequence[int], confinement: Confinement, limits: Limits
) -> tuple[Confined, list[Confined]]:
    """Tester and candidate, with a pipe in each direction between them. The tester is the one to wait for."""
    code, tests, verdict, stdout, stderr = descriptors
    nothing = os.open(os.devnull, os.O_RDWR)
    questions_read, questions = os.pipe()
    answers_read, answers = os.pipe()
    size = limits.values_bytes
    holder = fork_confined(
        lambda: _tests(tests=3, verdict=4, pipe=Pipe(5, 6, size)),
        (nothing, nothing, nothing, tests, verdict, answers_read, questions),
        confinement,
        # The clock ends it, as the candidate's failure: what the tests do may be for values that it made large.
        replace(limits, processor_seconds=limits.seconds + _END_SECONDS),
    )
    tested = fork_confined(
        lambda: _functions(code=3, pipe=Pipe(4, 5, size)),
        (nothing, stdout, stderr, code, questions_read, answers),
        confinement,
        limits,
    )
    for descriptor in (nothing, questions_read, questions, answers_read, answers):
        os.close(descriptor)
    return holder, [tested]


def fork_confined(work: Callable[[], int], given: Sequence[int], confinement: Confinement, limits: Limits) -> Confined:
    """A process with these descriptors as 0, 1, 2 ... and no other, which confines itself and then does this work."""
    ready, says = os.pipe()
    parent = os.getpid()

    def begin() -> int:
        last = len(given)
        high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, _HIGH) for descriptor in (*given, says)]
        for number, descriptor in enumerate(high):
            os.dup2(descriptor, number)
        kernel.close_from(last + 1)
        candidate.use_descriptors()
        confine(confinement, limits, parent)
        os.write(last, b"1")
        os.close(last)
        random.seed(0)  # the same program has the same luck; a fork changes the seed
        return work()

    try:
        return Confined(fork(begin, failed=_FAILED_TO_START), ready)
    except OSError:
        os.close(ready)
        raise
    finally:
        os.close(says)


def _functions(code: int, pipe: Pipe) -> int:
    candidate.serve(candidate.read_all(code).decode(errors="surrogatepass"), pipe)
    return 0


def _program(code: int) -> int:
    source = candidate.read_all(code).decode(errors="surrogatepass")
    os.close(code)
    return candidate.run(source)


def _tests(tests: int, verdict: int, pipe: Pipe) -> int:
    tester.judge(json.loads(candidate.read_all(tests)), pipe, tester.TestReport(verdict))
    return 0


def _ended(pid: int, seconds: float, channel: socket.socket) -> bool:
    """Return whether this child ends within this time. It can still be waited for. Nobody writes to the channel
    meanwhile: if it can be read, the other end has gone, and there is nobody to wait for."""
    descriptor = os.pidfd_open(pid)
    try:
        return descriptor in readable((descriptor, channel.fileno()), seconds)
    finally:
        os.close(descriptor)


def _leave_nothing(pids: Sequence[int], awaited: int) -> int:
    """End these processes and all that they have started; the exit status of `awaited`, or minus its signal."""
    for pid in pids:
        end_child(pid)
    ended = end_children()
    if has_children():
        raise TimeoutError("processes of a candidate do not end")
    return ended.get(awaited, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])


class Pipe:
    """A `Link` of two descriptors, from one process of a job to the other. Every message is checked for its length
    before it is read."""

    def __init__(self, read: int, write: int, limit: int) -> None:
        self._read_end = read
        self._write_end = write
        self._limit = limit

    def send(self, message: Any) -> None:
        """Send a message. Raises TooLargeError and ClosedError."""
        data = json.dumps(message, separators=(",", ":")).encode()
        if len(data) > self._limit:
            raise TooLargeError(f"a value of {len(data):,} bytes; {self._limit:,} are allowed")
        left = memoryview(frame(data))
        try:
            while left:
                left = left[os.write(self._write_end, left) :]
        except BrokenPipeError as error:
            raise ClosedError from error

    def receive(self) -> Any:
        """Return the next message. Raises NotPlainError for anything that is not a message, and ClosedError."""
        try:
            return json.loads(read_frame(reading(self._read_end), self._limit))
        except EOFError as error:
            raise ClosedError from error
        except GarbledError as error:
            raise NotPlainError(str(error)) from error
        except (ValueError, RecursionError) as error:
            raise NotPlainError("a message that is not JSON") from error
