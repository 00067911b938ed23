"""Conversations: tokens as they were seen, whatever is sampled together, and limits that end them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from echoing import OBSERVED, Echo, Key

from burnish.agents import conversation
from burnish.agents.conversation import Answer, ConversingEngine, Talk
from burnish.errors import RolloutError
from burnish.models.weights import Weights
from burnish.rollouts.engine import Sampling
from burnish.rollouts.local.engine import LocalEngine
from burnish.types import FinishReason, Message, Metric, Prompt, RewardStatus, Rollout, RolloutRequest, Turn

PROMPTS = {"p": Prompt("p", text="p"), "q": Prompt("q", text="q"), "single": Prompt("single", text="s")}


@dataclass
class Script:
    """An engine that says as many tokens as there are samples before it in the turn, and remembers what it saw."""

    seen: list[list[RolloutRequest]] = field(default_factory=list)
    limits: list[int] = field(default_factory=list)
    tells: bool = True
    version: int = 0
    forgets: int = 0

    def generate(
        self, requests: Sequence[RolloutRequest], sampling: Sampling, *, on_finished: Any = None, **given: Any
    ) -> list[Rollout]:
        self.seen.append(list(requests))
        self.limits.append(sampling.max_response_tokens)
        rollouts = [self._said(request, index) for request in requests for index in request.sample_indices]
        if on_finished is not None and self.tells:
            on_finished(rollouts[:1])  # the rest is only returned, which the protocol allows
        return rollouts[: len(rollouts) - self.forgets]

    def _said(self, request: RolloutRequest, index: int) -> Rollout:
        asked = (request.prompt_id, request.group_id, index, request.prompt_tokens)
        tokens, logprobs = (10 + index,) * (1 + index), (-0.5,) * (1 + index)
        return Rollout(*asked, tokens, logprobs, FinishReason.STOP, self.version, response=f"said {index}")

    def sync(self, weights: Weights) -> None:
        raise NotImplementedError

    def take_metrics(self) -> Mapping[str, Metric]:
        return {}


def engine_of(script: Any, echo: Echo, *, turns: int = 5, context: int = 64, **talk: Any) -> Any:
    one = Talk(echo, turns, **talk)
    talks = {name: (one, prompt) for name, prompt in PROMPTS.items() if name != "single"}
    return ConversingEngine(script, talks, context_length=context, decode=lambda tokens: f"decoded {list(tokens)}")


def request(prompt: str, group: int, *samples: int) -> RolloutRequest:
    return RolloutRequest.of(prompt, group, (1, 2, 3), samples or (0,))


def ask(engine: Any, *requests: RolloutRequest, tokens: int = 50, **given: Any) -> list[Rollout]:
    return list(engine.generate(requests, Sampling(max_response_tokens=tokens), seed=0, step=1, **given))


def test_turns_and_answers_alternate() -> None:
    (rollout,) = ask(engine_of(Script(), Echo(calls=1)), request("p", 0, 1))
    assert rollout.response_tokens == (11, 11, *OBSERVED, 11, 11)
    assert rollout.rollout_logprobs == (-0.5, -0.5, 0.0, 0.0, 0.0, -0.5, -0.5)
    assert (rollout.sampled_mask(), rollout.num_sampled()) == ((True, True, False, False, False, True, True), 4)
    places = [(turn.author, turn.start, turn.stop) for turn in rollout.turns]
    assert places == [("policy", 0, 2), ("tool", 2, 5), ("policy", 5, 7)]
    assert [turn.messages[0].content for turn in rollout.turns] == ["said 1, heard", "echo", "said 1, heard"]
    assert [turn.reward for turn in rollout.turns] == [1.0, None, None]
    assert (rollout.prompt_id, rollout.response, rollout.finish_reason) == ("p", "said 1", FinishReason.STOP)


def test_each_turn_has_its_seconds_which_are_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine tells of sample 1 after two seconds, and returns sample 2 a second later."""
    clock = [0.0]
    monkeypatch.setattr(conversation, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    class Slow(Script):
        def generate(self, *given: Any, on_finished: Any = None, **more: Any) -> list[Rollout]:
            clock[0] += 2.0
            said = super().generate(*given, on_finished=on_finished, **more)
            clock[0] += 1.0
            return said

    first, second = ask(engine_of(Slow(), Echo(calls=1)), request("p", 0, 1, 2))
    assert first.turn_seconds == ((2.0,), (0.25,), (2.0,))
    assert second.turn_seconds == ((3.0,), (0.25,), (3.0,))
    restored = Rollout.from_dict(first.to_dict())
    assert restored.turn_seconds == first.turn_seconds
    older = {name: value for name, value in first.to_dict().items() if name != "turn_seconds"}
    assert Rollout.from_dict(older) == restored == replace(first, turn_seconds=((9.0,),) * 3)


def test_the_engine_sees_exactly_what_is_trained_on() -> None:
    script = Script()
    (rollout,) = ask(engine_of(script, Echo(calls=2)), request("p", 0, 1))
    last = script.seen[-1][0]
    assert len(script.seen) == 3
    assert rollout.prompt_tokens + rollout.response_tokens == (*last.prompt_tokens, 11, 11)
    assert [seen[0].name for seen in script.seen] == ["p", "p, turn 2", "p, turn 3"]  # noise of its own


def test_order_and_single_turns_are_kept() -> None:
    script = Script()
    asked = (request("q", 0, 1, 0), request("single", 1, 0, 2), request("p", 2, 1))
    rollouts = ask(engine_of(script, Echo(calls=1)), *asked)
    assert [(r.group_id, r.sample_index) for r in rollouts] == [(0, 1), (0, 0), (1, 0), (1, 2), (2, 1)]
    assert (rollouts[2].turns, rollouts[2].response_tokens) == ((), (10,))


@pytest.mark.parametrize("tells", [True, False])
def test_every_turn_is_answered_once(tells: bool) -> None:
    echo = Echo(calls=2)
    finished: list[Rollout] = []
    rollouts = ask(engine_of(Script(tells=tells), echo), request("p", 0, 0, 1, 2), on_finished=finished.extend)
    begun = sorted((key[1], number) for key, (number, _) in echo.said("begin"))
    assert begun == [(i, n) for i in range(3) for n in (1, 2, 3)]
    assert [key for key, _ in echo.said("open")] == [(0, 0), (0, 1), (0, 2)]
    assert sorted(key for key, _ in echo.said("finish")) == [(0, 0), (0, 1), (0, 2)]
    assert sorted(finished, key=lambda r: r.sample_index) == rollouts
    assert echo.closed == 1


def test_nobody_waits_for_a_slow_tool() -> None:
    """Sample 1 is sampled again while sample 0 waits; then 0 goes on. Both end as in rounds."""
    script, in_rounds = Script(), Script()
    free = ask(engine_of(script, Echo(calls=2, slow=(0,))), request("p", 0, 0, 1))
    rounds = ask(engine_of(in_rounds, Echo(calls=2, slow=(0,)), in_rounds=True), request("p", 0, 0, 1))
    sampled = [[r.sample_indices[0] for r in seen] for seen in script.seen]
    assert sampled == [[1], [1], [1], [0], [0], [0]]
    assert [[r.sample_indices[0] for r in seen] for seen in in_rounds.seen] == [[0, 1]] * 3
    assert free == rounds


def test_last_words_are_in_the_turn_that_they_answer() -> None:
    class Parting(Echo):
        def begin(self, key: Key, turn: Rollout, number: int) -> None:
            words = (Message("user", "you win"),)
            self.put(key, Answer(Message("assistant", "said"), messages=words, ends=FinishReason.STOP, reward=1.0))

    (rollout,) = ask(engine_of(Script(), Parting()), request("p", 0))
    assert rollout.response_tokens == (10,)
    assert rollout.turns == (Turn("policy", 0, 1, (Message("assistant", "said"), Message("user", "you win")), 1.0),)


def test_the_last_turn_allowed_or_the_partner_ends_a_conversation() -> None:
    (rollout,) = ask(engine_of(Script(), Echo(calls=9), turns=2), request("p", 0))
    assert (rollout.finish_reason, rollout.response_tokens) == (FinishReason.TURNS, (10, *OBSERVED, 10))
    (rollout,) = ask(engine_of(Script(), Echo(calls=0, ends=FinishReason.LENGTH)), request("p", 0))
    assert (rollout.finish_reason, rollout.response_tokens) == (FinishReason.LENGTH, (10,))


@pytest.mark.parametrize(("limits", "room"), [({"tokens": 4}, 4), ({"context": 7}, 4), ({"tokens": 5}, 5)])
def test_an_answer_without_room_is_not_appended(limits: dict[str, int], room: int) -> None:
    """With room for 4, answer and turn fill it; with room for 5, a turn of one token still follows."""
    echo, tokens = Echo(calls=1, pays=2.0), limits.pop("tokens", 50)
    (rollout,) = ask(engine_of(Script(), echo, **limits), request("p", 0), tokens=tokens)
    assert rollout.response_tokens == ((10,) if room == 4 else (10, *OBSERVED, 10))
    assert rollout.finish_reason is (FinishReason.LENGTH if room == 4 else FinishReason.STOP)
    assert rollout.environment_reward == 2.0  # it is closed, and asked what it pays


def test_a_turn_beyond_the_limit_is_cut_and_asks_nothing() -> None:
    """Nor does a reward see more of it than is trained on."""
    echo = Echo(calls=1, pays=1.0)
    (rollout,) = ask(engine_of(Script(), echo), request("p", 0, 3), tokens=2)
    assert (rollout.response_tokens, rollout.rollout_logprobs) == ((13, 13), (-0.5, -0.5))
    assert rollout.finish_reason is FinishReason.LENGTH
    assert echo.said("begin") == []
    assert rollout.response == "decoded [13, 13]"
    assert rollout.turns == (Turn("policy", 0, 2, (Message("assistant", "decoded [13, 13]"),)),)
    assert rollout.environment_reward == 1.0


def test_the_second_turn_is_cut_where_the_first_and_its_answer_leave_room() -> None:
    (rollout,) = ask(engine_of(Script(), Echo(calls=1)), request("p", 0, 3), tokens=9)  # 4 + 3 + 2 of 4
    assert (rollout.response_tokens, rollout.response) == ((13, 13, 13, 13, *OBSERVED, 13, 13), "decoded [13, 13]")


@pytest.mark.parametrize(("turn_tokens", "tokens", "limit"), [(None, 50, 50), (7, 50, 7), (7, 5, 5)])
def test_one_turn_has_a_limit_of_its_own(turn_tokens: int | None, tokens: int, limit: int) -> None:
    script = Script()
    ask(engine_of(script, Echo(), turn_tokens=turn_tokens), request("p", 0), request("single", 1), tokens=tokens)
    assert script.limits == [tokens, limit, limit]  # the first one is of the prompt that holds no conversation


def test_a_turn_that_its_own_limit_has_cut_ends_the_conversation() -> None:
    class Cutting(Script):
        def generate(self, *given: Any, **more: Any) -> list[Rollout]:
            return [replace(r, finish_reason=FinishReason.LENGTH) for r in super().generate(*given, **more)]

    echo = Echo(calls=1)
    (rollout,) = ask(engine_of(Cutting(tells=False), echo, turn_tokens=2), request("p", 0))
    assert (rollout.finish_reason, rollout.response) == (FinishReason.LENGTH, "said 0")
    assert echo.said("begin") == []


def test_an_environment_may_add_to_the_prompt() -> None:
    """Each sample goes on from its own prompt, and that is what its record says."""
    script = Script()
    opened = {0: (1, 2, 3, 7, 8), 2: (1, 9)}
    rollouts = ask(engine_of(script, Echo(calls=1, opened=opened)), request("p", 0, 0, 1, 2))
    prompts = [rollout.prompt_tokens for rollout in rollouts]
    assert prompts == [(1, 2, 3, 7, 8), (1, 2, 3), (1, 9)]
    assert [one.prompt_tokens for one in script.seen[0]] == prompts
    said = [(10,), (11, 11), (12, 12, 12)]
    seen = [(*prompt, *tokens, *OBSERVED) for prompt, tokens in zip(prompts, said, strict=True)]
    assert [one.prompt_tokens for one in script.seen[1]] == seen
    assert [part.tokens for part in script.seen[1][0].parts] == [(1, 2, 3, 7, 8), (10, *OBSERVED)]


def test_a_longer_prompt_leaves_less_room_in_the_context() -> None:
    (rollout,) = ask(engine_of(Script(), Echo(calls=1, opened={0: (1,) * 9}), context=12), request("p", 0))
    assert rollout.response_tokens == (10,)  # 1 + 3 of the answer would fill the 3 that are left
    assert rollout.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("length", [12, 13])
def test_a_prompt_that_fills_the_context_ends_its_conversation_with_a_reason(length: int) -> None:
    echo = Echo(calls=1, opened={1: (1,) * length}, pays=1.0)
    script = Script()
    fine, full = ask(engine_of(script, echo, context=12), request("p", 0, 0, 1))
    assert (fine.finish_reason, full.finish_reason) == (FinishReason.STOP, FinishReason.FAILED)
    assert full.status is RewardStatus.ERROR
    assert full.status_detail == f"the prompt has {length} tokens, but the context only 12"
    assert full.response_tokens == ()
    assert all(one.sample_indices == (0,) for seen in script.seen for one in seen)
    assert len(echo.said("finish")) == 2  # its environment is let go of, too


@pytest.mark.parametrize(
    ("fails", "tokens", "why"),
    [
        ("open", (), "no room"),
        (1, (10,), "it broke"),
        (2, (10, *OBSERVED, 10), "it broke"),
        ("close", (10, *OBSERVED, 10), "it says nothing"),
    ],
)
def test_an_environment_that_fails_ends_its_own_conversation(fails: Any, tokens: tuple[int, ...], why: str) -> None:
    echo = Echo(calls=1, fails={0: fails}, pays=3.0)
    finished: list[Rollout] = []
    lost, fine = ask(engine_of(Script(), echo), request("p", 0, 0, 1), on_finished=finished.extend)
    assert lost.finish_reason is FinishReason.FAILED
    assert (lost.status, lost.status_detail) == (RewardStatus.ERROR, why)
    assert (lost.response_tokens, lost.environment_reward, lost.policy_version) == (tokens, None, 0)
    assert Rollout.from_dict(lost.to_dict()) == lost
    assert (fine.finish_reason, fine.status, fine.environment_reward) == (FinishReason.STOP, RewardStatus.PENDING, 3.0)
    assert {id(one) for one in finished} == {id(lost), id(fine)}
    assert ((0, 0) in dict(echo.said("finish"))) is (fails == "close")


@pytest.mark.parametrize("rounds", [True, False])
@pytest.mark.parametrize("limit", [1, 2, 64])
def test_so_many_are_open_at_a_time(limit: int, rounds: bool) -> None:
    """The next one opens when one is over, and all of them have the turns that they would have alone."""
    echo = Echo(calls=1, slow=(1, 3), fails={2: 1})
    engine = engine_of(Script(), echo, open=limit, in_rounds=rounds)
    rollouts = ask(engine, request("p", 0, *range(4)), request("q", 1, *range(4)))
    assert echo.most_open == min(limit, 8)
    assert [len(one.turns) for one in rollouts] == [3, 3, 1, 3] * 2
    assert [(one.group_id, one.sample_index) for one in rollouts] == [(g, i) for g in (0, 1) for i in range(4)]


def test_an_engine_that_loses_a_turn_is_named() -> None:
    echo = Echo()
    with pytest.raises(RolloutError, match=r"no turn for 1 of 3 conversations, such as sample 2 of group 0"):
        ask(engine_of(Script(forgets=1), echo), request("p", 0, 0, 1, 2))
    assert echo.closed == 1


def test_whatever_ends_the_call_lets_go_of_the_conversations() -> None:
    echo = Echo()
    with pytest.raises(KeyboardInterrupt):
        ask(engine_of(Mock(generate=Mock(side_effect=KeyboardInterrupt)), echo), request("p", 0))
    assert echo.closed == 1


def test_versions_of_turns_are_kept() -> None:
    script = Script()

    class Learning(Echo):
        def begin(self, key: Key, turn: Rollout, number: int) -> None:
            super().begin(key, turn, number)
            script.version = number

    (rollout,) = ask(engine_of(script, Learning(calls=2)), request("p", 0))
    assert (rollout.policy_version, rollout.versions) == (0, ((0, 0), (4, 1), (8, 2)))
    assert rollout.tokens_by_version() == {0: 1, 1: 1, 2: 1}  # those of the tool have none


def test_records_hold_the_turns() -> None:
    (rollout,) = ask(engine_of(Script(), Echo(calls=1)), request("p", 0, 1))
    assert Rollout.from_dict(rollout.to_dict()) == rollout
    single = replace(rollout, turns=())
    assert "turns" not in single.to_dict()
    assert "environment_reward" not in single.to_dict()
    paid = replace(rollout, environment_reward=0.0)
    assert Rollout.from_dict(paid.to_dict()) == paid
    earlier = {name: value for name, value in paid.to_dict().items() if name != "branch"}  # by an earlier version
    assert Rollout.from_dict(earlier | {"sample_index": 2_000_003}).key == (paid.group_id, 3, 2)
    greedy = Rollout.from_dict(earlier | {"sample_index": -1})
    assert (greedy.key, greedy.is_greedy, paid.is_greedy) == ((paid.group_id, -1, 0), True, False)


def test_what_the_policy_said() -> None:
    (rollout,) = ask(engine_of(Script(), Echo(calls=2)), request("p", 0, 1))
    assert [(turn.start, turn.stop) for turn in rollout.policy_turns()] == [(0, 2), (5, 7), (10, 12)]
    assert (rollout.num_sampled(), rollout.last_start, rollout.last_sampled) == (6, 10, 11)
    single = replace(rollout, turns=())
    assert single.policy_turns() == [Turn("policy", 0, 12)]
    assert (single.num_sampled(), single.last_start, single.last_sampled) == (12, 0, 11)
    assert replace(single, response_tokens=()).last_sampled == -1


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 3, 64])
def test_samples_do_not_depend_on_what_is_sampled_together(model: Any, make_engine: Any, rows: int) -> None:
    def conversations(rows: int, slow: tuple[int, ...], open: int) -> list[tuple[Any, ...]]:
        engine: LocalEngine = make_engine(model, max_batch_rows=rows, eos=range(1, 16))
        echo = Echo(calls=3, slow=slow, tokens=(5, 6), opened={2: (4, 5), 3: (1, 2, 3, 9)})
        talking = engine_of(engine, echo, context=60, turn_tokens=12, open=open)
        found = ask(talking, request("p", 0, *range(5)), request("q", 1, *range(5)), tokens=40)
        return [(r.prompt_tokens, r.response_tokens, r.turns, r.finish_reason) for r in found]

    found = conversations(rows, slow=(1, 4), open=3)
    assert found == conversations(8, slow=(), open=10)
    assert sum(len(turns) > 1 for _, _, turns, _ in found) > 5


