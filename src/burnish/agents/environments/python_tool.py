"""The tool `python`: what the model writes runs in the sandbox, as a cell of a notebook does."""

from __future__ import annotations

import inspect
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from burnish.agents.tools.calls import ToolError
from burnish.agents.tools.schema import schema_of
from burnish.errors import ConfigError, did_you_mean
from burnish.sandbox import cells
from burnish.sandbox.job import Limits, Output, Program
from burnish.sandbox.sessions import SHOWN_BYTES, CellOutput, SandboxSession, Sessions
from burnish.sandbox.trial import opened
from burnish.types import Json

if TYPE_CHECKING:
    from burnish.sandbox.remote import RemoteSandbox

State = Literal["fresh", "kept"]
_STATES = ("fresh", "kept")
_NAME = "python"
_FRESH_PROCESSOR = 2.0
_KEPT_PROCESSOR = 20.0
"""Processor time of a process, as a multiple of the seconds of a call: a kept process serves many calls."""
_LOSS = "What was defined in it is gone."
_PROGRAM = """\
import sys, types
cells = types.ModuleType("cells")
exec(compile({source!r}, "cells.py", "exec"), cells.__dict__)
sys.exit(cells.main({code!r}, {shown}))
"""


@dataclass(frozen=True, slots=True)
class PythonToolOptions:
    """state: `fresh` runs each call in a new process; `kept` has one for each conversation, so that functions,
    variables and imports stay. seconds: of each call. memory_mb: of a process, beyond Python's own. output_bytes: of
    what a call prints and the model is shown. Raises ConfigError for values that are not possible."""

    state: State = "fresh"
    seconds: float = 10.0
    memory_mb: int = 512
    output_bytes: int = SHOWN_BYTES

    def __post_init__(self) -> None:
        if self.state not in _STATES:
            remedy = did_you_mean(str(self.state), _STATES, "use fresh or kept")
            raise ConfigError(f"the tool python has state {self.state!r}", remedy=remedy)
        limits = {"seconds": self.seconds, "memory_mb": self.memory_mb, "output_bytes": self.output_bytes}
        for name, limit in limits.items():
            if limit <= 0:
                raise ConfigError(f"the tool python has {name} {limit}, which has to be positive")


class PythonTool(ABC):
    """Serves the tool `python` to all conversations of a run (`burnish.agents.tools.calls.ServedTools`).

    A call whose code raises, never ends, or ends its process is not a failure of the tool: its result says so.
    """

    def __init__(self, options: PythonToolOptions) -> None:
        describe = _fresh if options.state == "fresh" else _kept
        self.schemas: tuple[Mapping[str, Json], ...] = (schema_of(describe, name=_NAME),)
        self._options = options

    def call(self, conversation: Hashable, name: str, arguments: Mapping[str, Json], seconds: float) -> str:
        """Return what the code printed, the value of its last expression, and the end of its traceback. Raises
        SandboxError if the sandbox fails."""
        code = arguments.get("code")
        if name != _NAME or not isinstance(code, str):
            raise ToolError("call the tool python with one text, code")
        return self._run(conversation, code, time.monotonic() + seconds)

    @abstractmethod
    def _run(self, conversation: Hashable, code: str, deadline: float) -> str:
        """Run it. deadline: as `time.monotonic` tells it; TimeoutError when it has passed."""

    def end(self, conversation: Hashable) -> None:  # noqa: B027  most keep nothing
        """Let go of what is kept for a conversation, if anything is."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything."""


def open_python_tool(
    options: PythonToolOptions,
    *,
    tier: str = "auto",
    url: str | None = None,
    token: str | None = None,
    conversations: int = 64,
    at_once: int = 64,
) -> PythonTool:
    """The tool `python`, in a sandbox of this tier on this machine, or in the one at `url`.

    conversations: how many may keep a state at a time; others wait for one to end. at_once: calls without a state that
    run at a time on this machine. A call has the time that it was promised if there is a processor for each.
    Raises ConfigError and SandboxError.
    """
    if url is not None:
        return _remote(options, tier, url, token)
    with opened(tier) as tried:  # `auto` is decided by attacks, which take seconds
        found = tried.tier
    fresh, kept = (_Fresh, _FRESH_PROCESSOR, at_once), (_Kept, _KEPT_PROCESSOR, conversations)
    kind, times, most = fresh if options.state == "fresh" else kept
    limits = Limits(options.seconds, times * options.seconds + 1.0, options.memory_mb)
    return kind(options, Sessions(found, most=most, limits=limits, shown_bytes=options.output_bytes))


class _Fresh(PythonTool):
    """A session for each call."""

    def __init__(self, options: PythonToolOptions, sessions: Sessions) -> None:
        super().__init__(options)
        self._sessions = sessions

    def _run(self, conversation: Hashable, code: str, deadline: float) -> str:
        seconds = self._options.seconds
        session = self._sessions.open(_left(deadline))
        try:
            given = min(seconds, _left(deadline))
            output = session.run(code, given)
        finally:
            session.close()
        return _told(output, was_cut=given < seconds)

    def close(self) -> None:
        self._sessions.close()


