"""The process of a role on another machine: an actor of Ray, though nothing here knows that.

It can be reached before it imports what roles need, which takes long, so that a stop while it starts is noticed.
"""

from __future__ import annotations

import os
import queue
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from faulthandler import dump_traceback
from typing import TYPE_CHECKING

from burnish.distributed.network import accept, address_towards, listen, send_beats
from burnish.distributed.nodes import enter
from burnish.distributed.pulse import Pulse
from burnish.outside.supervise import end_own_group, start_interpreter

if TYPE_CHECKING:
    from burnish.distributed.channel import Channel
    from burnish.distributed.weight_transfer import Bytes, Gate, SealedWeights, TensorLayout
    from burnish.models.weights import Weights

MEETING_SECONDS = 180.0
"""For the controller to connect, and for weights to follow the request that announces them."""


class Host:
    """Actor in the process of a role: a thread that serves the roles as `burnish.distributed.server` does on one
    machine, and methods for the controller to call. Weights come and go as their arguments and answers: it is the
    thread's `Gate`."""

    def __init__(self, environment: Mapping[str, str], folder: str | None, paths: Sequence[str]) -> None:
        os.environ.update(environment)
        enter(folder, paths)
        self._lent: queue.SimpleQueue[Callable[[], Bytes]] = queue.SimpleQueue()
        self._published: Bytes | None = None

    def open(self, controller: str) -> tuple[tuple[str, int], int]:
        """Let the controller connect. Returns the address at which it is waited for, and the process id.

        controller: the address of its machine, which decides at which of this machine's addresses that is.
        """
        self._listener = listen(address_towards(controller))
        address: tuple[str, int] = self._listener.getsockname()[:2]
        return address, os.getpid()

    def begin(self, token: bytes) -> None:
        """Begin to serve the one who has connected and knows the token. Imports hold up every thread for a while, so
        another process gives signs of life until they are done."""
        requests, beats = accept(self._listener, token, seconds=MEETING_SECONDS)
        function, descriptor = "burnish.distributed.network:send_activity", beats.fileno()
        teller = start_interpreter(
            function, descriptor, os.getpid(), descriptors=(descriptor,), output=None, environment=os.environ
        )
        try:
            from burnish.distributed import channel, server
        finally:
            teller.end()
        pulse = Pulse.new()
        threading.Thread(target=_live_with, args=(beats, pulse), daemon=True).start()
        roles = server.serve, channel.Channel(requests), pulse
        threading.Thread(target=self._serve, args=roles, daemon=True).start()

    def lend(self, fetch: Callable[[], Bytes]) -> None:
        """Keep the function that gets the weights for the next request."""
        self._lent.put(fetch)

    def published(self) -> Bytes:
        """Return what `publish` wrote, once. As an answer it belongs to the controller, and outlives this process."""
        numbers, self._published = self._published, None
        assert numbers is not None, "asked for once after each request to share weights"
        return numbers

    def stacks(self) -> str:
        """Return the stack of each thread of this process."""
        with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
            dump_traceback(file, all_threads=True)
            file.seek(0)
            return file.read()

    def ping(self) -> None:
        """Do nothing: the answer shows that this process lives."""

    def receive(self, layout: TensorLayout) -> SealedWeights:
        """See `Gate`."""
        from burnish.distributed.weight_transfer import LentWeights

        fetch = self._lent.get(timeout=MEETING_SECONDS)
        return LentWeights(layout, fetch())

    def publish(self, weights: Weights) -> TensorLayout:
        """See `Gate`."""
        from burnish.distributed.weight_transfer import sealed

        layout, self._published = sealed(weights)
        return layout

    def follow(self) -> None:
        """See `Gate`."""

    def _serve(self, serve: Callable[[Channel, Pulse, Gate], None], channel: Channel, pulse: Pulse) -> None:
        serve(channel, pulse, self)
        channel.close()


def _live_with(beats: socket.socket, pulse: Pulse) -> None:
    """Beat until the controller is gone, then end this process and what it started."""
    send_beats(beats, pulse)
    end_own_group()
