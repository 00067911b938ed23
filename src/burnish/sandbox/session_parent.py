"""The warm parent of sessions: forks processes each of which runs cell after cell, many at a time.

Like the parent of jobs (`warm.py`) it reads no code and no output: it passes on the descriptors of a session, and keeps
one end of a socket, the session's life. When the other end closes, the session is ended; when the session has ended,
its status goes over that socket. So nothing outlives the program that opened it, however that ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from burnish.outside.frames import MAX_BYTES, read_frame, reading
from burnish.outside.supervise import end_child, end_children, reap
from burnish.sandbox.cells import namespace, run_cell
from burnish.sandbox.confinement import Confinement
from burnish.sandbox.job import Limits
from burnish.sandbox.warm import HEADER_BYTES, Confined, fork_confined, make_ready

READY, FINE, FAILED = b"+", b".", b"!"
"""What a session says: once at its beginning, and at the end of each cell."""
_DESCRIPTORS = 3
_LOOK_SECONDS = 1.0
"""Between looks for processes that no session has named."""
_MOST_PROCESS_IDS = 1 << 22
"""Linux's limit. The users of sessions are so far apart because the first one depends on the parent's process id."""


def main(control: int, tier: str) -> None:
    """Serve sessions that are asked for over this socket until it closes, then end them all."""
    channel = socket.socket(fileno=control)
    confinement = make_ready(channel, tier)
    if confinement is not None:
        sessions = _Sessions(channel, confinement)
        try:
            sessions.serve()
        finally:
            sessions.end_all()


@dataclass(frozen=True, slots=True)
class _Session:
    """slot: the smallest number that no other session has. watched: a descriptor that tells when it has ended."""

    slot: int
    child: Confined
    life: socket.socket
    watched: int


class _Sessions:
    """The sessions of this process, by process id."""

    def __init__(self, channel: socket.socket, confinement: Confinement) -> None:
        self._channel = channel
        self._confinement = confinement
        self._sessions: dict[int, _Session] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ)

    def serve(self) -> None:
        while True:
            for key, _ in self._selector.select(_LOOK_SECONDS):
                if key.fileobj is self._channel:
                    if not self._begin_next():
                        return
                elif isinstance(key.fileobj, socket.socket):
                    self._selector.unregister(key.fileobj)  # it can be read from now on
                    end_child(key.data)
            self._reap()

    def end_all(self) -> None:
        for pid in self._sessions:
            end_child(pid)
        self._forget(end_children())

    def _begin_next(self) -> bool:
        """Begin the session that is asked for. False if nobody is there to ask."""
        data, descriptors, _, _ = socket.recv_fds(self._channel, HEADER_BYTES, _DESCRIPTORS)
        try:
            if data and len(descriptors) == _DESCRIPTORS:  # fewer when this process can have no more
                self._begin(json.loads(data), descriptors)
        except OSError:
            traceback.print_exc()  # whoever asked finds the other ends closed
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return bool(data)

    def _begin(self, header: dict[str, object], descriptors: Sequence[int]) -> None:
        cells, output, life = descriptors
        slot = min(set(range(len(self._sessions) + 1)) - {one.slot for one in self._sessions.values()})
        confinement, limits = self._of_slot(slot, Limits(**header["limits"]), int(header["most"]))  # type: ignore
        shown = int(header["shown"])  # type: ignore[call-overload]
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            child = fork_confined(lambda: _run_cells(3, shown), (nothing, output, output, cells), confinement, limits)
        finally:
            os.close(nothing)
        session = _Session(slot, child, socket.socket(fileno=os.dup(life)), os.pidfd_open(child.pid))
        self._sessions[child.pid] = session
        for watched in (session.life, session.watched):
            self._selector.register(watched, selectors.EVENT_READ, child.pid)

    def _of_slot(self, slot: int, limits: Limits, most: int) -> tuple[Confinement, Limits]:
        """Give a session its own user, whose threads are counted apart; without users, sessions share the sum of their
        limits of threads."""
        if self._confinement.user is None:
            return self._confinement, replace(limits, processes=limits.processes * most)
        return replace(self._confinement, user=self._confinement.user + slot * _MOST_PROCESS_IDS), limits

    def _reap(self) -> None:
        """Let go of sessions that have ended, and end what they have left behind."""
        ended, _ = reap()
        if ended:
            ended |= end_children(self._sessions.keys() - ended.keys())
            self._forget(ended)

    def _forget(self, ended: Mapping[int, int]) -> None:
        """Report the exit statuses of the sessions among these processes."""
        for pid in self._sessions.keys() & ended.keys():
            session = self._sessions.pop(pid)
            with contextlib.suppress(OSError):  # nobody may want to know
                session.life.send(str(ended[pid]).encode())
            for watched in (session.life, session.watched):
                with contextlib.suppress(KeyError):
                    self._selector.unregister(watched)
            session.life.close()
            os.close(session.watched)
            os.close(session.child.ready)


def _run_cells(channel: int, shown: int) -> int:
    """Run each cell that comes over this socket, until it closes: the body of a session."""
    output = os.dup(1)  # the code may close the other one
    os.write(channel, READY)
    try:
        space, number = namespace(), 0
        while (source := _next_cell(channel)) is not None:
            number += 1
            well = run_cell(source, number, space, output, shown)
            os.write(channel, FINE if well else FAILED)
    except BaseException:  # noqa: BLE001  boundary: what the code has done to this process is not to be shown to it
        return 1
    return 0


def _next_cell(channel: int) -> str | None:
    try:
        return read_frame(reading(channel), MAX_BYTES).decode(errors="surrogatepass")
    except EOFError:
        return None
