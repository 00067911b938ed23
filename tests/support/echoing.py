"""A partner that answers turns of conversations without tools or environments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from burnish.agents.conversation import Answer, Closed, Event, Opened
from burnish.types import FinishReason, Message, Metric, Prompt, Rollout

OBSERVED = (40, 41, 42)
Key = tuple[int, int]


@dataclass
class Echo:
    """Answers the first `calls` turns of every conversation; what is for `slow` samples comes one call later.

    opened: prompt tokens of the samples whose environment adds to them. fails: what goes wrong in which sample: `open`,
    `close`, or the number of a turn. pays: for a whole conversation.
    """

    calls: int = 1
    slow: tuple[int, ...] = ()
    tokens: tuple[int, ...] = OBSERVED
    ends: FinishReason = FinishReason.STOP
    opened: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    fails: Mapping[int, str | int] = field(default_factory=dict)
    pays: float | None = None
    log: list[tuple[str, Key, Any]] = field(default_factory=list)
    most_open: int = 0
    closed: int = 0
    _ready: dict[Key, Event] = field(default_factory=dict)
    _later: dict[Key, Event] = field(default_factory=dict)
    _held: set[Key] = field(default_factory=set)

    def answering(self, *, seed: int, step: int) -> Echo:
        return self

    def open(self, key: Key, prompt: Prompt) -> None:
        assert key not in self._held
        self._held.add(key)
        self.most_open = max(self.most_open, len(self._held))
        self._note("open", key, prompt.id)
        failed = "no room" if self.fails.get(key[1]) == "open" else ""
        self.put(key, Opened(None if failed else self.opened.get(key[1]), failed))

    def begin(self, key: Key, turn: Rollout, number: int) -> None:
        self._note("begin", key, (number, turn.response))
        message = Message("assistant", f"{turn.response}, heard")
        if self.fails.get(key[1]) == number:
            self.put(key, Answer(message, ends=FinishReason.FAILED, failed="it broke"))
        elif number <= self.calls:
            said = (Message("tool", "echo"),)
            self.put(key, Answer(message, self.tokens, messages=said, reward=float(number), seconds=(0.25,)))
        else:
            self.put(key, Answer(message, ends=self.ends))

    def check(self) -> None: ...

    def finish(self, key: Key) -> None:
        self._note("finish", key, None)
        failed = self.fails.get(key[1]) == "close"
        self.put(key, Closed(None if failed else self.pays, "it says nothing" if failed else ""))

    def events(self, *, wait_for_all: bool) -> Mapping[Key, Event]:
        assert self._ready or self._later, "nothing was begun, so nothing can happen"
        if wait_for_all or not self._ready:
            self._ready |= self._later
            self._later = {}
        found, self._ready = self._ready, {}
        self._held -= {key for key, event in found.items() if event.failed or isinstance(event, Closed)}
        return dict(reversed(found.items()))

    def close(self) -> None:
        self.closed += 1

    def take_metrics(self) -> Mapping[str, Metric]:
        return {}

    def said(self, what: str) -> list[tuple[Key, Any]]:
        return [(key, value) for kind, key, value in self.log if kind == what]

    def _note(self, what: str, key: Key, value: Any) -> None:
        assert key in self._held
        self.log.append((what, key, value))

    def put(self, key: Key, event: Event) -> None:
        (self._later if key[1] in self.slow else self._ready)[key] = event
