"""Messages between a process and its roles in another one: length, then pickle, over a stream socket.

Both ends are Burnish itself, started by the same run. Nothing from outside is unpickled here: rewards answer in JSON
(`burnish.rewards.wire`), and so does vLLM.
"""

from __future__ import annotations

import contextlib
import pickle
import socket
import threading
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from burnish.outside import frames


class HasDescriptor(Protocol):
    """A socket, or what can be waited for like one."""

    def fileno(self) -> int: ...


Waited = TypeVar("Waited", bound=HasDescriptor)
_MOST_BYTES = 1 << 48
"""More than any state of an optimizer has."""


class Channel:
    """One end of the socket. `TimeoutError` if the other end reads or writes nothing for `seconds`, however long the
    whole message takes (the state of an optimizer may have many gigabytes), `EOFError` if it is gone. With `seconds`
    None it waits as long as it takes, which only a server does."""

    def __init__(self, stream: socket.socket) -> None:
        self._socket = stream
        self.turn = threading.RLock()
        """Held by whoever has asked something, until the answer is there: there may be several threads."""

    def send(self, message: bytes, *, seconds: float | None) -> None:
        """Send what `pickled` made."""
        self._socket.settimeout(seconds)
        frames.send_frame(self._socket, message)

    def receive(self, *, seconds: float | None) -> Any:
        """The next message, unpickled."""
        self._socket.settimeout(seconds)
        return pickle.loads(frames.read_frame(self._socket.recv_into, _MOST_BYTES))

    def has_message(self) -> bool:
        """Return whether a message, or the end of the connection, has begun to arrive."""
        return bool(readable((self._socket,), 0))

    def send_descriptor(self, descriptor: int, *, seconds: float | None) -> None:
        """Give the other end its own descriptor of the same file or memory."""
        self._socket.settimeout(seconds)
        try:
            socket.send_fds(self._socket, [b"d"], [descriptor])
        except ConnectionError as error:
            raise EOFError from error

    def receive_descriptor(self, *, seconds: float | None = None) -> int:
        """The descriptor that the other end gives. The caller closes it."""
        self._socket.settimeout(seconds)
        try:
            data, descriptors, _, _ = socket.recv_fds(self._socket, 1, 1)
        except ConnectionError as error:
            raise EOFError from error
        if not data or not descriptors:
            raise EOFError
        return descriptors[0]

    def fileno(self) -> int:
        """Of the socket, for `select`."""
        return self._socket.fileno()

    def end(self) -> None:
        """End the connection for both ends, also for a thread that waits at it. Idempotent."""
        with contextlib.suppress(OSError):  # it may have ended
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this end; the other end then reads an end of file. Idempotent."""
        self._socket.close()


def pickled(message: object) -> bytes:
    """A message to send. Tensors arrive in host memory, with their present values and without gradient.

    Raises what `pickle` raises for values that it cannot handle, such as functions without a module.
    """
    pieces = _Pieces()
    _Pickler(pieces, protocol=pickle.HIGHEST_PROTOCOL).dump(message)
    return b"".join(pieces)


class _Pieces(list[bytes | pickle.PickleBuffer]):
    """Output of a pickler, which keeps only references to tensors, so that the message is their one copy. (A buffer
    that grows is copied on the way, and may take the memory of three.)"""

    def write(self, piece: bytes | memoryview | pickle.PickleBuffer) -> None:
        """Keep it. A view may be of memory that is about to go."""
        self.append(bytes(piece) if isinstance(piece, memoryview) else piece)


class _Pickler(pickle.Pickler):
    """Pickles tensors from any device as their bytes. Of a view only its own numbers, not the whole storage."""

    def reducer_override(self, value: object) -> Any:
        if not isinstance(value, Tensor):
            return NotImplemented
        host = value.detach().cpu().contiguous()
        dtype = str(host.dtype).removeprefix("torch.")
        return _tensor, (dtype, tuple(host.shape), host.reshape(-1).view(torch.uint8).numpy())


def _tensor(dtype: str, shape: tuple[int, ...], numbers: np.ndarray[Any, np.dtype[np.uint8]]) -> Tensor:
    return torch.from_numpy(numbers).view(vars(torch)[dtype]).reshape(shape)


def readable(waited: Sequence[Waited], seconds: float) -> list[Waited]:
    """Return the objects that can be read from, or have ended, within this time."""
    by_descriptor = {one.fileno(): one for one in waited}
    found = frames.readable(by_descriptor, seconds)
    return [one for descriptor, one in by_descriptor.items() if descriptor in found]
