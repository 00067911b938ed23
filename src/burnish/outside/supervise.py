"""Processes that this program starts, and all that these start in turn: how they begin, what they outlive, their end.
Nothing else starts, forks, kills or collects one, except `sandbox/confinement.py`.

On Linux a process can adopt what its descendants leave behind (`adopt_orphans`), even processes that left their
session or were forked twice, so that `end_children` reaches all of them. On other systems process groups are ended,
which a descendant may have left.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn, Self

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that ask a run to stop. A scheduler sends them to every process of a job, a terminal to its whole group."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
_LINUX = sys.platform == "linux"
_LISTED = Path("/proc/thread-self/children")  # not in every kernel
_END_SECONDS = 10.0
_LOOK_SECONDS = 0.002
_OOM_SCORE = "600"
_PROGRAM = (
    "import sys; sys.path[:] = {path!r}; import burnish.outside.supervise as first; first.wake_at_parents_end(); "
    "from {module} import {name}; {name}(*{arguments!r})"
)
_TIED = (
    "import os, sys; sys.path[:] = {path!r}; from burnish.outside.supervise import end_with; "
    "end_with(int(sys.argv[1])); os.execvp(sys.argv[2], sys.argv[2:])"
)
_COUNTED = 7, 9, 11, 12
"""Page faults (small and large) and seconds of the processor (of its own and of the system) in /proc/PID/stat, counted
from the process' state on."""


@contextlib.contextmanager
def holding_back_stop_signals() -> Iterator[None]:
    """Block the stop signals while a process is started that must survive them.

    The child inherits the block, so it can set up its own handling before it unblocks them. A signal that reaches this
    process in the meantime is handled at the end of the block.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_stop_signals() -> None:
    """Let this process outlive the stop signals, which its parent has blocked until now (`holding_back_stop_signals`):
    the training process handles them, and needs it to finish a step."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


