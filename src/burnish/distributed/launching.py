"""Starting the processes of a run: on this machine, or wherever another launcher puts them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch

from burnish.config.schema_cluster import TrainersConfig
from burnish.distributed.fork_server import ForkServer
from burnish.distributed.peers import Peer, ProcessSpec
from burnish.distributed.processes import RoleProcess
from burnish.distributed.team import Rendezvous
from burnish.distributed.weight_transfer import SealedWeights, SharedWeights
from burnish.machine.resources import gpu_number
from burnish.models.weights import Weights


@dataclass(frozen=True, slots=True)
class Crew:
    """The processes of a run, by their names, and what they need: trainers, models with their own process, and rollout
    workers.

    on_gpu: whether they use GPUs where there are any. output: the run's folder, which trainers and models read and
    write, and rollout workers if `workers_log`. stacks: the folder in which a process that stalls says where its
    threads are. plugins: what they import, as the run file names it. worker_gpus: GPUs of each rollout worker; the
    others have one. say: tells the user what takes a while.
    """

    trainers: tuple[str, ...]
    models: tuple[str, ...]
    workers: tuple[str, ...]
    cluster: TrainersConfig
    on_gpu: bool
    output: Path
    stacks: Path
    plugins: tuple[str, ...] = ()
    workers_log: bool = False
    worker_gpus: int = 1
    say: Callable[[str], None] = field(default=lambda text: None, compare=False)

    def in_words(self) -> str:
        """Return the counts of all processes: `2 trainers, 1 critic, 1 rollout worker`."""
        kinds = [("trainer", len(self.trainers)), *((name, 1) for name in self.models)]
        kinds.append(("rollout worker", len(self.workers)))
        return ", ".join(f"{count} {name}{'s' * (count > 1)}" for name, count in kinds if count)


class Launcher(Protocol):
    """Starts processes, and knows how they reach each other."""

    def start(self, seat: ProcessSpec) -> Peer:
        """The process, with its roles built. May be called again for one that was lost, and from several threads."""

    def meetings(self, size: int, *, seconds: float) -> AbstractContextManager[list[Rendezvous]]:
        """Let the trainers find each other: one meeting each. `seconds`: how long each waits for the others."""

    def write(self, weights: Weights) -> SealedWeights:
        """A copy of weights of this process that the started processes can read."""


@dataclass(frozen=True, slots=True)
class LocalLauncher:
    """Processes of this machine.

    threads: of PyTorch in each. stacks: the folder in which one that stalls says where its threads are. devices: for
    each GPU the name of the process that gets it; empty where there are none. fork_server: None starts an interpreter
    for each.
    """

    threads: int | None
    stacks: Path
    devices: Sequence[str] = ()
    fork_server: ForkServer | None = None

    def start(self, seat: ProcessSpec) -> RoleProcess:
        """See `Launcher`."""
        return RoleProcess(
            seat,
            threads=self.threads,
            environment=self._environment(seat.name),
            stacks=self.stacks,
            fork_server=self.fork_server,
        )

    @contextmanager
    def meetings(self, size: int, *, seconds: float) -> Iterator[list[Rendezvous]]:
        """See `Launcher`. They meet at a file."""
        with tempfile.TemporaryDirectory(prefix="burnish-") as folder:
            file = Path(folder) / "meeting"
            yield [Rendezvous.at_file(rank, size, file, seconds=seconds) for rank in range(size)]

    def write(self, weights: Weights) -> SharedWeights:
        """See `Launcher`."""
        return SharedWeights.write(weights)

    def _environment(self, name: str) -> Mapping[str, str]:
        own = [gpu_number(index) for index, owner in enumerate(self.devices) if owner == name]
        return {"CUDA_VISIBLE_DEVICES": ",".join(own)} if own else {}


class Site(Protocol):
    """One machine or a cluster, on which the processes of a run are started."""

    def reserved(self, crew: Crew) -> AbstractContextManager[Launcher]:
        """Places for all of them. Raises ConfigError when there is not enough of what they need."""


class ThisMachine:
    """`Site`: this one, as it is."""

    @contextmanager
    def reserved(self, crew: Crew) -> Iterator[LocalLauncher]:
        """See `Site`. Each process sees its own GPUs, if there are any, and has as many threads as this one."""
        threads = crew.cluster.threads or torch.get_num_threads()
        # A single trainer may be this process, which has the first GPU then.
        names = [*(crew.trainers or ("controller",)), *crew.models]
        names += [name for name in crew.workers for _ in range(crew.worker_gpus)]
        if crew.on_gpu and torch.cuda.device_count():
            yield LocalLauncher(threads, crew.stacks, names)  # a fork cannot use GPUs if an import has asked for them
        else:
            with ForkServer() as fork_server:
                yield LocalLauncher(threads, crew.stacks, fork_server=fork_server)


def start_all(launcher: Launcher, seats: Sequence[ProcessSpec]) -> list[Peer]:
    """Start the processes side by side. Members of a team wait for each other, some for what others find out.

    When one cannot be started, the others are killed, even while they are starting, and its error is raised.
    """
    if not seats:
        return []
    failed: list[BaseException] = []
    with ThreadPoolExecutor(len(seats)) as starting:
        futures: dict[Future[Peer], ProcessSpec] = {}
        try:
            for seat in seats:
                futures[starting.submit(launcher.start, seat)] = seat
            for future in as_completed(futures):
                if (error := future.exception()) is not None:
                    failed.append(error)
                    _give_up(seats)
                elif (built := futures[future].built) is not None and not failed:
                    built(future.result())
        except BaseException as error:  # noqa: BLE001  boundary: Ctrl-C, which must not wait for the starts
            failed.insert(0, error)
            _give_up(seats)
    if failed:
        for future in futures:
            if future.exception() is None:
                future.result().kill()
        raise failed[0]
    return [future.result() for future in futures]


def _give_up(seats: Sequence[ProcessSpec]) -> None:
    for seat in seats:
        seat.given_up.set()
