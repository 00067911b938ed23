"""The controller's side of environment workers: conversation processes on other machines, as places of a
`ConversationHost`.

A worker that is lost takes the conversations that it holds with it, which are counted as failed. It is started again,
while the others go on.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Self

from burnish.distributed.environment_node import CONVERSATION, LINE, NUMBER, ROLE
from burnish.distributed.network import Address, greet
from burnish.distributed.peers import END_SECONDS, START_SECONDS, Peer, RoleLostError
from burnish.distributed.pool import RETRY_SECONDS
from burnish.environments.host import OUT_OF_FILES, ConversationHost, no_more_files
from burnish.environments.messages import LineReader
from burnish.environments.process import ConversationProcess
from burnish.environments.warm_parent import Wanted
from burnish.errors import BurnishError, ConfigError, RolloutError

_HOUR = 3600.0
_LOOK_SECONDS = 0.5
_REACH_SECONDS = 10.0
_RECEIVE_BYTES = 1 << 16


class WorkerGoneError(Exception):
    """A worker cannot be used any more. The message says why."""


@dataclass(slots=True)
class Section:
    """What the conversations of one section of the run file need. variables: their values. restarts: how often all its
    conversations at a worker were lost, and nobody has been told yet."""

    wanted: Wanted
    variables: Mapping[str, str]
    restarts: int = 0


class _Line:
    """The connection to where a section's conversations begin in one process of a worker."""

    def __init__(self, process: Peer, section: Section) -> None:
        """Raises ConfigError if tools or environment cannot be loaded there, RoleLostError and OSError for a lost
        worker."""
        self._process, self._section = process, section
        asked = process.role(ROLE, seconds=section.wanted.start_seconds + END_SECONDS)
        self._address: Address
        self._address, self._token = asked.ask("start", section.wanted, section.variables)
        self._stream = greet(self._address, self._token, LINE, seconds=_REACH_SECONDS)
        self._stream.setblocking(False)
        self._reader = LineReader()
        self._numbers = itertools.count(1)
        self._open: weakref.WeakSet[ConversationProcess] = weakref.WeakSet()

    def begin(self) -> ConversationProcess:
        """A new conversation. Raises OSError."""
        number = next(self._numbers)
        stream = greet(self._address, self._token, CONVERSATION, seconds=_REACH_SECONDS)
        stream.sendall(NUMBER.pack(number))
        process = ConversationProcess(stream, lambda: self._end(number))
        self._open.add(process)
        return process

    def hear(self) -> None:
        """Take what the worker tells. WorkerGoneError if it is of no use any more."""
        try:
            while data := self._stream.recv(_RECEIVE_BYTES):
                self._reader.feed(data)
            raise WorkerGoneError(f"{self._process.name} has closed its connection")
        except BlockingIOError:
            pass  # that was all
        except OSError as error:
            raise WorkerGoneError(_why_unreachable(self._process, error)) from error
        for message in self._reader.messages():
            if "broken" in message:
                raise WorkerGoneError(f"{self._process.name}: {message['broken']}")
            self._section.restarts += int(message["restarts"])

    def close(self) -> None:
        """End its conversations. Whoever waits for one hears of its end, also if the other machine has vanished."""
        self._hang_up()
        for process in list(self._open):
            process.hang_up()
        self._stream.close()

    def _end(self, number: int) -> None:
        with contextlib.suppress(OSError):  # conversations of a lost worker have ended with it
            try:
                sent = self._stream.send(NUMBER.pack(number))
            except BlockingIOError:
                sent = 0
            if sent != NUMBER.size:  # it does not read
                self._hang_up()

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):  # closed already
            self._stream.shutdown(socket.SHUT_RDWR)


def _why_unreachable(process: Peer, error: OSError) -> str:
    """How the process has ended, if it has."""
    try:
        process.role(ROLE, seconds=_REACH_SECONDS).ask("ping")
    except RoleLostError as lost:
        return lost.message
    return f"{process.name} cannot be reached ({error.strerror or error})"


@dataclass(frozen=True, slots=True)
class _There:
    """A process, and its lines in the order of the sections."""

    process: Peer
    lines: list[_Line] = field(default_factory=list)

    def close(self) -> None:
        for line in self.lines:
            line.close()


