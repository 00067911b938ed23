"""Conversations: the policy speaks, tools or an environment answer, and the policy goes on.

An engine samples one turn of many conversations at a time. Its input is the prompt and all tokens since, exactly as
they were sampled or appended, so a conversation is trained on exactly as it was seen. Each conversation goes on as soon
as it has its answer; none waits for a slow tool, unless `in_rounds`.

Each turn is a separate request to the engine, so every engine can hold conversations. Its noise is a function of (seed,
step, prompt id and turn, sample index, position in the turn), so it does not depend on what is sampled together.
"""

from __future__ import annotations

import sys
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic, Protocol, TypeVar

from burnish.errors import RolloutError
from burnish.models.weights import Weights
from burnish.observability.metrics import MetricStore
from burnish.rollouts.engine import OnFinished, Requests, RestingEngine, RolloutEngine, Sampling, keeping, let_rest
from burnish.rollouts.portions import in_order
from burnish.types import (
    Author,
    FinishReason,
    Message,
    Metric,
    Prompt,
    RewardStatus,
    Rollout,
    RolloutRequest,
    Seconds,
    TokenPart,
    Turn,
)

ConversationKey = tuple[int, int]
"""Group and sample index of a conversation."""
Draw = Callable[..., list[Rollout]]
"""`RolloutEngine.generate`, for some requests."""
Decode = Callable[[Sequence[int]], str]
"""The text of tokens, special ones included."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A conversation can begin. prompt_tokens: its prompt, if an environment has added to it. failed: why it cannot."""

    prompt_tokens: tuple[int, ...] | None = None
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The continuation after a turn of the policy. Without tokens the conversation ends, for the reason in `ends`.

    message: the policy's turn, parsed for tools and rewards. tokens: the tokens of `messages`, to be appended; or, if
    `is_whole`, of the whole conversation so far, whose history was rewritten. messages: the last words, if it ends.
    reward: of the policy's turn. failed: why the environment cannot go on. seconds: that `messages` took.
    """

    message: Message
    tokens: tuple[int, ...] = ()
    author: Author = "tool"
    messages: tuple[Message, ...] = ()
    is_whole: bool = False
    ends: FinishReason | None = None
    reward: float | None = None
    failed: str = ""
    seconds: Seconds = ()


@dataclass(frozen=True, slots=True)
class Closed:
    """A conversation is over. reward: its environment's, for all of it. failed: why there is none."""

    reward: float | None = None
    failed: str = ""


Event = Opened | Answer | Closed


class Answerer(Protocol):
    """Tools, or an environment, for the conversations of one call. Everything is begun without waiting, and comes back
    as one of the `events`, which have deadlines."""

    def open(self, key: ConversationKey, prompt: Prompt) -> None:
        """Begin a conversation: `Opened`."""

    def begin(self, key: ConversationKey, turn: Rollout, number: int) -> None:
        """Answer a turn: `Answer`. `turn` has only this turn's tokens and text; `number` counts the policy's turns,
        from 1."""

    def finish(self, key: ConversationKey) -> None:
        """End a conversation that nothing has failed in: `Closed`."""

    def events(self, *, wait_for_all: bool) -> Mapping[ConversationKey, Event]:
        """Wait for events: at least one, or, with `wait_for_all`, one for everything begun."""

    def check(self) -> None:
        """Raise OutageError if in too many of the conversations a tool has failed at every call."""

    def close(self) -> None:
        """Drop all conversations."""


class Partner(Protocol):
    """The other side of conversations: tools, or an environment."""

    def answering(self, *, seed: int, step: int) -> Answerer:
        """The answerer for one call. May be requested from several threads."""

    def take_metrics(self) -> Mapping[str, Metric]:
        """Return the metrics since the last call, by name."""


@dataclass(frozen=True, slots=True)
class Talk:
    """Partner and limits of conversations.

    turns: most turns of the policy. turn_tokens: most tokens of one; all turns and answers together have the limit of a
    response. in_rounds: the next turns are sampled when all answers are there. open: conversations at a time.
    """

    partner: Partner
    turns: int
    turn_tokens: int | None = None
    in_rounds: bool = False
    open: int = 256


