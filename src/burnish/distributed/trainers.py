"""A handle to a team of trainers: the same models in each, which share the micro-batches of a step and step alike."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from burnish.distributed.handover import SealedWeights
from burnish.distributed.peers import GRACE_SECONDS, Peer, ProcessRole, RoleLostError, ask_all
from burnish.distributed.server import Named


@dataclass(frozen=True, slots=True)
class TeamRole:
    """A handle to one role that every process of a team has. `seconds`: how long it may go without doing anything.
    `cuts_weights`: each process has a slice of every weight only, so all take part in reading them."""

    processes: tuple[Peer, ...]
    name: str
    seconds: float
    cuts_weights: bool = False

    def ask(self, method: str, *arguments: object, **named: object) -> Any:
        """Call the method of the role in all processes side by side; the result of the first one. Raises as
        `peers.ask_all` does."""
        message: tuple[object, ...] = ("call", self.name, method, arguments, named)
        what = f"{self.name}.{method}"
        return ask_all(self.processes, message, what=what, seconds=self.seconds, alone_stuck=self.cuts_weights)[0]

    def ask_one(self, method: str, *arguments: object, **named: object) -> Any:
        """Call the method, or read the property, in the first process only."""
        return self._first.ask(method, *arguments, **named)

    def read(self, version: int) -> Iterator[Named]:
        """The weights of the first process, which are those of all."""
        return self._first.read(version)

    def share(self, version: int) -> SealedWeights:
        """The same in memory that other processes can read. Where each process has slices, all of them take part."""
        others = self.processes[1:]
        if not self.cuts_weights or not others:
            return self._first.share(version)
        message: tuple[object, ...] = ("call", self.name, "give_weights", (version,), dict[str, object]())
        with ThreadPoolExecutor(1) as giving:
            given = giving.submit(ask_all, others, message, what=f"weights of {self.name}", seconds=self.seconds)
            given.add_done_callback(self._end_first_after)
            try:
                shared = self._first.share(version)
            except Exception:  # raised again; mostly because another one is lost, which is then what there is to say
                wait([given], timeout=GRACE_SECONDS)
                for process in others:
                    process.kill()
                lost = given.exception()
                if isinstance(lost, RoleLostError):
                    raise lost from None
                raise
            given.result()
        return shared

    def _end_first_after(self, given: Future[list[Any]]) -> None:
        """The first process would wait for those that have failed to give it their slices."""
        if given.exception() is not None:
            self.processes[0].kill()

    @property
    def _first(self) -> ProcessRole:
        return self.processes[0].role(self.name, seconds=self.seconds)
