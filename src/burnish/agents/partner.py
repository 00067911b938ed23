"""Tools and environments as partners of conversations: a turn is read, its calls are made, and what comes back is
appended as tokens.

Nobody waits for anybody: an environment has a process for its conversation (`burnish.agents.environments`), calls of
tools have their own (`burnish.agents.tool_execution`), and what they say comes back as events. Whatever goes wrong in a
tool is told to the model and counted; an environment that can no longer be used ends its conversation, and is counted.
"""

from __future__ import annotations

import hashlib
import math
import select
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from burnish.agents.conversation import Answer, Closed, ConversationKey, Event, Opened
from burnish.agents.environments.messages import count, flag, number, opening, text
from burnish.agents.environments.warm_parent import ConversationHost, ConversationProcess
from burnish.agents.observations import ObservationFormat, Observer
from burnish.agents.tool_execution import Caller, CallLimits, CallUnderWay, Tool, ToolCalls, result_in
from burnish.agents.tools.calls import MalformedCall, Parsed, ServedTools, ToolCall, id_of_calls
from burnish.agents.tools.checking import check_call, find_tool, function_of
from burnish.agents.tools.parsers.protocol import ToolParser
from burnish.agents.tools.results import ToolResult, result_of
from burnish.data.chat import turns_of
from burnish.data.histories import HistoryEncoder, opened
from burnish.errors import DataError, OutageError
from burnish.observability.metrics import mean, total
from burnish.outside.frames import GarbledError
from burnish.types import Author, FinishReason, Json, Message, Metric, Prompt, Rollout, Seconds

MAX_SEED = 2**31 - 1
_SEED_STRIDE = 1_000_003
"""Between the seeds of the calls of a turn."""
_UNREADABLE = "unreadable"
"""The name in a call of a tool that does not exist, for templates that need one."""
_CANNOT_BE_SHOWN = "Error: the result has characters that cannot be shown"
_OPENING_PAUSES = 0.2, 0.8
"""Seconds before each new attempt to open an environment."""
_QUICK_SECONDS = 5.0
"""An environment that took longer to fail has waited itself, and is not opened again."""
_MAX_POLL_SECONDS = 1.0
_GRACE_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class PartnerLimits:
    """open_seconds: for an environment to start, and to say what it pays. call_seconds: for a call of a tool without
    its own limits, or for a step of the environment. result_characters: of one result. prompt_tokens: of a prompt with
    what an environment adds to it. same_start: the environments of a group start alike. turns: of the policy, at most.
    failed_fraction: of the conversations of a call, may have called a tool that never worked."""

    open_seconds: float = 60.0
    call_seconds: float = 30.0
    result_characters: int = 4_000
    prompt_tokens: int | None = None
    same_start: bool = True
    turns: int | None = None
    failed_fraction: float = 1.0


