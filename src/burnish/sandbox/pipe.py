"""Pipe from one process of a job to the other: messages over two descriptors."""

from __future__ import annotations

import json
import os
from typing import Any

from burnish.outside.frames import GarbledError, frame, read_frame, reading
from burnish.sandbox.wire import ClosedError, NotPlainError, TooLargeError


class Pipe:
    """A `Link` of two descriptors. Every message is checked for its length before it is read."""

    def __init__(self, read: int, write: int, limit: int) -> None:
        self._read_end = read
        self._write_end = write
        self._limit = limit

    def send(self, message: Any) -> None:
        """Send a message. Raises TooLargeError and ClosedError."""
        data = json.dumps(message, separators=(",", ":")).encode()
        if len(data) > self._limit:
            raise TooLargeError(f"a value of {len(data):,} bytes; {self._limit:,} are allowed")
        left = memoryview(frame(data))
        try:
            while left:
                left = left[os.write(self._write_end, left) :]
        except BrokenPipeError as error:
            raise ClosedError from error

    def receive(self) -> Any:
        """Return the next message. Raises NotPlainError for anything that is not a message, and ClosedError."""
        try:
            return json.loads(read_frame(reading(self._read_end), self._limit))
        except EOFError as error:
            raise ClosedError from error
        except GarbledError as error:
            raise NotPlainError(str(error)) from error
        except (ValueError, RecursionError) as error:
            raise NotPlainError("a message that is not JSON") from error
