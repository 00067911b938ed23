"""The warm parent of conversation processes: it imports tools and environment once, and is forked for each
conversation, so that a new one costs a millisecond.

It is told what to import, and says what tools there are. Then it waits for sockets, each of which becomes a
conversation, and for the word that one of them has ended. What a conversation has started is adopted by its process,
whatever the programs in between do, and by the parent when that process has ended, which ends it. So nothing of a
conversation outlives it, nothing that belongs to another one is touched, and everything ends when the training process
has gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import random
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Set
from pathlib import Path
from typing import Any, NoReturn

from burnish.environments.loading import find_environment
from burnish.environments.protocol import EnvironmentSource
from burnish.environments.session import Session
from burnish.errors import BurnishError
from burnish.outside.supervise import STOP_SIGNALS
from burnish.tools.loading import LoadedTool, load_tools

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SIZE_BYTES = 8
"""Of the number in front of what is imported and described."""
WORD_BYTES = 16
"""Of what the training process says: + (with a socket) or -, and the number of a conversation."""
_END_SECONDS = 10.0
_LOOK_SECONDS = 5.0
_ROUNDS = 20
"""Of looking for what conversations have left: what is found may have children of its own."""
_OOM_SCORE = "600"  # so that the kernel, when out of memory, ends a conversation before the training process


def main(control: int) -> None:
    """Serve the socket `control` until its other end is closed. What it says first are the names of tools and
    environment."""
    trainer = os.getppid()
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # a run that is asked to stop finishes its step
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    _adopt_orphans()
    channel = socket.socket(fileno=control)
    try:
        tools, source = _load(_heard(channel))
    except BurnishError as error:
        _say(channel, {"refused": error.message, "remedy": error.remedy})
        return
    _say(channel, _description(tools, source))
    session = Session({tool.name: tool for tool in tools}, source)
    gc.collect()
    gc.freeze()  # a conversation's collections then touch nothing of this process
    try:
        _serve(channel, session, trainer)
    finally:
        _end_others(frozenset())


def _load(given: dict[str, Any]) -> tuple[tuple[LoadedTool, ...], EnvironmentSource | None]:
    where = given["where"]
    tools = load_tools(given["tools"], where=f"{where}.tools")
    if given["environment"] is None:
        return tools, None
    return tools, find_environment(given["environment"], given["options"], where=f"{where}.environment")


def _description(tools: tuple[LoadedTool, ...], source: EnvironmentSource | None) -> dict[str, Any]:
    return {
        "tools": [tool.schema for tool in tools],
        "environment_tools": [] if source is None else list(source.schemas),
        "answers_text": source is not None and source.answers_text,
    }


def _say(channel: socket.socket, message: dict[str, Any]) -> None:
    """In front, how long it is: schemas may be long."""
    data = json.dumps(message, default=str).encode()
    channel.sendall(len(data).to_bytes(SIZE_BYTES, "big") + data)


def _heard(channel: socket.socket) -> dict[str, Any]:
    """What to import. It comes over the socket, because everybody can read a command line."""
    size = int.from_bytes(_received(channel, SIZE_BYTES), "big")
    given: dict[str, Any] = json.loads(_received(channel, size))
    return given


def _received(channel: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = channel.recv(size - len(data))
        if not part:
            _leave(1)  # the training process has gone
        data += part
    return data


def _serve(channel: socket.socket, session: Session, trainer: int) -> None:
    """Fork a conversation for each socket that arrives, and end those that are over. Until the other end is closed, or
    its process has gone: something that it forked may hold the other end open."""
    running: dict[int, int] = {}  # number of the conversation -> process id
    poller = select.poll()
    poller.register(channel, select.POLLIN)
    while os.getppid() == trainer:
        if poller.poll(1000 * _LOOK_SECONDS):
            word, descriptors, _, _ = socket.recv_fds(channel, WORD_BYTES, 1)
            if not word:
                return
            number = int(word[1:])
            if word[:1] == b"+":
                # Without room for one more process its socket closes, which the training process counts as a failure.
                with contextlib.suppress(OSError):
                    running[number] = _fork(descriptors[0], session, channel)
                os.close(descriptors[0])
            elif number in running:
                _end([running.pop(number)])
                _end_others(set(running.values()))
        if _reap(running):
            _end_others(set(running.values()))


def _adopt_orphans() -> None:
    """From now on this process is the parent of whatever its descendants leave behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def _fork(descriptor: int, session: Session, channel: socket.socket) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        channel.close()
        _adopt_orphans()
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            with contextlib.suppress(OSError):
                Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
        if os.getppid() != parent:  # it ended before the line above
            os._exit(1)
        os.setsid()
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        random.seed(0)  # a fork changes the seed
        session.serve(socket.socket(fileno=descriptor))
        status = 0
    except BaseException:  # noqa: BLE001  boundary: the fork must not go on as a second parent
        with contextlib.suppress(BaseException):
            traceback.print_exc()
    finally:
        _leave(status)


def _leave(status: int) -> NoReturn:
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _reap(running: dict[int, int]) -> bool:
    """Collect what has ended, without waiting. Whether a conversation's process was among it."""
    found = False
    with contextlib.suppress(ChildProcessError):
        while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
            for number in [number for number, ours in running.items() if ours == pid]:
                del running[number]
                found = True
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
    return found


def _end(pids: list[int]) -> None:
    """End these processes with all that is in their process groups."""
    for pid in pids:
        for end in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                end(pid, signal.SIGKILL)
    deadline = time.monotonic() + _END_SECONDS
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
                time.sleep(0.0005)


def _end_others(running: Set[int]) -> None:
    """End all children but these: they are what conversations that are over had started."""
    for _ in range(_ROUNDS):
        left = [pid for pid in _children() if pid not in running]
        if not left:
            return
        _end(left)


def _children() -> list[int]:
    """Process ids of all children, adopted and dead ones included; none where the system does not list them."""
    found: list[int] = []
    for listed in Path("/proc/self/task").glob("*/children"):  # by the thread that started them
        with contextlib.suppress(OSError):  # a thread that has ended
            found += map(int, listed.read_text().split())
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]))
