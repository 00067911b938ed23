"""Plays the steps of a run in time: which engine samples which response with which weights, and when a batch is ready.

An event-driven simulation. Engines share their processor among their rows (`engine`); the trainers are one machine that
takes a batch, updates, and pushes the weights. Three rules say which weights may sample a batch, in steps of the loop:

- exact (default): the batch of step s is sampled by the weights after step max(0, s - 1 - max_staleness). An engine
  finishes its responses of one version before it takes the next one; other engines do not wait for it.
- window, as in other trainers: groups may overtake a slow one. A step takes the first groups that are done among the
  oldest one and the next prompts_per_step + window - 1; `window` more groups are open at a time. Every response
  begins with the newest weights. Staleness is at most max_staleness + 1 + ceil((2 window - 1) / prompts_per_step).
- partial: engines take new weights in the middle of responses.

With `stream` parts, the trainers begin with a part of a batch as soon as so many groups are there.

Colocated devices need no separate rule: with max_staleness 0, sampling and training alternate anyway.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import count, takewhile
from typing import Literal

from burnish.errors import ConfigError
from burnish.simulation.engine import Engine, SimulatedResponse, Span
from burnish.simulation.lengths import draw
from burnish.simulation.settings import Layout, SimulationSettings

MAX_RESPONSES = 1024
"""Largest number of responses per step to simulate. For a larger step, only a part of the (equal) engines is."""
_TAIL = 0.95
"""Fraction of a batch's responses after which its tail begins."""

Event = Literal["rows", "group", "part", "updated", "pushed"]


@dataclass(frozen=True, slots=True)
class PlayedStep:
    """One step of the loop. Times in seconds from the start of the run."""

    step: int
    nearly_ready: float
    """Time at which all but 5 % of the batch's responses were sampled."""
    ready: float
    """Time at which the batch, or its last part, was sampled and scored, and the trainers took it."""
    began: float
    """Time at which the trainers took the batch, or its first part."""
    updated: float
    staleness: Counter[int]
    """Steps between the weights that sampled a response's first token and the update that uses it -> responses."""
    waited: float
    """Time for which the trainers were idle before the step."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Result of a play. `spans` and `sampler_idle_fraction` cover the simulated engines."""

    steps: tuple[PlayedStep, ...]
    spans: tuple[Span, ...]
    sampler_idle_fraction: float


def play(settings: SimulationSettings, layout: Layout, num_steps: int) -> Timeline:
    """Play so many steps on these devices. Raises ConfigError if they cannot hold one engine."""
    if layout.samplers < settings.devices_per_engine:
        raise ConfigError(
            f"{layout.samplers} sampling devices cannot hold an engine of {settings.devices_per_engine}",
            remedy="give more devices, or lower devices_per_engine",
        )
    return _Play(settings, layout, num_steps).run()


@dataclass(slots=True)
class _Batch:
    """State of a step's batch while it is sampled."""

    missing: int
    late: int
    """Number of responses in its tail."""
    nearly_ready: float = 0.0


@dataclass(slots=True)
class _Group:
    """A group of responses: the number of missing ones, and the weights that began each."""

    missing: int
    versions: list[int] = field(default_factory=list)
    done: bool = False


@dataclass(slots=True)
class _Part:
    """The parts of the current step that were trained on."""

    groups: int = 0
    began: float | None = None
    waited: float = 0.0
    staleness: Counter[int] = field(default_factory=Counter)


