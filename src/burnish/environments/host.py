"""Lends conversation processes to conversations.

A process serves one conversation at a time. An environment has it from the beginning to the end, so whatever goes wrong
there ends no other conversation; plain tools have it for the calls of one turn. Processes are on this machine, or at
other places, such as the nodes of a cluster.
"""

from __future__ import annotations

import errno
import resource
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Protocol

from burnish.environments.process import ConversationProcess
from burnish.environments.warm_parent import Wanted, WarmParent
from burnish.errors import ConfigError, RolloutError
from burnish.types import Json

OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS)
"""Errors of this machine, which has no room for a connection."""
_FILES_EACH, _OTHER_FILES = 5, 512
"""Open files of a conversation (an agent has a connection to the endpoint, and a tool `python` that keeps its state
three files), and of the rest of a training process, generously."""
_REST_SECONDS = 10.0
"""For so long a process that had to be ended counts as in use: a place where all fail at once would draw all others."""


class Place(Protocol):
    """Where conversation processes are started."""

    @property
    def is_there(self) -> bool:
        """Whether a conversation can begin at once, or nearly so."""
        ...

    def open(self) -> ConversationProcess:
        """A new process. A place that was lost is awaited. RolloutError if there is none any more."""
        ...

    def take_restarts(self) -> int:
        """How often all conversations there were lost since the last call."""
        ...

    def close(self) -> None:
        """End everything there. Idempotent."""
        ...


class ConversationHost:
    """Processes to lend, those of this machine until `move_to` names other places. Lends to several threads.

    schemas: of all tools, those of the environment last. answers_text: whether the environment answers turns that call
    no tool. Raises ConfigError if tools or environment cannot be loaded.
    """

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self._lock = threading.RLock()  # a process that is closed is taken back
        self._here = WarmParent(wanted, wanted.named_variables())
        self._places: Sequence[Place] = (self._here,)
        self._idle: defaultdict[int, list[ConversationProcess]] = defaultdict(list)  # by the id of their place
        self._lent: dict[ConversationProcess, Place] = {}
        self._failed: deque[tuple[float, Place]] = deque()  # when a process was ended that was lent, lately
        self._use: Counter[int] = Counter()  # how many are lent, by the id of their place
        description = self._here.description
        own: list[Mapping[str, Json]] = description["environment_tools"]
        self.schemas: tuple[Mapping[str, Json], ...] = (*description["tools"], *own)
        self.environment_tools = frozenset(str(_name_of(schema)) for schema in own)
        self.answers_text: bool = description["answers_text"]
        try:
            self._check_names()
        except ConfigError:
            self.close()
            raise

    @property
    def has_environment(self) -> bool:
        return self.wanted.environment is not None

    @property
    def pid(self) -> int:
        """Process id of this machine's warm parent."""
        return self._here.pid

    def move_to(self, places: Sequence[Place]) -> None:
        """Let conversations that begin from now on have processes of these places, which this host closes."""
        with self._lock:
            idle, self._idle = self._idle, defaultdict(list)
            self._places = tuple(places)
        self._here.close()
        for process in (process for some in idle.values() for process in some):
            process.close()

    def take_restarts(self) -> int:
        """How often all conversations of a place were lost since the last call."""
        return sum(place.take_restarts() for place in self._places)

    def lease(self) -> ConversationProcess:
        """A process that nobody uses, where the fewest are in use: one that was given back, or a new one. RolloutError
        if there is no place where one could be started."""
        lost: RolloutError | None = None
        for place in self._by_use():
            try:
                process = self._idle_at(place) or place.open()
            except RolloutError as error:
                lost = lost or error
                continue
            except OSError as error:
                if error.errno not in OUT_OF_FILES:
                    raise
                raise no_more_files() from error
            with self._lock:
                self._lent[process] = place
                self._use[id(place)] += 1
            process.when_closed = self._ended
            return process
        assert lost is not None, "there is always a place"
        raise lost

    def give_back(self, process: ConversationProcess) -> None:
        """Keep a process, of which nothing is awaited, for other conversations."""
        place = self._take_back(process)
        with self._lock:
            is_wanted = place in self._places
            if is_wanted:
                self._idle[id(place)].append(process)
        if not is_wanted:
            process.close()

    def _by_use(self) -> list[Place]:
        """All places, those first where something can begin at once, and of these that with the fewest in use."""
        with self._lock:
            while self._failed and time.monotonic() - self._failed[0][0] > _REST_SECONDS:
                self._use[id(self._failed.popleft()[1])] -= 1
            places, use = self._places, dict(self._use)
        return sorted(places, key=lambda place: (not place.is_there, use.get(id(place), 0)))

    def _idle_at(self, place: Place) -> ConversationProcess | None:
        with self._lock:
            idle = self._idle[id(place)]
            while idle:
                process = idle.pop()
                if not process.has_said_anything():  # nor ended
                    return process
                process.close()
        return None

    def _ended(self, process: ConversationProcess) -> None:
        """Note that a process was ended. If it was lent, its place goes on counting it for a while."""
        place = self._take_back(process)
        if place is not None:
            with self._lock:
                self._use[id(place)] += 1
                self._failed.append((time.monotonic(), place))

    def _take_back(self, process: ConversationProcess) -> Place | None:
        """Note that a process is no longer lent; its place, if it was."""
        with self._lock:
            place = self._lent.pop(process, None)
            if place is not None:
                self._use[id(place)] -= 1
        return place

    def close(self) -> None:
        """End all conversations. Idempotent."""
        with self._lock:
            idle, self._idle = self._idle, defaultdict(list)
        for process in (process for some in idle.values() for process in some):
            process.close()
        for place in {id(place): place for place in (self._here, *self._places)}.values():
            place.close()

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


def allow_connections(conversations: int) -> None:
    """Let this process have connections to so many conversations at a time, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _FILES_EACH * conversations + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def no_more_files() -> RolloutError:
    """What is raised when the system allows no further connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return RolloutError(
        f"this system allows the process no more than {soft:,} open files, which all conversations and the rest of the "
        "run have together",
        remedy=f"lower max_open of conversations, or raise the limit (ulimit -n; the hard limit is {hard:,})",
    )


def _name_of(schema: Mapping[str, Json]) -> Json:
    function = schema["function"]
    assert isinstance(function, dict)
    return function["name"]
