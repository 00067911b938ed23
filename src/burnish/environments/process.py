"""One conversation's process, as the training process sees it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from burnish.environments.messages import MAX_ANSWER_BYTES, decode, encode
from burnish.outside.frames import Correspondent


class ConversationProcess(Correspondent):
    """Asks it, and hears its answers. Nothing here waits."""

    def __init__(self, channel: socket.socket, end: Callable[[], None]) -> None:
        """end: makes sure that it ends, whatever it is doing."""
        super().__init__(channel, MAX_ANSWER_BYTES)
        self._end = end

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a request, as far as there is room now. A process that has ended is noticed when answers are awaited."""
        self.post(encode(message))

    def receive(self) -> Iterator[dict[str, Any]]:
        """The answers that have arrived. Raises GarbledError for anything else."""
        return map(decode, self.arrived())

    def close(self) -> None:
        """End it, with all that it has started. Idempotent."""
        if self._channel.fileno() >= 0:
            self._channel.close()
            self._end()