class Closing:
    """Something that is closed at the end of a `with` block."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Forked:
    """A fork of this process, with the part of `subprocess.Popen` that a `Child` needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def poll(self) -> int | None:
        if self._status is None:
            try:
                pid, raw = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # somebody else in this program has collected it
                self._status = -signal.SIGKILL
            else:
                self._status = os.waitstatus_to_exitcode(raw) if pid else None
        return self._status

    def wait(self, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a fork", timeout)
            time.sleep(_LOOK_SECONDS)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class Child:
    """A process that was started here, in its own session, and is collected here."""

    def __init__(self, process: subprocess.Popen[bytes] | Forked) -> None:
        self._process = process
        self._is_over = False

    @property
    def pid(self) -> int:
        """Its process id, which is also the id of its session and group."""
        return self._process.pid

    def status(self, within: float = 0.0) -> int | None:
        """Its exit status, or minus the signal that ended it. None if it does not end within so long."""
        try:
            return self._process.wait(within)
        except subprocess.TimeoutExpired:
            return None

    def tell(self, number: int) -> None:
        """Send it a signal. Nothing happens if it has ended."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            self._process.send_signal(number)

    def end(self, patience: float = 0.0) -> int | None:
        """Kill its process group, after `patience` for it to end by itself. Its exit status; None for one that is stuck
        in the kernel, which ends when the kernel lets it. Idempotent."""
        if not self._is_over:
            try:
                if patience:
                    self.tell(signal.SIGCONT)  # something may have stopped it
                    self.status(patience)
            finally:  # also when that is interrupted
                end_group(self.pid)
                self.tell(signal.SIGKILL)  # a fork may not have its own group yet
                self._is_over = self.status(_END_SECONDS) is not None
        return self.status()


Stream = int | IO[Any] | None
NOWHERE = subprocess.DEVNULL


def start(
    command: Sequence[str],
    *,
    stdin: Stream = NOWHERE,
    stdout: Stream = None,
    stderr: Stream = None,
    descriptors: Collection[int] = (),
    environment: Mapping[str, str] | None = None,
    folder: str | Path | None = None,
    first: Callable[[], None] | None = None,
) -> Child:
    """Start a program in its own session, so that Ctrl-C in the terminal does not reach it. `first` is called in the
    new process before the program begins. OSError if it cannot be started."""
    return Child(
        subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=descriptors,
            env=environment,
            cwd=folder,
            preexec_fn=first,
            start_new_session=True,
        )
    )


def start_interpreter(
    function: str,
    *arguments: int | str,
    descriptors: Collection[int],
    output: int | None,
    environment: Mapping[str, str],
) -> Child:
    """A new interpreter that calls `module:function` with these arguments, with the stop signals blocked. OSError if it
    cannot be started."""
    module, _, name = function.partition(":")
    program = _PROGRAM.format(path=sys.path, module=module, name=name, arguments=arguments)
    command = [sys.executable, "-c", program]
    with holding_back_stop_signals():
        return start(command, stdout=output, stderr=output, descriptors=descriptors, environment=environment)


def tied(command: Sequence[str]) -> list[str]:
    """Wrap a command that a library starts from this thread, so that it is killed when this process ends."""
    return [sys.executable, "-c", _TIED.format(path=sys.path), str(os.getpid()), *command]


def run_program(
    command: Sequence[str],
    *,
    seconds: float | None,
    given: bytes = b"",
    stderr: Stream = subprocess.PIPE,
    environment: Mapping[str, str] | None = None,
    folder: str | Path | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run a program to its end, and collect what it writes. If that takes longer, or anything interrupts the wait, its
    process group is killed. TimeoutError, and OSError if it cannot be started."""
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=environment,
        cwd=folder,
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(given, timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"{command[0]} did not end within {seconds:g} seconds") from error
        finally:
            if process.returncode is None:
                end_group(process.pid)
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def limit(bounds: Mapping[int, int]) -> None:
    """Let this process, and what it starts, take no more of these resources, nor more than it may take now."""
    for bound, amount in bounds.items():
        hard = resource.getrlimit(bound)[1]
        value = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
        resource.setrlimit(bound, (value, value))


def fork(work: Callable[[], int], *, failed: int = 1) -> int:
    """A fork of this process that does this work, and ends with the status that it returns; with `failed`, and the
    traceback on standard error, if it raises anything. Returns its process id."""
    leave = os._exit  # what the work may put in its place is not called
    pid = os.fork()
    if pid:
        return pid
    status = failed
    try:
        status = work()
    except BaseException:  # noqa: BLE001  boundary: the fork must never go on as a second copy of this process
        with contextlib.suppress(BaseException):
            traceback.print_exc()
    finally:
        leave(status)


def fork_for(parent: int, work: Callable[[], int]) -> None:
    """Fork a process for the work that becomes a child of `parent`, one of this process' ancestors, which has to adopt
    orphans meanwhile (`adopting_orphans`): the process between them, which forks it, ends at once, and then the work
    begins. OSError if the system has no room for another process."""

    def begin() -> int:
        os.setsid()
        deadline = time.monotonic() + _END_SECONDS
        while os.getppid() != parent:
            if not is_alive(parent) or time.monotonic() > deadline:
                return 1
            time.sleep(_LOOK_SECONDS)
        wake_at_parents_end()
        return work()

    def between() -> int:
        try:
            fork(begin)
        except OSError as error:
            return error.errno or 1
        return 0

    if status := os.waitstatus_to_exitcode(os.waitpid(fork(between), 0)[1]):
        raise OSError(status, os.strerror(status))


def wake_at_parents_end() -> None:
    """Have the kernel wake this process, if it is stopped then, when its parent ends: it has to end as well."""
    _set_option(_PR_SET_PDEATHSIG, signal.SIGCONT)


def activity(pid: int) -> int:
    """A number that rises while the process does anything at all; 0 if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return sum(int(fields[index]) for index in _COUNTED)


def is_alive(pid: int) -> bool:
    """Return whether a process of this machine exists, whoever owns it."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def adopt_orphans() -> None:
    """From now on this process is the parent of whatever its descendants leave behind."""
    _set_option(_PR_SET_CHILD_SUBREAPER, 1)


@contextlib.contextmanager
def adopting_orphans() -> Iterator[None]:
    """Adopt orphans within the block; a second block must not begin meanwhile. After it they are adopted if they were
    before."""
    before = ctypes.c_int()
    _set_option(_PR_GET_CHILD_SUBREAPER, ctypes.addressof(before))
    adopt_orphans()
    try:
        yield
    finally:
        _set_option(_PR_SET_CHILD_SUBREAPER, before.value)


def end_with_parent() -> None:
    """From now on be killed when the parent ends, unless it has ended already. A change of user undoes it."""
    _set_option(_PR_SET_PDEATHSIG, signal.SIGKILL)


def end_with(parent: int) -> None:
    """Be killed when this process, the parent, ends, or has ended."""
    end_with_parent()
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)