class EnvironmentWorker:
    """One of them. A thread watches it, and starts it again when it is lost.

    process: the first one. start: makes it again, until its event is set. restarts: how often in an hour. say: tells
    the user what became of it.
    """

    def __init__(
        self, process: Peer, start: Callable[[threading.Event], Peer], *, restarts: int, say: Callable[[str], None]
    ) -> None:
        self.name = process.name
        self._start = start
        self._restarts = restarts
        self._say = say
        self._sections: list[Section] = []
        self._there: _There | None = _There(process)
        self._starting = False
        """Whether there will be a process soon."""
        self._why = ""
        self._started_again: list[float] = []
        self._tried = 0.0
        self._changed = threading.Condition()
        """Around what stands above."""
        self._closed = threading.Event()
        self._looking = threading.Lock()
        """Held while the process is looked at, and while it is closed."""
        threading.Thread(target=self._watch, name=self.name, daemon=True).start()

    def add(self, section: Section) -> WorkerPlace:
        """Let it hold the conversations of this section, too, before any begins. Raises ConfigError if it cannot load
        what they need, and RoleLostError or RolloutError if it is lost."""
        there = self._there
        if there is None:
            raise RolloutError(f"{self.name} was lost ({self._why})", remedy="start the run again")
        try:
            there.lines.append(_Line(there.process, section))
        except ConfigError as error:
            raise ConfigError(f"{self.name}: {error.message}", remedy=error.remedy) from error
        except OSError as error:
            raise RolloutError(
                _why_unreachable(there.process, error), remedy="nodes must reach each other at every port"
            ) from error
        self._sections.append(section)
        return WorkerPlace(self, len(there.lines) - 1, section)

    @property
    def is_there(self) -> bool:
        """Whether a conversation can begin."""
        return self._there is not None

    def begin(self, number: int) -> ConversationProcess:
        """A conversation of this section. A worker that is being started is awaited. RolloutError if it is lost."""
        while True:
            there = self._present()
            try:
                return there.lines[number].begin()
            except OSError as error:
                if error.errno in OUT_OF_FILES:
                    raise no_more_files() from error
                self._lose(there, _why_unreachable(there.process, error))

    def _present(self) -> _There:
        with self._changed:
            self._changed.wait_for(lambda: not self._starting or self._closed.is_set(), timeout=2 * START_SECONDS)
            if self._closed.is_set():
                raise RolloutError("conversations cannot begin any more", remedy="nothing: the run is ending")
            if self._there is None:
                raise RolloutError(
                    f"there is no environment worker left to hold conversations; {self.name} was lost ({self._why})",
                    remedy="look at its node, or raise cluster.restarts; a run goes on from its newest checkpoint",
                )
            return self._there

    def _watch(self) -> None:
        """The thread: looks for signs of life, and for a lost worker's return."""
        while not self._closed.is_set():
            there = self._there
            if there is not None:
                self._look_at(there)
            elif self._starting or (time.monotonic() - self._tried >= RETRY_SECONDS and self._may_start()):
                self._start_again()
            self._closed.wait(_LOOK_SECONDS)

    def _look_at(self, there: _There) -> None:
        try:
            with self._looking:
                if not self._closed.is_set():
                    there.process.check_alive(what="conversations", seconds=math.inf)
                    for line in list(there.lines):
                        line.hear()
        except RoleLostError as error:
            self._lose(there, error.message)
        except WorkerGoneError as error:
            self._lose(there, str(error))

    def _lose(self, there: _There, why: str) -> None:
        """Let go of a process that is of no use any more, unless that was done already."""
        with self._changed:
            if self._closed.is_set() or self._there is not there:
                return
            self._there, self._why, self._tried = None, why, time.monotonic()
            self._starting = self._may_start()
            if self._sections:
                self._sections[0].restarts += 1
        there.close()
        there.process.kill()
        what = "it is started again"
        if not self._starting:
            what = f"it is not started again for now: {self._restarts} restarts an hour is the limit (cluster.restarts)"
        self._say(f"{why}; its conversations have failed, and {what}")

    def _may_start(self) -> bool:
        now = time.monotonic()
        self._started_again = [moment for moment in self._started_again if now - moment < _HOUR]
        return len(self._started_again) < self._restarts

    def _start_again(self) -> None:
        """Another process, with the lines of all sections, or a later try."""
        self._started_again.append(time.monotonic())
        try:
            there: _There | None = self._begun()
        except Exception as error:  # noqa: BLE001  boundary: whatever starting it raises, here or there
            there, self._why = None, error.message if isinstance(error, BurnishError) else str(error)
            if not self._closed.is_set():
                self._say(f"{self.name} cannot be started again: {self._why}")
        with self._changed:
            self._starting, self._tried = False, time.monotonic()
            if not self._closed.is_set():
                self._there, there = there, None
            self._changed.notify_all()
        if there is not None:
            there.process.close()  # the run has ended meanwhile

    def _begun(self) -> _There:
        process = self._start(self._closed)
        try:
            return _There(process, [_Line(process, section) for section in self._sections])
        except BaseException:
            process.kill()
            raise

    def close(self) -> None:
        """End its process, and what that has started."""
        with self._changed:
            self._closed.set()
            self._changed.notify_all()
        with self._looking:
            if self._there is not None:
                self._there.process.close()

    @property
    def standing(self) -> tuple[str, str]:
        """Its name, and what it is doing."""
        return self.name, "holds conversations" if self.is_there else "is started again" if self._starting else "lost"


@dataclass(frozen=True, slots=True, eq=False)
class WorkerPlace:
    """`Place`: the conversation processes of one section at one worker. number: of the section there."""

    worker: EnvironmentWorker
    number: int
    section: Section

    @property
    def is_there(self) -> bool:
        """See `Place`."""
        return self.worker.is_there

    def open(self) -> ConversationProcess:
        """See `Place`."""
        return self.worker.begin(self.number)

    def take_restarts(self) -> int:
        """See `Place`."""
        restarts, self.section.restarts = self.section.restarts, 0
        return restarts

    def close(self) -> None:
        """See `Place`. The worker ends with the run, and with it all that it holds."""


class EnvironmentWorkers:
    """Those of a run. A context manager, which ends them."""

    def __init__(self, workers: Sequence[EnvironmentWorker]) -> None:
        self._workers = workers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        with ThreadPoolExecutor(len(self._workers)) as ending:  # one that does not answer takes some seconds
            list(ending.map(EnvironmentWorker.close, self._workers))

    def take_over(self, host: ConversationHost) -> None:
        """Let the conversations of this host have their processes at the workers. Raises ConfigError if one of them
        cannot load what they need."""
        threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}  # Ray sets another value over there
        variables = threads | host.wanted.named_variables()
        with ThreadPoolExecutor(len(self._workers)) as starting:
            sections = [Section(host.wanted, variables) for _ in self._workers]
            places = list(starting.map(EnvironmentWorker.add, self._workers, sections))
        host.move_to(places)

    @property
    def in_words(self) -> str:
        """How many there are."""
        return f"{len(self._workers)} environment worker{'s' * (len(self._workers) > 1)}"

    def standing(self) -> list[tuple[str, str]]:
        """Their names, and what each is doing."""
        return [worker.standing for worker in self._workers]
