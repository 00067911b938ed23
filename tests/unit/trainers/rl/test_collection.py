"""Collecting a step: noise keys of repeated prompts, refills, failures, the over-long penalty."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from plain_samples import Engine, Feed, Scorer, domains_of, group_of, plain_rollout

from burnish.config.domains import ALL
from burnish.config.schema import RlConfig
from burnish.errors import OutageError
from burnish.observability.metrics import Stopwatch
from burnish.rollouts import outages
from burnish.rollouts.outages import Patience
from burnish.trainers.rl.collection import Collector, Overlaps, penalised
from burnish.trainers.telemetry.groups import describe_groups
from burnish.types import Prompt, Rollout

Reward = Callable[[Prompt, Rollout], float | None]


def collector(reward: Reward, *, size: int = 100, needs_greedy: bool = False, **algorithm: object) -> Collector:
    rollout = {"prompts_per_step": 3, "group_size": 2, "max_response_tokens": 10}
    config = RlConfig(model="m", rewards="exact", algorithm={"preset": "grpo", **algorithm}, rollout=rollout)
    domains = dataclasses.replace(domains_of(config, {ALL: Feed(size)}), needs_greedy=needs_greedy)
    return Collector(config, domains, Engine(), Scorer(reward))


def told_apart(prompt: Prompt, rollout: Rollout) -> float:
    return float(rollout.sample_index)


def alike_before_p2(prompt: Prompt, rollout: Rollout) -> float:
    return 1.0 if int(prompt.id[1:]) < 2 else told_apart(prompt, rollout)


def first_of_two_fails_before_p2(prompt: Prompt, rollout: Rollout) -> float | None:
    return None if int(prompt.id[1:]) < 2 and rollout.sample_index == 0 else told_apart(prompt, rollout)


def greedy_of_p1_fails(prompt: Prompt, rollout: Rollout) -> float | None:
    return None if prompt.id == "p1" and rollout.sample_index == -1 else told_apart(prompt, rollout)


@pytest.mark.parametrize(
    ("reward", "settings", "kept", "sampled"),
    [
        (told_apart, {}, "p0 p1 p2", 3),
        (lambda p, r: 1.0, {}, "p0 p1 p2", 3),
        (lambda p, r: None if p.id == "p1" else 1.0, {}, "p0 p2", 3),
        (greedy_of_p1_fails, {"needs_greedy": True}, "p0 p2", 3),
        (alike_before_p2, {"dynamic_sampling": True}, "p2 p3 p4", 5),
        (first_of_two_fails_before_p2, {"dynamic_sampling": True}, "p2 p3 p4", 5),
        (lambda p, r: 1.0, {"dynamic_sampling": True, "max_refills": 2}, "", 9),
    ],
)
def test_groups_that_teach_are_kept_and_the_others_replaced_where_that_is_asked_for(
    reward: Reward, settings: dict[str, Any], kept: str, sampled: int
) -> None:
    collected = collector(reward, **settings).collect(1, {ALL: 0}, Stopwatch())
    assert [group.prompt.id for group in collected.groups] == kept.split()
    assert {len(group.rollouts) for group in collected.groups} <= {2}
    assert (len(collected.sampled), collected.positions) == (sampled, {ALL: sampled})
    assert collected.metrics["groups/missing"].result() == 3 - len(collected.groups)
    if reward is alike_before_p2:
        assert collected.metrics["groups/constant_fraction"].result() == pytest.approx(2 / 5)


@pytest.mark.parametrize("overlaps", ["all", "waiting", "none"])
def test_responses_are_begun_while_others_are_sampled(overlaps: Overlaps) -> None:
    """The greedy ones too, and each of them once, as the very rollout that is scored later."""
    plain = collector(told_apart, needs_greedy=True)
    loop = dataclasses.replace(plain, overlaps=overlaps)
    collected = loop.collect(1, {ALL: 0}, Stopwatch())
    begun = [(prompt.id, rollout.sample_index) for prompt, rollout in loop.scorer.begun]  # type: ignore[attr-defined]
    everything = [(f"p{number}", index) for number in range(3) for index in (-1, 0, 1)]
    assert sorted(begun) == (everything if overlaps != "none" else [])
    assert collected.groups == plain.collect(1, {ALL: 0}, Stopwatch()).groups


def test_a_prompt_drawn_twice_in_a_step_gets_other_noise() -> None:
    loop = collector(lambda prompt, rollout: 0.0, size=2)
    loop.collect(1, {ALL: 0}, Stopwatch())
    ((_, requests),) = loop.engine.calls  # type: ignore[attr-defined]
    asked = [(request.prompt_id, request.sample_indices) for request in requests]
    assert asked == [("p0", (0, 1)), ("p1", (0, 1)), ("p0", (2, 3))]


def test_a_step_without_any_score_is_no_step() -> None:
    loop = collector(lambda prompt, rollout: None)
    with pytest.raises(OutageError, match=r"step 3: none of 6 responses has a score\. .* prompt 'p0', error"):
        loop.collect(3, {ALL: 0}, Stopwatch())
    one = collector(lambda prompt, rollout: 1.0 if (prompt.id, rollout.sample_index) == ("p1", 1) else None)
    assert [group.prompt.id for group in one.collect(3, {ALL: 0}, Stopwatch()).groups] == ["p1"]


@pytest.mark.parametrize(("fails", "seconds", "tries"), [(0, 0.0, 1), (3, 60.0, 4), (99, 0.0, 1), (99, 10.0, 4)])
def test_an_outage_is_waited_for_within_a_deadline(fails, seconds, tries, monkeypatch) -> None:
    """Pauses of 1, 2, 4 and 8 seconds, the last of which would end too late."""
    clock, said, tried = [0.0], list[str](), list[float]()
    monkeypatch.setattr(outages.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(outages.time, "sleep", lambda pause: clock.__setitem__(0, clock[0] + pause))

    def attempt() -> str:
        tried.append(clock[0])
        if len(tried) <= fails:
            raise OutageError("the server is gone")
        return "done"

    patience = Patience(seconds, said.append)
    if fails < tries:
        assert patience.through(attempt) == "done"
    else:
        with pytest.raises(OutageError, match="the server is gone"):
            patience.through(attempt)
    assert tried == [0.0, 1.0, 3.0, 7.0][:tries]
    assert len(said) == tries - 1
    assert all(f"the server is gone. Trying again for up to {seconds:.0f} s" in line for line in said[:1])


def test_a_failed_reward_is_not_a_number_and_a_shrunken_group_is_counted() -> None:
    collected = collector(lambda p, r: None if r.sample_index == 0 else 2.0).collect(1, {ALL: 0}, Stopwatch())
    assert collected.metrics["reward/mean"].result() == 2.0
    assert collected.metrics["groups/shrunk_to_one"].result() == 3
    assert collected.metrics["groups/constant_fraction"].result() is None


def test_the_overlong_penalty_comes_after_the_filter_and_is_logged_apart() -> None:
    """10 tokens at most, buffer .8: free up to 2 tokens, then 1/8 a token."""
    loop = collector(lambda p, r: 1.0, overlong_buffer=0.8)
    feeds = dataclasses.replace(loop.domains.feeds, by_name={ALL: Feed(1)})
    loop = dataclasses.replace(loop, domains=dataclasses.replace(loop.domains, feeds=feeds))
    collected = loop.collect(1, {ALL: 0}, Stopwatch())
    penalties = [r.reward_parts["overlong"] for g in collected.groups for r in g.rollouts]
    assert penalties == [0, 0, -0.125, -0.25, -0.375, -0.5]
    assert [r.reward for g in collected.groups for r in g.rollouts][2] == 0.875
    assert collected.metrics["reward/mean"].result() == 1.0
    assert collected.metrics["reward/overlong_penalty"].result() == pytest.approx(-1.25 / 6)


def test_a_greedy_response_is_asked_for_only_when_needed() -> None:
    loop = collector(told_apart, needs_greedy=True)
    collected = loop.collect(1, {ALL: 0}, Stopwatch())
    assert all(group.greedy is not None and group.greedy.reward == -1.0 for group in collected.groups)
    assert all(len(group.rollouts) == 2 for group in collected.groups)
    without = collector(lambda p, r: 0.0).collect(1, {ALL: 0}, Stopwatch())
    assert all(group.greedy is None for group in without.groups)


def test_rewards_by_domain_appear_with_two_domains() -> None:
    metrics = describe_groups([group_of(plain_rollout(1, reward), domain=d) for d, reward in (("a", 1.0), ("b", 0.0))])
    assert metrics["reward/domain/a"].result() == 1.0
    assert metrics["reward/domain/b"].result() == 0.0


def test_the_greedy_baseline_bears_the_overlong_penalty_of_its_samples() -> None:
    """Every response of the engine's index -1 has one token; with a buffer of all 10 tokens that costs .1."""
    collected = collector(lambda p, r: 1.0, needs_greedy=True, overlong_buffer=1.0).collect(1, {ALL: 0}, Stopwatch())
    assert collected.groups[0].greedy.reward == pytest.approx(0.9)
    assert collected.groups[0].rollouts[0].reward == pytest.approx(0.9)


def test_a_conversation_of_several_rows_bears_the_penalty_of_its_whole_length() -> None:
    """10 tokens at most, buffer .8: free up to 2 tokens, then 1/8 a token. Rows of 2 + 2 tokens are like one of 4."""
    domains = collector(lambda p, r: 1.0, overlong_buffer=0.8).domains
    single, end = plain_rollout(4, 1.0, index=3), plain_rollout(2, 1.0, index=1)
    earlier = dataclasses.replace(end, branch=1, ends_in=1)
    group = penalised(group_of(earlier, end, single), 0.8, domains)
    penalties = [row.reward_parts["overlong"] for row in group.rollouts]
    assert penalties == [-0.25] * 3
