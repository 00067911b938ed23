"""Trainers and rollout workers as processes that torchrun has started: the controller's side.

The process with rank 0 is the controller. Next to it is trainer 0, in a process that it starts itself, unless it is the
only trainer; every other rank has one seat (`burnish.distributed.rank_server`). So there are as many ranks as processes
with a model.

torchrun ends all ranks when one is lost, and starts all of them again if it may. Nothing is started again here: a lost
rank ends the run with an error that names it.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch

from burnish.config.torchrun import TorchrunRank
from burnish.distributed.channel import Channel
from burnish.distributed.launching import Crew, LocalLauncher
from burnish.distributed.network import TOKEN_BYTES, DistantPulse, address_towards, connect
from burnish.distributed.nodes import Expected, expected_here, marked, other_words, refuse, versions_here, words_here
from burnish.distributed.peers import START_SECONDS, Peer, ProcessSpec, RoleLostError
from burnish.distributed.processes import MemoryPeer
from burnish.distributed.pulse import PulseWatch
from burnish.distributed.rank_store import RankReply, RankStore
from burnish.distributed.server import buckets
from burnish.distributed.team import Rendezvous
from burnish.distributed.weight_transfer import SealedWeights, SharedWeights
from burnish.errors import ConfigError
from burnish.models.weights import Weights

CHECK_SECONDS = 180.0
"""For a node to import what the run file names, from a slow disk."""
NOTICE_SECONDS = 3.0
"""For the loop to notice by itself that a rank is lost, and to save what can be saved."""
_REACH_SECONDS = 10.0
_STACKS_SECONDS = 2.0
_LOOK_SECONDS = 0.2


class RankPeer(MemoryPeer):
    """A process of torchrun's other than this one. It has a seat as soon as `sit` returns."""

    def __init__(self, rank: int, there: RankReply, token: bytes) -> None:
        """Connected when this returns. Raises ConfigError."""
        self.name = f"rank {rank}"
        self.roles = ()
        self.host = there["host"]
        self.address = there["address"] if isinstance(there["address"], str) else (*there["address"],)
        self._title = self._rank = self.name
        self._stacks: Path | None = None
        self._leaving = False
        try:
            lines = connect(self.address, token, seconds=_REACH_SECONDS)
        except OSError as error:
            raise ConfigError(
                f"{self.name} on {self.host} cannot be reached at {self.address} ({error.strerror or error})",
                remedy="nodes must reach each other at every port; see docs/cluster.md",
            ) from error
        self._channel = Channel(lines.requests)
        self._pulse = DistantPulse(lines.beats)
        self._watch = PulseWatch(self._pulse.read)

    @property
    def near(self) -> bool:
        """True if the rank is on this machine, so that both can share memory."""
        return isinstance(self.address, str)

    def sit(self, seat: ProcessSpec, *, threads: int, stacks: Path) -> None:
        """Build the roles of the seat there. Raises what their `build` raises, and RoleLostError."""
        self.name, self._stacks = seat.name, stacks
        self._title = f"{self._rank} ({seat.name})"
        self._build(seat, threads, seconds=START_SECONDS)

    def problems(self, expected: Expected) -> list[str]:
        """Ask for the problems of its node, a line each (`nodes.problems_here`). Call it before `sit`."""
        found: list[str] = self.ask(("check", expected), what="check of its node", seconds=CHECK_SECONDS)
        return [f"{self._rank} on {self.host}: {line}" for line in found]

    def load(self, role: str, shared: SealedWeights, *, what: str, seconds: float) -> None:
        """See `Peer`. To another machine the weights go over the connection."""
        if self.near:
            super().load(role, shared, what=what, seconds=seconds)
        else:
            self.ask(("sync", role, shared.layout.version), what=what, seconds=seconds, giving=buckets(shared()))

    def share(self, role: str, version: int, *, what: str, seconds: float) -> SharedWeights:
        """See `Peer`."""
        if self.near:
            return super().share(role, version, what=what, seconds=seconds)
        tensors = self.role(role, seconds=seconds).read(version)
        return SharedWeights.write(Weights(version, lambda: tensors))

    @property
    def is_lost(self) -> bool:
        """True if its process has ended unasked, and nobody has noticed yet."""
        self._pulse.read()
        return self._pulse.ended and self._lost is None and not self._leaving

    def loss(self) -> RoleLostError:
        """The error that says so."""
        return self._error("the run ends", self._epitaph())

    @property
    def title(self) -> str:
        """Its rank, role and machine."""
        return f"{self._title} on {self.host}"

    def abandon(self, first: str) -> None:
        """End the process, because another one is lost. Whoever waits for its answer, in another thread, stops."""
        self._lost = self._lost or f"was ended, because {first} is lost"
        self._channel.end()

    def close(self) -> None:
        """See `Peer`."""
        self._leaving = True
        super().close()

    def _end(self) -> None:
        """See `Peer`. A process ends when its connections do; torchrun ends one that is stopped."""
        self._channel.end()
        self._pulse.close()

    def _epitaph(self) -> str:
        """See `Peer`."""
        return self._lost or f"on {self.host} has ended (torchrun says how)"

    def _write_stacks(self) -> None:
        """See `Peer`. Nothing is written where the folder for that cannot be seen."""
        if self._stacks is not None and self._lost is None:
            self._pulse.wish(str(self._stacks / f"{self.name.replace(' ', '-')}.txt"))
            time.sleep(_STACKS_SECONDS)

    def _error(self, what: str, why: str, remedy: str | None = None) -> RoleLostError:
        again = "torchrun --max-restarts N starts all processes again; the run goes on from its newest checkpoint"
        return RoleLostError(f"{what}: {self._title} {why}", remedy=remedy or again, process=self.name)


