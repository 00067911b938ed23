"""Trainer processes: the same models in each, which share the micro-batches of every step and step alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from burnish.distributed.handover import SharedWeights
from burnish.distributed.processes import BuildRoles, ProcessRole, RoleProcess, ask_all
from burnish.distributed.server import Named


@dataclass(frozen=True, slots=True)
class Seat:
    """A process to start: its name in messages, what it builds, and the arguments of that, which have to be pickled."""

    name: str
    build: BuildRoles
    arguments: tuple[object, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


def start_all(seats: Sequence[Seat], *, seconds: float, threads: int | None, stacks: Path) -> list[RoleProcess]:
    """Start the processes side by side (those of a team wait for each other). `stacks`: a folder for their stacks.

    When one cannot be started, the others are killed and its error is raised.
    """
    if not seats:
        return []
    started: list[RoleProcess] = []
    with ThreadPoolExecutor(len(seats)) as starting:
        futures = [
            starting.submit(
                RoleProcess,
                seat.name,
                seat.build,
                *seat.arguments,
                seconds=seconds,
                threads=threads,
                environment=seat.environment,
                stacks=stacks,
            )
            for seat in seats
        ]
        errors = [future.exception() for future in futures]
        started = [future.result() for future, error in zip(futures, errors, strict=True) if error is None]
    failed = [error for error in errors if error is not None]
    if failed:
        for process in started:
            process.kill()
        raise failed[0]
    return started


@dataclass(frozen=True, slots=True)
class TeamRole:
    """A handle to one role that every process of a team has. `seconds`: how long it may go without doing anything."""

    processes: tuple[RoleProcess, ...]
    name: str
    seconds: float

    def ask(self, method: str, *arguments: object, **named: object) -> Any:
        """Call the method of the role in all processes side by side; the result of the first one. Raises as
        `processes.ask_all` does."""
        message = ("call", self.name, method, arguments, named)
        return ask_all(self.processes, message, what=f"{self.name}.{method}", seconds=self.seconds)[0]

    def ask_one(self, method: str, *arguments: object, **named: object) -> Any:
        """Call the method, or read the property, in the first process only."""
        return self._first.ask(method, *arguments, **named)

    def read(self, version: int) -> Iterator[Named]:
        """The weights of the first process, which are those of all."""
        return self._first.read(version)

    def share(self, version: int) -> SharedWeights:
        """The same in memory that other processes can read."""
        return self._first.share(version)

    @property
    def _first(self) -> ProcessRole:
        return self.processes[0].role(self.name, seconds=self.seconds)
