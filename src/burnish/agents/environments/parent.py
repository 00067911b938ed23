"""The warm parent of conversation processes: it imports tools and environment once, and is forked for each
conversation, so that a new one costs a millisecond.

It is told what to import, and says what tools there are. Then it waits for sockets, each of which becomes a
conversation, and for the word that one of them has ended. What a conversation has started is adopted by its process,
whatever the programs in between do, and by the parent when that process has ended, which ends it. So nothing
that a conversation has started outlives it, nothing that belongs to another one is touched, and everything ends when
the training process has gone.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import select
import signal
import socket
import sys
from typing import Any

from burnish.agents.environments.loading import find_environment
from burnish.agents.environments.messages import encode
from burnish.agents.environments.protocol import EnvironmentSource
from burnish.agents.environments.session import Session
from burnish.agents.tools.loading import LoadedTool, load_tools
from burnish.errors import BurnishError
from burnish.outside.frames import MAX_BYTES, read_frame, read_object
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

WORD_BYTES = 16
"""Length of a word of the training process: + (with a socket) or -, and the number of a conversation."""
_LOOK_SECONDS = 5.0


def main(control: int) -> None:
    """Serve the socket `control` until its other end is closed. Its first message has the names of tools and
    environment."""
    trainer = os.getppid()
    ignore_stop_signals()
    adopt_orphans()
    channel = socket.socket(fileno=control)
    try:
        # What to import comes over the socket, because everybody can read a command line.
        tools, source = _load(read_object(read_frame(channel.recv_into, MAX_BYTES)))
    except EOFError:
        return  # the training process has gone
    except BurnishError as error:
        channel.sendall(encode({"refused": error.message, "remedy": error.remedy}))
        return
    channel.sendall(encode(_description(tools, source)))
    session = Session({tool.name: tool for tool in tools}, source)
    gc.collect()
    gc.freeze()  # a conversation's collections then touch nothing of this process
    try:
        _serve(channel, session, trainer)
    finally:
        end_children()


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


def _serve(channel: socket.socket, session: Session, trainer: int) -> None:
    """Fork a conversation for each socket that arrives, and end finished ones. Until the other end is closed, or its
    process has gone: something that it forked may hold the other end open."""
    running: dict[int, int] = {}  # number of the conversation -> process id
    poller = select.poll()
    poller.register(channel, select.POLLIN)
    while os.getppid() == trainer:
        over: set[int] = set()  # process ids, also of what conversations have left behind
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
                over.add(running[number])
        over |= reap()[0].keys()
        if over:
            for pid in over:
                end_group(pid)
            over |= end_children(set(running.values()) - over).keys()
            running = {number: pid for number, pid in running.items() if pid not in over}


def _fork(descriptor: int, session: Session, channel: socket.socket) -> int:
    parent = os.getpid()

    def converse() -> int:
        channel.close()
        adopt_orphans()
        depend_on(parent)
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        random.seed(0)  # a fork changes the seed
        try:
            session.serve(socket.socket(fileno=descriptor))
        finally:
            with contextlib.suppress(BaseException):  # tools may have put anything in the place of the streams
                sys.stdout.flush()
                sys.stderr.flush()
        return 0

    return fork(converse)
