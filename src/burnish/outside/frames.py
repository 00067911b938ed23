"""Messages between this program and processes that it has started: a length, then so many bytes, over a socket.

What the bytes mean is a matter of those who talk. What arrives is not trusted: a length has a limit, and one of them
that is impossible raises GarbledError before anything is read.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterator

LENGTH = struct.Struct(">I")
MAX_BYTES = (1 << 32) - 1
"""Longest message that the length can tell."""
_PIECE_BYTES = 1 << 18


class GarbledError(Exception):
    """A process sent something that is not an answer. The message says what."""


def frame(data: bytes) -> bytes:
    """The bytes with their length in front."""
    return LENGTH.pack(len(data)) + data


def read_frame(read: Callable[[int], bytes]) -> bytes:
    """The next message of a blocking source. `read(n)` returns at most n bytes, and none at the end (then EOFError)."""
    (length,) = LENGTH.unpack(exactly(read, LENGTH.size))
    return exactly(read, length)


def until(deadline: float, channel: socket.socket) -> Callable[[int], bytes]:
    """A blocking source that raises TimeoutError from then on, as `time.monotonic` tells it."""

    def read(count: int) -> bytes:
        channel.settimeout(max(deadline - time.monotonic(), 1e-3))
        return channel.recv(count)

    return read


def exactly(read: Callable[[int], bytes], count: int) -> bytes:
    """So many bytes of a blocking source. EOFError if it ends before."""
    parts = []
    while count:
        part = read(min(count, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def readable(descriptors: Collection[int], seconds: float) -> set[int]:
    """Those that can be read within this time, or have been closed. (`select.select` takes none above 1,023, which a
    process with many connections has.)"""
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poller.poll(1000 * seconds)}


def can_be_read(descriptor: int, seconds: float) -> bool:
    """Whether it can be read within this time, or has been closed."""
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
                    raise GarbledError(f"{bytes(self._data[start : start + 60])!r}")
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

    @property
    def has_unsent(self) -> bool:
        """True while `flush` has something left to send."""
        return bool(self._unsent)

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
