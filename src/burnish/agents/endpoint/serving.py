"""A model served on its own, without training: it answers any client, and trajectories may be recorded.

`/v1` answers each request by itself. Under `/t/NAME/v1`, with any name, requests are one trajectory, which ends with
its reward or after some time without requests.
"""

from __future__ import annotations

import itertools
import json
import select
import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from burnish.agents.endpoint.chat_tokens import Speech
from burnish.agents.endpoint.request_queue import Desk, Order
from burnish.agents.endpoint.requests import RewardCall, Terms
from burnish.agents.endpoint.trajectory import Room, Trajectory
from burnish.agents.endpoint.turns import ScorePrompt, TurnSampler
from burnish.outside.listening import RefusedError
from burnish.rollouts.engine import RolloutEngine, Sampling, StoppableEngine
from burnish.types import Rollout, RolloutRequest

Record = Callable[[str], object]
"""Function that writes one line of JSON."""
_GATHER_SECONDS = 0.005
_POLL_SECONDS = 1.0
_NAME_CHARACTERS = 128


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Engine, template and limits of a server. idle_seconds: after which a trajectory without a reward ends. open:
    trajectories at a time. score: log-probabilities of prompts, where `terms` offer them."""

    engine: RolloutEngine
    speech: Speech
    terms: Terms
    room: Room
    seed: int = 0
    idle_seconds: float = 600.0
    open: int = 1_024
    score: ScorePrompt | None = None


@dataclass(slots=True)
class _Held:
    trajectory: Trajectory
    used: float


@dataclass(slots=True)
class StandingLoop:
    """Loop that answers the orders of a desk, in the thread that calls `run`."""

    standing: ServedModel
    record: Record | None = None
    desk: Desk = field(init=False)
    _held: dict[str, _Held] = field(default_factory=dict)
    _turns: TurnSampler = field(init=False)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        terms = self.standing.terms
        self.desk = Desk(lambda name: terms if len(name) <= _NAME_CHARACTERS else None)
        self._turns = TurnSampler(self._draw, terms.model, self.standing.seed, self.standing.score)

    def run(self) -> None:
        """Answer orders until the desk is closed. Raises what the engine raises; waiting clients are refused then."""
        poller = select.poll()
        poller.register(self.desk, select.POLLIN)
        try:
            while not self.desk.is_closed:
                poller.poll(1000 * _POLL_SECONDS)
                orders = self.desk.take()
                while orders and poller.poll(1000 * _GATHER_SECONDS):
                    orders += self.desk.take()
                self._end_idle(but={order.trajectory for order in orders})
                self._serve(orders)
        finally:
            self.desk.close()
            for name in list(self._held):
                self._end(name)

    def _draw(
        self, requests: Sequence[RolloutRequest], sampling: Sampling, *, stopped: Callable[[], bool], **given: Any
    ) -> tuple[list[Rollout], list[RolloutRequest]]:
        engine = self.standing.engine
        if isinstance(engine, StoppableEngine):
            return engine.generate_until(requests, sampling, step=0, stopped=stopped, **given)
        return engine.generate(requests, sampling, step=0, **given), []

    def _serve(self, orders: list[Order]) -> None:
        asked = []
        for order in orders:
            if isinstance(order.asked, RewardCall):
                self._reward(order, order.asked)
                continue
            try:
                asked.append((order, self._trajectory(order, order.asked.wish.seed)))
            except RefusedError as error:
                order.refuse(error)
        try:
            self._turns.speak(asked, self.standing.terms.sampling)
        except BaseException:
            for order, _ in asked:
                order.refuse(RefusedError(500, "the model has failed"))
            raise
        for order, trajectory in asked:
            if not order.trajectory:
                self._write("", trajectory)
            elif held := self._held.get(order.trajectory):
                held.used = time.monotonic()  # its client has waited until now

    def _trajectory(self, order: Order, seed: int | None) -> Trajectory:
        name = order.trajectory
        if name in self._held:
            return self._held[name].trajectory
        if len(self._held) >= self.standing.open:
            raise RefusedError(503, f"{self.standing.open:,} trajectories are open: end some with their rewards")
        request = RolloutRequest(name or self._own_name(seed), 0, (), (0,))
        sample = 0 if name else order.sample  # samples of a named trajectory are its branches
        trajectory = Trajectory(request, sample, self.standing.speech, self.standing.room)
        if name:
            self._held[name] = _Held(trajectory, time.monotonic())
        return trajectory

    def _own_name(self, seed: int | None) -> str:
        """Name a request outside of named trajectories; its noise is its own, or the same again for the same seed."""
        return f"request {next(self._numbers)}" if seed is None else f"request with seed {seed}"

    def _reward(self, order: Order, asked: RewardCall) -> None:
        held = self._held.get(order.trajectory)
        if held is None:
            order.refuse(RefusedError(404, "there is no such trajectory", code="trajectory_not_found"))
            return
        held.trajectory.reward = asked.reward
        self._end(order.trajectory)
        order.reply(None)

    def _end_idle(self, but: Set[str] = frozenset()) -> None:
        before = time.monotonic() - self.standing.idle_seconds
        for name in [name for name, held in self._held.items() if held.used < before and name not in but]:
            self._end(name)

    def _end(self, name: str) -> None:
        self._write(name, self._held.pop(name).trajectory)

    def _write(self, name: str, trajectory: Trajectory) -> None:
        if self.record is not None and trajectory.num_spoken:
            named = {"trajectory": name} if name else {}
            for row in trajectory.rollouts():
                self.record(json.dumps({**named, **row.to_dict()}) + "\n")
