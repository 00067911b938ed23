"""Sessions: processes that keep what the code of a model has defined from one cell to the next.

A session is confined like any other candidate. It reads cells from a socket and answers each with one byte; what it
prints goes to a file in memory. The code can forge both, which makes it lie about its own output and no more: whatever
comes is read up to a limit and until a deadline.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from burnish.errors import SandboxError
from burnish.outside.frames import frame
from burnish.outside.supervise import Closing
from burnish.sandbox.cells import TAIL_BYTES
from burnish.sandbox.confinement import Tier
from burnish.sandbox.job import Limits
from burnish.sandbox.parent import Parent, not_confined
from burnish.sandbox.session_parent import FAILED, FINE, READY

_MODULE = "burnish.sandbox.session_parent"
MOST_SESSIONS = 512
"""More would need user ids that do not exist."""
SHOWN_BYTES = 8192
_NOTICE_SECONDS = 1.0
"""For the news that a process has ended, which begins with a closed socket."""
_END_SECONDS = 10.0
_SIGNALS = 128
"""A tier with namespaces has the exit status of a shell for processes that a signal ended."""


@dataclass(frozen=True, slots=True)
class CellOutput:
    """text: what a cell printed, its value and the end of its traceback. failed: it raised, or has no end. ended: how
    its process has ended (`was stopped after 10 s`); empty if that goes on. stopped: because the time was up."""

    text: str
    failed: bool
    seconds: float
    ended: str = ""
    stopped: bool = False


class Sessions(Closing):
    """Opens sessions in one tier of confinement. A context manager, which ends them all.

    most: sessions at a time, up to 512. limits: of each one. `processor_seconds` and `memory_mb` are for the whole of
    it; `seconds` is not used, because each cell has its own time. shown_bytes: of what a cell prints. Several threads
    may open sessions. Raises TierRefusedError where the machine does not allow the tier.
    """

    def __init__(
        self, tier: Tier, *, most: int = 64, limits: Limits | None = None, shown_bytes: int = SHOWN_BYTES
    ) -> None:
        if not 1 <= most <= MOST_SESSIONS:
            raise SandboxError(f"{most} sessions at a time; from 1 to {MOST_SESSIONS} are possible")
        self.tier = tier
        self.most = most
        self._limits = limits or Limits()
        self._shown = shown_bytes
        self._slots = threading.BoundedSemaphore(most)
        self._lock = threading.Lock()
        self._open: set[SandboxSession] = set()
        self._parent: Parent | None = Parent(tier, _MODULE)

    def open(self, seconds: float) -> SandboxSession:
        """A new session. Raises TimeoutError if none became possible within these seconds, and SandboxError."""
        deadline = time.monotonic() + seconds
        if not self._slots.acquire(timeout=max(seconds, 0)):
            raise TimeoutError(f"all {self.most} sessions of the sandbox were in use for {seconds:g} s")
        try:
            session = self._begin()
        except BaseException:
            self._slots.release()
            raise
        session.wait_until_ready(max(deadline - time.monotonic(), 0.001))
        return session

    def close(self) -> None:
        """End all sessions and the process that holds them. A thread that waits for a cell gets its end. Idempotent."""
        with self._lock:
            parent, self._parent = self._parent, None
            left = list(self._open)
        for session in left:
            session.close()
        if parent is not None:
            parent.close()

    def _begin(self) -> SandboxSession:
        header = {"limits": dataclasses.asdict(self._limits), "most": self.most, "shown": self._shown}
        with self._lock:
            if self._parent is None:
                raise SandboxError("the sandbox has been closed", remedy="open another one")
            if not self._parent.is_running:
                self._parent.close()
                self._parent = Parent(self.tier, _MODULE)
            try:
                session = SandboxSession(self._parent, header, self._shown + TAIL_BYTES, self._has_ended)
            except OSError as error:
                raise SandboxError(
                    f"a session of the sandbox cannot be opened: {error.strerror}",
                    remedy="each needs three descriptors here and in the sandbox's process (ulimit -n)",
                ) from error
            self._open.add(session)
        return session

    def _has_ended(self, session: SandboxSession) -> None:
        with self._lock:
            self._open.discard(session)
        self._slots.release()


class SandboxSession:
    """One session. Opened by `Sessions.open`; `run` is for one thread at a time, `close` for any."""

    def __init__(
        self, parent: Parent, header: dict[str, Any], most_bytes: int, when_ended: Callable[[SandboxSession], None]
    ) -> None:
        self._most_bytes = most_bytes
        self._when_ended = when_ended
        self._lock = threading.Lock()
        self._is_over = False
        self._cells, cells = socket.socketpair()
        self._life, life = socket.socketpair()
        self._output = os.memfd_create("burnish", os.MFD_CLOEXEC)
        with cells, life:
            # What follows a cell's output is written after it, wherever an earlier cell had come to.
            fcntl.fcntl(self._output, fcntl.F_SETFL, os.O_APPEND)
            try:
                parent.ask("session", header, cells.fileno(), self._output, life.fileno())
            except BaseException:
                self._let_go()
                raise

    def wait_until_ready(self, seconds: float) -> None:
        """Until it is confined. Otherwise it is over: TimeoutError after these seconds, else SandboxError."""
        with self._lock:
            try:
                if self._answer(seconds) == READY:
                    return
                raise not_confined(self._printed())
            except TimeoutError:
                self._end(0.0)
                raise TimeoutError(f"a process of the sandbox was not ready within {seconds:.1f} s") from None
            except BaseException:
                self._end(0.0)
                raise

    def run(self, code: str, seconds: float) -> CellOutput:
        """Run a cell for these seconds at most. If it does not end in time, or ends its process, the session is over.
        SandboxError if it was before."""
        with self._lock:
            if self._is_over:
                raise SandboxError("the session is over", remedy="open another one")
            began, answer, stopped, ended = time.monotonic(), b"", False, ""
            try:
                answer = self._ask(code, seconds)
            except TimeoutError:
                stopped, ended = True, f"was stopped after {seconds:g} s"
            except BaseException:
                self._end(0.0)
                raise
            passed = time.monotonic() - began
            text = self._printed()
            if not stopped and answer not in (FINE, FAILED):
                ended = self._end(_NOTICE_SECONDS)
            elif stopped:
                self._end(0.0)
            return CellOutput(text, answer != FINE, passed, ended, stopped)

    def how_it_ended(self) -> str:
        """As `CellOutput.ended`, if it has ended since the last cell; empty if it has not."""
        with self._lock:
            if self._is_over:
                return "was closed"
            try:
                self._cells.setblocking(False)
                self._cells.recv(1)  # nothing is to come between cells
            except BlockingIOError:
                return ""
            except ConnectionError:
                pass
            return self._end(_NOTICE_SECONDS)

    def close(self) -> None:
        """End it. A thread that waits for a cell gets its end. Idempotent."""
        with contextlib.suppress(OSError):  # it may be over
            self._cells.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._end(0.0)

    def _ask(self, code: str, seconds: float) -> bytes:
        deadline = time.monotonic() + seconds
        data = code.encode(errors="surrogatepass")
        os.ftruncate(self._output, 0)
        self._cells.settimeout(seconds)
        with contextlib.suppress(ConnectionError):  # the answer says so as well
            self._cells.sendall(frame(data))
        return self._answer(deadline - time.monotonic())

    def _answer(self, seconds: float) -> bytes:
        """The next byte that it writes; nothing if it has closed its end. Raises TimeoutError."""
        self._cells.settimeout(max(seconds, 0.001))
        try:
            return self._cells.recv(1)
        except ConnectionError:
            return b""

    def _printed(self) -> str:
        try:
            return os.pread(self._output, self._most_bytes, 0).decode(errors="replace")
        except OSError as error:  # the code may change how the file is read
            return f"[its output cannot be read: {error.strerror}]"

    def _end(self, notice_seconds: float) -> str:
        """End it, if it does not end by itself in this time, and wait for that. How it ended."""
        if self._is_over:
            return "was closed"
        try:
            status = self._status(notice_seconds) if notice_seconds else b""
            if status:
                return _in_words(int(status))
            with contextlib.suppress(OSError):
                self._life.shutdown(socket.SHUT_WR)
            self._status(_END_SECONDS)
            return "closed its connection to the sandbox" if notice_seconds else "was closed"
        finally:
            self._let_go()
            self._when_ended(self)

    def _status(self, seconds: float) -> bytes:
        self._life.settimeout(seconds)
        try:
            return self._life.recv(16)
        except OSError:  # also a timeout
            return b""

    def _let_go(self) -> None:
        self._is_over = True
        self._cells.close()
        self._life.close()
        os.close(self._output)


def _in_words(status: int) -> str:
    number = -status if status < 0 else status - _SIGNALS
    if number == signal.SIGXCPU:
        return "used up its processor time"
    if number == signal.SIGKILL:
        return "was killed, as happens without memory or processor time"
    if number in set(signal.Signals):
        return f"crashed ({signal.Signals(number).name})"
    return f"ended itself with status {status}"
