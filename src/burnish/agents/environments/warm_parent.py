"""The training side of a warm parent (`burnish.agents.environments.parent`): starts it, and hands it the sockets that
become conversations. If something ends it (a tool, or the kernel when it is out of memory), all conversations of that
moment are lost, and it is started again.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import resource
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from burnish.agents.environments.messages import MAX_ANSWER_BYTES, encode
from burnish.agents.environments.parent import WORD_BYTES
from burnish.agents.tools.checking import function_of
from burnish.config.secrets import hidden_name
from burnish.errors import ConfigError, RolloutError
from burnish.outside.frames import Correspondent, GarbledError, ask, pair, read_object
from burnish.outside.plugins import describe_exit
from burnish.outside.supervise import start_interpreter
from burnish.outside.user_processes import forward, worker_environment
from burnish.types import Json

_END_SECONDS = 15.0
_CONTROL_SECONDS = 30.0
"""Time limit for the warm parent to take a word."""
_SHORT_LIFE_SECONDS = 60.0
_MOST_SHORT_LIVES = 5
"""A parent that ends so many times in a row, soon after its start, would always do so."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Tools and environment that a conversation process holds.

    tools: as `burnish.agents.tools.loading.load_tools` takes them. environment: as `find_environment` takes it, or
    None. where: the section of the run file that names them. variables: names of environment variables that they need.
    start_seconds: for all of it to be imported.
    """

    tools: Sequence[str] = ()
    environment: str | None = None
    options: Mapping[str, Json] = field(default_factory=dict)
    where: str = "conversation"
    variables: Sequence[str] = ()
    start_seconds: float = 60.0

    def named_variables(self) -> dict[str, str]:
        """The variables with their values here. ConfigError for one that is not set."""
        missing = [name for name in self.variables if name not in os.environ]
        if missing:
            raise ConfigError(
                f"{self.where}.variables names {hidden_name(missing[0])}, which is not set",
                remedy="set it where the run is started, or remove it",
            )
        return {name: os.environ[name] for name in self.variables}


class ConversationProcess(Correspondent):
    """Asks it, and hears its answers. Nothing here waits."""

    def __init__(self, channel: socket.socket, end: Callable[[], None]) -> None:
        """end: makes sure that it ends, whatever it is doing."""
        super().__init__(channel, MAX_ANSWER_BYTES)
        self._end = end
        self._number = ""
        """Of the request, which its answers repeat. The functions that the process calls share it and may write to the
        socket; none can answer what another one will be asked."""

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a request, as far as there is room now. A process that has ended is noticed when answers are awaited."""
        self._number = secrets.token_hex(8)
        self.post(encode({**message, "number": self._number}))

    def receive(self) -> Iterator[dict[str, Any]]:
        """Answers to the last request that have arrived. Raises GarbledError for anything else."""
        for message in map(read_object, self.arrived()):
            if message.get("number") != self._number:
                raise GarbledError("what answers no request, or an earlier one")
            yield message

    def close(self) -> None:
        """End it, with all that it has started. Idempotent."""
        if self._channel.fileno() >= 0:
            self._channel.close()
            self._end()


