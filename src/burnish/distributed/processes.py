"""Roles in a separate process: start it, send it requests with a deadline, and notice when it is gone."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from burnish.distributed.channel import Channel, pickled
from burnish.distributed.handover import Layout, SharedWeights
from burnish.distributed.pulse import SILENT_SECONDS, Pulse, PulseWatch
from burnish.distributed.server import STACKS_SIGNAL, Named
from burnish.errors import BurnishError
from burnish.forward.lanes import PeerFailedError
from burnish.plugins import describe_exit, holding_back_stop_signals
from burnish.types import Rollout

START_SECONDS = 600.0
"""Time limit for building the roles: a large model may come from a slow disk."""

GRACE_SECONDS = 10.0
"""For processes that worked together with one that is lost: those that wait for it notice by themselves."""

_END_SECONDS = 10.0
_LOOK_SECONDS = 0.5
_STACKS_SECONDS = 0.5

BuildRoles = Callable[..., AbstractContextManager[Mapping[str, object]]]
"""Makes the roles of a process by name, in that process, and releases them at its end."""


class RoleLostError(BurnishError):
    """A process with roles of the run ended, or did not answer in time. `process` is its name."""

    def __init__(self, message: str, *, remedy: str, process: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.process = process


class TracebackElsewhereError(Exception):
    """The traceback of an error raised in another process."""


class RoleProcess:
    """A process with roles of the run, in its own session. As a context manager it ends the process.

    Requests go one at a time: none is sent before the previous one is answered. If one is not answered in time, the
    state of the roles is unknown, so the process is killed and every later request is an error too.
    """

    def __init__(
        self,
        name: str,
        build: BuildRoles,
        *arguments: object,
        seconds: float = START_SECONDS,
        threads: int | None = None,
        environment: Mapping[str, str] | None = None,
        stacks: Path | None = None,
    ) -> None:
        """Returns when the roles are built: `build(*arguments)`, both pickled by reference.

        `name` is for messages. threads: of PyTorch there, as many as here where None. environment: variables that it
        has in addition. stacks: the folder in which a process that stalls says where its threads are. Raises what
        `build` raises, and RoleLostError when it takes longer than `seconds`.
        """
        self.name = name
        self._lost: str | None = None
        self._stacks = stacks
        self._pulse = Pulse.new()
        self._watch = PulseWatch(self._pulse)
        ours, theirs = socket.socketpair()
        with theirs, holding_back_stop_signals():
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    *("-m", "burnish.distributed.server"),
                    *map(str, (theirs.fileno(), self._pulse.descriptor, os.getpid())),
                    *(() if stacks is None else (str(stacks / f"{name.replace(' ', '-')}.txt"),)),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), self._pulse.descriptor),
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
        self._channel = Channel(ours)
        try:
            self._channel.send(pickled((sys.path,)), seconds=seconds)
            start = (build, arguments, threads or torch.get_num_threads())
            self.roles: tuple[str, ...] = tuple(self.ask(start, what="start", seconds=seconds))
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        """Its process id, which is also its session id."""
        return self._process.pid

    def role(self, name: str, *, seconds: float) -> ProcessRole:
        """A handle to one of its roles. `seconds`: how long any request to it may take. ValueError for another name."""
        if name not in self.roles:
            raise ValueError(f"process {self.name!r} has no role {name!r}, only {', '.join(self.roles)}")
        return ProcessRole(self, name, seconds)

    def ask(
        self,
        message: tuple[object, ...],
        *,
        what: str,
        seconds: float,
        giving: Iterator[list[Named]] | None = None,
        descriptor: int | None = None,
    ) -> Any:
        """The result of a request (`burnish.distributed.server` lists them). `what` names it in messages.

        `giving` are the tensors to hand out when they are asked for; `descriptor` is sent behind the request. Raises
        what the role raises, of the same type and caused by its traceback, and RoleLostError when the process has
        ended, hangs, or does nothing for `seconds`.
        """
        return ask_all((self,), message, what=what, seconds=seconds, giving=giving, descriptor=descriptor)[0]

    def receive_descriptor(self, *, what: str, seconds: float) -> int:
        """The descriptor behind an answer. The caller closes it."""
        try:
            return self._channel.receive_descriptor(seconds=seconds)
        except TimeoutError as error:
            raise self.lose(what, f"did not answer within {seconds:g} seconds") from error
        except EOFError as error:
            raise self._ended(what) from error

    def fileno(self) -> int:
        """Of the socket, for whoever waits for several."""
        return self._channel.fileno()

    def post(self, data: bytes, *, what: str, seconds: float, descriptor: int | None = None) -> None:
        """Send a request, and a descriptor behind it. RoleLostError when the process is gone or does not read it."""
        if self._lost is not None:
            raise self._error(what, self._lost)
        self._watch.restart()
        try:
            self._channel.send(data, seconds=min(seconds, SILENT_SECONDS))
            if descriptor is not None:
                self._channel.send_descriptor(descriptor, seconds=SILENT_SECONDS)
        except TimeoutError as error:
            raise self.lose(what, f"did not read within {min(seconds, SILENT_SECONDS):g} seconds") from error
        except EOFError as error:
            raise self._ended(what) from error

    def take(self, *, what: str, seconds: float, giving: Iterator[list[Named]] | None = None) -> tuple[Any, ...] | None:
        """The answer that has begun to arrive: ("done", result) or ("raised", error, traceback). None when it was a
        question for tensors, which has been answered."""
        try:
            kind, *rest = self._channel.receive(seconds=seconds)
            if kind != "want":
                return (kind, *rest)
            self._channel.send(pickled([] if giving is None else next(giving, [])), seconds=seconds)
        except TimeoutError as error:
            raise self.lose(what, f"did not answer within {seconds:g} seconds") from error
        except EOFError as error:
            raise self._ended(what) from error
        self._watch.restart()
        return None

    def check_alive(self, *, what: str, seconds: float) -> None:
        """RoleLostError, with the process killed, when it gives no sign of life, or has done nothing for `seconds`."""
        self._watch.look()
        if self._watch.silent_seconds > SILENT_SECONDS:
            raise self.lose(what, f"has given no sign of life for {SILENT_SECONDS:g} seconds")
        if self._watch.idle_seconds > seconds:
            raise self.lose(what, f"did not answer within {seconds:g} seconds")

    def lose(self, what: str, why: str) -> RoleLostError:
        """Kill a process that is of no more use; the error that says so."""
        self._write_stacks()
        self.kill()
        self._lost = f"{why} and was killed"
        return self._error(what, self._lost)

    def _ended(self, what: str) -> RoleLostError:
        self._lost = self._epitaph()
        return self._error(what, self._lost)

    def _write_stacks(self) -> None:
        """Let a process that still can say where each of its threads is, in the folder for that."""
        if self._stacks is None or self._lost is not None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self._process.pid, STACKS_SIGNAL)
            time.sleep(_STACKS_SECONDS)

    def close(self) -> None:
        """Let the process release its roles and end; kill it if that takes too long. Idempotent."""
        if self._lost is None:
            with contextlib.suppress(EOFError, TimeoutError, OSError, subprocess.TimeoutExpired):
                self._channel.send(pickled(("end",)), seconds=_END_SECONDS)
                self._process.wait(timeout=_END_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End the process and everything it started, at once. Idempotent."""
        self._lost = self._lost or "has been ended"
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # one stuck in the kernel ends when the kernel lets it
            self._process.wait(timeout=_END_SECONDS)
        self._channel.close()
        self._pulse.close()

    def __enter__(self) -> RoleProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def sendable(self, message: tuple[object, ...], what: str) -> bytes:
        """The message for `post`. BurnishError if it cannot be pickled."""
        try:
            return pickled(message)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise BurnishError(
                f"{what}: cannot be sent to process {self.name!r}: {error}",
                remedy="code that a run file names by its path cannot be sent to another process; make it a module and "
                "name it as package.module:name",
            ) from error

    def _error(self, what: str, why: str) -> RoleLostError:
        return RoleLostError(
            f"{what}: process {self.name!r} {why}",
            remedy="start the run again: it continues from its newest checkpoint; a SIGKILL usually means that memory "
            "ran out",
            process=self.name,
        )

    def _epitaph(self) -> str:
        try:
            return f"ended ({describe_exit(self._process.wait(timeout=_END_SECONDS))})"
        except subprocess.TimeoutExpired:
            self.kill()
            return "closed its connection without ending, and was killed"


