"""Another process with roles of the run: requests to it, each with a deadline, and noticing when it is gone.

How such a process is started and ended is a matter of its kind: `RoleProcess` on this machine, `RayProcess` anywhere in
a Ray cluster. Requests, deadlines and signs of life are the same for all of them.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

from burnish.distributed.channel import Channel, pickled, readable
from burnish.distributed.pulse import SILENT_SECONDS, PulseWatch
from burnish.distributed.server import STOP, Named
from burnish.distributed.weight_transfer import SealedWeights
from burnish.errors import BurnishError
from burnish.forward.team import PeerFailedError
from burnish.observability.timeline import WorkSpan, WorkSpans
from burnish.outside.supervise import Closing
from burnish.types import Metric, Rollout, RolloutRequest

START_SECONDS = 600.0
"""Time limit for building the roles: a large model may come from a slow disk."""

GRACE_SECONDS = 10.0
"""Time limit for the answers of processes that worked with a lost one: if they wait for it, they notice the loss."""

END_SECONDS = 10.0
"""For releasing the roles at the end."""

_LOOK_SECONDS = 0.5
AGAIN = "start the run again: it continues from its newest checkpoint"
_ENDED = f"{AGAIN}; a SIGKILL usually means that memory ran out"
_BUSY = (
    "if it was at work all that time, as its stacks in RUN/stacks show, raise cluster.stall_seconds; then start the "
    "run again: it continues from its newest checkpoint"
)

BuildRoles = Callable[..., AbstractContextManager[Mapping[str, object]]]
"""Makes the roles of a process by name, in that process, and releases them at its end."""


class RoleLostError(BurnishError):
    """A process with roles of the run ended, or did not answer in time. `process` is its name."""

    def __init__(self, message: str, *, remedy: str, process: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.process = process


class TracebackElsewhereError(Exception):
    """The traceback of an error raised in another process."""


class Stop:
    """Tells whoever waits for an answer to say that no more of it is wanted. Used as a context manager. `call` may come
    from any thread, once or more, before or while the request is made; after the block it does nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._descriptors: tuple[int, int] | None = None

    def __enter__(self) -> Self:
        self._descriptors = os.pipe()
        return self

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            for descriptor in self._descriptors or ():
                os.close(descriptor)
            self._descriptors = None

    def call(self) -> None:
        """Stop the request, now or as soon as it is made."""
        with self._lock:
            if self._descriptors is not None:
                os.write(self._descriptors[1], b"s")

    def fileno(self) -> int:
        """Can be read once `call` was called."""
        assert self._descriptors is not None
        return self._descriptors[0]


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A process to start: its name in messages, what it builds, and the arguments of that, which have to be pickled.

    awaited: the last argument, if others find it out while this process starts; until it needs it, it starts beside
    them. built: called with the process when its roles are there. given_up: set when another process that it may be
    waiting for cannot be started.
    """

    name: str
    build: BuildRoles
    arguments: tuple[object, ...]
    awaited: Future[Any] | None = None
    built: Callable[[Peer], None] | None = None
    given_up: threading.Event = field(default_factory=threading.Event, compare=False)


class Peer(Closing, ABC):
    """A process with roles of the run. As a context manager it ends the process.

    Requests go one at a time: none is sent before the previous one is answered, whichever thread made it. If one is not
    answered in time, the state of the roles is unknown, so the process is killed and every later request is an error
    too.
    """

    name: str
    """For messages."""
    roles: tuple[str, ...]
    _channel: Channel
    _watch: PulseWatch
    _lost: str | None = None
    _asked: tuple[str, float] | None = None
    """What it has been asked for and has not answered, and since when."""
    _given_up: threading.Event | None = None
    """While it starts: set when that is in vain."""

    @property
    def standing(self) -> str:
        """The state of the process, for whoever watches the run: its request and for how long, `idle` or `lost`."""
        if self._lost is not None:
            return "lost"
        if (asked := self._asked) is None:
            return "idle"
        what, since = asked
        return f"{what}, {time.monotonic() - since:.0f} s"

    @abstractmethod
    def load(self, role: str, shared: SealedWeights, *, what: str, seconds: float) -> None:
        """Let this role, an engine, take over weights that were written once for all who want them."""

    @abstractmethod
    def share(self, role: str, version: int, *, what: str, seconds: float) -> SealedWeights:
        """The weights that this role, a policy, has published, written once for all who want them."""

    def _await_end(self, seconds: float) -> None:
        """Wait, at most so long, until a process that was asked to end has released its roles and its connection."""
        self._channel.receive(seconds=seconds)

    @abstractmethod
    def _end(self) -> None:
        """End the process and everything it started, at once. Idempotent."""

    @abstractmethod
    def _epitaph(self) -> str:
        """Say how a process that has closed its connection ended: `ended (killed by SIGKILL)`."""

    @abstractmethod
    def _write_stacks(self) -> None:
        """Let a process that still can say where each of its threads is."""

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
        stop: Stop | None = None,
    ) -> Any:
        """The result of a request (`burnish.distributed.server` lists them). `what` names it in messages.

        `giving` are the tensors to hand out when they are asked for; `descriptor` is sent behind the request; `stop`
        may end a request early that can be. Raises what the role raises, of the same type and caused by its traceback,
        and RoleLostError when the process has ended, hangs, or does nothing for `seconds`.
        """
        return ask_all((self,), message, what=what, seconds=seconds, giving=giving, descriptor=descriptor, stop=stop)[0]

    def _build(self, seat: ProcessSpec, threads: int, *, seconds: float) -> None:
        """Have the roles built: the first request to a process. RoleLostError, too, when it is given up meanwhile."""
        self._given_up, arguments = seat.given_up, seat.arguments
        if seat.awaited is not None:
            self.ask(("import", seat.build), what="start", seconds=seconds)
            arguments = (*arguments, self._when_found(seat.awaited))
        self.roles = tuple(self.ask((seat.build, arguments, threads), what="start", seconds=seconds))
        self._given_up = None

    def _when_found(self, awaited: Future[Any]) -> Any:
        """The result that other processes find out. RoleLostError when this one is lost while it waits."""
        while not wait((awaited,), _LOOK_SECONDS).done:
            if readable((self,), 0):  # nothing was asked, so it is the end of the connection
                self.take(what="start", seconds=_LOOK_SECONDS)
            self.check_alive(what="start", seconds=math.inf)
        return awaited.result()

    @property
    def turn(self) -> AbstractContextManager[object]:
        """To be held from a request to its answer."""
        return self._channel.turn

    def fileno(self) -> int:
        """Of the socket, for whoever waits for several."""
        return self._channel.fileno()

    def post(self, data: bytes, *, what: str, seconds: float, descriptor: int | None = None) -> None:
        """Send a request, and a descriptor behind it. RoleLostError when the process is gone or does not read it."""
        if self._lost is not None:
            raise self._error(what, self._lost)
        self._watch.restart()
        self._asked = what, time.monotonic()
        seconds = min(seconds, SILENT_SECONDS)
        with self._reaching(what, f"did not read within {seconds:g} seconds"):
            self._channel.send(data, seconds=seconds)
            if descriptor is not None:
                self._channel.send_descriptor(descriptor, seconds=SILENT_SECONDS)

    def take(self, *, what: str, seconds: float, giving: Iterator[list[Named]] | None = None) -> tuple[Any, ...] | None:
        """The answer that has begun to arrive: ("done", result) or ("raised", error, traceback). None when it was a
        question for tensors, which has been answered."""
        with self._reaching(what, f"did not answer within {seconds:g} seconds"):
            kind, *rest = self._channel.receive(seconds=seconds)
            if kind != "want":
                self._note_span()
                return (kind, *rest)
            self._channel.send(pickled([] if giving is None else next(giving, [])), seconds=seconds)
        self._watch.restart()
        return None

    @cached_property
    def _spans(self) -> WorkSpans:
        """Answered requests."""
        return WorkSpans()

    def _note_span(self) -> None:
        if self._asked is not None:
            work, since = self._asked
            self._spans.add(self.name, work, since)
        self._asked = None

    def take_spans(self) -> Sequence[WorkSpan]:
        """See `WorkingProcess`."""
        return self._spans.take()

    @property
    def idle_seconds(self) -> float:
        """For how long it has done nothing."""
        self._watch.look()
        return self._watch.idle_seconds

    def check_alive(self, *, what: str, seconds: float, team: Sequence[Peer] = ()) -> None:
        """RoleLostError, with the process killed, when it gives no sign of life, or has done nothing for `seconds`.
        `team`: peers that it may be waiting for; while one of them works, it need not."""
        if self._given_up is not None and self._given_up.is_set():
            self.kill()
            raise self._error(what, "was ended, because another process could not be started")
        self._watch.look()
        if self._watch.silent_seconds > SILENT_SECONDS:
            raise self.lose(what, f"has given no sign of life for {SILENT_SECONDS:g} seconds")
        if min(peer.idle_seconds for peer in (self, *team)) > seconds:
            raise self.lose(what, f"did not answer within {seconds:g} seconds", remedy=_BUSY)

    def lose(self, what: str, why: str, *, remedy: str | None = None) -> RoleLostError:
        """Kill a process that can no longer be used. Returns the error that says so."""
        self._write_stacks()
        self.kill()
        self._lost = f"{why} and was killed"
        return self._error(what, self._lost, remedy)

    @contextlib.contextmanager
    def _reaching(self, what: str, late: str) -> Iterator[None]:
        """RoleLostError if the other end is gone, or if it takes too long (`late` says what it did not do in time)."""
        try:
            yield
        except TimeoutError as error:
            raise self.lose(what, late) from error
        except EOFError as error:
            self._lost = self._lost or self._epitaph()
            raise self._error(what, self._lost) from error

    def close(self) -> None:
        """Let the process release its roles and end; kill it if that takes too long. Idempotent."""
        if self._lost is None:
            with contextlib.suppress(EOFError, TimeoutError, OSError):
                self._channel.send(pickled(("end",)), seconds=END_SECONDS)
                self._await_end(END_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End the process and everything it started, at once. Idempotent. Another thread that waits for an answer finds
        the connection ended, and kills it, too."""
        self._lost = self._lost or "has been ended"
        self._end()
        self._channel.end()
        if self._channel.turn.acquire(blocking=False):  # or somebody waits at descriptors that must not be closed
            try:
                self._let_go()
            finally:
                self._channel.turn.release()

    def _let_go(self) -> None:
        """Close what only whoever has the turn uses. Idempotent."""
        self._channel.close()

    def _error(self, what: str, why: str, remedy: str | None = None) -> RoleLostError:
        return RoleLostError(f"{what}: process {self.name!r} {why}", remedy=remedy or _ENDED, process=self.name)