class WarmParent:
    """A warm parent.

    description: what it says of tools and environment. Raises ConfigError if these cannot be loaded.
    """

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self._variables = wanted.named_variables()
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._short_lives = 0
        self._restarts = 0
        self._wanted_text = _as_text(wanted)
        self.description = self._start()

    def _start(self) -> dict[str, Any]:
        """Start it; what it says of tools and environment."""
        reading, writing = os.pipe()
        with pair() as (self._control, theirs), os.fdopen(writing, "wb"):
            self._process = start_interpreter(
                "burnish.agents.environments.parent:main",
                theirs.fileno(),
                descriptors=(theirs.fileno(),),
                output=writing,
                environment=worker_environment(self._variables, {**os.environ, **self._variables}),
            )
        self._started = time.monotonic()
        self._output = threading.Thread(target=forward, args=(reading,), daemon=True)
        self._output.start()
        try:
            return self._description()
        except BaseException:
            self._process.end()  # it has started nothing yet, and may import for ever
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def take_restarts(self) -> int:
        """Return how often it was started again, and all conversations were lost, since the last call."""
        with self._lock:
            restarts, self._restarts = self._restarts, 0
        return restarts

    def open(self) -> ConversationProcess:
        """A new process. RolloutError if the parent ends whenever it is started, or does not answer."""
        with pair() as (ours, theirs):
            number = self._adopt(theirs)
        return ConversationProcess(ours, partial(self._end, number))

    def _adopt(self, channel: socket.socket) -> int:
        """Let a new process serve this socket. Returns the number of its conversation."""
        with self._lock:
            number = next(self._numbers)
            if self._process.status() is not None:
                self._start_again()
            try:
                socket.send_fds(self._control, [_word("+", number)], [channel.fileno()])
            except OSError as error:
                if self._process.status(1.0) is None:
                    raise self._broken() from error
                self._start_again()
                socket.send_fds(self._control, [_word("+", number)], [channel.fileno()])
            return number

    def _end(self, number: int) -> None:
        """End a conversation, whatever it is doing."""
        with self._lock, contextlib.suppress(OSError):  # a parent that has ended has ended its conversations
            self._control.sendall(_word("-", number))

    def _start_again(self) -> None:
        is_short = time.monotonic() - self._started < _SHORT_LIFE_SECONDS
        self._short_lives = self._short_lives + 1 if is_short else 0
        if self._short_lives > _MOST_SHORT_LIVES:
            raise self._broken()
        self.close()
        self._restarts += 1
        self._start()

    def close(self) -> None:
        """End it, which ends everything that it has started. Idempotent."""
        with self._lock:
            self._control.close()
            self._process.end(_END_SECONDS)
            self._output.join(1.0)

    def _description(self) -> dict[str, Any]:
        try:
            answer = ask(self._control, self._wanted_text, seconds=self.wanted.start_seconds)
        except TimeoutError:
            raise ConfigError(
                f"{self.wanted.where}: tools and environment were not imported within {self.wanted.start_seconds:g} s",
                remedy=f"raise {self.wanted.where}.start_timeout_seconds, or import less",
            ) from None
        except (OSError, EOFError, GarbledError) as error:
            raise self._broken() from error
        self._control.settimeout(_CONTROL_SECONDS)
        if "refused" in answer:
            raise ConfigError(answer["refused"], remedy=answer["remedy"])
        return answer

    def _broken(self) -> RolloutError:
        status = self._process.status(1.0)
        how = "does not answer" if status is None else f"has ended ({describe_exit(status)})"
        often = f", {self._short_lives} times in a row" if self._short_lives > 1 else ""
        return RolloutError(
            f"the process that starts conversations ({self.wanted.where}) {how}{often}",
            remedy="look at what it has printed; a run goes on from its newest checkpoint",
        )


def _as_text(wanted: Wanted) -> bytes:
    """Encode the request to the warm parent. ConfigError for options that are not plain data."""
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


_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS)
"""Errors of this machine, which has no room for a connection."""
_FILES_EACH, _OTHER_FILES = 5, 512
"""Open files of a conversation (an agent has a connection to the endpoint, and a tool `python` that keeps its state
three files), and of the rest of a training process, generously."""


class ConversationHost:
    """Processes to lend to conversations. Lends to several threads.

    A process serves one conversation at a time. An environment has it from the beginning to the end, so whatever goes
    wrong there ends no other conversation; functions have it for one call.

    schemas: of all tools, the environment's last. environment_tools: their names. answers_text: whether the
    environment answers turns that call no tool. Raises ConfigError if tools or environment cannot be loaded.
    """

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self._lock = threading.Lock()  # around `_idle`
        self.parent = WarmParent(wanted)
        self._idle: list[ConversationProcess] = []
        description = self.parent.description
        own: list[Mapping[str, Json]] = description["environment_tools"]
        self.schemas: tuple[Mapping[str, Json], ...] = (*description["tools"], *own)
        self.environment_tools = frozenset(str(function_of(schema)["name"]) for schema in own)
        self.answers_text: bool = description["answers_text"]

    @property
    def has_environment(self) -> bool:
        return self.wanted.environment is not None

    def lease(self) -> ConversationProcess:
        """A process that nobody uses: one that was given back, or a new one. RolloutError if none can be started."""
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if not process.has_said_anything():  # nor ended
                    return process
                process.close()
        try:
            return self.parent.open()
        except OSError as error:
            if error.errno not in _OUT_OF_FILES:
                raise
            raise no_more_files() from error

    def give_back(self, process: ConversationProcess) -> None:
        """Keep a process, of which nothing is awaited, for other conversations."""
        with self._lock:
            self._idle.append(process)

    def close(self) -> None:
        """End all conversations. Idempotent."""
        with self._lock:
            idle, self._idle = self._idle, []
        for process in idle:
            process.close()
        self.parent.close()


def allow_connections(conversations: int) -> None:
    """Let this process have connections to so many conversations at a time, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _FILES_EACH * conversations + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def no_more_files() -> RolloutError:
    """The error for a system that allows no further connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return RolloutError(
        f"this system allows the process no more than {soft:,} open files, which all conversations and the rest of the "
        "run have together",
        remedy=f"lower max_open of conversations, or raise the limit (ulimit -n; the hard limit is {hard:,})",
    )
