"""The queue of requests for the thread that owns the engine."""

from __future__ import annotations

import contextlib
import queue
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field

from burnish.agents.endpoint.answers import Reply
from burnish.agents.endpoint.requests import RewardCall, Terms, TurnRequest
from burnish.outside.listening import RefusedError, ending


@dataclass(slots=True, eq=False)
class Order:
    """A request of a trajectory, and the future of its answer. sample: number of this answer to the request.
    is_withdrawn: nobody waits for it any more. came: time of its arrival."""

    trajectory: str
    asked: TurnRequest | RewardCall
    sample: int = 0
    answer: Future[Reply | None] = field(default_factory=Future)
    is_withdrawn: bool = False
    came: float = field(default_factory=time.monotonic)

    def withdraw(self) -> None:
        """Mark that its client has gone."""
        self.answer.cancel()
        self.is_withdrawn = True  # a turn being sampled cannot be cancelled

    def refuse(self, error: RefusedError) -> None:
        """Answer with an error instead of a turn."""
        with contextlib.suppress(InvalidStateError):  # the client has gone
            self.answer.set_exception(error)

    def reply(self, reply: Reply | None) -> None:
        """Answer with a turn; None for a reward."""
        with contextlib.suppress(InvalidStateError):
            self.answer.set_result(reply)


class Desk:
    """Queue of orders from the server's thread to the engine's. `fileno` is readable when there are any.

    find: the terms of a trajectory, None for one that does not exist. Called from the server's thread.
    """

    def __init__(self, find: Callable[[str], Terms | None]) -> None:
        self.find = find
        self._orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._woken, self._wakes = socket.socketpair()
        self._woken.setblocking(False)
        self._wakes.setblocking(False)
        self.is_closed = False

    def fileno(self) -> int:
        """The descriptor for polling."""
        return self._woken.fileno()

    def place(self, *orders: Order) -> None:
        """Queue orders. They are refused if nobody will take them any more."""
        for order in orders:
            self._orders.put(order)
        if self.is_closed:
            self._refuse_all()
        with contextlib.suppress(BlockingIOError, OSError):  # full of signals not yet read: one is enough
            self._wakes.send(b"1")

    def take(self) -> list[Order]:
        """Take the waiting orders, in the order in which they came."""
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(1 << 16)
        orders = []
        with contextlib.suppress(queue.Empty):  # at the end, several threads take
            while True:
                orders.append(self._orders.get_nowait())
        return orders

    def close(self) -> None:
        """Refuse all waiting and later orders."""
        self.is_closed = True
        self._refuse_all()
        with contextlib.suppress(OSError):
            self._wakes.send(b"1")

    def _refuse_all(self) -> None:
        for order in self.take():
            order.refuse(ending())
