"""Agents in a training run: programs that hold their conversations with the policy through the endpoint.

Each runs in its own process (`burnish.agents.environments.warm_parent`), with its own URL. The thread that calls
`generate` starts them, samples the turns that they request, and collects the rewards that they return.
"""

from __future__ import annotations

import secrets
import select
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from burnish.agents.conversation import Call, TalkingEngine
from burnish.agents.endpoint.chat_tokens import Speech
from burnish.agents.endpoint.request_queue import Desk, Order
from burnish.agents.endpoint.requests import Others, RewardCall, Terms
from burnish.agents.endpoint.server import ServerThread, Service
from burnish.agents.endpoint.trajectory import Room, Trajectory
from burnish.agents.endpoint.turns import TurnSampler
from burnish.agents.environments.messages import flag, number, text
from burnish.agents.environments.warm_parent import ConversationHost, ConversationProcess
from burnish.agents.partner import start_seed
from burnish.data.chat import turns_of
from burnish.observability.metrics import MetricStore, mean, total
from burnish.outside.frames import GarbledError
from burnish.outside.listening import RefusedError
from burnish.rollouts.engine import RolloutEngine, Sampling, keeping
from burnish.types import Metric, Prompt, Rollout, RolloutRequest

MODEL_NAME = "policy"
"""Name of the policy for agents."""
GIVEN = ("base_url", "api_key", "model", "messages")
"""Arguments of an agent besides the columns of its row; `messages` is the prompt as a conversation."""
_GATHER_SECONDS = 0.005
"""Once a turn is requested, seconds without another event until it is sampled."""
_MAX_POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class AgentTalk:
    """Settings of a domain's agents.

    turns: most turns of the policy in all branches of a trajectory. turn_tokens: most tokens of one. call_seconds: for
    an agent's work between two requests. open_seconds: until its first one. open: agents at a time. in_rounds: turns
    are sampled when every agent has requested one."""

    host: ConversationHost
    speech: Speech
    sampling: Sampling
    turns: int
    turn_tokens: int | None = None
    others: Others = "refuse"
    call_seconds: float = 30.0
    open_seconds: float = 60.0
    open: int = 256
    in_rounds: bool = False
    same_start: bool = True


@dataclass(slots=True, eq=False)
class _Agent:
    """A running agent. asks: its waiting requests. deadline: None while any waits. clean: nothing is left in its
    process of what it has started there."""

    trajectory: Trajectory
    process: ConversationProcess
    deadline: float | None
    asks: list[Order] = field(default_factory=list)
    over: bool = False
    failed: str = ""
    clean: bool = True

    def hear(self) -> None:
        """Take the messages of its process: that it has begun, or its result."""
        try:
            for message in self.process.receive():
                if "failed" in message:
                    self.end(text(message, "failed").removeprefix("reward: "))
                elif "opening" in message:
                    self.process.send({"do": "reward"})
                elif "reward" in message:
                    returned = number(message, "reward")
                    self.trajectory.reward = self.trajectory.reward if returned is None else returned
                    self.clean = flag(message, "clean")
                    self.end("")
                else:
                    raise GarbledError("an answer that nobody waits for")
        except GarbledError as error:
            self.end(f"its process sent {error}")
        if self.process.gone:
            self.end("its process has ended")

    def end(self, failed: str) -> None:
        """Note that it is over, and why if it failed. What is known already stays."""
        if not self.over:
            self.over, self.failed = True, f"the agent failed: {failed}" if failed else ""


class AgentServer:
    """The server that agents talk to, at `base_url(name)` for each trajectory that is open."""

    def __init__(self) -> None:
        self.key = secrets.token_urlsafe(24)
        self._terms: dict[str, Terms] = {}
        self.desk = Desk(self._terms.get)
        self._server = ServerThread(self.desk, Service(key=self.key))

    def open(self, terms: Terms) -> str:
        """Begin a trajectory; return its name, which nobody can guess."""
        name = secrets.token_hex(16)
        self._terms[name] = terms
        return name

    def base_url(self, name: str) -> str:
        return f"{self._server.url}/t/{name}/v1"

    def end(self, name: str) -> None:
        """Refuse further requests for this trajectory."""
        self._terms.pop(name, None)

    def close(self) -> None:
        """Refuse waiting requests, and end. Idempotent."""
        self._server.close()


