"""Roles in a separate process: start it, send it requests with a deadline, and notice when it is gone."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from burnish.distributed.channel import Channel, pickled
from burnish.distributed.server import Named
from burnish.errors import BurnishError
from burnish.plugins import describe_exit, holding_back_stop_signals

START_SECONDS = 600.0
"""Time limit for building the roles: a large model may come from a slow disk."""

_END_SECONDS = 10.0

BuildRoles = Callable[..., AbstractContextManager[Mapping[str, object]]]
"""Makes the roles of a process by name, in that process, and releases them at its end."""


class RoleLostError(BurnishError):
    """A process with roles of the run ended, or did not answer in time."""


class TracebackElsewhereError(Exception):
    """The traceback of an error raised in another process."""


class RoleProcess:
    """A process with roles of the run, in its own session. As a context manager it ends the process.

    Requests go one at a time: none is sent before the previous one is answered. If one is not answered in time, the
    state of the roles is unknown, so the process is killed and every later request is an error too.
    """

    def __init__(self, name: str, build: BuildRoles, *arguments: object, seconds: float = START_SECONDS) -> None:
        """Returns when the roles are built by `build(*arguments)`, which are sent pickled (functions by reference).

        `name` is for messages. Raises what `build` raises, and RoleLostError if it takes longer than `seconds`.
        """
        self.name = name
        self._lost: str | None = None
        ours, theirs = socket.socketpair()
        with theirs, holding_back_stop_signals():
            self._process = subprocess.Popen(
                [sys.executable, "-m", "burnish.distributed.server", str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._channel = Channel(ours)
        try:
            self._channel.send(pickled((sys.path,)), seconds=seconds)
            start = (build, arguments, torch.get_num_threads())
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
        self, message: tuple[object, ...], *, what: str, seconds: float, giving: Iterator[list[Named]] | None = None
    ) -> Any:
        """The result of a request (`burnish.distributed.server` lists them). `what` names it in messages.

        `giving` are the tensors to send when they are asked for. Raises what the role raises, with the same type and
        caused by its traceback, and RoleLostError if the process has ended or does not answer within `seconds`.
        """
        if self._lost is not None:
            raise self._error(what, self._lost)
        data = self._sendable(message, what)
        deadline = time.monotonic() + seconds
        try:
            self._channel.send(data, seconds=seconds)
            while True:
                kind, *rest = self._channel.receive(seconds=max(deadline - time.monotonic(), 1e-3))
                if kind != "want":
                    break
                tensors = [] if giving is None else next(giving, [])
                self._channel.send(pickled(tensors), seconds=max(deadline - time.monotonic(), 1e-3))
        except TimeoutError as error:
            self.kill()
            self._lost = f"did not answer within {seconds:g} seconds and was killed"
            raise self._error(what, self._lost) from error
        except EOFError as error:
            self._lost = self._epitaph()
            raise self._error(what, self._lost) from error
        except BaseException:  # otherwise a late answer would be taken for that of the next request
            self.kill()
            raise
        if kind == "raised":
            raised, text = rest
            raise raised from TracebackElsewhereError(f"in process {self.name!r}:\n{text}")
        return rest[0]

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

    def __enter__(self) -> RoleProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _sendable(self, message: tuple[object, ...], what: str) -> bytes:
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
        )

    def _epitaph(self) -> str:
        try:
            return f"ended ({describe_exit(self._process.wait(timeout=_END_SECONDS))})"
        except subprocess.TimeoutExpired:
            self.kill()
            return "closed its connection without ending, and was killed"


@dataclass(frozen=True, slots=True)
class ProcessRole:
    """A handle to one role of a process. `seconds`: how long any request may take."""

    process: RoleProcess
    name: str
    seconds: float

    def ask(self, method: str, *arguments: object, **named: object) -> Any:
        """Call the method, or read the property, of the role; raises as `RoleProcess.ask` does."""
        return self._ask("call", f"{self.name}.{method}", method, arguments, named)

    def read(self, version: int) -> Iterator[Named]:
        """Begin to read the weights that this role, a policy, has published. RolloutError if it has a newer version."""
        self._ask("read", f"weights of {self.name}", version)
        return self._buckets()

    def sync(self, version: int, buckets: Iterator[list[Named]]) -> None:
        """Give this role, an engine, the weights."""
        what = f"{self.name}.sync"
        self.process.ask(("sync", self.name, version), what=what, seconds=self.seconds, giving=buckets)

    def _buckets(self) -> Iterator[Named]:
        what = f"weights of {self.name}"
        bucket: Iterable[Named]
        while bucket := self.process.ask(("next",), what=what, seconds=self.seconds):
            yield from bucket

    def _ask(self, kind: str, what: str, *rest: object) -> Any:
        return self.process.ask((kind, self.name, *rest), what=what, seconds=self.seconds)
