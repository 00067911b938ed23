"""Conversations: the policy speaks, tools or an environment answer, and the policy goes on.

An engine samples one turn of many conversations at a time. What it is given is the prompt and everything since, token
by token as it was sampled or appended, so a conversation is trained on exactly as it was seen. Whoever has an answer
goes on; nobody waits for a slow tool, unless `in_rounds`.

A turn is a request of its own to the engine, so every engine can hold conversations. Its noise is a function of (seed,
step, prompt id and turn, sample index, position in the turn), so it does not matter what is sampled together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from burnish.models.weights import Weights
from burnish.observability.metrics import MetricStore
from burnish.rollouts.engine import OnFinished, RestingEngine, RolloutEngine, Sampling, let_rest
from burnish.rollouts.portions import in_order
from burnish.types import Author, FinishReason, Message, Metric, Prompt, Rollout, RolloutRequest, Turn, Versions

ConversationKey = tuple[int, int]
"""Group and sample index of a conversation."""
Draw = Callable[..., list[Rollout]]
"""`RolloutEngine.generate`, for some requests."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What follows a turn of the policy. Without tokens the conversation ends, for the reason that `ends` names.

    message: the policy's turn, as tools and rewards understand it. tokens: what is appended, which says `messages`.
    reward: of the policy's turn.
    """

    message: Message
    tokens: tuple[int, ...] = ()
    author: Author = "tool"
    messages: tuple[Message, ...] = ()
    ends: FinishReason | None = None
    reward: float | None = None
    detail: str = ""


class Answerer(Protocol):
    """Tools, or an environment, for all conversations of a call."""

    def begin(self, key: ConversationKey, prompt: Prompt, turn: Rollout, number: int) -> None:
        """Start answering a turn, without waiting. `turn` has only this turn's tokens and text; `number` counts the
        policy's turns, from 1."""
        ...

    def answers(self, *, wait_for_all: bool) -> Mapping[ConversationKey, Answer]:
        """The answers that there are, at least one; or those to all turns that were begun. Each has a deadline."""
        ...

    def take_metrics(self) -> Mapping[str, Metric]:
        """Metrics since the last call, by name."""
        ...


@dataclass(frozen=True, slots=True)
class ConversationLimits:
    """turns: of the policy. tokens: of all turns and answers together."""

    turns: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Talk:
    """How conversations are held. in_rounds: the next turns are sampled when all answers are there."""

    answerer: Answerer
    limits: ConversationLimits
    in_rounds: bool = False


@dataclass(slots=True)
class Conversation:
    """One conversation. Turns alternate; the policy has the first and the last one. `reason`: why it ended."""

    request: RolloutRequest
    sample_index: int
    prompt: Prompt
    most_tokens: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    versions: list[tuple[int, int]] = field(default_factory=list)
    response: str = ""
    reason: FinishReason | None = None
    detail: str = ""

    @property
    def key(self) -> ConversationKey:
        return self.request.group_id, self.sample_index

    @property
    def num_spoken(self) -> int:
        """How many turns the policy has had."""
        return sum(turn.author == "policy" for turn in self.turns)

    def next_request(self) -> RolloutRequest:
        """For the next turn of the policy. Its noise is another one than that of the turns before."""
        name = f"{self.request.prompt_id}, turn {self.num_spoken + 1}" if self.turns else self.request.prompt_id
        return replace(
            self.request,
            prompt_id=name,
            prompt_tokens=self.request.prompt_tokens + tuple(self.tokens),
            sample_indices=(self.sample_index,),
        )

    def say(self, turn: Rollout) -> None:
        """Append a turn of the policy. One that is cut ends the conversation."""
        left, start = self.most_tokens - len(self.tokens), len(self.tokens)
        self.tokens += turn.response_tokens[:left]
        self.logprobs += turn.rollout_logprobs[:left]
        self.turns.append(Turn("policy", start, len(self.tokens), (Message("assistant", turn.response),)))
        if not self.versions or self.versions[-1][1] != turn.policy_version:
            self.versions.append((start, turn.policy_version))
        self.response = turn.response
        if turn.finish_reason is FinishReason.LENGTH or len(turn.response_tokens) > left:
            self.reason = FinishReason.LENGTH

    def hear(self, answer: Answer, limits: ConversationLimits) -> None:
        """Note how the last turn was understood, and append what follows it, if there is room for that and more."""
        self.turns[-1] = replace(self.turns[-1], messages=(answer.message,), reward=answer.reward)
        after = len(self.tokens) + len(answer.tokens)
        if answer.ends is not None:
            self.reason, self.detail = answer.ends, answer.detail
        elif self.num_spoken == limits.turns:
            self.reason = FinishReason.TURNS
        elif after >= self.most_tokens:
            self.reason = FinishReason.LENGTH
        else:
            self.turns.append(Turn(answer.author, len(self.tokens), after, answer.messages))
            self.tokens += answer.tokens
            self.logprobs += [0.0] * len(answer.tokens)

    def rollout(self) -> Rollout:
        """All of it as one response."""
        assert self.reason is not None
        versions: Versions = tuple(self.versions)
        return Rollout(
            prompt_id=self.request.prompt_id,
            group_id=self.request.group_id,
            sample_index=self.sample_index,
            prompt_tokens=self.request.prompt_tokens,
            response_tokens=tuple(self.tokens),
            rollout_logprobs=tuple(self.logprobs),
            finish_reason=self.reason,
            policy_version=versions[0][1],
            response=self.response,
            status_detail=self.detail,
            versions=versions if len(versions) > 1 else (),
            turns=tuple(self.turns),
        )