class AgentEngine(TalkingEngine[AgentTalk]):
    """An engine whose responses are the conversations of agents with the policy, for prompts that have agents; other
    prompts go to `others`.

    A sample has a row for each branch of its trajectory, except for greedy responses and in evaluations, which keep
    only the branch that was continued last.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        others: RolloutEngine,
        talks: Mapping[str, tuple[AgentTalk, Prompt]],
        server: AgentServer,
        *,
        context_length: int,
    ) -> None:
        super().__init__(engine, others, talks)
        self._server = server
        self._context_length = context_length
        self._one_at_a_time = threading.Lock()  # there is one desk
        self._counts: Counter[str] = Counter()

    def hold(self, talk: AgentTalk, some: Sequence[tuple[RolloutRequest, Prompt]], call: Call) -> list[Rollout]:
        """See `TalkingEngine`."""
        most = call.sampling.max_response_tokens
        room = Room(talk.turns, min(talk.turn_tokens or most, most), most, self._context_length)
        with self._one_at_a_time, keeping(self._engine):
            return _Hall(talk, self._server, self._engine, call, room, self._counts).hold(some)

    def take_metrics(self) -> Mapping[str, Metric]:
        """See `RolloutEngine`."""
        counts = self._counts.copy()
        self._counts.clear()
        own = {
            "agent/started": total(counts["started"]),
            "agent/failed_fraction": mean(counts["failed"], counts["ended"]),
            "agent/timed_out_fraction": mean(counts["timed_out"], counts["ended"]),
            "agent/turns": total(counts["turns"]),
            "agent/refused": total(counts["refused"]),
            "agent/branches_mean": mean(counts["branches"], counts["ended"]),
        }
        return MetricStore.of([self._others.take_metrics(), own if counts else {}]).merged()


@dataclass(slots=True)
class _Hall:
    """The agents of one call with one talk."""

    _talk: AgentTalk
    _server: AgentServer
    _engine: RolloutEngine
    _call: Call
    _room: Room
    _counts: Counter[str]
    _open: dict[str, _Agent] = field(default_factory=dict)
    _terms: Terms = field(init=False)
    _turns: TurnSampler = field(init=False)

    def __post_init__(self) -> None:
        talk = self._talk
        self._terms = talk.speech.terms(talk.sampling, MODEL_NAME, self._room.context, talk.others)
        self._turns = TurnSampler(self._draw, MODEL_NAME, self._call.seed)

    def hold(self, requests: Sequence[tuple[RolloutRequest, Prompt]]) -> list[Rollout]:
        """Run the agents until all have ended; return the rows of their trajectories."""
        waiting = deque((request, prompt, i) for request, prompt in requests for i in request.sample_indices)
        rows: list[Rollout] = []
        quiet = False
        try:
            while waiting or self._open:
                while waiting and len(self._open) < self._talk.open:
                    self._start(*waiting.popleft())
                asking = any(agent.asks for agent in self._open.values())
                working = any(not agent.asks for agent in self._open.values())
                if asking and (not working or (quiet and not self._talk.in_rounds)):
                    self._speak()
                    quiet = False
                else:
                    quiet = not self._listen(patient=self._talk.in_rounds or not asking)
                rows += self._collect()
        finally:
            for name in list(self._open):  # after an error
                self._forget(name).process.close()
        self._counts["refused"] += self._turns.refused
        return rows

    def _draw(
        self, requests: Sequence[RolloutRequest], sampling: Sampling, *, stopped: object, **given: Any
    ) -> tuple[list[Rollout], list[RolloutRequest]]:
        """Sample all requests, none stopped early: a run's samples do not depend on when a client gives up."""
        self._counts["turns"] += len(requests)
        return self._engine.generate(requests, sampling, step=self._call.step, **given), []

    def _start(self, request: RolloutRequest, prompt: Prompt, index: int) -> None:
        talk, name = self._talk, self._server.open(self._terms)
        process = talk.host.lease()
        trajectory = Trajectory(request, index, talk.speech, self._room)
        self._open[name] = _Agent(trajectory, process, time.monotonic() + talk.open_seconds)
        self._counts["started"] += 1
        given = {
            "base_url": self._server.base_url(name),
            "api_key": self._server.key,
            "model": MODEL_NAME,
            "messages": [message.to_dict() for message in turns_of(prompt)],
        }
        seed = start_seed(self._call.seed, self._call.step, prompt.id, None if talk.same_start else index)
        process.send({"do": "open", "row": {**prompt.columns, **given}, "seed": seed})

    def _listen(self, *, patient: bool) -> bool:
        """Take events until a deadline or, if not `patient`, for a moment; return whether there were any."""
        now = time.monotonic()
        deadlines = [agent.deadline for agent in self._open.values() if agent.deadline is not None]
        left = max(min(deadlines, default=now + _MAX_POLL_SECONDS) - now, 0.0)
        poller = select.poll()
        poller.register(self._server.desk, select.POLLIN)
        by_number = {agent.process.fileno(): agent for agent in self._open.values()}
        for agent in by_number.values():
            agent.process.watch(poller)
        ready = poller.poll(1000 * min(left, _MAX_POLL_SECONDS if patient else _GATHER_SECONDS))
        # Orders first: a request that an agent sent before it ended is part of its trajectory.
        for order in self._server.desk.take():
            self._take(order)
        for descriptor, what in ready:
            if (ours := by_number.get(descriptor)) is None:
                continue
            if what & select.POLLOUT:  # a row may be larger than what a socket holds
                ours.process.flush()
            if what & ~select.POLLOUT:
                ours.hear()
        now = time.monotonic()
        for agent in self._open.values():
            if agent.deadline is not None and now > agent.deadline and not agent.over:
                patience = self._talk.call_seconds if agent.trajectory.branches else self._talk.open_seconds
                agent.end(f"no request and no end within {patience:g} s")
                self._counts["timed_out"] += 1
        return bool(ready)

    def _take(self, order: Order) -> None:
        agent = self._open.get(order.trajectory)
        if agent is None or agent.over:
            order.refuse(_over())
        elif isinstance(order.asked, RewardCall):
            agent.trajectory.reward = order.asked.reward
            order.reply(None)
        else:
            agent.asks.append(order)
            agent.deadline = None

    def _speak(self) -> None:
        """Sample the requested turns, in the order in which the agents were started."""
        asking = {order: agent for agent in self._open.values() for order in agent.asks}

        def heard(order: Order) -> None:
            agent = asking[order]
            agent.asks.remove(order)
            if not agent.asks:
                agent.deadline = time.monotonic() + self._talk.call_seconds

        orders = [(order, agent.trajectory) for order, agent in asking.items()]
        self._turns.speak(orders, self._call.sampling, heard)

    def _collect(self) -> list[Rollout]:
        """The rows of the agents that have ended."""
        found: list[Rollout] = []
        for name in [name for name, agent in self._open.items() if agent.over]:
            agent = self._forget(name)
            trajectory, failed = agent.trajectory, agent.failed
            if failed or not agent.clean:
                agent.process.close()
            else:
                self._talk.host.give_back(agent.process)
            if not failed and not trajectory.num_spoken:
                failed = "the agent failed: it requested no turn"
            self._counts.update(ended=1, failed=bool(failed), branches=len(trajectory.branches))
            rows = trajectory.rollouts(failed=failed, version=self._call.version, only_last=self._call.only_last)
            self._call.on_finished(rows)
            found += rows
        return found

    def _forget(self, name: str) -> _Agent:
        """Remove the agent, and refuse its waiting requests, such as requests of threads that it has left behind."""
        agent = self._open.pop(name)
        self._server.end(name)
        for order in agent.asks:
            order.refuse(_over())
        return agent


def _over() -> RefusedError:
    return RefusedError(404, "this trajectory is over", code="trajectory_not_found")
