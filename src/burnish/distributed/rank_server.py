"""A process of torchrun other than the first: it waits for the controller, and serves the seat that it is given."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from faulthandler import dump_traceback
from typing import Any

from burnish.config.torchrun import TorchrunRank
from burnish.distributed.channel import Channel
from burnish.distributed.network import send_beats
from burnish.distributed.pulse import Pulse
from burnish.distributed.rank_store import RankStore
from burnish.distributed.server import MemoryGate, serve
from burnish.errors import BurnishError
from burnish.machine.resources import gpu_number
from burnish.outside.supervise import end_own_group, ignore_stop_signals


class RankChannel(Channel):
    """Remembers how it ended: `dismissed` by the other end, or lost."""

    dismissed = False
    open = True

    def receive(self, *, seconds: float | None) -> Any:
        """See `Channel`."""
        try:
            message = super().receive(seconds=seconds)
        except EOFError:
            self.open = False
            raise
        if message == ("end",):
            self.dismissed, self.open = True, False
        return message


def serve_rank(here: TorchrunRank) -> None:
    """Be the process of a trainer or of a rollout worker until the controller, the process with rank 0, dismisses it.

    BurnishError if the controller does not come, or is gone without having said so. Mostly such a process is ended
    before it can say anything.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu_number(here.local_rank)
    lines = RankStore.joined(here).await_call()
    ignore_stop_signals()
    pulse, channel = Pulse.new(), RankChannel(lines.requests)
    beating = threading.Thread(
        target=live_with, args=(lines.beats, pulse, channel, _end_at_once), name="beats", daemon=True
    )
    beating.start()
    while channel.open:  # roles that cannot be built are an answer, and whoever asked decides what follows
        serve(channel, pulse, MemoryGate(channel))
    if not channel.dismissed:
        raise BurnishError(
            f"rank {here.rank}: rank 0, the controller, has ended", remedy="see what it or torchrun has said"
        )
    channel.close()


def live_with(beats: socket.socket, pulse: Pulse, channel: RankChannel, end: Callable[[bool], None]) -> None:
    """Beat until the controller is gone, then `end(whether it has dismissed this process)`."""
    send_beats(beats, pulse, write_stacks)
    end(channel.dismissed)


def write_stacks(file: str) -> None:
    """Write where each thread of this process is, unless the folder for that cannot be seen from here."""
    with contextlib.suppress(OSError), open(file, "a", encoding="utf-8") as stream:
        dump_traceback(stream, all_threads=True)


def _end_at_once(dismissed: bool) -> None:
    """End this process, which may be in the middle of something. What it has started ends with it."""
    if dismissed:
        os._exit(0)  # what torchrun takes for success
    end_own_group()