class ConversingEngine(RestingEngine):
    """An engine whose responses are conversations, for the prompts that hold them; others go to the engine itself."""

    def __init__(self, engine: RolloutEngine, talks: Mapping[str, tuple[Talk, Prompt]], *, context_length: int) -> None:
        """`talks`: by the id of the prompt."""
        self._engine = engine
        self._talks = talks
        self._context_length = context_length
        self._metrics = MetricStore()

    def generate(
        self,
        requests: Sequence[RolloutRequest],
        sampling: Sampling,
        *,
        seed: int,
        step: int,
        on_finished: OnFinished | None = None,
    ) -> list[Rollout]:
        """See `RolloutEngine`. Raises what the engine raises."""
        draw = partial(self._engine.generate, sampling=sampling, seed=seed, step=step)
        single = [request for request in requests if request.prompt_id not in self._talks]
        rollouts = draw(single, on_finished=on_finished) if single else []
        by_talk: dict[int, list[RolloutRequest]] = {}
        for request in requests:
            if request.prompt_id in self._talks:
                by_talk.setdefault(id(self._talks[request.prompt_id][0]), []).append(request)
        for some in by_talk.values():
            talk, _ = self._talks[some[0].prompt_id]
            rollouts += self._converse(talk, self._opened(some, talk), draw, on_finished or _nothing)
        return in_order(requests, rollouts)

    def _opened(self, requests: Sequence[RolloutRequest], talk: Talk) -> list[Conversation]:
        return [
            Conversation(
                request,
                index,
                self._talks[request.prompt_id][1],
                min(talk.limits.tokens, self._context_length - len(request.prompt_tokens)),
            )
            for request in requests
            for index in request.sample_indices
        ]

    def _converse(self, talk: Talk, ready: list[Conversation], draw: Draw, on_finished: OnFinished) -> list[Rollout]:
        """Until all of them have ended. Those that are `ready` have the next turn."""
        by_key = {conversation.key: conversation for conversation in ready}
        ended: list[Rollout] = []
        waiting = 0
        while ready or waiting:
            waiting += self._speak(talk, ready, draw)
            silent = [one for one in ready if one.reason is not None]
            answers = talk.answerer.answers(wait_for_all=talk.in_rounds) if waiting else {}
            heard = [one for key, one in by_key.items() if key in answers]  # in one order, whoever was faster
            for one in heard:
                one.hear(answers[one.key], talk.limits)
            waiting -= len(heard)
            done = [one.rollout() for one in (*silent, *heard) if one.reason is not None]
            on_finished(done)
            ended += done
            ready = [one for one in heard if one.reason is None]
        return ended

    def _speak(self, talk: Talk, ready: Sequence[Conversation], draw: Draw) -> int:
        """Sample the next turn of these, and begin to answer it, as early as the engine says that it has ended. Returns
        how many turns will be answered."""
        by_key = {conversation.key: conversation for conversation in ready}
        said: set[ConversationKey] = set()

        def say(turns: Sequence[Rollout]) -> None:
            for turn in turns:
                one = by_key[turn.group_id, turn.sample_index]
                if one.key in said:
                    continue
                said.add(one.key)
                one.say(turn)
                if one.reason is None:
                    talk.answerer.begin(one.key, one.prompt, turn, one.num_spoken)

        if ready:
            say(draw([one.next_request() for one in ready], on_finished=say))
        return sum(one.reason is None for one in ready)

    def sync(self, weights: Weights) -> None:
        """See `RolloutEngine`."""
        self._engine.sync(weights)

    def take_metrics(self) -> Mapping[str, Metric]:
        """See `RolloutEngine`."""
        talks = {id(talk): talk for talk, _ in self._talks.values()}
        return MetricStore.of(
            [self._engine.take_metrics(), *(t.answerer.take_metrics() for t in talks.values())]
        ).merged()

    def rest(self) -> None:
        """See `RestingEngine`."""
        let_rest(self._engine)


def _nothing(rollouts: Sequence[Rollout]) -> None:
    pass