@dataclass(slots=True)
class GrowingRow:
    """The tokens after a prompt: turns of the policy, and what others say in between. versions: of the weights that
    sampled it, each with the position of its first token. seconds: of each turn."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    versions: list[tuple[int, int]] = field(default_factory=list)
    seconds: list[Seconds] = field(default_factory=list)

    def say(self, turn: Rollout, message: Message, seconds: float) -> None:
        """Append a turn of the policy, which means this message and took so long to sample."""
        if not self.versions or self.versions[-1][1] != turn.policy_version:
            self.versions.append((len(self.tokens), turn.policy_version))
        self.tokens += turn.response_tokens
        self.logprobs += turn.rollout_logprobs
        self.turns.append(Turn("policy", len(self.tokens) - len(turn.response_tokens), len(self.tokens), (message,)))
        self.seconds.append((seconds,))

    def hear(self, tokens: Sequence[int], author: Author, messages: Sequence[Message], seconds: Seconds) -> None:
        """Append tokens that were not sampled."""
        self.turns.append(Turn(author, len(self.tokens), len(self.tokens) + len(tokens), tuple(messages)))
        self.tokens += tokens
        self.logprobs += [0.0] * len(tokens)
        self.seconds.append(seconds)

    def rollout(self, request: RolloutRequest, sample_index: int, reason: FinishReason, version: int) -> Rollout:
        """Make a rollout of all tokens, as one response. version: of the weights, if none has sampled."""
        return Rollout(
            prompt_id=request.prompt_id,
            group_id=request.group_id,
            sample_index=sample_index,
            prompt_tokens=request.prompt_tokens,
            response_tokens=tuple(self.tokens),
            rollout_logprobs=tuple(self.logprobs),
            finish_reason=reason,
            policy_version=self.versions[0][1] if self.versions else version,
            versions=tuple(self.versions) if len(self.versions) > 1 else (),
            turns=tuple(self.turns),
            turn_seconds=tuple(self.seconds),
        )


def cut_to(most_tokens: int, turn: Rollout, decode: Decode) -> Rollout:
    """The turn, cut if it is longer. A reward must not see text that is not trained on."""
    if len(turn.response_tokens) <= most_tokens:
        return turn
    tokens = turn.response_tokens[:most_tokens]
    return replace(
        turn,
        response_tokens=tokens,
        rollout_logprobs=turn.rollout_logprobs[:most_tokens],
        response=decode(tokens),
        finish_reason=FinishReason.LENGTH,
    )


@dataclass(slots=True)
class Conversation:
    """One conversation. Turns alternate; the policy has the first and the last one.

    version: of the weights that sample. num_spoken: turns that the policy has had. most_tokens: limit after the prompt.
    earlier: the finished rows from before the history was last rewritten, each with the turns since the previous
    rewrite. history: their messages. reason: why the conversation ended. failed: what was wrong with its environment.
    """

    request: RolloutRequest
    sample_index: int
    prompt: Prompt
    most_tokens: int
    context_length: int
    version: int
    decode: Decode
    row: GrowingRow = field(default_factory=GrowingRow)
    num_spoken: int = 0
    response: str = ""
    earlier: list[Rollout] = field(default_factory=list)
    history: tuple[Message, ...] = ()
    reason: FinishReason | None = None
    failed: str = ""
    reward: float | None = None

    @property
    def key(self) -> ConversationKey:
        return self.request.group_id, self.sample_index

    def next_request(self) -> RolloutRequest:
        """The request for the policy's next turn, with its own noise."""
        return replace(
            self.request,
            turn=self.num_spoken + 1,
            parts=(*self.request.parts, TokenPart(tuple(self.row.tokens))),
            sample_indices=(self.sample_index,),
        )

    def take(self, event: Event, talk: Talk) -> None:
        """Record an event."""
        match event:
            case Opened():
                if event.prompt_tokens is not None:
                    self.request = replace(self.request, parts=(TokenPart(event.prompt_tokens),))
                self._measure()
            case Answer():
                self._hear(event, talk)
            case Closed():
                self.reward = event.reward
        if event.failed:
            self.reason, self.failed = FinishReason.FAILED, event.failed

    def say(self, turn: Rollout, seconds: float) -> None:
        """Append a turn of the policy. One that is cut ends the conversation."""
        turn = cut_to(self.most_tokens - len(self.row.tokens), turn, self.decode)
        self.row.say(turn, Message("assistant", turn.response), seconds)
        self.response = turn.response
        self.num_spoken += 1
        if turn.finish_reason is FinishReason.LENGTH:
            self.reason = FinishReason.LENGTH

    def _measure(self) -> None:
        """Record how many tokens may follow the prompt."""
        prompt_tokens = len(self.request.prompt_tokens)
        self.most_tokens = min(self.most_tokens, self.context_length - prompt_tokens)
        if self.most_tokens <= 0:
            self.reason = FinishReason.FAILED
            self.failed = f"the prompt has {prompt_tokens:,} tokens, but the context only {self.context_length:,}"

    def _hear(self, answer: Answer, talk: Talk) -> None:
        """Record the parsed turn, and append the answer if there is room for it and for another turn."""
        last_words = () if answer.ends is None else answer.messages
        turns = self.row.turns
        turns[-1] = replace(turns[-1], messages=(answer.message, *last_words), reward=answer.reward)
        self.row.seconds[-1] += () if answer.ends is None else answer.seconds
        if answer.is_whole:
            answer = self._appended(answer)
        after = len(answer.tokens) + (-len(self.request.prompt_tokens) if answer.is_whole else len(self.row.tokens))
        if answer.ends is not None:
            self.reason = answer.ends
        elif self.num_spoken == talk.turns:
            self.reason = FinishReason.TURNS
        elif after >= self.most_tokens:
            self.reason = FinishReason.LENGTH
        elif answer.is_whole:
            self._go_on_elsewhere(answer)
        else:
            self.row.hear(answer.tokens, answer.author, answer.messages, answer.seconds)

    def _appended(self, answer: Answer) -> Answer:
        """The answer as tokens to append, if the whole conversation repeats its history unchanged."""
        seen = (*self.request.prompt_tokens, *self.row.tokens)
        if answer.tokens[: len(seen)] != seen:
            return answer
        return replace(answer, tokens=answer.tokens[len(seen) :], is_whole=False)

    def _go_on_elsewhere(self, answer: Answer) -> None:
        """Leave the turns so far behind as a row, and begin another one, whose prompt is the whole history."""
        self.earlier.append(self._row(FinishReason.STOP))
        said = (message for turn in self.row.turns for message in turn.messages)
        self.history = (*self.history, *said, *answer.messages)
        self.most_tokens += len(self.request.prompt_tokens) - len(answer.tokens)  # the total length stays the same
        self.request = replace(self.request, parts=(TokenPart(answer.tokens),))
        self.row = GrowingRow()

    def rollouts(self, *, only_last: bool) -> list[Rollout]:
        """Its rows, the last of which is branch 0. Usually there is no other."""
        assert self.reason is not None
        earlier = [
            replace(row, branch=branch, ends_in=self.sample_index) for branch, row in enumerate(self.earlier, start=1)
        ]
        rows = [*([] if only_last else earlier), self._row(self.reason)]
        if self.failed:
            rows = [replace(row, finish_reason=FinishReason.FAILED, status=RewardStatus.ERROR) for row in rows]
        return [replace(row, environment_reward=self.reward, status_detail=self.failed) for row in rows]

    def _row(self, reason: FinishReason) -> Rollout:
        row = self.row.rollout(self.request, self.sample_index, reason, self.version)
        return replace(row, response=self.response, history=self.history)