def ask_all(
    processes: Sequence[RoleProcess],
    message: tuple[object, ...],
    *,
    what: str,
    seconds: float,
    giving: Iterator[list[Named]] | None = None,
    descriptor: int | None = None,
) -> list[Any]:
    """The results of one request to several processes, which work on it side by side and may wait for each other.

    Raises as `RoleProcess.ask` does. When one is lost, the others get `GRACE_SECONDS` to find out; then all are killed,
    because nobody knows how far their common work has come.
    """
    data = processes[0].sendable(message, what)  # nothing is sent yet: an error here leaves the processes as they are
    answers: dict[str, tuple[Any, ...]] = {}
    lost: RoleLostError | None = None
    patience = seconds
    waiting = list(processes)
    try:
        for process in processes:
            process.post(data, what=what, seconds=seconds, descriptor=descriptor)
        while waiting:
            ready, _, _ = select.select(waiting, (), (), _LOOK_SECONDS)
            for process in list(waiting):
                try:
                    if process not in ready:
                        process.check_alive(what=what, seconds=patience)
                        continue
                    answer = process.take(what=what, seconds=seconds, giving=giving)
                except RoleLostError as error:
                    lost, patience = lost or error, min(patience, GRACE_SECONDS)
                    waiting.remove(process)
                    continue
                if answer is not None:
                    answers[process.name] = answer
                    waiting.remove(process)
    except BaseException:  # the answers that are still to come would be taken for those of the next request
        for process in processes:
            process.kill()
        raise
    if lost is not None:
        for process in processes:
            process.kill()
        raise lost
    _raise_first(answers)
    return [answers[process.name][1] for process in processes]


