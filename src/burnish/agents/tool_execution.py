"""The calls of tools, each with its own deadline, which starts with the call.

A user's function runs in a process that is reserved for this one call, so one that hangs is killed alone. Tools that
are served (the sandbox, MCP servers) are called in threads. A tool has a number of places. Calls beyond it wait, each
as long as the calls before it may take, and no call of another tool waits for them.
"""

from __future__ import annotations

import contextlib
import math
import queue
import select
import socket
import threading
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from burnish.agents.conversation import ConversationKey
from burnish.agents.environments.messages import count, flag, number, text
from burnish.agents.environments.warm_parent import ConversationHost, ConversationProcess
from burnish.agents.tools.calls import ServedTools, ToolCall
from burnish.agents.tools.results import ToolResult, error_of, result_of
from burnish.errors import RolloutError
from burnish.outside.frames import GarbledError

LATE_SECONDS = 5.0
"""Seconds that a served tool may be late: it enforces the time limit itself, and its report of a timeout is better."""

_MOST_ABREAST = 16
"""Calls of one tool that a turn has at a time. To start more processes or threads would take longer than to wait."""


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Limits on the calls of a tool. seconds: of a call. at_once: calls that run at a time. in_order: calls of a turn
    run one after the other, because they share the conversation's state."""

    seconds: float = 30.0
    at_once: int = 256
    in_order: bool = False


@dataclass(slots=True, eq=False)
class Tool:
    """A tool, and the calls that have its places, in all threads. A thread that does not return keeps its place, so a
    tool never has more threads than places. served: None for a function, which runs in a process of the host."""

    name: str
    limits: CallLimits
    served: ServedTools | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _running: set[CallUnderWay] = field(default_factory=set)

    def take(self, call: CallUnderWay) -> bool:
        """Take a place for this call; return whether there was one."""
        with self._lock:
            has_place = len(self._running) < self.limits.at_once
            self._running |= {call} if has_place else set()
            return has_place

    def free(self, call: CallUnderWay) -> None:
        """Give its place back."""
        with self._lock:
            self._running.discard(call)

    def is_stuck(self) -> bool:
        """Return whether all places have calls whose time is over."""
        now = time.monotonic()
        with self._lock:
            return len(self._running) >= self.limits.at_once and all(now >= call.deadline for call in self._running)


@dataclass(slots=True, eq=False)
class Caller:
    """A conversation as the caller of tools. key: its name for served tools."""

    key: tuple[object, ConversationKey]
    over: bool = False


@dataclass(slots=True, eq=False)
class CallUnderWay:
    """A call that waits or runs. index: among the calls of its turn. seed: of a function. after: the calls to make
    next. begun: time of its start. done: nobody waits for its result any more."""

    caller: Caller
    tool: Tool
    call: ToolCall
    index: int
    seed: int
    after: CallUnderWay | None = None
    begun: float | None = None
    deadline: float = math.inf
    process: ConversationProcess | None = None
    done: bool = False