@dataclass(frozen=True, slots=True)
class ToolsAndEnvironment:
    """`Partner`: the tools and the environment of one domain.

    host: of functions and of the environment, if there are any. served: the other tools. parser: how calls are written;
    None without tools. rewriting: roles of messages after which the chat template rewrites earlier turns. where: the
    section of the run file, for messages. tool_limits: of the calls of a tool, by its name.
    """

    host: ConversationHost | None
    served: Sequence[ServedTools]
    parser: ToolParser | None
    observations: ObservationFormat
    histories: HistoryEncoder
    limits: PartnerLimits
    rewriting: frozenset[Observer] = frozenset()
    where: str = "conversation"
    tool_limits: Mapping[str, CallLimits] = field(default_factory=dict)
    _tools: dict[str, Tool] = field(default_factory=dict)
    _counts: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def schemas(self) -> tuple[Mapping[str, Json], ...]:
        """Of all tools, as the chat template writes them."""
        own = () if self.host is None else self.host.schemas
        return (*own, *(schema for tools in self.served for schema in tools.schemas))

    @property
    def has_environment(self) -> bool:
        return self.host is not None and self.host.has_environment

    @property
    def answers_text(self) -> bool:
        """True if turns that call no tool are answered."""
        return self.host is not None and self.host.answers_text

    def answering(self, *, seed: int, step: int) -> _Answers:
        """See `Partner`."""
        return _Answers(self, seed, step)

    def tool(self, name: str) -> Tool | None:
        """The tool of this name; None if it is the environment's."""
        if self.host is not None and name in self.host.environment_tools:
            return None
        with self._lock:
            if name not in self._tools:
                limits = self.tool_limits.get(name, CallLimits(self.limits.call_seconds))
                served = next((one for one in self.served if find_tool(name, one.schemas) is not None), None)
                self._tools[name] = Tool(name, limits, served)
            return self._tools[name]

    def count(self, **counts: float) -> None:
        with self._lock:
            self._counts.update(counts)  # type: ignore[arg-type]  # seconds are counted, too

    def take_metrics(self) -> Mapping[str, Metric]:
        """See `Partner`."""
        with self._lock:
            counts = self._counts.copy()
            self._counts.clear()
        metrics = {"time/answers_seconds": total(counts["seconds"])}
        if self.parser is not None:
            metrics["tool/calls"] = total(counts["calls"])
            metrics["tool/calls_per_turn"] = mean(counts["calls"], counts["turns"])
            for why in ("malformed", "invalid", "failed", "timed_out", "cut"):
                metrics[f"tool/{why}_fraction"] = mean(counts[why], counts["calls"])
        if self.has_environment:
            metrics["environment/opened"] = total(counts["opened"])
            metrics["environment/failed_fraction"] = mean(counts["lost"], counts["opened"])
            metrics["environment/timed_out_fraction"] = mean(counts["hung"], counts["opened"])
            if self.answers_text:
                metrics["environment/cut_fraction"] = mean(counts["steps_cut"], counts["steps"])
        if self.host is not None:
            metrics["conversation/restarts"] = total(self.host.parent.take_restarts())
        return metrics


@dataclass(slots=True)
class _Line:
    """One conversation as its partner knows it.

    messages: all so far. heard: where in them the words of tools and environment begin, by number of the message.
    openings: how often its environment has failed to open; it is opened again when `resumes` says. doing: what it waits
    for until `deadline`, or has waited for. results: of the calls of the last turn, None for those
    that are not there yet. in_process: which of them are the environment's. ended, reward: what it said after them.
    """

    key: ConversationKey
    prompt: Prompt
    seed: int
    messages: tuple[Message, ...]
    caller: Caller
    heard: dict[int, int] = field(default_factory=dict)
    process: ConversationProcess | None = None
    openings: int = 0
    resumes: float = math.inf
    doing: str = ""
    begun: float = 0.0
    deadline: float = math.inf
    turn: Rollout | None = None
    turn_number: int = 0
    parsed: Parsed = field(default_factory=lambda: Parsed(""))
    results: list[ToolResult | None] = field(default_factory=list)
    in_process: tuple[int, ...] = ()
    awaits_process: bool = False
    ended: bool = False
    reward: float | None = None

    def identity(self, index: int) -> str:
        """Of a call."""
        return f"{id_of_calls(self.turn_number)}{index % 100:02d}"


@dataclass(slots=True)
class ToolRecord:
    """Record of the calls of a tool. failed_in: conversations. first: the first error that a conversation got."""

    has_worked: bool = False
    failed_in: set[ConversationKey] = field(default_factory=set)
    first: str = ""

    def note(self, key: ConversationKey, result: ToolResult) -> None:
        """Note a result. A tool that itself says what is wrong with a call works."""
        if not result.failed or result.told:
            self.has_worked = True
        else:
            self.failed_in.add(key)
            self.first = self.first or result.text.removeprefix("Error: ")


