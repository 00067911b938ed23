"""Lends conversation processes to conversations.

A process serves one conversation at a time. An environment has it from the beginning to the end, so whatever goes wrong
there ends no other conversation; functions have it for one call.
"""

from __future__ import annotations

import errno
import resource
import threading
from collections.abc import Mapping

from burnish.agents.environments.warm_parent import ConversationProcess, Wanted, WarmParent
from burnish.agents.tools.checking import function_of
from burnish.errors import RolloutError
from burnish.types import Json

_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS)
"""Errors of this machine, which has no room for a connection."""
_FILES_EACH, _OTHER_FILES = 5, 512
"""Open files of a conversation (an agent has a connection to the endpoint, and a tool `python` that keeps its state
three files), and of the rest of a training process, generously."""


class ConversationHost:
    """Processes to lend. Lends to several threads.

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