# ---- a history that is written anew


@dataclass
class Forgetful(Echo):
    """Writes the history anew after each turn: it is as long as the number of the turn says."""

    def begin(self, key: Key, turn: Rollout, number: int) -> None:
        super().begin(key, turn, number)
        for events in (self._ready, self._later):
            answer = events.get(key)
            if isinstance(answer, Answer) and answer.tokens:
                events[key] = replace(answer, tokens=(7,) * (3 + number), is_whole=True)


def test_each_history_begins_a_row() -> None:
    """Every sampled token is in one row, after exactly the tokens that the engine saw."""
    script = Script()
    finished: list[Rollout] = []
    engine = engine_of(script, Forgetful(calls=2, pays=4.0))
    rows = ask(engine, request("p", 0, 1), request("p", 1), on_finished=finished.extend)
    keys = [(*row.key, row.ends_in) for row in rows]
    assert keys[:3] == [(0, 1, 1, 1), (0, 1, 2, 1), (0, 1, 0, None)]
    assert keys[3:] == [(1, 0, 1, 0), (1, 0, 2, 0), (1, 0, 0, None)]
    assert [row.prompt_tokens for row in rows[:3]] == [(1, 2, 3), (7,) * 4, (7,) * 5]
    assert [row.prompt_tokens for row in rows[:3]] == [seen[0].prompt_tokens for seen in script.seen]
    assert all(row.response_tokens == (11, 11) and row.sampled_mask() == (True, True) for row in rows[:3])
    assert [[turn.reward for turn in row.turns] for row in rows[:3]] == [[1.0], [2.0], [None]]
    assert {row.environment_reward for row in rows} == {4.0}
    said = [[message.content for message in row.history] for row in rows[:3]]
    assert said == [[], ["said 1, heard", "echo"], ["said 1, heard", "echo"] * 2]
    assert [seen[0].name for seen in script.seen] == ["p", "p, turn 2", "p, turn 3"]  # noise of its own
    assert sorted(finished, key=lambda row: row.group_id) == rows