@dataclass(frozen=True, slots=True)
class Call:
    """Arguments of a call of `generate`. version: of the weights."""

    sampling: Sampling
    seed: int
    step: int
    version: int
    on_finished: OnFinished

    @property
    def only_last(self) -> bool:
        """True if a sample has only one row. A greedy response is never trained on."""
        return self.sampling.only_scored or self.sampling.greedy


T = TypeVar("T")


class TalkingEngine(RestingEngine, Generic[T]):
    """An engine whose responses to some prompts are conversations; all other responses come from `others`."""

    def __init__(self, engine: RolloutEngine, others: RolloutEngine, talks: Mapping[str, tuple[T, Prompt]]) -> None:
        """engine: samples turns. talks: by the id of the prompt."""
        self._engine = engine
        self._others = others
        self._talks = talks
        self._version = 0

    def generate(
        self, requests: Requests, sampling: Sampling, *, seed: int, step: int, on_finished: OnFinished | None = None
    ) -> list[Rollout]:
        """See `RolloutEngine`, but for the number of rows. Raises what the engine raises."""
        single = [request for request in requests if request.prompt_id not in self._talks]
        rows: list[Rollout] = []
        if single:
            rows += self._others.generate(single, sampling, seed=seed, step=step, on_finished=on_finished)
        by_talk: dict[int, tuple[T, list[tuple[RolloutRequest, Prompt]]]] = {}
        for request in requests:
            if request.prompt_id in self._talks:
                talk, prompt = self._talks[request.prompt_id]
                by_talk.setdefault(id(talk), (talk, []))[1].append((request, prompt))
        call = Call(sampling, seed, step, self._version, on_finished or (lambda rollouts: None))
        for talk, some in by_talk.values():
            rows += self.hold(talk, some, call)
        return in_order(requests, rows)

    @abstractmethod
    def hold(self, talk: T, some: Sequence[tuple[RolloutRequest, Prompt]], call: Call) -> list[Rollout]:
        """The rows of all samples of these requests."""

    def sync(self, weights: Weights) -> None:
        """See `RolloutEngine`."""
        self._others.sync(weights)
        self._version = weights.version

    def rest(self) -> None:
        """See `RestingEngine`."""
        let_rest(self._others)


