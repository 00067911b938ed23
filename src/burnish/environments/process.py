"""One conversation's process, as the training process sees it."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from burnish.environments.messages import LineReader, encode

_RECEIVE_BYTES = 1 << 18


class ConversationProcess:
    """Asks it, and hears its answers. Nothing here waits."""

    def __init__(self, channel: socket.socket, end: Callable[[], None]) -> None:
        """end: makes sure that it ends, whatever it is doing."""
        self._channel = channel
        self._channel.setblocking(False)
        self._end = end
        self._reader = LineReader()
        self._unsent = memoryview(b"")
        self.gone = False
        """Whether it has ended."""

    def fileno(self) -> int:
        """For polling: readable if it has answered or ended."""
        return self._channel.fileno()

    @property
    def has_unsent(self) -> bool:
        """Whether `flush` is to be called when there is room to send."""
        return bool(self._unsent)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a request, as far as there is room now. A process that has ended is noticed when answers are awaited."""
        self._unsent = memoryview(encode(message))
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

    def receive(self) -> Iterator[dict[str, Any]]:
        """The answers that have arrived. Sets `gone` at the end of them all. Raises GarbledError for anything else."""
        while not self.gone:
            try:
                data = self._channel.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            self._reader.feed(data)
            yield from self._reader.messages()
            self.gone = not data

    def has_said_anything(self) -> bool:
        """Whether there is anything to receive, which of an idle process is its end."""
        if self._channel.fileno() < 0:
            return True
        poller = select.poll()
        poller.register(self._channel, select.POLLIN)
        return bool(poller.poll(0))

    def close(self) -> None:
        """End it, with all that it has started. Idempotent."""
        if self._channel.fileno() >= 0:
            self._channel.close()
            self._end()
