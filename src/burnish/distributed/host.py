"""The process of a role on another machine: an actor of Ray, though nothing here knows that."""

from __future__ import annotations

import os
import queue
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from faulthandler import dump_traceback

import numpy as np
from torch import Tensor

from burnish.distributed.channel import Channel
from burnish.distributed.handover import Bytes, Layout, SealedWeights, fill, laid_out, unsealed
from burnish.distributed.network import accept, address_towards, listen, send_beats
from burnish.distributed.nodes import enter
from burnish.distributed.pulse import Pulse
from burnish.distributed.server import serve
from burnish.models.weights import Weights

MEETING_SECONDS = 180.0
"""For the controller to connect, and for weights to follow the request that announces them."""


class Host:
    """What the process holds: a thread that serves the roles as `burnish.distributed.server` does on one machine, and
    methods for the controller to call. Weights come and go as their arguments and answers: it is the thread's `Gate`.
    """

    def __init__(self, environment: Mapping[str, str], folder: str | None, paths: Sequence[str]) -> None:
        os.environ.update(environment)
        enter(folder, paths)
        self._lent: queue.SimpleQueue[Callable[[], Bytes]] = queue.SimpleQueue()
        self._published: Bytes | None = None

    def open(self, controller: str, token: bytes) -> tuple[tuple[str, int], int]:
        """Begin to serve. Returns the address at which the one who knows the token is waited for, and the process id.

        controller: the address of its machine, which decides at which of this machine's addresses that is.
        """
        listener = listen(address_towards(controller))
        address: tuple[str, int] = listener.getsockname()[:2]
        threading.Thread(target=self._serve, args=(listener, token), daemon=True).start()
        return address, os.getpid()

    def lend(self, fetch: Callable[[], Bytes]) -> None:
        """How to get the weights for the request that follows."""
        self._lent.put(fetch)

    def published(self) -> Bytes:
        """What `publish` wrote. As an answer it belongs to the controller, and outlives this process."""
        numbers, self._published = self._published, None
        assert numbers is not None, "asked for once after each request to share weights"
        return numbers

    def stacks(self) -> str:
        """Where each thread of this process is."""
        with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
            dump_traceback(file, all_threads=True)
            file.seek(0)
            return file.read()

    def ping(self) -> None:
        """Answered as long as there is somebody."""

    def receive(self, layout: Layout) -> SealedWeights:
        """See `Gate`."""
        fetch = self._lent.get(timeout=MEETING_SECONDS)
        return LentWeights(layout, fetch())

    def publish(self, weights: Weights) -> Layout:
        """See `Gate`."""
        layout, self._published = sealed(weights)
        return layout

    def follow(self) -> None:
        """See `Gate`."""

    def _serve(self, listener: socket.socket, token: bytes) -> None:
        requests, beats = accept(listener, token, seconds=MEETING_SECONDS)
        pulse = Pulse.new()
        threading.Thread(target=_live_with, args=(beats, pulse), daemon=True).start()
        channel = Channel(requests)
        serve(channel, pulse, self)
        channel.close()


def _live_with(beats: socket.socket, pulse: Pulse) -> None:
    """Beat until the controller is gone, then end this process and what it started."""
    send_beats(beats, pulse)
    leads_group = os.getpgrp() == os.getpid()
    os.kill(0 if leads_group else os.getpid(), signal.SIGKILL)


def sealed(weights: Weights) -> tuple[Layout, Bytes]:
    """A copy of the weights as they are now, sealed."""
    layout, tensors = laid_out(weights)
    numbers = np.zeros(layout.num_bytes, dtype=np.uint8)
    fill(numbers, layout, tensors)
    return layout, numbers


@dataclass(slots=True)
class LentWeights(SealedWeights):
    """`SealedWeights` in the node's object store, where a reader sees them without a copy."""

    layout: Layout
    numbers: Bytes | None

    def __call__(self) -> Iterator[tuple[str, Tensor]]:
        """See `SealedWeights`."""
        assert self.numbers is not None, "not read after the end"
        return unsealed(self.numbers, self.layout)

    def close(self) -> None:
        """See `SealedWeights`."""
        self.numbers = None
