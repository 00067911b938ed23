"""One trajectory: the branches of a conversation between an agent and the policy, token by token."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from burnish.agents.conversation import GrowingRow, cut_to
from burnish.agents.endpoint.chat_tokens import Schemas, Speech
from burnish.agents.endpoint.requests import ChatRequest, TextRequest, TokenRequest, TurnRequest
from burnish.agents.tools.calls import id_of_calls
from burnish.outside.listening import RefusedError
from burnish.types import Author, FinishReason, Json, Message, RewardStatus, Rollout, RolloutRequest, TokenPart


@dataclass(frozen=True, slots=True)
class Room:
    """Limits on the length of trajectories.

    turns: of the policy, in all branches together. turn_tokens: of one turn. response_tokens: of a branch after its
    prompt. context: of a branch with its prompt.
    """

    turns: int
    turn_tokens: int
    response_tokens: int
    context: int


@dataclass(frozen=True, slots=True)
class _Point:
    """The end of a turn of the policy: numbers of messages and tokens up to there, and the calls that it made."""

    messages: int
    tokens: int
    calls: tuple[Mapping[str, Json], ...]


@dataclass(slots=True, kw_only=True)
class Branch(GrowingRow):
    """A row with its prompt.

    messages: the history with which a request must begin to go on from here; None if its requests had no messages.
    text: the same for texts. speaks: a turn is being sampled. replied: time of the last one.
    """

    number: int
    prompt_tokens: tuple[int, ...]
    tools: Schemas = ()
    options: Mapping[str, Json] = field(default_factory=dict)
    messages: list[Message] | None = None
    text: str | None = None
    points: list[_Point] = field(default_factory=list)
    speaks: bool = False
    replied: float = 0.0
    reason: FinishReason = FinishReason.STOP

    @property
    def num_spoken(self) -> int:
        return sum(turn.author == "policy" for turn in self.turns)

    @property
    def seen(self) -> tuple[int, ...]:
        """The tokens so far, prompt included."""
        return (*self.prompt_tokens, *self.tokens)

    def points_of(self, messages: Sequence[Message], keys: Sequence[str]) -> Iterator[_Point]:
        """Yield the ends of turns from which these messages go on."""
        assert self.messages is not None
        said = [number for number, message in enumerate(messages, start=1) if message.role == "assistant"]
        least = max(said, default=0)  # what goes on is not the policy's
        known = itertools.takewhile(lambda both: _key(both[0]) == both[1], zip(self.messages, keys, strict=False))
        most = min(sum(1 for _ in known), len(keys) - 1)
        return (point for point in self.points if least <= point.messages <= most)


Continued = tuple[Branch, tuple[tuple[int, ...], Author, Sequence[Message]] | None]
"""The branch that goes on, and what it hears before; None for a new one, whose prompt has all of it."""


@dataclass(frozen=True, slots=True)
class NextTurn:
    """The next turn to sample: after `prompt`, at most `most_tokens`. stop, stop_token_ids: texts and tokens that end
    it, and that the agent does not see. calls: whether calls of tools are read."""

    branch: Branch
    prompt: tuple[int, ...]
    most_tokens: int
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    calls: bool = True


@dataclass(frozen=True, slots=True)
class Said:
    """A turn of the policy in the form for its agent. text: all of it, for requests without messages."""

    message: Message
    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    reason: FinishReason


@dataclass(slots=True)
class Trajectory:
    """The requests under one URL, and their turns. Used by one thread.

    request: the prompt and sample that it answers, whose prompt tokens are not used. limited: the limit that refused a
    request, if one did.
    """

    request: RolloutRequest
    sample_index: int
    speech: Speech
    room: Room
    branches: list[Branch] = field(default_factory=list)
    reward: float | None = None
    limited: FinishReason | None = None
    _last: Branch | None = None

    @property
    def num_spoken(self) -> int:
        return sum(branch.num_spoken for branch in self.branches)

    def next_turn(self, asked: TurnRequest, came: float) -> NextTurn:
        """The branch that goes on, or a new one. RefusedError if there is no room for another turn. came: time of the
        request; since the last turn, its agent was busy with what the branch hears now."""
        if sum(branch.num_spoken + branch.speaks for branch in self.branches) >= self.room.turns:
            self.limited = FinishReason.TURNS
            raise RefusedError(
                400, f"a trajectory may have {self.room.turns} turns of the model here", code="turns_exhausted"
            )
        match asked:
            case ChatRequest():
                branch, heard = self._chat(asked)
            case TextRequest():
                branch, heard = self._text(asked)
            case TokenRequest():
                branch, heard = self._tokens(asked)
        most = self._room_for(branch, len(heard[0]) if heard else 0)
        if heard:
            branch.hear(*heard, (max(0.0, came - branch.replied),))
        if branch not in self.branches:
            self.branches.append(branch)
        branch.messages = list(asked.messages) if isinstance(asked, ChatRequest) else None
        branch.text = asked.prompt if isinstance(asked, TextRequest) else None
        branch.speaks = True
        self._last, self.limited = branch, None  # there is room again
        wish = asked.wish
        length = most if wish.max_tokens is None else min(most, wish.max_tokens)
        return NextTurn(branch, branch.seen, length, wish.stop, wish.stop_token_ids, wish.demands.calls)

    def engine_request(self, turn: NextTurn, place: int) -> RolloutRequest:
        """The request for the engine, with the noise of this turn of this branch. place: its index in the call."""
        return replace(
            self.request,
            branch=turn.branch.number,
            turn=turn.branch.num_spoken + 1,
            group_id=place,
            parts=(TokenPart(turn.prompt),),
            sample_indices=(self.sample_index,),
        )

    def say(self, turn: NextTurn, rollout: Rollout, seconds: float) -> Said:
        """Append the sampled turn, up to the requested length, and the seconds that it took."""
        branch, rollout = turn.branch, cut_to(turn.most_tokens, rollout, self.speech.decode)
        tokens, is_cut = rollout.response_tokens, rollout.finish_reason is FinishReason.LENGTH
        text = _before(rollout.response, turn.stop)
        message = self.speech.read(text, branch.tools if turn.calls else (), self._number_of_turn(branch))
        branch.say(rollout, message, seconds)
        branch.speaks, branch.replied = False, time.monotonic()
        # An agent that asks for a short turn has not run into a limit of the run.
        is_full = self._left(branch) <= 0 or len(tokens) >= self.room.turn_tokens
        branch.reason = FinishReason.LENGTH if is_cut and is_full else FinishReason.STOP
        if branch.messages is not None:
            branch.messages.append(message)
            branch.points.append(_Point(len(branch.messages), len(branch.tokens), message.tool_calls))
        elif branch.text is not None:
            branch.text = None if tokens[-1] in turn.stop_token_ids else branch.text + rollout.response
        reason = FinishReason.LENGTH if is_cut else FinishReason.STOP
        return Said(message, text, tokens, rollout.rollout_logprobs, reason)

    def _number_of_turn(self, branch: Branch) -> int:
        """The number for the ids of calls, which must differ within a history: a client may bring one from another
        trajectory, even without its beginning."""
        told = {str(call.get("id")) for message in branch.messages or () for call in message.tool_calls}
        used = {one[: len(id_of_calls(0))] for one in told}
        first = self.num_spoken + 1
        return next((number for number in range(first, first + 1_000) if id_of_calls(number) not in used), first)

    def rollouts(self, *, failed: str = "", version: int = 0, only_last: bool = False) -> list[Rollout]:
        """The branches as rows, one at least. failed: why they have no reward. only_last: the one that spoke last."""
        spoken = [branch for branch in self.branches if branch.num_spoken]
        if not spoken:
            spoken = [Branch(number=0, prompt_tokens=self.request.prompt_tokens)]
            failed = failed or "the agent requested nothing"
        if only_last:
            last = self._last if self._last in spoken else spoken[-1]
            return [replace(self._row(last, failed, version), branch=0)]
        return [self._row(branch, failed, version) for branch in spoken]

    def _row(self, branch: Branch, failed: str, version: int) -> Rollout:
        """The branch as a row, without the tokens after the policy's last turn, which teach nothing."""
        spoken = [number for number, turn in enumerate(branch.turns, start=1) if turn.author == "policy"]
        turns = branch.turns[: max(spoken, default=0)]
        end = turns[-1].stop if turns else 0
        seconds = branch.seconds[: len(turns)]
        said = GrowingRow(branch.tokens[:end], branch.logprobs[:end], turns, branch.versions, seconds)
        reason = self.limited if self.limited is not None and branch is self._last else branch.reason
        request = replace(self.request, parts=(TokenPart(branch.prompt_tokens),))
        return replace(
            said.rollout(request, self.sample_index, FinishReason.FAILED if failed else reason, version),
            branch=branch.number,
            response=turns[-1].messages[0].content if turns else "",
            status=RewardStatus.ERROR if failed else RewardStatus.PENDING,
            status_detail=failed,
            environment_reward=None if failed else self.reward,
        )

    def _left(self, branch: Branch) -> int:
        room = min(self.room.response_tokens, self.room.context - len(branch.prompt_tokens))
        return room - len(branch.tokens)

    def _room_for(self, branch: Branch, num_heard: int) -> int:
        """Return how many tokens the next turn may have. RefusedError, in OpenAI's words, if there are none."""
        left = self._left(branch) - num_heard
        if left < 1:
            if branch in self.branches:
                branch.reason, self._last = FinishReason.LENGTH, branch
            else:
                self.limited = FinishReason.LENGTH
            length = len(branch.prompt_tokens) + len(branch.tokens) + num_heard
            raise RefusedError(
                400,
                f"This model's maximum context length is {self.room.context} tokens, of which what follows the prompt "
                f"may have {self.room.response_tokens}. Your messages have {length} tokens, which leaves no room.",
                code="context_length_exceeded",
                param="messages",
            )
        return min(left, self.room.turn_tokens)

    def _chat(self, asked: ChatRequest) -> Continued:
        """Go on after the longest history that these messages begin with."""
        speech = self.speech.under(asked.options)
        speech.check(asked.messages, asked.tools)
        keys = [_key(message) for message in asked.messages]
        found = [
            (point.messages, point is branch.points[-1] and not branch.speaks, branch, point)
            for branch in self.branches
            if branch.messages is not None and (branch.tools, branch.options) == (asked.tools, asked.options)
            for point in branch.points_of(asked.messages, keys)
        ]
        tokens = None
        if found:
            _, is_end, branch, point = max(found, key=lambda one: one[:2])
            rest = asked.messages[point.messages :]
            tokens = speech.following(rest, point.calls, branch.tokens[point.tokens - 1], asked.tools)
            if tokens is not None and is_end:
                return branch, (tokens, "tool" if all(turn.role == "tool" for turn in rest) else "environment", rest)
        if tokens is None:
            prompt = speech.encode(asked.messages, asked.tools)
        else:
            prompt = (*branch.prompt_tokens, *branch.tokens[: point.tokens], *tokens)
        number = len(self.branches)
        return Branch(number=number, prompt_tokens=prompt, tools=asked.tools, options=asked.options), None

    def _text(self, asked: TextRequest) -> Continued:
        """Go on with a text that was only extended. Not after a token that ended a turn: it is in no text."""
        for branch in reversed(self.branches):
            text = branch.text
            if branch.speaks or text is None or branch.tokens[-1] in self.speech.stop_token_ids:
                continue
            if asked.prompt.startswith(text) and len(asked.prompt) > len(text):
                rest = asked.prompt[len(text) :]
                return branch, (self.speech.encode_text(rest, begins=False), "environment", (Message("user", rest),))
        prompt = self.speech.encode_text(asked.prompt, begins=True)
        return Branch(number=len(self.branches), prompt_tokens=prompt), None

    def _tokens(self, asked: TokenRequest) -> Continued:
        self.speech.check_tokens(asked.tokens)
        for branch in reversed(self.branches):
            seen = branch.seen
            if not branch.speaks and len(asked.tokens) > len(seen) and asked.tokens[: len(seen)] == seen:
                rest = asked.tokens[len(seen) :]
                return branch, (rest, "environment", (Message("user", self.speech.decode(rest)),))
        return Branch(number=len(self.branches), prompt_tokens=asked.tokens), None


def _before(text: str, stop: Sequence[str]) -> str:
    """The text up to the first of these."""
    ends = [text.find(one) for one in stop if one in text]
    return text[: min(ends)] if ends else text


def _key(message: Message) -> str:
    """Key that is equal for messages with the same content, however a client wrote them. For the assistant's messages,
    outer white space and fields that clients add do not count: their tokens are the sampled ones."""
    if message.role != "assistant":
        return json.dumps([message.role, message.content, dict(message.extra)], sort_keys=True, default=str)
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.tool_calls]  # type: ignore[index, call-overload]
    return json.dumps(["assistant", message.content.strip(), calls, message.reasoning_content], sort_keys=True)