class _Answers:
    """`Answerer` of one call.

    It is asked thousands of times a step, so nothing here looks at all conversations unless a deadline has passed.
    """

    def __init__(self, partner: ToolsAndEnvironment, seed: int, step: int) -> None:
        self._partner = partner
        self._seed, self._step = seed, step
        self._lines: dict[ConversationKey, _Line] = {}
        self._waiting: dict[ConversationKey, _Line] = {}
        self._polled: dict[int, _Line] = {}  # by descriptor of the process that is asked
        self._next_deadline = math.inf  # there is none before it
        self._events: dict[ConversationKey, Event] = {}
        self._begun = 0
        self._records: dict[str, ToolRecord] = defaultdict(ToolRecord)
        self._poller = select.poll()
        self._calls = ToolCalls(partner.host, self._poller, partner.limits.result_characters)
        self._token = object()  # conversations of other calls may have the same keys

    def open(self, key: ConversationKey, prompt: Prompt) -> None:
        """See `Answerer`."""
        self._begun += 1
        seed = start_seed(self._seed, self._step, prompt.id, None if self._partner.limits.same_start else key[1])
        line = self._lines[key] = _Line(key, prompt, seed, turns_of(prompt), Caller((self._token, key)))
        if not self._partner.has_environment:
            self._events[key] = Opened()
            return
        self._partner.count(opened=1)
        self._wait(line, "open", self._partner.limits.open_seconds)
        self._ask_to_open(line)

    def begin(self, key: ConversationKey, turn: Rollout, number: int) -> None:
        """See `Answerer`."""
        partner, line = self._partner, self._lines[key]
        line.turn, line.turn_number, line.reward, line.ended = turn, number, None, False
        partner.count(turns=1)
        line.parsed = Parsed(turn.response)
        if partner.parser is not None:
            line.parsed = partner.parser.parse(turn.response, partner.schemas)
        if line.parsed.calls and number == partner.limits.turns and not partner.has_environment:
            # Nobody would read the results. An environment may pay for what its tools do.
            self._events[key] = Answer(_said(line), ends=FinishReason.TURNS)
        elif line.parsed.calls:
            self._call(line)
        elif partner.answers_text:
            partner.count(steps=1)
            self._wait(line, "step", partner.limits.call_seconds)
            self._ask(line, "step", text=turn.response, limit=partner.limits.result_characters)
        else:
            self._events[key] = Answer(_said(line), ends=FinishReason.STOP)

    def finish(self, key: ConversationKey) -> None:
        """See `Answerer`."""
        line = self._lines[key]
        if self._partner.has_environment:
            self._wait(line, "reward", self._partner.limits.open_seconds)
            self._ask(line, "reward")
        else:
            self._release(line)
            self._events[key] = Closed()

    def events(self, *, wait_for_all: bool) -> Mapping[ConversationKey, Event]:
        """See `Answerer`."""
        began = time.monotonic()
        while self._waiting and (wait_for_all or not self._events):
            self._listen(_MAX_POLL_SECONDS)
        # Most tools answer within milliseconds of each other, and a call of the engine is better spent on many turns.
        grace = time.monotonic() + _GRACE_SECONDS
        while self._waiting and (left := grace - time.monotonic()) > 0:
            self._listen(left)
        self._partner.count(seconds=time.monotonic() - began)
        found, self._events = self._events, {}
        return found

    def check(self) -> None:
        """See `Answerer`."""
        allowed = self._partner.limits.failed_fraction * self._begun
        for name, record in self._records.items():
            if not record.has_worked and len(record.failed_in) > max(allowed, 1):
                raise OutageError(
                    f"{self._partner.where}: the tool {name} has failed each time, in {len(record.failed_in)} of "
                    f"{self._begun} conversations, more than scoring.max_failure_fraction allows. The first time: "
                    f"{record.first}",
                    remedy="fix the tool, then give the same command again to continue; if its calls are wrong, "
                    "let it raise burnish.agents.tools.calls.ToolError, or raise scoring.max_failure_fraction",
                )

    def close(self) -> None:
        """See `Answerer`."""
        for line in list(self._lines.values()):
            self._release(line)
        self._calls.close()

    def _wait(self, line: _Line, doing: str, seconds: float) -> None:
        line.doing, line.begun = doing, time.monotonic()
        line.deadline = line.begun + seconds
        self._waiting[line.key] = line
        self._next_deadline = min(self._next_deadline, line.deadline)

    def _ask_to_open(self, line: _Line) -> None:
        line.resumes = math.inf
        self._ask(line, "open", row=_row(line.prompt), seed=line.seed)

    def _ask(self, line: _Line, do: str, **given: Any) -> None:
        """Ask the conversation's process, which is started if there is none."""
        assert self._partner.host is not None
        if line.process is None:
            line.process = self._partner.host.lease()
        line.awaits_process = True
        line.process.send({"do": do, **given})
        self._polled[line.process.fileno()] = line
        line.process.watch(self._poller)

    def _answered(self, line: _Line) -> None:
        """Nothing more is awaited of the conversation's process."""
        if line.awaits_process:
            assert line.process is not None
            line.awaits_process = False
            del self._polled[line.process.fileno()]
            self._poller.unregister(line.process.fileno())

    def _call(self, line: _Line) -> None:
        """Begin the calls of a turn. Calls that cannot be made are answered at once."""
        partner, limit = self._partner, self._partner.limits.result_characters
        line.results = [self._refusal(call, partner.schemas, limit) for call in line.parsed.calls]
        partner.count(calls=len(line.parsed.calls))
        own: list[tuple[int, str, dict[str, Json]]] = []
        others: list[CallUnderWay] = []
        for i, call in enumerate(line.parsed.calls):
            if line.results[i] is not None:
                continue
            assert isinstance(call, ToolCall)
            tool, seed = partner.tool(call.name), (line.seed + line.turn_number + i * _SEED_STRIDE) & MAX_SEED
            if tool is None:
                own.append((i, call.name, dict(call.arguments)))
            else:
                others.append(CallUnderWay(line.caller, tool, call, i, seed))
        self._wait(line, "calls", partner.limits.call_seconds if own else math.inf)
        line.in_process = tuple(i for i, *_ in own)
        if own:
            self._ask(line, "calls", calls=own, limit=limit)
        self._calls.begin(others)
        self._take_results()
        self._settle(line)

    def _refusal(self, call: ToolCall | MalformedCall, schemas: Sequence[Any], limit: int) -> ToolResult | None:
        """Return the answer to a call that cannot be made; None for a call that can."""
        is_malformed = isinstance(call, MalformedCall)
        problem = call.why if isinstance(call, MalformedCall) else check_call(call, schemas)
        if problem is None:
            return None
        self._partner.count(malformed=is_malformed, invalid=not is_malformed)
        return result_of(f"Error: {problem}", limit)

    def _listen(self, seconds: float) -> None:
        """Wait for at most so long until anything has happened, or a deadline has passed."""
        left = max(min(self._next_deadline, self._calls.next_deadline) - time.monotonic(), 0.0)
        for descriptor, what in self._poller.poll(1000 * min(left, seconds)):
            line = self._polled.get(descriptor)
            if self._calls.hear(descriptor, what) or line is None:
                continue  # it was asked something else by what has just been heard
            assert line.process is not None
            if what & select.POLLOUT:
                line.process.flush()
                line.process.watch(self._poller)
            if what & ~select.POLLOUT:
                self._hear(line)
        self._take_results()
        now = time.monotonic()
        if now >= self._next_deadline:
            for line in [line for line in self._waiting.values() if now >= line.deadline]:
                self._give_up(line, timed_out=True)
            for line in [line for line in self._waiting.values() if now >= line.resumes]:
                self._ask_to_open(line)
            until = (min(line.deadline, line.resumes) for line in self._waiting.values())
            self._next_deadline = min(until, default=math.inf)

    def _take_results(self) -> None:
        """Note what calls of tools have come to."""
        for call, result in self._calls.results():
            line = self._lines[call.caller.key[1]]
            self._partner.count(timed_out=result.timed_out)
            self._note_result(line, call.index, result)
            self._settle(line)

    def _note_result(self, line: _Line, index: int, result: ToolResult) -> None:
        line.results[index] = result
        call = line.parsed.calls[index]
        assert isinstance(call, ToolCall)
        self._records[call.name].note(line.key, result)

    def _hear(self, line: _Line) -> None:
        """Take what the process of a conversation says."""
        process, host = line.process, self._partner.host
        assert process is not None
        assert host is not None
        try:
            for message in process.receive():
                if not line.awaits_process:
                    raise GarbledError("more than was asked")
                self._take(line, message)
        except GarbledError as error:
            if line.process is process and line.key in self._waiting:
                self._give_up(line, why=f"its process sent {error}")
            elif line.process is process:  # else its opening has failed before, and is tried in another process
                self._lose(line, f"{line.doing}: its process sent {error}")
            process.close()
            return
        if line.process is process and process.gone and line.awaits_process:
            self._give_up(line, why="its process has ended")
        elif line.process is not process and process.fileno() >= 0:
            host.give_back(process)

    def _take(self, line: _Line, message: Mapping[str, Any]) -> None:
        """One message. GarbledError for one that does not answer what was asked."""
        if "failed" in message:
            why = text(message, "failed")
            if not self._opens_again(line):
                self._lose(line, why)
            return
        match line.doing:
            case "open":
                self._opened(line, opening(message))
            case "step":
                self._stepped(line, message)
            case "reward":
                self._paid(line, number(message, "reward"), flag(message, "clean"))
            case "calls" if "result" in message:
                index = count(message, "result")
                if index not in line.in_process or line.results[index] is not None:
                    raise GarbledError(f"the result of call {index}")
                self._note_result(line, index, result_in(message))
                self._wait(line, "calls", self._partner.limits.call_seconds)  # for the next one
            case "calls":
                self._called(line, number(message, "reward"), flag(message, "ended"))
            case _:
                raise GarbledError("an answer to something else")

    def _called(self, line: _Line, reward: float | None, ended: bool) -> None:
        """Settle a turn in which all calls of the environment's tools are over."""
        if any(line.results[index] is None for index in line.in_process):
            raise GarbledError("fewer results than there were calls")
        self._answered(line)
        line.ended, line.reward, line.deadline = ended, reward, math.inf
        self._settle(line)

    def _paid(self, line: _Line, reward: float | None, clean: bool) -> None:
        self._done(line)
        if clean:
            line.process = None  # others may have it; otherwise something that was started there still runs
        self._release(line)
        self._events[line.key] = Closed(reward)

    def _opened(self, line: _Line, added: str | list[dict[str, Json]]) -> None:
        """The prompt with what its environment adds to it."""
        self._done(line)
        if not added:
            self._events[line.key] = Opened()
            return
        line.messages, line.heard = opened(line.prompt, added)
        try:
            tokens = self._whole(line, f"prompt {line.prompt.id}")
        except DataError as error:
            self._lose(line, f"its opening cannot be used: {error.line}")
            return
        limit = self._partner.limits.prompt_tokens
        if limit is not None and len(tokens) > limit:
            self._lose(line, f"the prompt with its opening has {len(tokens):,} tokens, above the limit of {limit:,}")
            return
        self._events[line.key] = Opened(tokens)

    def _stepped(self, line: _Line, message: Mapping[str, Any]) -> None:
        heard, seconds = (Message("user", text(message, "text")),), (number(message, "seconds"),)
        line.reward, line.ended = number(message, "reward"), flag(message, "ended")
        is_cut = count(message, "cut") > 0
        self._done(line)
        self._partner.count(steps_cut=float(is_cut))
        self._reply(line, heard, (), "environment", seconds)

    def _settle(self, line: _Line) -> None:
        """Answer the turn if all of its calls have results."""
        if line.key not in self._waiting or line.doing != "calls" or line.awaits_process or None in line.results:
            return
        self._done(line)
        results = [result for result in line.results if result is not None]
        offered = [function_of(schema)["name"] for schema in self._partner.schemas]
        messages, calls = [], []
        for index, (call, result) in enumerate(zip(line.parsed.calls, results, strict=True)):
            # Templates may repeat this next to a result, where nothing that the policy wrote may stand.
            name = call.name if isinstance(call, ToolCall) and call.name in offered else _UNREADABLE
            identity = line.identity(index)
            messages.append(Message("tool", result.text, extra={"name": name, "tool_call_id": identity}))
            calls.append({"id": identity, **ToolCall(name, {}).to_dict()})
        failed, seconds = sum(result.failed for result in results), tuple(result.seconds for result in results)
        if not self._reply(line, messages, calls, "tool", seconds):
            failed = len(results)
        self._partner.count(failed=failed, cut=sum(result.cut > 0 for result in results))

    def _reply(
        self,
        line: _Line,
        messages: Sequence[Message],
        calls: Sequence[Mapping[str, Json]],
        author: Author,
        seconds: Seconds,
    ) -> bool:
        """Answer the turn with these messages, with which the conversation ends or goes on. Results that cannot be
        written, because a template or tokenizer refuses them, are replaced by a note that says so; whether they
        could."""
        said = _said(line)
        answer = Answer(said, author=author, messages=tuple(messages), reward=line.reward, seconds=seconds)
        if line.ended:
            self._events[line.key] = replace(answer, ends=FinishReason.STOP)
            return True
        assert line.turn is not None
        where = f"{self._partner.where}, prompt {line.prompt.id}, turn {line.turn_number}"
        why = ""
        is_whole = ("tool" if author == "tool" else "user") in self._partner.rewriting
        # A call that cannot be read stays in the history as it was written.
        before, heard = (*line.messages, replace(said, content=line.parsed.content_with_unread)), line.heard
        shown = [messages, [replace(message, content=_CANNOT_BE_SHOWN) for message in messages]]
        for some in shown if author == "tool" else shown[:1]:
            line.messages = (*before, *some)
            line.heard = heard | {number: 0 for number in range(len(before), len(line.messages))}
            try:
                tokens = (
                    self._whole(line, where)
                    if is_whole
                    else self._partner.observations.tokens(some, calls, line.turn.response_tokens[-1], where=where)
                )
            except DataError as error:
                why = why or error.line
                continue
            self._events[line.key] = replace(answer, tokens=tokens, messages=tuple(some), is_whole=is_whole)
            return not why
        self._lose(line, why)
        return False

    def _whole(self, line: _Line, where: str) -> tuple[int, ...]:
        """Encode all messages of a conversation. Raises DataError."""
        return self._partner.histories.encode(line.messages, line.heard, line.prompt.tools, where=where)

    def _give_up(self, line: _Line, *, timed_out: bool = False, why: str = "") -> None:
        """Stop waiting for a conversation: its time is up, or its process has ended."""
        if not timed_out and self._opens_again(line):
            return
        if line.doing == "calls":
            missing = sum(line.results[index] is None for index in line.in_process)
            self._partner.count(timed_out=missing if timed_out else 0)
        self._partner.count(hung=float(timed_out))
        self._lose(line, f"{line.doing}: {why or f'no answer within {line.deadline - line.begun:g} s'}")

    def _opens_again(self, line: _Line) -> bool:
        """Arrange a new attempt, after a pause, if an opening has failed. Returns whether there is one."""
        now = time.monotonic()
        if line.doing != "open" or line.openings >= len(_OPENING_PAUSES) or now > line.begun + _QUICK_SECONDS:
            return False
        self._answered(line)
        assert line.process is not None
        line.process.close()
        line.process = None
        line.resumes = now + _OPENING_PAUSES[line.openings]
        line.openings += 1
        self._next_deadline = min(self._next_deadline, line.resumes)
        return True

    def _lose(self, line: _Line, why: str) -> None:
        """End a conversation whose environment can no longer be used."""
        self._partner.count(lost=1)
        self._release(line)
        failed = f"the environment failed: {why}"
        lost: dict[str, Event] = {"open": Opened(failed=failed), "reward": Closed(failed=failed)}
        turn = Answer(_said(line), ends=FinishReason.FAILED, failed=failed)
        self._events[line.key] = lost.get(line.doing, turn)

    def _done(self, line: _Line) -> None:
        """Nothing is awaited any more."""
        self._waiting.pop(line.key, None)
        self._answered(line)

    def _release(self, line: _Line) -> None:
        self._done(line)
        line.caller.over = True  # before its tools are told to end: a call that begins later sees it
        self._calls.drop(line.caller)
        self._lines.pop(line.key, None)
        if line.process is not None:
            line.process.close()
            line.process = None
        for tools in self._partner.served:
            tools.end(line.caller.key)


def start_seed(seed: int, step: int, prompt_id: str, sample: int | None) -> int:
    """Compute the seed of an environment or an agent; the same for a whole group without `sample`."""
    start = "" if sample is None else f"|{sample}"
    digest = hashlib.sha256(f"{seed}|{step}|{prompt_id}{start}".encode()).digest()
    return int.from_bytes(digest[:4], "big") & MAX_SEED


def _said(line: _Line) -> Message:
    """The policy's turn, taken apart."""
    calls = tuple(
        {"id": line.identity(index), **call.to_dict()}
        for index, call in enumerate(line.parsed.calls)
        if isinstance(call, ToolCall)
    )
    return Message("assistant", line.parsed.content, tool_calls=calls)


def _row(prompt: Prompt) -> dict[str, Json]:
    """Return the row for an environment: all columns, and the prompt as it was read."""
    asked: Json = prompt.text if prompt.messages is None else [message.to_dict() for message in prompt.messages]
    return {**prompt.columns, "prompt": asked}
