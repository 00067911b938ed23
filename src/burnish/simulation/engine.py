"""One simulated engine: all its rows share a processor and advance by one token at the same time."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from burnish.simulation.settings import Decoding

_SAME_TOKEN = 1e-6
"""Rows whose ends are less than this part of a token apart end together."""


@dataclass(frozen=True, slots=True)
class Span:
    """Time span in which an engine had rows of a step's batch."""

    engine: int
    step: int
    start: float
    end: float


@dataclass(slots=True)
class SimulatedResponse:
    """One response, waiting or being sampled. `group` counts from the start of the run."""

    step: int
    group: int
    tokens: int
    version: int
    """Version of the weights that must sample it or, once it has begun, that sampled its first token."""


@dataclass(slots=True)
class Engine:
    """A simulated engine. Its clock counts decoded tokens per row, and a row ends when the clock reaches its length."""

    index: int
    decoding: Decoding
    prompt_tokens: float
    version: int = 0
    idle_seconds: float = 0.0
    spans: dict[int, Span] = field(default_factory=dict)
    _rows: list[tuple[float, int, SimulatedResponse]] = field(default_factory=list)
    """A heap, ordered by the clock at which rows end."""
    _clock: float = 0.0
    _context: float = 0.0
    _time: float = 0.0
    _stopped_until: float = 0.0
    _joined: int = 0

    @property
    def num_rows(self) -> int:
        return len(self._rows)

    def join(self, now: float, response: SimulatedResponse, prefill_seconds: float) -> None:
        """Begin a response. The engine decodes nothing while it reads the prompt."""
        self.advance(now)
        self.stop(now, prefill_seconds)
        self._joined += 1
        heapq.heappush(self._rows, (self._clock + response.tokens, self._joined, response))
        self._context += self.prompt_tokens
        known = self.spans.get(response.step)
        self.spans[response.step] = Span(self.index, response.step, now if known is None else known.start, now)

    def stop(self, now: float, seconds: float) -> None:
        """Stop decoding for a while: to read prompts, and to take weights in the middle of responses."""
        self._stopped_until = max(self._stopped_until, now) + seconds

    def advance(self, now: float) -> None:
        """Decode up to now."""
        seconds = now - max(self._time, self._stopped_until)
        if not self._rows:
            self.idle_seconds += max(0.0, now - self._time)
        elif seconds > 0:
            tokens = self.decoding.tokens(seconds, len(self._rows), self._context)
            self._clock += tokens
            self._context += tokens * len(self._rows)
        self._time = max(self._time, now)

    def next_end(self) -> float | None:
        """Time at which the next row ends, if none joins before."""
        if not self._rows:
            return None
        tokens = max(0.0, self._rows[0][0] - self._clock)
        return max(self._time, self._stopped_until) + self.decoding.seconds(tokens, len(self._rows), self._context)

    def finish(self, now: float) -> list[SimulatedResponse]:
        """Remove and return the rows that end now. To be called at `next_end`."""
        self.advance(now)
        if not self._rows:
            return []
        done: list[SimulatedResponse] = []
        end = self._rows[0][0] + _SAME_TOKEN
        self._clock = self._rows[0][0]  # exactly, without rounding errors
        while self._rows and self._rows[0][0] <= end:
            response = heapq.heappop(self._rows)[2]
            self._context -= self.prompt_tokens + response.tokens
            self.spans[response.step] = Span(self.index, response.step, self.spans[response.step].start, now)
            done.append(response)
        if not self._rows:
            self._context = 0.0
        return done
