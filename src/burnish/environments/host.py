"""The training process's side of conversation processes: starts their warm parent, and lends them to conversations.

A process serves one conversation at a time. An environment has it from the beginning to the end, so whatever goes wrong
there ends no other conversation; plain tools have it for the calls of one turn. If something ends the warm parent
(a tool, or the kernel when it is out of memory), all conversations of that moment are lost, and another one is started.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from burnish.environments.messages import LineReader, encode
from burnish.environments.parent import SIZE_BYTES, WORD_BYTES
from burnish.errors import ConfigError, RolloutError
from burnish.forwarding import forward
from burnish.plugins import describe_exit, holding_back_stop_signals
from burnish.types import Json
from burnish.variables import worker_environment

_BOOT = "import sys; sys.path[:] = {path!r}; from burnish.environments.parent import main; main(int(sys.argv[1]))"
_RECEIVE_BYTES = 1 << 18
_END_SECONDS = 15.0
_CONTROL_SECONDS = 30.0
"""For the warm parent to take a word."""
_SHORT_LIFE_SECONDS = 60.0
_MOST_SHORT_LIVES = 5
"""A parent that ends so often in a row, soon after its start, would always do so."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a conversation process holds.

    tools: as `burnish.tools.loading.load_tools` takes them. environment: as `find_environment` takes it, or None.
    where: the section of the run file that names them. variables: names of environment variables that they need.
    start_seconds: for all of it to be imported.
    """

    tools: Sequence[str] = ()
    environment: str | None = None
    options: Mapping[str, Json] = field(default_factory=dict)
    where: str = "conversation"
    variables: Sequence[str] = ()
    start_seconds: float = 60.0


class ConversationHost:
    """Starts conversation processes.

    schemas: of all tools, those of the environment last. answers_text: whether the environment answers turns that call
    no tool. Raises ConfigError if tools or environment cannot be loaded.
    """

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self._lock = threading.RLock()
        self._idle: list[ConversationProcess] = []
        self._numbers = itertools.count(1)
        self._short_lives = 0
        self._restarts = 0
        missing = [name for name in wanted.variables if name not in os.environ]
        if missing:
            raise ConfigError(
                f"{wanted.where}.variables names {missing[0]}, which is not set",
                remedy="set it where the run is started, or remove it",
            )
        self._wanted_text = _as_text(wanted)
        description = self._start()
        own: list[Mapping[str, Json]] = description["environment_tools"]
        self.schemas: tuple[Mapping[str, Json], ...] = (*description["tools"], *own)
        self.environment_tools = frozenset(str(_name_of(schema)) for schema in own)
        self.answers_text: bool = description["answers_text"]
        try:
            self._check_names()
        except ConfigError:
            self.close()
            raise

    def _start(self) -> dict[str, Any]:
        """Start the warm parent; what it says of tools and environment."""
        self._control, theirs = socket.socketpair()
        self._control.settimeout(_CONTROL_SECONDS)
        reading, writing = os.pipe()
        with theirs, os.fdopen(writing, "wb"), holding_back_stop_signals():
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT.format(path=sys.path), str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                env=worker_environment(self.wanted.variables, os.environ),
                start_new_session=True,
            )
        self._started = time.monotonic()
        self._output = threading.Thread(target=_forward_all, args=(reading,), daemon=True)
        self._output.start()
        try:
            return self._description()
        except BaseException:
            self._process.kill()  # it has started nothing yet, and may import for ever
            self.close()
            raise

    @property
    def has_environment(self) -> bool:
        return self.wanted.environment is not None

    @property
    def pid(self) -> int:
        """Process id of the warm parent."""
        return self._process.pid

    def take_restarts(self) -> int:
        """How often the warm parent was started again since the last call."""
        with self._lock:
            restarts, self._restarts = self._restarts, 0
        return restarts

    def lease(self) -> ConversationProcess:
        """A process that nobody uses: one that was given back, or a new one. RolloutError if the warm parent ends
        whenever it is started, or does not answer."""
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if not process.has_said_anything():  # nor ended
                    return process
                process.close()
        return self._open()

    def give_back(self, process: ConversationProcess) -> None:
        """Keep a process, of which nothing is awaited, for other conversations."""
        with self._lock:
            self._idle.append(process)

    def _open(self) -> ConversationProcess:
        ours, theirs = socket.socketpair()
        with self._lock, theirs:
            number = next(self._numbers)
            try:
                self._fork(number, theirs)
            except BaseException:
                ours.close()
                raise
        return ConversationProcess(ours, number, self._end)

    def _fork(self, number: int, theirs: socket.socket) -> None:
        """Let the warm parent start this conversation. It is started itself if it has ended."""
        if self._process.poll() is not None:
            self._start_again()
        try:
            socket.send_fds(self._control, [_word("+", number)], [theirs.fileno()])
        except OSError as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
            if self._process.returncode is None:
                raise self._broken() from error
            self._start_again()
            socket.send_fds(self._control, [_word("+", number)], [theirs.fileno()])

    def _start_again(self) -> None:
        is_short = time.monotonic() - self._started < _SHORT_LIFE_SECONDS
        self._short_lives = self._short_lives + 1 if is_short else 0
        if self._short_lives > _MOST_SHORT_LIVES:
            raise self._broken()
        self._let_go()
        self._restarts += 1
        self._start()

    def close(self) -> None:
        """End all conversations. Idempotent."""
        with self._lock:
            for process in self._idle:
                process.close()
            self._idle.clear()
            self._let_go()

    def _let_go(self) -> None:
        """End the warm parent, which ends everything that it has started."""
        self._control.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.join(1.0)

    def _end(self, number: int) -> None:
        with self._lock, contextlib.suppress(OSError):  # a parent that has ended has ended its conversations
            self._control.sendall(_word("-", number))

    def _description(self) -> dict[str, Any]:
        deadline = time.monotonic() + self.wanted.start_seconds
        try:
            self._control.sendall(len(self._wanted_text).to_bytes(SIZE_BYTES, "big") + self._wanted_text)
        except OSError as error:
            raise self._broken() from error
        size = int.from_bytes(self._receive(SIZE_BYTES, deadline), "big")
        answer: dict[str, Any] = json.loads(self._receive(size, deadline))
        if "refused" in answer:
            raise ConfigError(answer["refused"], remedy=answer["remedy"])
        return answer

    def _receive(self, count: int, deadline: float) -> bytes:
        data = b""
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        while len(data) < count:
            if not poller.poll(1000 * max(deadline - time.monotonic(), 0.0)):
                raise ConfigError(
                    f"{self.wanted.where}: tools and environment were not imported within "
                    f"{self.wanted.start_seconds:g} s",
                    remedy=f"raise {self.wanted.where}.start_timeout_seconds, or import less",
                )
            part = self._control.recv(count - len(data))
            if not part:
                raise self._broken()
            data += part
        return data

    def _broken(self) -> RolloutError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        status = self._process.poll()
        how = "does not answer" if status is None else f"has ended ({describe_exit(status)})"
        often = f", {self._short_lives} times in a row" if self._short_lives > 1 else ""
        return RolloutError(
            f"the process that starts conversations ({self.wanted.where}) {how}{often}",
            remedy="look at what it has printed; a run goes on from its newest checkpoint",
        )

    def _check_names(self) -> None:
        seen: set[str] = set()
        for schema in self.schemas:
            name = str(_name_of(schema))
            if name in seen:
                raise ConfigError(
                    f"{self.wanted.where} has two tools that are called {name!r}, one of them the environment's",
                    remedy="rename or remove one of them: a model calls tools by this name alone",
                )
            seen.add(name)


class ConversationProcess:
    """One conversation's process, as the training process sees it. Nothing here waits."""

    def __init__(self, channel: socket.socket, number: int, end: Callable[[int], None]) -> None:
        self._channel = channel
        self._channel.setblocking(False)
        self._number = number
        self._end = end
        self._reader = LineReader()
        self._unsent = memoryview(b"")
        self.gone = False
        """Whether it has ended."""

    def fileno(self) -> int:
        """For polling: readable if it has answered or ended."""
        return self._channel.fileno()

    @property
    def has_unsent(self) -> bool:
        """Whether `flush` is to be called when there is room to send."""
        return bool(self._unsent)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a request, as far as there is room now. A process that has ended is noticed when answers are awaited."""
        self._unsent = memoryview(encode(message))
        self.flush()

    def flush(self) -> None:
        """Send more of what could not be sent yet."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self._channel.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent = memoryview(b"")

    def receive(self) -> Iterator[dict[str, Any]]:
        """The answers that have arrived. Sets `gone` at the end of them all. Raises GarbledError for anything else."""
        while not self.gone:
            try:
                data = self._channel.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            self._reader.feed(data)
            yield from self._reader.messages()
            self.gone = not data

    def has_said_anything(self) -> bool:
        """Whether there is anything to receive, which of an idle process is its end."""
        if self._channel.fileno() < 0:
            return True
        poller = select.poll()
        poller.register(self._channel, select.POLLIN)
        return bool(poller.poll(0))

    def close(self) -> None:
        """End it, with all that it has started. Idempotent."""
        if self._channel.fileno() >= 0:
            self._channel.close()
            self._end(self._number)


def _as_text(wanted: Wanted) -> bytes:
    """What the warm parent is told. ConfigError for options that are not plain data."""
    given = {
        "tools": list(wanted.tools),
        "environment": wanted.environment,
        "options": dict(wanted.options),
        "where": wanted.where,
    }
    try:
        return json.dumps(given).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{wanted.where}.environment_options cannot be passed on: {error}",
            remedy="use texts, numbers, booleans, null, lists and mappings of these",
        ) from error


def _word(sign: str, number: int) -> bytes:
    return f"{sign}{number:0{WORD_BYTES - 1}}".encode()


def _name_of(schema: Mapping[str, Json]) -> Json:
    function = schema["function"]
    assert isinstance(function, dict)
    return function["name"]


def _forward_all(reading: int) -> None:
    """A thread: what tools and environments print goes to standard error."""
    try:
        forward(reading)
    finally:
        os.close(reading)