def ask_all(
    processes: Sequence[Peer],
    message: tuple[object, ...],
    *,
    what: str,
    seconds: float,
    giving: Iterator[list[Named]] | None = None,
    descriptor: int | None = None,
    alone_stuck: bool = False,
    stop: Stop | None = None,
) -> list[Any]:
    """The results of one request to several processes, which work on it side by side and may wait for each other.
    `alone_stuck`: one that raises leaves the others waiting for it, so that they count as lost `GRACE_SECONDS` later.

    Raises as `Peer.ask` does. When one is lost, the others get `GRACE_SECONDS` to find out; then all are killed,
    because nobody knows how far their common work has come.
    """
    data = _sendable(message, what, processes[0])
    answers: dict[str, tuple[Any, ...]] = {}
    lost: RoleLostError | None = None
    left_alone = False
    until = math.inf
    """The time at which peers that have not answered count as lost, too."""
    waiting = list(processes)
    with _taking_turns(processes):
        for process in processes:
            process.post(data, what=what, seconds=seconds, descriptor=descriptor)
        while waiting:
            ready = readable([*waiting, *([stop] if stop else ())], _LOOK_SECONDS)
            if stop in ready:
                stop = None  # said once
                for process in waiting:
                    process.post(pickled(STOP), what=what, seconds=seconds)
            for process in list(waiting):
                try:
                    if process not in ready:
                        process.check_alive(what=what, seconds=seconds, team=waiting)
                        if time.monotonic() > until:
                            raise process.lose(what, f"did not answer within {GRACE_SECONDS:g} seconds of the others")
                        continue
                    answer = process.take(what=what, seconds=seconds, giving=giving)
                except RoleLostError as error:
                    left_alone &= process not in ready  # one that has ended is why the others raise
                    lost, until = lost or error, min(until, time.monotonic() + GRACE_SECONDS)
                    waiting.remove(process)
                    continue
                if answer is not None:
                    answers[process.name] = answer
                    waiting.remove(process)
                    for other in waiting:  # which may have waited for this one until now
                        other._watch.restart()
                    if alone_stuck and answer[0] == "raised" and lost is None:
                        left_alone, until = True, min(until, time.monotonic() + GRACE_SECONDS)
        if lost is not None:
            if left_alone:
                _raise_first(answers)
            raise lost
    _raise_first(answers)
    return [answers[process.name][1] for process in processes]