def depend_on(parent: int) -> None:
    """In a fork: end when the parent ends, have a session of one's own, and be killed before the training process when
    the kernel is out of memory."""
    end_with(parent)
    die_first()
    os.setsid()


def die_first() -> None:
    """Be killed before the training process, with all that is forked from now on, when the kernel is out of memory."""
    if _LINUX:
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)


def _set_option(option: int, value: int) -> None:
    """OSError where the kernel does not know it."""
    if _LINUX:
        library = ctypes.CDLL(None, use_errno=True)
        if library.prctl(option, *(ctypes.c_ulong(number) for number in (value, 0, 0, 0))):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def end_group(pid: int) -> None:
    """Kill all that is in the process group of this process, also when that has ended itself."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def end_child(pid: int) -> None:
    """Kill this fork, which has not been collected yet, and its group, if it has one already."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
    end_group(pid)


def end_own_group() -> NoReturn:
    """Kill this process, and all that it has started in its group, if it leads one."""
    os.kill(0 if os.getpgrp() == os.getpid() else os.getpid(), signal.SIGKILL)
    os._exit(1)  # not reached: the signal comes before `kill` returns


def end_children(known: Collection[int] = ()) -> dict[int, int]:
    """Kill until no child but the known ones is left, for ten seconds at most. The exit statuses of all that ended.

    A process that loses its parent becomes a child of this one, so killing children repeatedly reaches all of them.
    """
    # With a deadline, because a process in an uninterruptible system call does not even end on SIGKILL.
    deadline = time.monotonic() + _END_SECONDS
    ended: dict[int, int] = {}
    while time.monotonic() < deadline:
        left = [pid for pid in _children() if pid not in known]
        for pid in left:
            end_child(pid)
        found, has_children = reap()
        ended |= found
        # What a child that has just ended leaves behind is listed next time; a list read meanwhile may be incomplete.
        if not left and not found and (known or not has_children or not _LINUX):
            break
        if not found:
            time.sleep(0.0005)
    return ended


def reap() -> tuple[dict[int, int], bool]:
    """Exit statuses of the children that have ended, by process id, and whether there are others."""
    ended: dict[int, int] = {}
    try:
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = os.waitstatus_to_exitcode(found[1])
    except ChildProcessError:
        return ended, False
    return ended, True


def has_children() -> bool:
    """Return whether anything that was started here still runs. Finished processes are collected first."""
    return reap()[1]


def _children() -> list[int]:
    """Ids of this process's children, including adopted and dead ones; none where the system does not list them."""
    if not _LINUX:
        return []
    if not _LISTED.exists():
        return [int(place.name) for place in Path("/proc").glob("[0-9]*") if _parent_of(place) == os.getpid()]
    found: list[int] = []
    for file in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended, and its children belong to another thread now
            found += map(int, file.read_text().split())
    return found


def _parent_of(place: Path) -> int | None:
    """For kernels that do not list children."""
    try:
        return int((place / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # it has ended in the meantime
        return None
