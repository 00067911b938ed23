"""What an environment worker holds: conversation processes of its machine, for a controller that may be on another one.

The controller opens a connection for each conversation. It is handed to the process that serves the conversation, so
nothing stands between the two. One more connection, the line, says which conversations to end, and tells the controller
when all of them were lost. Whoever connects has to know a secret.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from burnish.distributed.network import TOKEN_BYTES, Address, address_of, address_towards, greeting, listen, ready
from burnish.environments.messages import encode
from burnish.environments.warm_parent import Wanted, WarmParent
from burnish.errors import BurnishError, ConfigError

ROLE = "environments"
"""What the process holds: an `EnvironmentNode`."""
CONVERSATION, LINE = b"c", b"l"
NUMBER = struct.Struct("!Q")
"""Of a conversation: the first word of its connection; on the line, that it is to end."""
_MOST_STRANGERS = 64
"""Connections at a time of which it is not known yet who they are."""
_PAUSE_SECONDS = 0.1


class EnvironmentNode:
    """Begins what the controller wants. `controller`: the address of its machine."""

    def __init__(self, controller: str) -> None:
        self._here = address_towards(controller)
        self._desks: list[_Desk] = []

    def start(self, wanted: Wanted, variables: Mapping[str, str]) -> tuple[Address, bytes]:
        """Import tools and environment. Returns the address at which conversations are begun, and the secret. Raises
        ConfigError if they cannot be loaded on this machine."""
        try:
            parent = WarmParent(wanted, variables)
        except BurnishError as error:
            raise ConfigError(f"on {socket.gethostname()}: {error.message}", remedy=error.remedy) from error
        desk = _Desk(parent, listen(self._here))
        self._desks.append(desk)
        return address_of(desk.listener), desk.token

    def ping(self) -> None:
        """Answered as long as there is somebody."""

    def close(self) -> None:
        """End all conversations."""
        for desk in self._desks:
            desk.close()


class _Desk:
    """Where the conversations of one section begin. It closes when the line does."""

    def __init__(self, parent: WarmParent, listener: socket.socket) -> None:
        self.listener, self.token = listener, secrets.token_bytes(TOKEN_BYTES)
        self._parent = parent
        self._lock = threading.Lock()
        self._line: socket.socket | None = None
        # The controller's number of a conversation -> that of the warm parent, None for one that could not begin.
        self._running: dict[int, int | None] = {}
        self._ended: set[int] = set()  # before they began
        self._strangers = threading.Semaphore(_MOST_STRANGERS)
        self._closed = threading.Event()
        threading.Thread(target=self._receive_all, daemon=True).start()

    def close(self) -> None:
        """End its conversations. Idempotent."""
        self._closed.set()
        with contextlib.suppress(OSError):  # closed already
            self.listener.shutdown(socket.SHUT_RDWR)  # whoever waits for a connection stops
        self.listener.close()
        self._parent.close()

    def _receive_all(self) -> None:
        """A thread: whoever connects. Each has a thread until it is known who it is, so that nobody holds up others."""
        while not self._closed.is_set():
            self._strangers.acquire()
            try:
                stream, _ = self.listener.accept()
            except OSError:  # closed; or there is no room for a connection now, or somebody has changed his mind
                self._strangers.release()
                self._closed.wait(_PAUSE_SECONDS)
                continue
            threading.Thread(target=self._receive, args=(stream,), daemon=True).start()

    def _receive(self, stream: socket.socket) -> None:
        with stream, contextlib.suppress(OSError):  # the controller has changed its mind, or has gone
            try:
                kind = greeting(stream, self.token)
            finally:
                self._strangers.release()
            if kind == CONVERSATION:
                self._begin(ready(stream))
            elif kind == LINE:
                self._follow(ready(stream))

    def _begin(self, stream: socket.socket) -> None:
        """Let a process serve this connection."""
        number = _number(stream)
        stream.settimeout(None)  # for the process, which has the same connection
        with self._lock:
            if number is None or number in self._ended:
                self._ended.discard(number or 0)
                return
            self._running[number] = None
            try:
                self._running[number] = self._parent.adopt(stream)
            except BurnishError as error:
                self._tell({"broken": error.message})
            if restarts := self._parent.take_restarts():
                self._tell({"restarts": restarts})

    def _follow(self, line: socket.socket) -> None:
        """End conversations as the controller says."""
        line.settimeout(None)
        with self._lock:
            self._line = line
        try:
            while (number := _number(line)) is not None:
                self._end(number)
        finally:
            self.close()

    def _end(self, number: int) -> None:
        with self._lock:
            if number not in self._running:
                self._ended.add(number)
            elif (running := self._running.pop(number)) is not None:
                self._parent.end(running)

    def _tell(self, message: Mapping[str, Any]) -> None:
        if self._line is not None:
            with contextlib.suppress(OSError):  # the controller has gone
                self._line.sendall(encode(message))


def _number(stream: socket.socket) -> int | None:
    """The next number; None at the end."""
    data = b""
    while len(data) < NUMBER.size:
        part = stream.recv(NUMBER.size - len(data))
        if not part:
            return None
        data += part
    return int(NUMBER.unpack(data)[0])


@contextmanager
def environment_seat(controller: str) -> Iterator[Mapping[str, EnvironmentNode]]:
    """The only role of an environment worker."""
    node = EnvironmentNode(controller)
    try:
        yield {ROLE: node}
    finally:
        node.close()