class ConversingEngine(TalkingEngine[Talk]):
    """An engine whose responses are conversations, for the prompts that hold them; others go to the engine itself.

    A conversation is one row, unless its history was rewritten (`Answer.is_whole`): then it has one more row per
    rewrite, except for greedy responses and in evaluations, which keep only the last row.
    """

    def __init__(
        self, engine: RolloutEngine, talks: Mapping[str, tuple[Talk, Prompt]], *, context_length: int, decode: Decode
    ) -> None:
        super().__init__(engine, engine, talks)
        self._context_length = context_length
        self._decode = decode

    def hold(self, talk: Talk, some: Sequence[tuple[RolloutRequest, Prompt]], call: Call) -> list[Rollout]:
        """See `TalkingEngine`."""
        most = call.sampling.max_response_tokens
        turn = replace(call.sampling, max_response_tokens=min(talk.turn_tokens or sys.maxsize, most))
        draw = partial(self._engine.generate, sampling=turn, seed=call.seed, step=call.step)
        conversations = [
            Conversation(request, index, prompt, most, self._context_length, call.version, self._decode)
            for request, prompt in some
            for index in request.sample_indices
        ]
        with keeping(self._engine), closing(talk.partner.answering(seed=call.seed, step=call.step)) as answerer:
            rows = _RoundTable(talk, answerer, draw, call.on_finished, call.only_last).hold(conversations)
            answerer.check()
            return rows

    def take_metrics(self) -> Mapping[str, Metric]:
        """See `RolloutEngine`."""
        partners = {id(talk.partner): talk.partner for talk, _ in self._talks.values()}
        return MetricStore.of([self._engine.take_metrics(), *(p.take_metrics() for p in partners.values())]).merged()


@dataclass(slots=True)
class _RoundTable:
    """The conversations of one call with one partner. Each of them waits for one thing: to be opened, for its next
    turn, for an answer to it, or to be closed."""

    talk: Talk
    answerer: Answerer
    draw: Draw
    on_finished: OnFinished
    only_last: bool
    held: dict[ConversationKey, Conversation] = field(default_factory=dict)

    def hold(self, conversations: Sequence[Conversation]) -> list[Rollout]:
        """Hold the conversations until all of them have ended; return their rows."""
        waiting, ended = deque(conversations), list[Rollout]()
        ready: list[Conversation] = []
        while waiting or self.held:
            while waiting and len(self.held) < self.talk.open:
                one = waiting.popleft()
                self.held[one.key] = one
                self.answerer.open(one.key, one.prompt)
            self._speak(ready)
            ready, over = self._listen()
            rollouts = [row for one in over for row in one.rollouts(only_last=self.only_last)]
            for one in over:
                del self.held[one.key]
            if rollouts:
                self.on_finished(rollouts)
            ended += rollouts
        return ended

    def _speak(self, ready: Sequence[Conversation]) -> None:
        """Sample the next turn of each, and begin to answer it as soon as the engine reports its end."""
        by_key, began = {one.key: one for one in ready}, time.monotonic()

        def say(turns: Sequence[Rollout]) -> None:
            for turn in turns:
                one = by_key.pop((turn.group_id, turn.sample_index), None)
                if one is None:  # an engine may report a response early, and then return it
                    continue
                one.say(turn, time.monotonic() - began)
                if one.reason is None:
                    self.answerer.begin(one.key, turn, one.num_spoken)
                else:
                    self.answerer.finish(one.key)

        if ready:
            say(self.draw([one.next_request() for one in ready], on_finished=say))
        if by_key:  # these conversations would wait for ever
            group, sample = next(iter(by_key))
            raise RolloutError(
                f"the engine returned no turn for {len(by_key)} of {len(ready)} conversations, such as sample {sample} "
                f"of group {group}",
                remedy="see burnish.rollouts.engine.RolloutEngine for what an engine must return",
            )

    def _listen(self) -> tuple[list[Conversation], list[Conversation]]:
        """Take the events; return the conversations with the next turn and the finished ones, in an order that does not
        depend on timing."""
        happened = self.answerer.events(wait_for_all=self.talk.in_rounds)
        ready, over = list[Conversation](), list[Conversation]()
        for key, one in self.held.items():
            if key not in happened:
                continue
            one.take(happened[key], self.talk)
            if happened[key].failed or isinstance(happened[key], Closed):
                over.append(one)
            elif one.reason is None:
                ready.append(one)
            else:
                self.answerer.finish(key)
        return ready, over