@dataclass(slots=True, eq=False)
class ToolCalls:
    """The calls of some conversations. Nothing here waits: `poller` says when there is something to `hear`.

    host: of functions. limit: characters of a result.
    """

    host: ConversationHost | None
    poller: select.poll
    limit: int
    next_deadline: float = math.inf
    _waiting: dict[Tool, deque[CallUnderWay]] = field(default_factory=lambda: defaultdict(deque))
    _running: set[CallUnderWay] = field(default_factory=set)
    _polled: dict[int, CallUnderWay] = field(default_factory=dict)
    _found: list[tuple[CallUnderWay, ToolResult]] = field(default_factory=list)
    _returned: queue.SimpleQueue[tuple[CallUnderWay, ToolResult]] = field(default_factory=queue.SimpleQueue)
    _wakes: tuple[socket.socket, socket.socket] = field(default_factory=socket.socketpair)

    def __post_init__(self) -> None:
        self.poller.register(self._wakes[0], select.POLLIN)

    def begin(self, calls: Sequence[CallUnderWay]) -> None:
        """Begin the calls of a turn; each starts as soon as its tool has a place."""
        of_tool: dict[Tool, list[CallUnderWay]] = defaultdict(list)
        for call in calls:
            of_tool[call.tool].append(call)
        for tool, some in of_tool.items():
            abreast = 1 if tool.limits.in_order else _MOST_ABREAST
            for one, after in zip(some, some[abreast:], strict=False):
                one.after = after
            self._waiting[tool].extend(some[:abreast])
        self._start_waiting()

    def hear(self, descriptor: int, what: int) -> bool:
        """Read from, or write to, a descriptor that is ready; return whether it belongs to one of these calls."""
        if descriptor == self._wakes[0].fileno():
            self._wakes[0].recv(4096)
            return True
        call = self._polled.get(descriptor)
        if call is None:
            return False
        assert call.process is not None
        if what & select.POLLOUT:
            call.process.flush()
            call.process.watch(self.poller)
        if what & ~select.POLLOUT:
            result, is_clean = _heard(call.process, self.limit)
            if result is not None:
                self._finish(call, result, is_clean=is_clean)
        return True

    def results(self) -> list[tuple[CallUnderWay, ToolResult]]:
        """Return the results since the last call, with an error for each call whose time is over."""
        while not self._returned.empty():
            self._finish(*self._returned.get())
        now = time.monotonic()
        if now >= self.next_deadline:
            for call in [call for call in self._running if now >= call.deadline]:
                why = f"no answer within {call.tool.limits.seconds:g} s"
                self._finish(call, _error(why, self.limit, timed_out=True))
            self.next_deadline = min((call.deadline for call in self._running), default=math.inf)
        self._start_waiting()
        found, self._found = self._found, []
        return found

    def drop(self, caller: Caller) -> None:
        """Drop the calls of this conversation, which is over."""
        for waiting in self._waiting.values():
            for call in [call for call in waiting if call.caller is caller]:
                waiting.remove(call)
        for call in [call for call in self._running if call.caller is caller]:
            call.after = None
            self._finish(call, _error("the conversation is over", self.limit))
        self._found = [(call, result) for call, result in self._found if call.caller is not caller]

    def close(self) -> None:
        """Drop all calls."""
        self._waiting.clear()
        for end in self._wakes:
            end.close()

    def _start_waiting(self) -> None:
        """Start waiting calls for which there is a place. A tool whose places are all stuck answers with errors until
        one of its calls returns."""
        for tool, waiting in list(self._waiting.items()):
            while waiting and tool.take(waiting[0]):
                self._start(waiting.popleft())
            while waiting and tool.is_stuck():
                why = f"{tool.name} does not answer: as many calls as may run did not end in time, and still run"
                self._finish(waiting.popleft(), _error(why, self.limit, timed_out=True))
            if not waiting:
                del self._waiting[tool]

    def _start(self, call: CallUnderWay) -> None:
        served = call.tool.served
        call.begun = time.monotonic()
        call.deadline = call.begun + call.tool.limits.seconds + (0.0 if served is None else LATE_SECONDS)
        self.next_deadline = min(self.next_deadline, call.deadline)
        self._running.add(call)
        if served is None:
            assert self.host is not None
            call.process = self.host.lease()
            given = {"name": call.call.name, "arguments": dict(call.call.arguments)}
            call.process.send({"do": "call", **given, "limit": self.limit, "seed": call.seed})
            self._polled[call.process.fileno()] = call
            call.process.watch(self.poller)
            return
        try:  # a thread that hangs must not keep the program from ending
            threading.Thread(target=self._ask, args=(call, served), name=call.tool.name, daemon=True).start()
        except RuntimeError as error:
            raise RolloutError(
                f"no thread can be started for a call of the tool {call.tool.name}: {error}",
                remedy="lower max_open of the conversation, or the tool's concurrency",
            ) from error

    def _ask(self, call: CallUnderWay, served: ServedTools) -> None:
        """Make a call, in its own thread."""
        key, asked = call.caller.key, call.call
        try:
            result = result_of(served.call(key, asked.name, asked.arguments, call.tool.limits.seconds), self.limit)
        except BaseException as error:  # noqa: BLE001  boundary: a tool may raise anything
            result = replace(error_of(error, self.limit), timed_out=isinstance(error, TimeoutError))
        result = _timed(call, result)  # here, because whoever takes it may be sampling now
        try:
            if call.caller.over:  # it ended meanwhile, perhaps before the call had opened its state
                served.end(key)
        finally:
            call.tool.free(call)
            self._returned.put((call, result))
            with contextlib.suppress(OSError):  # nobody listens any more
                self._wakes[1].send(b"1")

    def _finish(self, call: CallUnderWay, result: ToolResult, *, is_clean: bool = False) -> None:
        """Record the result of a call, if there is none yet. is_clean: other calls may use its process."""
        self._running.discard(call)
        if call.process is not None:
            assert self.host is not None
            del self._polled[call.process.fileno()]
            self.poller.unregister(call.process.fileno())
            (self.host.give_back if is_clean else ConversationProcess.close)(call.process)
            call.process = None
            call.tool.free(call)
        if not call.done:
            call.done = True
            self._found.append((call, _timed(call, result)))
            if call.after is not None:
                self._waiting[call.tool].append(call.after)


def _heard(process: ConversationProcess, limit: int) -> tuple[ToolResult | None, bool]:
    """Return the result of a function from its process, None before it has come, and whether others may have the
    process then."""
    result, clean = None, False
    try:
        for message in process.receive():
            if result is not None:
                raise GarbledError("more than was asked")
            result, clean = result_in(message), flag(message, "clean")
    except GarbledError as error:
        return result or _error(f"its process sent {error}", limit), False
    if result is None and process.gone:
        result = _error("its process has ended", limit)
    return result, clean


def _timed(call: CallUnderWay, result: ToolResult) -> ToolResult:
    """The result with the seconds since its call began, unless they are known."""
    if result.seconds is not None or call.begun is None:
        return result
    return replace(result, seconds=time.monotonic() - call.begun)


def _error(why: str, limit: int, *, timed_out: bool = False) -> ToolResult:
    return replace(result_of(f"Error: {why}", limit), failed=True, timed_out=timed_out)


def result_in(message: Mapping[str, Any]) -> ToolResult:
    """Read the result of a call from a process's message. GarbledError if it is not a result."""
    failed, told = flag(message, "failed_call"), flag(message, "told")
    seconds = number(message, "seconds")
    return ToolResult(text(message, "text"), failed, count(message, "cut"), told=told, seconds=seconds)
