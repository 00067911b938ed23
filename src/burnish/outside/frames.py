"""Messages between this program and processes that it has started: a length, then so many bytes, over a socket or pipe.

What the bytes mean is a matter of those who talk; most say an object of JSON. What arrives is not trusted: a length has
a limit, and one above it raises GarbledError before anything is read.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

LENGTH = struct.Struct(">Q")
MAX_BYTES = (1 << 32) - 1
"""Longest message for callers that set no limit."""
_PIECE_BYTES = 1 << 18
_SHOWN_BYTES = 60

Source = Callable[[memoryview], int]
"""Reads as much as there is, at least one byte, into a buffer, and returns how much; 0 at the end. `recv_into` of a
blocking socket is one."""


class GarbledError(Exception):
    """A process sent something that is not an answer. The message says what."""


@contextlib.contextmanager
def pair(kind: int = socket.SOCK_STREAM) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two connected sockets: ours, which is closed if the block fails, and one for a process that the block starts,
    which is closed at the end of it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    with theirs:
        try:
            yield ours, theirs
        except BaseException:
            ours.close()
            raise


def frame(data: bytes) -> bytes:
    """The bytes with their length in front."""
    return LENGTH.pack(len(data)) + data


def send_frame(channel: socket.socket, data: bytes) -> None:
    """Send a message over a socket whose time limit is for each piece: `sendall` would have to be done with all of it
    in that time. EOFError if the other end is gone."""
    left = memoryview(data)
    try:
        channel.sendall(LENGTH.pack(len(data)))
        while left:
            left = left[channel.send(left[:_PIECE_BYTES]) :]
    except ConnectionError as error:
        raise EOFError from error


def read_frame(source: Source, most: int) -> bytearray:
    """The next message. EOFError at the end, and GarbledError for one that claims to be longer than `most`."""
    (length,) = LENGTH.unpack(exactly(source, LENGTH.size))
    if length > most:
        raise GarbledError(f"a message of {length:,} bytes; {most:,} are allowed")
    return exactly(source, length)


def exactly(source: Source, count: int) -> bytearray:
    """So many bytes. EOFError if it ends before."""
    data = bytearray(count)
    left = memoryview(data)
    while left:
        try:
            read = source(left)
        except ConnectionError as error:
            raise EOFError from error
        if not read:
            raise EOFError
        left = left[read:]
    return data


def until(deadline: float, channel: socket.socket) -> Source:
    """A socket as a source that raises TimeoutError from then on, as `time.monotonic` tells it."""

    def receive(buffer: memoryview) -> int:
        channel.settimeout(max(deadline - time.monotonic(), 1e-3))
        return channel.recv_into(buffer)

    return receive


def reading(descriptor: int) -> Source:
    """A pipe, or anything else that is open, as a source."""

    def read(buffer: memoryview) -> int:
        data = os.read(descriptor, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    return read


def ask(channel: socket.socket, message: bytes, *, seconds: float) -> dict[str, Any]:
    """Send a message; the object with which a process of ours answers. TimeoutError if that takes longer, EOFError if
    the process is gone, GarbledError for anything else."""
    deadline = time.monotonic() + seconds
    channel.settimeout(seconds)
    try:
        channel.sendall(frame(message))
    except ConnectionError as error:
        raise EOFError from error
    return read_object(read_frame(until(deadline, channel), MAX_BYTES))


def read_object(data: bytes | bytearray) -> dict[str, Any]:
    """The object of JSON in a message. GarbledError for anything else."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise GarbledError(f"{bytes(data[:_SHOWN_BYTES])!r}, which is not JSON") from None
    if not isinstance(found, dict):
        raise GarbledError(f"{bytes(data[:_SHOWN_BYTES])!r}, which is not an object")
    return found


def readable(descriptors: Collection[int], seconds: float) -> set[int]:
    """Return the descriptors that can be read within this time, or have been closed. (`select.select` takes none above
    1,023, which a process with many connections has.)"""
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poller.poll(1000 * seconds)}


def can_be_read(descriptor: int, seconds: float) -> bool:
    """Return whether a descriptor can be read within this time, or has been closed."""
    return bool(readable((descriptor,), seconds))


class FrameReader:
    """Collects bytes as they arrive, and yields whole messages of at most `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._data = bytearray()

    def feed(self, data: bytes) -> None:
        self._data += data

    def frames(self) -> Iterator[bytes]:
        """The complete messages so far. GarbledError if the next length is impossible."""
        start = 0
        try:
            while len(self._data) - start >= LENGTH.size:
                (length,) = LENGTH.unpack_from(self._data, start)
                if length > self._max_bytes:
                    raise GarbledError(f"{bytes(self._data[start : start + _SHOWN_BYTES])!r}")
                end = start + LENGTH.size + length
                if len(self._data) < end:
                    return
                found = bytes(self._data[start + LENGTH.size : end])
                start = end
                yield found
        finally:
            del self._data[:start]


class Correspondent:
    """A process at the other end of a socket. Nothing here waits."""

    def __init__(self, channel: socket.socket, max_bytes: int) -> None:
        """max_bytes: the longest message that the process may send."""
        self._channel = channel
        self._channel.setblocking(False)
        self._reader = FrameReader(max_bytes)
        self._unsent = memoryview(b"")
        self.gone = False
        """Whether it has closed its end."""

    def fileno(self) -> int:
        """For polling: readable if it has answered or ended, writable if `flush` can continue."""
        return self._channel.fileno()

    def watch(self, poller: select.poll) -> None:
        """Let the poller wait for messages, and for room while `flush` has something left to send."""
        poller.register(self.fileno(), select.POLLIN | (select.POLLOUT if self._unsent else 0))

    def post(self, message: bytes) -> None:
        """Send a message, as far as there is room now. A process that has ended is noticed when answers are awaited."""
        self._unsent = memoryview(bytes(self._unsent) + message)
        self.flush()

    def flush(self) -> None:
        """Send more of what could not be sent yet."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self._channel.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent = memoryview(b"")

    def arrived(self) -> Iterator[bytes]:
        """The messages that have arrived. Sets `gone` at the end of them all. GarbledError for a length that is
        impossible."""
        yield from self._reader.frames()
        while not self.gone:
            try:
                data = self._channel.recv(_PIECE_BYTES)
            except BlockingIOError:
                return
            except OSError:  # it died with a request unread, which is an end as well
                data = b""
            self._reader.feed(data)
            yield from self._reader.frames()
            self.gone = not data

    def has_said_anything(self) -> bool:
        """True if there is something to receive. From an idle process that is its end."""
        return self._channel.fileno() < 0 or can_be_read(self._channel.fileno(), 0.0)
