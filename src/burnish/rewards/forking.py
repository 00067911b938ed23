"""A worker for functions in memory: a fork of this process that lets go of everything but the functions.

A fork has the memory of the program, so what the program holds there is open to its own functions. Files, sockets,
environment variables, signal handlers and output are the same as in any other worker.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Mapping

from burnish.outside.supervise import STOP_SIGNALS, Child, Forked, fork, holding_back_stop_signals, wake_at_parents_end
from burnish.rewards.supervisor import supervise


def fork_supervisor(control: int, channel: int, environment: Mapping[str, str]) -> Child:
    """Fork a supervisor, which forks the worker."""
    trainer = os.getpid()

    def begin() -> int:
        wake_at_parents_end()
        _leave_the_program(control, channel, environment)
        supervise(control, channel, trainer)

    with holding_back_stop_signals():
        return Child(Forked(fork(begin)))


def _leave_the_program(control: int, channel: int, environment: Mapping[str, str]) -> None:
    """Make the fork as much like a fresh interpreter of a worker as possible."""
    gc.freeze()  # collecting objects of the program would close descriptors that are reused by then
    sys.settrace(None)
    sys.setprofile(None)
    os.setsid()
    _keep_only(control, channel)
    _forget_handlers()
    os.environ.clear()
    os.environ.update(environment)
    # The thread pools of large operations are not forked: a function that used one would wait for ever.
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def _keep_only(*descriptors: int) -> None:
    """Close all files but these, with nothing on standard input and both outputs on standard error."""
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.dup2(2, 1)  # what a reward prints must not mix with our standard output
    first = 3
    for kept in (*sorted(descriptors), os.sysconf("SC_OPEN_MAX")):
        os.closerange(first, kept)
        first = kept + 1
    # The program's streams may be a notebook's, and may hold buffered text, which must be written once and not twice.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  for as long as the process lives
    sys.stdout = open(1, "w", closefd=False, errors="backslashreplace")  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False, errors="backslashreplace")  # noqa: SIM115


def _forget_handlers() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - set(STOP_SIGNALS):  # the supervisor handles the stop signals
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