class _Play:
    """The state of a play, with a method for each kind of event."""

    def __init__(self, settings: SimulationSettings, layout: Layout, num_steps: int) -> None:
        self.settings, self.layout, self.num_steps = settings, layout, num_steps
        num_engines = layout.samplers // settings.devices_per_engine
        self.prompts, played = _played(settings, num_engines)
        self.stands_for = max(1, round(settings.prompts_per_step / self.prompts))
        self.engines = [Engine(i, settings.decoding, settings.prompt_tokens) for i in range(played)]
        self.events: list[tuple[float, int, Event, int, int]] = []
        self.order = count()
        self.stamps = [0] * played
        self.free: list[tuple[int, int]] = [(0, i) for i in range(played)]
        """A heap of (rows, engine); outdated entries are skipped."""
        self.waiting: deque[SimulatedResponse] = deque()
        self.open = 0
        self.dice = random.Random(settings.seed)
        self.groups: dict[int, _Group] = {}
        """Groups that no step has taken yet, in the order in which they were opened."""
        self.batches: dict[int, _Batch] = {}
        self.lengths: list[int] = []
        """Lengths of the newest batch's responses that were not opened yet."""
        self.opened_groups = 0
        self.version = 0
        self.steps: list[PlayedStep] = []
        self.part = _Part()
        self.training = False
        self.free_since = 0.0

    def run(self) -> Timeline:
        self.open_batches()
        self.dispatch(0.0)
        while self.events and len(self.steps) < self.num_steps:
            now, _, kind, index, stamp = heapq.heappop(self.events)
            if kind == "rows" and stamp == self.stamps[index]:
                self.rows_ended(now, index)
            elif kind == "group":
                self.groups[index].done = True
                self.begin_part(now)
            elif kind == "part":
                self.training, self.free_since = False, now
                self.begin_part(now)
            elif kind == "updated":
                self.updated(now, index)
            elif kind == "pushed":
                self.version = index
                self.open_batches()
                self.dispatch(now)
        return self.timeline()

    def open_batches(self) -> None:
        """Open all groups that the current weights may sample."""
        allowed = (self.version + self.settings.max_staleness + 1) * self.prompts
        allowed += round(self.settings.window / self.stands_for)
        size = self.settings.group_size
        while self.opened_groups < allowed:
            step = self.opened_groups // self.prompts + 1
            if step not in self.batches:
                responses = self.prompts * size
                self.batches[step] = _Batch(responses, max(1, math.floor(responses * (1 - _TAIL))))
                self.lengths = draw(self.settings.lengths, responses, self.dice, stands_for=self.stands_for)
            self.groups[self.opened_groups] = _Group(size)
            for _ in range(size):
                self.waiting.append(SimulatedResponse(step, self.opened_groups, self.lengths.pop(), self.version))
            self.open += size
            self.opened_groups += 1

    def dispatch(self, now: float) -> None:
        """Give waiting responses to the engines with the fewest rows, up to a fair share for each."""
        places = min(self.settings.rows_per_engine, math.ceil(self.shared_out() / len(self.engines)))
        touched: set[int] = set()
        while self.waiting and self.free:
            rows, index = heapq.heappop(self.free)
            engine = self.engines[index]
            if rows != engine.num_rows or not self.may_take(engine, self.waiting[0]):
                continue  # an engine that may not take the first response returns when one of its rows ends
            if rows >= places:
                heapq.heappush(self.free, (rows, index))
                break
            response = self.waiting.popleft()
            if self.settings.partial or self.settings.window:
                response.version = self.version
            engine.version = response.version
            engine.join(now, response, self.settings.prefill_seconds)
            self.groups[response.group].versions.append(response.version)
            heapq.heappush(self.free, (engine.num_rows, index))
            touched.add(index)
        for index in touched:
            self.expect(index)

    def shared_out(self) -> int:
        """Number of responses to share out equally: all open ones if any engine may take them, else one batch, because
        the first engine to finish a version must not take responses for which others will soon be free."""
        if self.settings.partial:
            return self.open
        return (self.prompts + round(self.settings.window / self.stands_for)) * self.settings.group_size

    def may_take(self, engine: Engine, response: SimulatedResponse) -> bool:
        """Return whether the engine has the right weights, or can change them because it has no row."""
        if self.settings.partial or engine.num_rows == 0:
            return True
        wanted = self.version if self.settings.window else response.version
        return engine.version == wanted

    def expect(self, index: int) -> None:
        """Schedule the event of the engine's next end of a row; earlier such events become void."""
        self.stamps[index] += 1
        end = self.engines[index].next_end()
        if end is not None:
            self.tell(end, "rows", index, self.stamps[index])

    def tell(self, time: float, kind: Event, index: int, stamp: int = 0) -> None:
        heapq.heappush(self.events, (time, next(self.order), kind, index, stamp))

    def rows_ended(self, now: float, index: int) -> None:
        engine = self.engines[index]
        for response in engine.finish(now):
            self.open -= 1
            group, batch = self.groups[response.group], self.batches[response.step]
            group.missing -= 1
            batch.missing -= 1
            if batch.missing == batch.late:
                batch.nearly_ready = now
            if group.missing == 0:
                self.tell(now + self.settings.reward_seconds, "group", response.group)
        heapq.heappush(self.free, (engine.num_rows, index))
        self.expect(index)
        self.dispatch(now)

    def begin_part(self, now: float) -> None:
        """Train on the next part of a batch (all of it unless `stream` is above 1) if the trainers are free."""
        taken = [] if self.training or len(self.steps) == self.num_steps else self.part_groups()
        if not taken:
            return
        part, settings = self.part, self.settings
        part.groups += len(taken)
        part.waited += max(0.0, now - self.free_since)
        for index in taken:
            part.staleness.update(len(self.steps) - version for version in self.groups.pop(index).versions)
        part.began = now if part.began is None else part.began
        seconds = settings.training_seconds(self.layout.trainers) * len(taken) / self.prompts
        self.training = True
        if part.groups < self.prompts:
            self.tell(now + seconds, "part", 0)
            return
        step = len(self.steps) + 1
        nearly = now if settings.window else self.batches[step].nearly_ready
        self.steps.append(PlayedStep(step, nearly, now, part.began, now + seconds, part.staleness, part.waited))
        self.part = _Part()
        self.tell(now + seconds, "updated", step)

    def part_groups(self) -> list[int]:
        """The groups of the next part; empty until enough are scored."""
        step, window = len(self.steps) + 1, self.settings.window
        size = min(-(-self.prompts // self.settings.stream), self.prompts - self.part.groups)
        if window:
            end = next(iter(self.groups)) + self.prompts + max(1, round(window / self.stands_for))
            candidates = list(takewhile(lambda index: index < end, self.groups))
        else:
            batch = range((step - 1) * self.prompts, step * self.prompts)
            candidates = [index for index in batch if index in self.groups]
        done = [index for index in candidates if self.groups[index].done]
        return done[:size] if len(done) >= size else []

    def updated(self, now: float, step: int) -> None:
        """Handle the end of an update. The new weights are pushed while the trainers go on."""
        self.training, self.free_since = False, now
        push = self.settings.push.seconds(self.layout.samplers)
        if self.settings.partial:
            for engine in self.engines:
                engine.advance(now)
                engine.stop(now, push)
                self.expect(engine.index)
        self.tell(now + push, "pushed", step)
        self.begin_part(now)

    def timeline(self) -> Timeline:
        end = self.steps[-1].updated if self.steps else 0.0
        for engine in self.engines:
            engine.advance(end)
        idle = sum(engine.idle_seconds for engine in self.engines)
        spans = [span for engine in self.engines for span in engine.spans.values()]
        return Timeline(
            steps=tuple(self.steps),
            spans=tuple(sorted(spans, key=lambda span: (span.engine, span.start))),
            sampler_idle_fraction=idle / (len(self.engines) * end) if end else 0.0,
        )


def _played(settings: SimulationSettings, num_engines: int) -> tuple[int, int]:
    """Numbers of prompts per step and engines to simulate, in their real proportion."""
    share = max(settings.responses_per_step / MAX_RESPONSES, 1.0)
    engines = max(1, min(num_engines, round(num_engines / share)))
    prompts = max(1, round(settings.prompts_per_step * engines / num_engines))
    return prompts, engines