class _Kept(_Fresh):
    """A session for each conversation that has called. One that ends is named to the model, and replaced."""

    def __init__(self, options: PythonToolOptions, sessions: Sessions) -> None:
        super().__init__(options, sessions)
        self._lock = threading.Lock()
        self._kept: dict[Hashable, SandboxSession] = {}

    def _run(self, conversation: Hashable, code: str, deadline: float) -> str:
        seconds = self._options.seconds
        session, lost = self._session(conversation, deadline)
        given = min(seconds, _left(deadline))
        output = session.run(code, given)
        if output.ended:
            self.end(conversation)
        return lost + _told(output, was_cut=given < seconds, loss=f" {_LOSS} The next call begins anew.")

    def end(self, conversation: Hashable) -> None:
        with self._lock:
            session = self._kept.pop(conversation, None)
        if session is not None:
            session.close()

    def close(self) -> None:
        super().close()
        with self._lock:
            self._kept.clear()

    def _session(self, conversation: Hashable, deadline: float) -> tuple[SandboxSession, str]:
        """Return the session of the conversation, and a note for the model about an earlier one that has ended by
        itself."""
        with self._lock:
            session = self._kept.get(conversation)
        lost = "" if session is None else session.how_it_ended()
        if session is None or lost:
            session = self._sessions.open(_left(deadline))
            with self._lock:
                self._kept[conversation] = session
        return session, f"[Before this call, the process {lost}. {_LOSS}]\n" if lost else ""


class _Remote(PythonTool):
    """A program for each call, on another machine."""

    def __init__(self, options: PythonToolOptions, sandbox: RemoteSandbox) -> None:
        super().__init__(options)
        self._sandbox = sandbox

    def _run(self, conversation: Hashable, code: str, deadline: float) -> str:
        options = self._options
        given = min(options.seconds, _left(deadline))
        limits = Limits(given, given, options.memory_mb)
        program = Program(as_program(code, options.output_bytes))
        output = self._sandbox.output(program, limits, wait_seconds=max(_left(deadline) - given, 0.0))
        found = _of_program(output, given, options.output_bytes + cells.TAIL_BYTES)
        return _told(found, was_cut=given < options.seconds)

    def close(self) -> None:
        self._sandbox.close()


def as_program(code: str, shown_bytes: int) -> str:
    """A program that runs one cell, for a machine that has no more than Python."""
    return _PROGRAM.format(source=inspect.getsource(cells), code=code, shown=shown_bytes)


def _of_program(output: Output, seconds: float, most: int) -> CellOutput:
    text = output.stdout[:most]
    if output.timed_out:
        return CellOutput(text, True, output.seconds, f"was stopped after {seconds:g} s", stopped=True)
    if output.code in (0, 1):
        return CellOutput(text, output.code == 1, output.seconds)
    said = output.stderr.strip().rpartition("\n")[2][:200]
    return CellOutput(text, True, output.seconds, f"ended with status {output.code}{': ' + said if said else ''}")


def _remote(options: PythonToolOptions, tier: str, url: str, token: str | None) -> _Remote:
    if options.state == "kept":
        raise ConfigError(
            f"the tool python keeps its state only on this machine, and sandbox.url is {url}",
            remedy="use {python: {state: fresh}}, or remove sandbox.url",
        )
    if tier != "auto":
        raise ConfigError(f"sandbox.tier is {tier!r}, but programs run at {url}", remedy="remove sandbox.tier")
    from burnish.sandbox.remote import RemoteSandbox  # imported here because most runs never need its HTTP library

    limits = Limits(options.seconds, options.seconds, options.memory_mb)  # a server has no other processor time
    return _Remote(options, RemoteSandbox(url, token, limits=limits))


def _left(deadline: float) -> float:
    """Seconds left, at least a few milliseconds: a call without time left finds that out by itself."""
    return max(deadline - time.monotonic(), 0.005)


def _told(output: CellOutput, *, was_cut: bool, loss: str = "") -> str:
    """Text for the model. Code without output has a result, too. was_cut: the code had less than the tool's time,
    because its call had; TimeoutError if that was too little. loss: what ends with the process."""
    if output.stopped and was_cut:
        raise TimeoutError(
            f"the process was stopped after {output.seconds:.1f} s, when the time of its call was up.{loss}"
        )
    end = f"[The process {output.ended}.{loss}]" if output.ended else ""
    return "\n".join(part for part in (output.text.rstrip("\n"), end) if part) or "[no output]"


def _fresh(code: str) -> str:
    """Run Python code, and return what it prints and the value of its last expression.

    Every call begins anew: nothing of earlier calls is there. There is no network, and files cannot be kept.

    Args:
        code: The code, as in a cell of a notebook.
    """
    raise NotImplementedError  # only described here


def _kept(code: str) -> str:
    """Run Python code, and return what it prints and the value of its last expression.

    What a call defines or imports is there in the calls that follow. There is no network.

    Args:
        code: The code, as in a cell of a notebook.
    """
    raise NotImplementedError  # only described here
