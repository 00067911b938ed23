"""Steps of several domains: shares, mixing, filters before and after sampling, own limits."""

from collections import Counter
from typing import Any

from plain_samples import Engine, Feed, Scorer, domains_of

from burnish.config.schema import RlConfig
from burnish.observability.metrics import Stopwatch
from burnish.trainers.rl.collection import Collected, Collector
from burnish.types import Prompt, Rollout


def even_ones_are_easy(prompt: Prompt, rollout: Rollout) -> float:
    """Prompts whose number is even are solved, and every second sample of the others."""
    return float(int(prompt.id[-1]) % 2 == 0 or rollout.sample_index % 2 == 0)


def collector(size: int = 8, **domains: dict[str, Any]) -> tuple[Collector, Engine]:
    own = {name: {"train": "x.jsonl", **settings} for name, settings in domains.items()}
    rollout = {"prompts_per_step": 6, "group_size": 2, "max_response_tokens": 10}
    config, engine = RlConfig(model="m", rewards="exact", steps=1_000, domains=own, rollout=rollout), Engine()
    found = domains_of(config, {name: Feed(size, name, name) for name in domains})
    return Collector(config, found, engine, Scorer(even_ones_are_easy)), engine


def counts(collected: Collected) -> Counter[str]:
    return Counter(group.prompt.domain for group in collected.groups)


def test_each_domain_has_its_share_and_its_own_position() -> None:
    loop, _ = collector(a={"share": 2}, b={"share": 1})
    first = loop.collect(1, {}, Stopwatch())
    second = loop.collect(2, first.positions, Stopwatch())
    assert counts(first) == counts(second) == {"a": 4, "b": 2}
    assert (first.positions, second.positions) == ({"a": 4, "b": 2}, {"a": 8, "b": 4})
    assert [group.prompt.id for group in first.groups] == ["a0", "b0", "a1", "a2", "b1", "a3"]
    assert first.metrics["domain/a/prompts"].result() == 4
    assert first.metrics["reward/domain/b"].result() == 0.75  # b0 is solved twice, b1 once


def test_a_step_without_places_for_a_domain_says_nothing_about_it() -> None:
    """Of 6 prompts a twelfth is for b: half a prompt, and so one in every other step."""
    loop, _ = collector(a={"share": 11}, b={"share": 1})
    measured = []
    for step in (1, 2):
        metrics = loop.collect(step, {}, Stopwatch()).metrics
        measured.append({name for name, metric in metrics.items() if metric.result() is not None})
    names = {"reward/domain/b", "domain/b/prompts", "domain/b/missing"}
    assert sorted(len(names & row) for row in measured) == [0, 3]
    assert all({"reward/domain/a", "domain/a/prompts", "domain/a/missing"} <= row for row in measured)


def test_domains_have_their_own_limits_and_group_sizes() -> None:
    loop, engine = collector(a={"max_response_tokens": 3, "group_size": 4}, b={})
    collected = loop.collect(1, {}, Stopwatch())
    asked = [(most, [request.prompt_id for request in requests]) for most, requests in engine.calls]
    assert asked == [(3, ["a0", "a1", "a2"]), (10, ["b0", "b1", "b2"])]
    assert Counter(len(group.rollouts) for group in collected.groups) == {4: 3, 2: 3}


def test_refilled_groups_are_of_the_same_domain() -> None:
    """Prompts with an even number are always solved, so their groups say nothing."""
    loop, _ = collector(a={"dynamic_sampling": True}, b={})
    collected = loop.collect(1, {}, Stopwatch())
    assert sorted(g.prompt.id for g in collected.groups) == ["a1", "a3", "a5", "b0", "b1", "b2"]
    assert collected.positions == {"a": 6, "b": 3}
    assert collected.metrics["domain/a/left_out_fraction"].result() == 0.5
    assert collected.metrics["domain/a/missing"].result() == 0


def test_groups_may_be_dropped_instead() -> None:
    loop, _ = collector(a={"difficulty": {"keep": [0.1, 0.9], "outside": "drop"}}, b={})
    collected = loop.collect(1, {}, Stopwatch())
    assert sorted(g.prompt.id for g in collected.groups) == ["a1", "b0", "b1", "b2"]
    assert collected.metrics["domain/a/missing"].result() == 2


def test_prompts_known_to_be_too_easy_are_not_sampled_again() -> None:
    """Eight prompts, four of them too easy: after one pass only the others are asked for."""
    loop, engine = collector(a={"difficulty": {"keep": [0.1, 0.9]}})
    positions: Any = {}
    for step in (1, 2):
        positions = loop.collect(step, positions, Stopwatch()).positions
    engine.calls.clear()
    collected = loop.collect(3, positions, Stopwatch())
    assert {int(request.prompt_id[-1]) % 2 for _, requests in engine.calls for request in requests} == {1}
    assert collected.metrics["domain/a/left_out_fraction"].result() == 0
    assert counts(collected) == {"a": 6}


def test_a_domain_without_any_such_prompt_ends_the_search() -> None:
    loop, _ = collector(a={"difficulty": {"keep": [0.0, 0.3]}}, b={})
    positions: Any = {}
    for step in (1, 2, 3, 4):
        collected = loop.collect(step, positions, Stopwatch())
        positions = collected.positions
    assert counts(collected) == {"b": 3}
    assert collected.metrics["domain/a/missing"].result() == 3