@pytest.mark.parametrize("wanted", [{"only_scored": True}, {"greedy": True}])
def test_what_is_only_scored_is_the_row_that_ends(wanted: dict[str, bool]) -> None:
    engine = engine_of(Script(), Forgetful(calls=2))
    (row,) = engine.generate([request("p", 0)], Sampling(max_response_tokens=50, **wanted), seed=0, step=1)
    assert (row.sample_index, row.ends_in, row.prompt_tokens) == (0, None, (7,) * 5)


@pytest.mark.parametrize(("tokens", "rows"), [(1, 1), (2, 2), (3, 3)])
def test_a_history_has_the_room_that_the_prompt_and_a_response_have(tokens: int, rows: int) -> None:
    """3 tokens of prompt and so many more: histories of 4 and 5 need room for one token after them."""
    found = ask(engine_of(Script(), Forgetful(calls=2)), request("p", 0), tokens=tokens)
    assert len(found) == rows
    assert found[-1].finish_reason is (FinishReason.STOP if tokens == 3 else FinishReason.LENGTH)


def test_the_last_turn_allowed_counts_those_of_earlier_rows() -> None:
    found = ask(engine_of(Script(), Forgetful(calls=9), turns=2), request("p", 0))
    assert [row.finish_reason for row in found] == [FinishReason.STOP, FinishReason.TURNS]


def test_an_environment_that_fails_takes_all_rows_with_it() -> None:
    found = ask(engine_of(Script(), Forgetful(calls=2, fails={0: 3}, pays=1.0)), request("p", 0))
    assert [row.finish_reason for row in found] == [FinishReason.FAILED] * 3
    assert [(row.status, row.status_detail) for row in found] == [(RewardStatus.ERROR, "it broke")] * 3


def test_a_history_that_is_as_it_was_goes_on_in_its_row() -> None:
    class Faithful(Echo):
        """Writes all of it anew, and writes the same."""

        def begin(self, key: Key, turn: Rollout, number: int) -> None:
            super().begin(key, turn, number)
            answer = self._ready[key]
            assert isinstance(answer, Answer)
            if answer.tokens:
                whole = (*turn.prompt_tokens, *turn.response_tokens, *answer.tokens)
                self._ready[key] = replace(answer, tokens=whole, is_whole=True)

    asked = (request("p", 0, 1), request("q", 1))
    assert ask(engine_of(Script(), Faithful(calls=2)), *asked) == ask(engine_of(Script(), Echo(calls=2)), *asked)