class _LossWatch:
    """While it is open, a lost rank ends the run, whatever the run is doing, and so does the end of torchrun itself.

    Mostly the loop notices by itself, because it asks that rank. If it does not, for it asks another one or computes,
    the error is raised in it: by a signal, which reaches the main thread wherever it waits.

    torchrun ends all ranks when one is lost. While the loop runs, its SIGTERM is a request to stop. Outside of the loop
    it is held off once a loss is known, because this process is about to end with the error that names the lost rank.
    """

    def __init__(self, peers: Sequence[RankPeer]) -> None:
        self._peers = peers
        self._closing = threading.Event()
        self._launcher = os.getppid()
        self._thread = threading.Thread(target=self._look, name="ranks", daemon=True)
        self._error: RoleLostError | None = None
        self._in_main = threading.current_thread() is threading.main_thread()  # no other has signals

    def __enter__(self) -> _LossWatch:
        if self._in_main:
            self._previous = signal.signal(signal.SIGUSR2, self._raise)
            self._previous_end = signal.signal(signal.SIGTERM, self._told_to_end)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *rest: object) -> None:
        """Raise the error if nobody has: torchrun asks all ranks to stop when one is lost, and the loop may have done
        so, with everything saved, before it asked the lost one again."""
        lost = self._lost_peer()  # dismissed ranks end as well
        self._closing.set()
        self._thread.join()
        if self._in_main:
            signal.signal(signal.SIGUSR2, self._previous)
        if isinstance(error, RoleLostError):
            self._error = error
        elif lost is not None:
            self._error = lost.loss()
        if self._error is None and self._in_main:
            signal.signal(signal.SIGTERM, self._previous_end)  # after a loss, the error has still to be shown
        if kind is None and self._error is not None:
            raise self._error

    def _lost_peer(self) -> RankPeer | None:
        return next((peer for peer in self._peers if peer.is_lost), None)

    def _look(self) -> None:
        while not self._closing.wait(_LOOK_SECONDS):
            lost = self._lost_peer()
            if lost is None and os.getppid() == self._launcher:
                continue
            self._error = _orphaned() if lost is None else lost.loss()
            for peer in self._peers:
                if peer is not lost:
                    peer.abandon("torchrun" if lost is None else lost.title)
            if not self._closing.wait(NOTICE_SECONDS) and self._in_main:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2)
            return

    def _raise(self, number: int, frame: FrameType | None) -> None:
        if self._error is None or self._closing.is_set():
            return
        if not _handles_a_loss():  # else the loop has noticed by itself, and is saving or closing what there is
            raise self._error

    def _told_to_end(self, number: int, frame: FrameType | None) -> None:
        """End this process by SIGTERM as if this handler were not there, unless it is ending because of a lost rank.
        A second SIGTERM always does."""
        signal.signal(signal.SIGTERM, self._previous_end)
        if self._error is None and not _handles_a_loss():
            signal.raise_signal(signal.SIGTERM)


def _handles_a_loss() -> bool:
    """Return whether this thread is handling the error that says which rank is lost."""
    handled = sys.exception()
    while handled is not None:
        if isinstance(handled, RoleLostError):
            return True
        handled = handled.__context__
    return False


def _orphaned() -> RoleLostError:
    return RoleLostError(
        "the run ends: torchrun has ended; it started this run and would end the other processes",
        remedy="start the same torchrun again: the run goes on from its newest checkpoint",
    )


