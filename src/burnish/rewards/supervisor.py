"""The process between the training process and one worker. It starts the worker and cleans up everything after it.

On Linux it adopts all descendants of the worker (as a child subreaper), even if they left its session or were forked
twice. It kills and reaps all of them when the worker ends, when the training process asks for it, or when the training
process is gone, even by SIGKILL. On other systems it kills the worker's process group, which a descendant may have
left.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from types import FrameType
from typing import NoReturn

from burnish.outside.frames import frame
from burnish.outside.supervise import (
    STOP_SIGNALS,
    adopt_orphans,
    depend_on,
    end_children,
    end_group,
    fork,
    ignore_stop_signals,
    reap,
)
from burnish.outside.user_processes import forward
from burnish.rewards.worker import serve

_PARENT_CHECK_MILLISECONDS = 500  # a forked copy of the training process can hold the control socket open
_OUTPUT_SECONDS = 1.0


def supervise(control: int, channel: int, trainer: int) -> NoReturn:
    """Main function of the supervisor.

    control: socket that reports the worker's id and exit status to the training process. Its end means to stop.
    channel: socket of the worker. trainer: process id of the training process.
    """
    ignore_stop_signals()  # it must outlive the worker, to clean up after it
    adopt_orphans()
    output_read, output_write = os.pipe()
    supervisor = os.getpid()

    def work() -> int:
        os.close(control)
        os.close(output_read)
        _become_worker(channel, output_write, supervisor)
        return 1  # not reached: a worker ends itself

    worker = fork(work)
    os.close(channel)
    os.close(output_write)
    forwarding = threading.Thread(target=forward, args=(output_read,), daemon=True)
    forwarding.start()
    _report(control, worker)
    status = _watch(control, worker, trainer)
    end_group(worker)
    ended = end_children()
    if status is None:
        status = ended.get(worker, -signal.SIGKILL)
    forwarding.join(_OUTPUT_SECONDS)
    _report(control, status)
    os._exit(0)


def _become_worker(channel: int, output: int, supervisor: int) -> None:
    """Give the fork its own session, send its output to the pipe, let it die with the supervisor, and serve."""
    depend_on(supervisor)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    _outlive_stop_signals()
    serve(channel)


def _outlive_stop_signals() -> None:
    """Let the worker survive stop signals, but not the processes that it starts.

    A run that is asked to stop still finishes its step and needs this worker, although a scheduler sends the signal to
    every process of the job. The signals get a handler rather than SIG_IGN, which programs started by a reward would
    inherit. `terminate()` must be able to end those, as well as the reward's own forks.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, _ignore_signal)
    held = threading.local()  # the signals that the forking thread had blocked before

    def hold() -> None:
        held.before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)

    def let_through() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, held.before)

    def let_through_to_fork() -> None:
        _restore_stop_signals()
        let_through()

    # Blocked during the fork, because a signal before the child has reset its handlers would be swallowed by ours.
    os.register_at_fork(before=hold, after_in_parent=let_through, after_in_child=let_through_to_fork)


def _ignore_signal(number: int, frame: FrameType | None) -> None:
    """The worker's handler. The training process gets the signal too, and decides what happens."""


def _restore_stop_signals() -> None:
    """In a fork of the worker: stop signals end it again, unless the reward has set its own handler."""
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is _ignore_signal:
            with contextlib.suppress(ValueError):  # only the main thread of the main interpreter may set handlers
                signal.signal(number, signal.SIG_DFL)


def _watch(control: int, worker: int, trainer: int) -> int | None:
    """Wait until the worker ends (returns its exit status) or must be ended (None). Reaps adopted processes."""
    wake_read, wake_write = os.pipe()  # so that SIGCHLD wakes `poll`
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    poller = select.poll()
    poller.register(control, select.POLLIN | select.POLLHUP)
    poller.register(wake_read, select.POLLIN)
    while True:
        ended, _ = reap()
        if worker in ended:
            return ended[worker]
        events = dict(poller.poll(_PARENT_CHECK_MILLISECONDS))
        if control in events or os.getppid() != trainer:
            return None
        if wake_read in events:
            os.read(wake_read, 4096)


def _report(control: int, number: int) -> None:
    with contextlib.suppress(OSError):  # the training process is gone
        os.write(control, frame(b"%d" % number))
