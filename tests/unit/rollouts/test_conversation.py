"""Conversations: tokens as they were seen, whatever is sampled together, and limits that end them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from burnish.models.weights import Weights
from burnish.rollouts.conversation import Answer, ConversationLimits, ConversingEngine, Talk
from burnish.rollouts.engine import OnFinished, Sampling
from burnish.rollouts.local.engine import LocalEngine
from burnish.types import FinishReason, Message, Metric, Prompt, Rollout, RolloutRequest, Turn

SAMPLING = Sampling(max_response_tokens=4)
PROMPTS = {"p": Prompt("p", text="p"), "q": Prompt("q", text="q"), "single": Prompt("single", text="s")}
OBSERVED = (40, 41, 42)


@dataclass
class Script:
    """An engine that says as many tokens as there are samples before it in the turn, and remembers what it saw."""

    seen: list[list[RolloutRequest]] = field(default_factory=list)
    tells: bool = True
    version: int = 0

    def generate(
        self,
        requests: Sequence[RolloutRequest],
        sampling: Sampling,
        *,
        seed: int,
        step: int,
        on_finished: OnFinished | None = None,
    ) -> list[Rollout]:
        self.seen.append(list(requests))
        rollouts = [
            Rollout(
                request.prompt_id,
                request.group_id,
                index,
                request.prompt_tokens,
                tuple(10 + index for _ in range(1 + index)),
                tuple(-0.5 for _ in range(1 + index)),
                FinishReason.STOP,
                self.version,
                response=f"said {index}",
            )
            for request in requests
            for index in request.sample_indices
        ]
        if on_finished is not None and self.tells:
            on_finished(rollouts[:1])  # the rest is only returned, which the protocol allows
        return rollouts

    def sync(self, weights: Weights) -> None:
        raise NotImplementedError

    def take_metrics(self) -> Mapping[str, Metric]:
        return {}


@dataclass
class Echo:
    """Answers the first `calls` turns of every conversation, those of `slow` samples one call later."""

    calls: int = 1
    slow: tuple[int, ...] = ()
    tokens: tuple[int, ...] = OBSERVED
    ends: FinishReason = FinishReason.STOP
    begun: list[tuple[tuple[int, int], int, str]] = field(default_factory=list)
    ready: dict[tuple[int, int], Answer] = field(default_factory=dict)
    later: dict[tuple[int, int], Answer] = field(default_factory=dict)

    def begin(self, key: tuple[int, int], prompt: Prompt, turn: Rollout, number: int) -> None:
        self.begun.append((key, number, turn.response))
        message = Message("assistant", turn.response)
        more = Answer(message, self.tokens, messages=(Message("tool", "echo"),))
        answer = more if number <= self.calls else Answer(message, ends=self.ends)
        (self.later if key[1] in self.slow else self.ready)[key] = answer

    def answers(self, *, wait_for_all: bool) -> Mapping[tuple[int, int], Answer]:
        if wait_for_all or not self.ready:
            self.ready |= self.later
            self.later = {}
        found, self.ready = self.ready, {}
        return found

    def take_metrics(self) -> Mapping[str, Metric]:
        return {}


def engine_of(script: Any, echo: Echo, *, turns: int = 5, tokens: int = 50, context: int = 64, **talk: bool) -> Any:
    one = Talk(echo, ConversationLimits(turns, tokens), **talk)
    talks = {name: (one, prompt) for name, prompt in PROMPTS.items() if name != "single"}
    return ConversingEngine(script, talks, context_length=context)


def request(prompt: str, group: int, *samples: int) -> RolloutRequest:
    return RolloutRequest(prompt, group, (1, 2, 3), samples or (0,))


def ask(engine: Any, *requests: RolloutRequest, sampling: Sampling = SAMPLING, **given: Any) -> list[Rollout]:
    rollouts: list[Rollout] = engine.generate(requests, sampling, seed=0, step=1, **given)
    return rollouts


def test_turns_and_answers_alternate() -> None:
    (rollout,) = ask(engine_of(Script(), Echo(calls=1)), request("p", 0, 1))
    assert rollout.response_tokens == (11, 11, *OBSERVED, 11, 11)
    assert rollout.rollout_logprobs == (-0.5, -0.5, 0.0, 0.0, 0.0, -0.5, -0.5)
    assert rollout.sampled_mask() == (True, True, False, False, False, True, True)
    assert rollout.num_sampled() == 4
    assert [(turn.author, turn.start, turn.stop) for turn in rollout.turns] == [
        ("policy", 0, 2),
        ("tool", 2, 5),
        ("policy", 5, 7),
    ]
    assert [turn.messages[0].content for turn in rollout.turns] == ["said 1", "echo", "said 1"]
    assert rollout.response == "said 1"
    assert rollout.finish_reason is FinishReason.STOP
    assert rollout.prompt_id == "p"


def test_the_engine_sees_exactly_what_is_trained_on() -> None:
    script = Script()
    (rollout,) = ask(engine_of(script, Echo(calls=2)), request("p", 0, 1))
    last = script.seen[-1][0]
    spoken = len(script.seen)
    assert spoken == 3
    assert rollout.prompt_tokens + rollout.response_tokens == (*last.prompt_tokens, 11, 11)
    assert [seen[0].prompt_id for seen in script.seen] == ["p", "p, turn 2", "p, turn 3"]  # noise of its own


def test_order_and_single_turns_are_kept() -> None:
    script = Script()
    asked = (request("q", 0, 1, 0), request("single", 1, 0, 2), request("p", 2, 1))
    rollouts = ask(engine_of(script, Echo(calls=1)), *asked)
    assert [(r.group_id, r.sample_index) for r in rollouts] == [(0, 1), (0, 0), (1, 0), (1, 2), (2, 1)]
    assert rollouts[2].turns == ()
    assert rollouts[2].response_tokens == (10,)


@pytest.mark.parametrize("tells", [True, False])
def test_every_turn_is_answered_once(tells: bool) -> None:
    echo = Echo(calls=2)
    finished: list[Rollout] = []
    rollouts = ask(engine_of(Script(tells=tells), echo), request("p", 0, 0, 1, 2), on_finished=finished.extend)
    assert sorted((key[1], number) for key, number, _ in echo.begun) == [(i, n) for i in range(3) for n in (1, 2, 3)]
    assert sorted(finished, key=lambda r: r.sample_index) == rollouts


def test_nobody_waits_for_a_slow_tool() -> None:
    """Sample 1 is sampled again while sample 0 waits; then 0 goes on. Both end as in rounds."""
    script, in_rounds = Script(), Script()
    free = ask(engine_of(script, Echo(calls=2, slow=(0,))), request("p", 0, 0, 1))
    rounds = ask(engine_of(in_rounds, Echo(calls=2, slow=(0,)), in_rounds=True), request("p", 0, 0, 1))
    sampled = [[r.sample_indices[0] for r in seen] for seen in script.seen]
    assert sampled == [[0, 1], [1], [1], [0], [0]]
    assert [[r.sample_indices[0] for r in seen] for seen in in_rounds.seen] == [[0, 1]] * 3
    assert free == rounds


def test_the_last_turn_allowed_ends_a_conversation() -> None:
    (rollout,) = ask(engine_of(Script(), Echo(calls=9), turns=2), request("p", 0))
    assert rollout.finish_reason is FinishReason.TURNS
    assert rollout.response_tokens == (10, *OBSERVED, 10)


@pytest.mark.parametrize(("limits", "room"), [({"tokens": 4}, 4), ({"context": 7}, 4), ({"tokens": 5}, 5)])
def test_an_answer_without_room_is_not_appended(limits: dict[str, int], room: int) -> None:
    """With room for 4, answer and turn fill it; with room for 5, a turn of one token still follows."""
    (rollout,) = ask(engine_of(Script(), Echo(calls=1), **limits), request("p", 0))
    assert rollout.response_tokens == ((10,) if room == 4 else (10, *OBSERVED, 10))
    assert rollout.finish_reason is (FinishReason.LENGTH if room == 4 else FinishReason.STOP)


def test_a_turn_beyond_the_limit_is_cut_and_asks_nothing() -> None:
    echo = Echo(calls=1)
    (rollout,) = ask(engine_of(Script(), echo, tokens=2), request("p", 0, 3))
    assert rollout.response_tokens == (13, 13)
    assert rollout.rollout_logprobs == (-0.5, -0.5)
    assert rollout.finish_reason is FinishReason.LENGTH
    assert echo.begun == []
    assert rollout.turns == (Turn("policy", 0, 2, (Message("assistant", "said 3"),)),)


def test_versions_of_turns_are_kept() -> None:
    script = Script()

    class Learning(Echo):
        def begin(self, key: tuple[int, int], prompt: Prompt, turn: Rollout, number: int) -> None:
            super().begin(key, prompt, turn, number)
            script.version = number

    (rollout,) = ask(engine_of(script, Learning(calls=2)), request("p", 0))
    assert rollout.policy_version == 0
    assert rollout.versions == ((0, 0), (4, 1), (8, 2))
    assert rollout.tokens_by_version() == {0: 4, 1: 4, 2: 1}


def test_records_hold_the_turns() -> None:
    (rollout,) = ask(engine_of(Script(), Echo(calls=1)), request("p", 0, 1))
    assert Rollout.from_dict(rollout.to_dict()) == rollout
    single = replace(rollout, turns=())
    assert "turns" not in single.to_dict()


@pytest.mark.parametrize("rows", [1, 3, 64])
def test_samples_do_not_depend_on_what_is_sampled_together(model: Any, make_engine: Any, rows: int) -> None:
    def conversations(rows: int, slow: tuple[int, ...]) -> list[tuple[Any, ...]]:
        engine: LocalEngine = make_engine(model, max_batch_rows=rows)
        talking = engine_of(engine, Echo(calls=3, slow=slow, tokens=(5, 6)), tokens=40, context=60)
        found = ask(talking, request("p", 0, *range(5)), request("q", 1, *range(5)))
        return [(r.response_tokens, r.turns, r.finish_reason) for r in found]

    assert conversations(rows, slow=(1, 4)) == conversations(8, slow=())