def _sendable(message: tuple[object, ...], what: str, process: Peer) -> bytes:
    try:
        return pickled(message)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise BurnishError(
            f"{what}: cannot be sent to process {process.name!r}: {error}",
            remedy="code that a run file names by its path cannot be sent to another process; make it a module and "
            "name it as package.module:name",
        ) from error


@contextlib.contextmanager
def _taking_turns(processes: Sequence[Peer]) -> Iterator[None]:
    """Let nobody else ask these processes. They are killed if the block fails: answers that are still to come would be
    taken for answers to the next request."""
    with ExitStack() as turns:
        for process in processes:
            turns.enter_context(process.turn)
        try:
            yield
        except BaseException:
            for process in processes:
                process.kill()
            raise


def _raise_first(answers: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise the first error that is a process's own rather than about another process."""
    raised = [(name, *rest) for name, (kind, *rest) in answers.items() if kind == "raised"]
    for name, error, text in sorted(raised, key=lambda entry: isinstance(entry[1], PeerFailedError)):
        raise error from TracebackElsewhereError(f"in process {name!r}:\n{text}")


@dataclass(frozen=True, slots=True)
class ProcessRole:
    """A handle to one role of a process. `seconds`: how long it may go without having done anything."""

    process: Peer
    name: str
    seconds: float

    def ask(self, method: str, *arguments: object, **named: object) -> Any:
        """Call the method, or read the property, of the role, of every one of them where there are several
        (`handles.TeamRole`). Raises as `Peer.ask` does."""
        return self.ask_one(method, *arguments, **named)

    def ask_one(self, method: str, *arguments: object, **named: object) -> Any:
        """`ask` one of them only: for what must happen once."""
        return self._ask("call", f"{self.name}.{method}", method, arguments, named)

    def read(self, version: int) -> Iterator[Named]:
        """Begin to read the weights that this role, a policy, has published. RolloutError if it has a newer version."""
        self._ask("read", f"weights of {self.name}", version)
        return self._buckets()

    def load(self, shared: SealedWeights) -> None:
        """Let this role, an engine, take over weights that were written once for all who want them."""
        self.process.load(self.name, shared, what=f"{self.name}.sync", seconds=self.seconds)

    def adopt(self, policy: str) -> None:
        """Let this role, an engine, take over the weights of a policy in its own process."""
        self._ask("adopt", f"{self.name}.sync", policy)

    def generate(self, *arguments: object, **named: object) -> tuple[list[Rollout], Mapping[str, Metric]]:
        """`RolloutEngine.generate`, which may take as long as tokens keep coming, and what it has measured."""
        return self._ask("generate", f"{self.name}.generate", arguments, named)

    def generate_until(
        self, *arguments: object, stop: Stop, **named: object
    ) -> tuple[list[Rollout], list[RolloutRequest], Mapping[str, Metric]]:
        """`StoppableEngine.generate_until`, which `stop` stops, and what it has measured."""
        what = f"{self.name}.generate"
        message = ("generate_until", self.name, arguments, named)
        return self.process.ask(message, what=what, seconds=self.seconds, stop=stop)

    def share(self, version: int) -> SealedWeights:
        """The weights that this role, a policy, has published, where other processes can read them."""
        return self.process.share(self.name, version, what=f"weights of {self.name}", seconds=self.seconds)

    def _buckets(self) -> Iterator[Named]:
        what = f"weights of {self.name}"
        bucket: Iterable[Named]
        while bucket := self.process.ask(("next",), what=what, seconds=self.seconds):
            yield from bucket

    def _ask(self, kind: str, what: str, *rest: object) -> Any:
        return self.process.ask((kind, self.name, *rest), what=what, seconds=self.seconds)
