"""One conversation's process, as the training process sees it."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from burnish.environments.messages import MAX_ANSWER_BYTES, encode
from burnish.outside.frames import Correspondent, GarbledError, read_object


class ConversationProcess(Correspondent):
    """Asks it, and hears its answers. Nothing here waits."""

    def __init__(self, channel: socket.socket, end: Callable[[], None]) -> None:
        """end: makes sure that it ends, whatever it is doing."""
        super().__init__(channel, MAX_ANSWER_BYTES)
        self._end = end
        self._number = ""
        """Of the request, which its answers repeat. The functions that the process calls share it and may write to the
        socket; none can answer what another one will be asked."""

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a request, as far as there is room now. A process that has ended is noticed when answers are awaited."""
        self._number = secrets.token_hex(8)
        self.post(encode({**message, "number": self._number}))

    def receive(self) -> Iterator[dict[str, Any]]:
        """Answers to the last request that have arrived. Raises GarbledError for anything else."""
        for message in map(read_object, self.arrived()):
            if message.get("number") != self._number:
                raise GarbledError("what answers no request, or an earlier one")
            yield message

    def close(self) -> None:
        """End it, with all that it has started. Idempotent."""
        if self._channel.fileno() >= 0:
            self._channel.close()
            self._end()
