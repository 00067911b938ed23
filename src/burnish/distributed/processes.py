"""Roles in a separate process of this machine: how it is started, ended, and handed memory."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import torch

from burnish.distributed.channel import Channel
from burnish.distributed.fork_server import ForkServer
from burnish.distributed.peers import AGAIN, END_SECONDS, START_SECONDS, Peer, ProcessSpec, RoleLostError
from burnish.distributed.pulse import Pulse, PulseWatch
from burnish.distributed.server import STACKS_SIGNAL
from burnish.distributed.weight_transfer import SealedWeights, SharedWeights, TensorLayout
from burnish.errors import BurnishError
from burnish.outside.frames import pair
from burnish.outside.plugins import describe_exit
from burnish.outside.shortage import FEWER
from burnish.outside.supervise import activity, start_interpreter

_STACKS_SECONDS = 0.5


class MemoryPeer(Peer):
    """A process of this machine, at the other end of a socket that can hand over memory."""

    def load(self, role: str, shared: SealedWeights, *, what: str, seconds: float) -> None:
        """See `Peer`."""
        assert isinstance(shared, SharedWeights), "processes of one machine share memory"
        self.ask(("load", role, shared.layout), what=what, seconds=seconds, descriptor=shared.descriptor)

    def share(self, role: str, version: int, *, what: str, seconds: float) -> SharedWeights:
        """See `Peer`."""
        with self.turn:  # which ends with the descriptor behind the answer
            layout: TensorLayout = self.ask(("share", role, version), what=what, seconds=seconds)
            with self._reaching(what, f"did not answer within {seconds:g} seconds"):
                return SharedWeights(layout, self._channel.receive_descriptor(seconds=seconds))


class RoleProcess(MemoryPeer):
    """A process of this machine with roles of the run, in its own session."""

    def __init__(
        self,
        seat: ProcessSpec,
        *,
        seconds: float = START_SECONDS,
        threads: int | None = None,
        environment: Mapping[str, str] | None = None,
        stacks: Path | None = None,
        fork_server: ForkServer | None = None,
    ) -> None:
        """Start the process, and return when the roles of the seat are built; its `build` is pickled by reference.

        threads: of PyTorch there; None: as many as here. environment: variables that it has in addition. stacks: the
        folder in which a process that stalls says where its threads are. fork_server: None starts an interpreter.
        Raises what `build` raises, and RoleLostError when it takes longer than `seconds` or is given up.
        """
        self.name = seat.name
        self._stacks = stacks
        try:
            self._start(fork_server, environment or {}, seat.given_up)
        except TimeoutError as error:
            raise RoleLostError(f"start: process {self.name!r}: {error}", remedy=AGAIN, process=self.name) from error
        except OSError as error:
            why = f"process {self.name!r} cannot be started: {error.strerror or error}"
            raise BurnishError(why, remedy=FEWER) from error
        self._watch = PulseWatch(self._signs)
        try:
            self._build(seat, threads or torch.get_num_threads(), seconds=seconds)
        except BaseException:
            self.kill()
            raise

    def _start(self, fork_server: ForkServer | None, environment: Mapping[str, str], given_up: threading.Event) -> None:
        with contextlib.ExitStack() as ours:  # what is closed if it cannot be started
            self._pulse = Pulse.new()
            ours.callback(self._pulse.close)
            with pair() as (here, theirs):
                descriptors = theirs.fileno(), self._pulse.descriptor
                stacks = () if self._stacks is None else (str(self._stacks / f"{self.name.replace(' ', '-')}.txt"),)
                if fork_server is None:
                    self._process = start_interpreter(
                        "burnish.distributed.server:main",
                        *descriptors,
                        os.getpid(),
                        *stacks,
                        descriptors=descriptors,
                        output=None,
                        environment={**os.environ, **environment},
                    )
                else:
                    self._process = fork_server.fork(
                        *stacks, descriptors=descriptors, environment=environment, given_up=given_up
                    )
                self._channel = Channel(here)
            ours.pop_all()

    @property
    def pid(self) -> int:
        """Its process id, which is also its session id."""
        return self._process.pid

    def _signs(self) -> tuple[int, int]:
        """Beats and pieces of work. Before the first beat it imports much, which the system sees, and then beats are
        counted from below zero on."""
        beats, done = self._pulse.read()
        return beats or activity(self._process.pid) - (1 << 62), done

    def _write_stacks(self) -> None:
        """See `Peer`. They go to a file in the folder for that."""
        if self._stacks is None or self._lost is not None:
            return
        self._process.tell(STACKS_SIGNAL)
        time.sleep(_STACKS_SECONDS)

    def _await_end(self, seconds: float) -> None:
        """See `Peer`."""
        self._process.status(seconds)

    def _end(self) -> None:
        """See `Peer`."""
        self._process.end()

    def _let_go(self) -> None:
        """See `Peer`."""
        super()._let_go()
        self._pulse.close()

    def _epitaph(self) -> str:
        """See `Peer`."""
        if (status := self._process.status(END_SECONDS)) is not None:
            return f"ended ({describe_exit(status)})"
        self.kill()
        return "closed its connection without ending, and was killed"