@dataclass(frozen=True, slots=True)
class RankLauncher:
    """`Launcher` that gives seats to the ranks that there are. `beside` starts what is not theirs: trainer 0.

    meeting_host: the address of this machine at which trainers meet; None if all of them are here.
    """

    peers: Mapping[str, RankPeer]
    beside: LocalLauncher
    threads: int
    meeting_host: str | None

    def start(self, seat: ProcessSpec) -> Peer:
        """See `Launcher`. Only once for each seat."""
        if seat.name not in self.peers:
            return self.beside.start(seat)
        peer = self.peers[seat.name]
        peer.sit(seat, threads=self.threads, stacks=self.beside.stacks)
        return peer

    def meetings(self, size: int, *, seconds: float) -> AbstractContextManager[list[Rendezvous]]:
        """See `Launcher`."""
        if self.meeting_host is None:
            return self.beside.meetings(size, seconds=seconds)
        return Rendezvous.all_at(self.meeting_host, size, seconds=seconds)

    def write(self, weights: Weights) -> SharedWeights:
        """See `Launcher`."""
        return SharedWeights.write(weights)


class RankSite:
    """`Site`: the ranks of torchrun, which have met when the context begins and are dismissed when it ends."""

    def __init__(self, here: TorchrunRank) -> None:
        self._here = here
        self._peers: list[RankPeer] = []
        self._losses = _LossWatch(self._peers)

    def __enter__(self) -> RankSite:
        """Call the other ranks. Raises ConfigError for ranks that do not come, or that run other versions."""
        token = secrets.token_bytes(TOKEN_BYTES)
        others = RankStore.joined(self._here).call(token)
        refuse_other_versions(others)
        refuse_other_words(others)
        try:
            for rank, there in others.items():
                self._peers.append(RankPeer(rank, there, token))
            self._losses.__enter__()
        except BaseException:
            self._dismiss(kill=True)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *rest: object) -> None:
        try:
            self._losses.__exit__(kind, error, *rest)
        except RoleLostError as lost:
            kind = type(lost)
            raise
        finally:
            self._dismiss(kill=kind is not None and issubclass(kind, RoleLostError))

    @contextmanager
    def reserved(self, crew: Crew) -> Iterator[RankLauncher]:
        """See `Site`."""
        # Trainer 0 is next to the controller, or there is none.
        seats = (*crew.trainers[1:], *crew.models, *crew.workers)
        assert len(seats) == len(self._peers), "checked before they met (`burnish.config.torchrun.check_world`)"
        peers = dict(zip(seats, self._peers, strict=True))
        distant = {name: peer for name, peer in peers.items() if not peer.near}
        if distant:
            _check_nodes(distant, crew)
        hosts = [peer.address[0] for name, peer in distant.items() if name in crew.trainers]
        threads = torch.get_num_threads()  # each of them has as many as this process
        yield RankLauncher(
            peers,
            LocalLauncher(threads, crew.stacks, crew.trainers[:1] if crew.on_gpu and torch.cuda.device_count() else ()),
            threads,
            address_towards(hosts[0]) if hosts else None,
        )

    def _dismiss(self, *, kill: bool) -> None:
        for peer in self._peers:
            if kill:
                peer.kill()
            else:
                peer.close()


def refuse_other_versions(others: Mapping[int, RankReply]) -> None:
    """ConfigError with a line for each rank that runs different versions from this one."""
    here = versions_here()
    found = [
        f"rank {rank} on {there['host']}: {name} is {version}, and {here.get(name, 'missing')} at rank 0"
        for rank, there in others.items()
        for name, version in there["versions"].items()
        if here.get(name) != version
    ]
    remedy = "install the same versions of Python, PyTorch and Burnish on every node"
    refuse("not all processes of torchrun run the same versions", found, remedy=remedy)


def refuse_other_words(others: Mapping[int, RankReply]) -> None:
    """ConfigError with a line for each rank that was started with other words, or another run file, than this one:
    they would be ignored, and which node has rank 0 is a matter of chance."""
    here = words_here()
    found = [
        f"rank {rank} on {there['host']}: {line}"
        for rank, there in others.items()
        for line in other_words(there["words"], here)
    ]
    remedy = "start the same command, with the same run file, on every node"
    refuse("not all processes of torchrun were started with the same command", found, remedy=remedy)


def _check_nodes(peers: Mapping[str, RankPeer], crew: Crew) -> None:
    """ConfigError with a line for everything that is not as expected on the nodes of these ranks."""
    found: list[str] = []
    with marked(crew.output) as text:
        for name, peer in peers.items():
            needs_folder = name not in crew.workers or crew.workers_log
            mark = (str(crew.output), text) if needs_folder else None
            found += peer.problems(expected_here(crew.plugins, folder=os.getcwd(), marked=mark))
    remedy = "start torchrun in a folder that all nodes see, with `output` on a disk that they share"
    refuse("not all nodes of torchrun can take part in this run", found, remedy=remedy)
