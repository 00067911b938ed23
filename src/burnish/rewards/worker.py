"""The worker process: loads the rewards once, then scores what the parent sends and reports after every response.

Imports no torch and no configuration classes, so that a worker is up in a fraction of a second. It must never outlive
its parent: the pipe's end, a watcher thread and, for code that never yields the interpreter, a kernel timer see to it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from burnish.errors import BurnishError
from burnish.rewards.calling import Arguments, Caller
from burnish.rewards.loading import LoadedReward, RewardSpec, load_reward
from burnish.rewards.outcome import Outcome

# Past the time limit the parent kills the worker; only when the parent cannot (it is gone or stopped) does the
# kernel's alarm end it, this much later.
ALARM_GRACE_SECONDS = 5.0


def serve(descriptor: int, parent: int) -> None:
    """Main function of a worker; `descriptor` is its end of the pipe, `parent` the process it belongs to."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    os.dup2(2, 1)  # what a reward prints must not mix with the parent's standard output
    threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()
    connection = Connection(descriptor)
    caller = Caller()
    try:
        rewards = _load(connection, connection.recv())
        while True:
            kind, *task = connection.recv()
            _run(connection, caller, rewards, kind, task)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(0)  # the parent is gone or has closed us


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os.killpg(0, signal.SIGKILL)  # the worker leads its own group: what a reward started ends as well


def _load(connection: Connection, specs: Sequence[RewardSpec]) -> list[LoadedReward]:
    try:
        rewards = [load_reward(spec) for spec in specs]
    except BurnishError as error:
        cause = "" if error.__cause__ is None else "".join(traceback.format_exception(error.__cause__))
        connection.send(("refused", type(error).__name__, error.message, error.remedy, cause))
        os._exit(0)
    connection.send(("ready", [reward.signature for reward in rewards]))
    return rewards


def _run(connection: Connection, caller: Caller, rewards: list[LoadedReward], kind: str, task: list[Any]) -> None:
    index, rows = task
    reward = rewards[index]
    try:
        if kind == "batch":
            _run_batch(connection, caller, reward, *rows)
        elif reward.signature.asynchronous:
            _arm(reward)
            caller.concurrently(reward, rows, lambda item, outcome: _report(connection, item, outcome))
        else:
            _run_each(connection, caller, reward, rows)
    except BurnishError as error:  # the reward breaks its contract (wrong length or type): the run must stop
        connection.send(("violation", error.message, error.remedy))
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    connection.send(("idle",))


def _run_each(
    connection: Connection, caller: Caller, reward: LoadedReward, rows: Sequence[tuple[int, Arguments]]
) -> None:
    for item, arguments in rows:
        _arm(reward)
        _report(connection, item, caller.one(reward, arguments))


def _run_batch(
    connection: Connection, caller: Caller, reward: LoadedReward, items: Sequence[int], arguments: Arguments
) -> None:
    _arm(reward)
    for item, outcome in zip(items, caller.batch(reward, arguments, len(items)), strict=True):
        _report(connection, item, outcome)


def _arm(reward: LoadedReward) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, reward.spec.timeout_seconds + ALARM_GRACE_SECONDS)


def _report(connection: Connection, item: int, outcome: Outcome) -> None:
    connection.send(("outcome", item, outcome))