def _raise_first(answers: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise the error of the first process that has one of its own, rather than one about another process."""
    raised = [(name, *rest) for name, (kind, *rest) in answers.items() if kind == "raised"]
    for name, error, text in sorted(raised, key=lambda entry: isinstance(entry[1], PeerFailedError)):
        raise error from TracebackElsewhereError(f"in process {name!r}:\n{text}")


@dataclass(frozen=True, slots=True)
class ProcessRole:
    """A handle to one role of a process. `seconds`: how long it may go without having done anything."""

    process: RoleProcess
    name: str
    seconds: float

    def ask(self, method: str, *arguments: object, **named: object) -> Any:
        """Call the method, or read the property, of the role; raises as `RoleProcess.ask` does."""
        return self._ask("call", f"{self.name}.{method}", method, arguments, named)

    def ask_one(self, method: str, *arguments: object, **named: object) -> Any:
        """The same as `ask`: there is only one process."""
        return self.ask(method, *arguments, **named)

    def read(self, version: int) -> Iterator[Named]:
        """Begin to read the weights that this role, a policy, has published. RolloutError if it has a newer version."""
        self._ask("read", f"weights of {self.name}", version)
        return self._buckets()

    def sync(self, version: int, buckets: Iterator[list[Named]]) -> None:
        """Give this role, an engine, the weights."""
        what = f"{self.name}.sync"
        self.process.ask(("sync", self.name, version), what=what, seconds=self.seconds, giving=buckets)

    def load(self, shared: SharedWeights) -> None:
        """Let this role, an engine, take over weights in shared memory."""
        self.process.ask(
            ("load", self.name, shared.layout),
            what=f"{self.name}.sync",
            seconds=self.seconds,
            descriptor=shared.descriptor,
        )

    def adopt(self, policy: str) -> None:
        """Let this role, an engine, take over the weights of a policy in its own process."""
        self._ask("adopt", f"{self.name}.sync", policy)

    def generate(self, *arguments: object, **named: object) -> list[Rollout]:
        """`RolloutEngine.generate`, which may take as long as tokens keep coming."""
        rollouts: list[Rollout] = self._ask("generate", f"{self.name}.generate", arguments, named)
        return rollouts

    def share(self, version: int) -> SharedWeights:
        """The weights that this role, a policy, has published, in memory that other processes can read."""
        what = f"weights of {self.name}"
        layout: Layout = self._ask("share", what, version)
        return SharedWeights(layout, self.process.receive_descriptor(what=what, seconds=self.seconds))

    def _buckets(self) -> Iterator[Named]:
        what = f"weights of {self.name}"
        bucket: Iterable[Named]
        while bucket := self.process.ask(("next",), what=what, seconds=self.seconds):
            yield from bucket

    def _ask(self, kind: str, what: str, *rest: object) -> Any:
        return self.process.ask((kind, self.name, *rest), what=what, seconds=self.seconds)
