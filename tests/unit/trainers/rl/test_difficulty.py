"""Pass rates of prompts, and the filters that use them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from plain_samples import group_of, plain_rollout

from burnish.config.schema_domains import DifficultyConfig
from burnish.errors import ConfigError
from burnish.rewards.success import Success
from burnish.trainers.outer_loop import Progress
from burnish.trainers.rl.difficulty import Filter, PassRates, Seen, recorded_outcomes
from burnish.types import Rollout, RolloutGroup, Turn

EXACT = Success({"exact": 1.0})


def rollout(score: float | None, index: int = 0, prompt: str = "p", branch: int = 0) -> Rollout:
    parts = {} if score is None else {"exact": score}
    return plain_rollout(1, score, index=index, prompt_id=prompt, reward_parts=parts, branch=branch)


def group(*scores: float | None) -> RolloutGroup:
    return group_of(*(rollout(score, i) for i, score in enumerate(scores)))


def filter_of(dynamic: bool = False, **difficulty: object) -> Filter:
    return Filter(dynamic, DifficultyConfig.model_validate(difficulty), EXACT)


def keeps(teaching: Filter, group: RolloutGroup, step: int = 1) -> bool:
    return not teaching.why_left_out(group, step)


@pytest.mark.parametrize(
    ("scores", "kept"),
    [((1, 1, 1, 1), False), ((1, 1, 1, 0), True), ((1, 0, 0, 0), True), ((0, 0, 0, 0), False), ((1, 1, None), False)],
)
def test_groups_outside_of_the_bounds_are_not_trained_on(scores: tuple[float | None, ...], kept: bool) -> None:
    assert keeps(filter_of(keep=[0.25, 0.75]), group(*scores)) is kept


def test_bounds_change_with_the_stage() -> None:
    stages = filter_of(keep={0: [0.5, 1.0], 3: [0.0, 0.5]})
    easy, hard = group(1, 1, 1, 0), group(1, 0, 0, 0)
    assert [keeps(stages, easy, step) for step in (1, 2, 3)] == [True, True, False]
    assert [keeps(stages, hard, step) for step in (1, 2, 3)] == [False, False, True]


def test_the_spread_of_rewards_must_be_large_enough() -> None:
    """Scores .2 and .4: a deviation of .1."""
    assert keeps(filter_of(min_spread=0.09), group(0.2, 0.4))
    assert not keeps(filter_of(min_spread=0.11), group(0.2, 0.4))


def test_a_group_that_is_left_out_is_told_why() -> None:
    """Scores 0 and 1: half of them solved, and a deviation of .5."""
    half = group(0, 1)
    assert Filter(True, None, None).why_left_out(group(1, 1), step=1) == "group without signal"
    assert filter_of(min_spread=0.6).why_left_out(half, step=1) == "spread of rewards below min_spread"
    assert filter_of(keep=[0.6, 1]).why_left_out(half, step=1) == "solved share outside of keep"
    assert filter_of(keep=[0.5, 1], min_spread=0.5).why_left_out(half, step=1) == ""


def test_dynamic_sampling_wants_two_different_rewards() -> None:
    assert keeps(Filter(True, None, None), group(0, 1))
    assert not keeps(Filter(True, None, None), group(0, 0, None))
    assert keeps(Filter(False, None, None), group(0, 0))


def test_for_an_estimator_of_turns_what_follows_a_turn_is_what_differs() -> None:
    """All score 1. Undiscounted, 1 follows the first turn of each; the second turns are paid 0 and 1."""
    turns = (Turn("policy", 0, 2), Turn("tool", 2, 3), Turn("policy", 3, 4))
    early, late, same = (
        replace(rollout(1.0, i), response_tokens=(1, 2, 3, 4), token_rewards=paid, turns=turns)
        for i, paid in enumerate([(0.0, 1.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0), (1.0, 0.0, 0.0, 0.0)])
    )
    short = replace(rollout(1.0, 3), response_tokens=(1, 2), token_rewards=(0.0, 1.0), turns=turns[:1])

    by_turn, discounted = Filter(True, None, None, turn_gamma=1.0), Filter(True, None, None, turn_gamma=0.5)
    assert keeps(by_turn, group_of(early, late))
    assert not keeps(by_turn, group_of(early, same))
    assert not keeps(by_turn, group_of(late, short))  # 1 follows every turn, however many there are
    assert keeps(discounted, group_of(late, short))  # .5 and 1 follow the first one
    assert not keeps(Filter(True, None, None), group_of(early, late))
    assert keeps(by_turn, group(0, 1))
    assert not keeps(by_turn, group(1, 1))


def test_for_an_estimator_of_parts_they_are_what_differs() -> None:
    """Weights 1 and .5: parts of 1 and 0 have the sum of 0 and 2. An audit's part teaches nothing."""
    first, second = (
        replace(rollout(1.0, i), reward_parts=parts)
        for i, parts in enumerate([{"a": 1.0, "b": 0.0, "audit": 1.0}, {"a": 0.0, "b": 2.0, "audit": 0.0}])
    )
    both = group_of(first, second)
    assert Filter(True, None, None).why_left_out(both, step=1) == "group without signal"
    assert keeps(Filter(True, None, None, trained_parts=("a", "b")), both)
    twice = group_of(first, replace(first, sample_index=1, reward_parts=first.reward_parts | {"audit": 0.0}))
    assert not keeps(Filter(True, None, None, trained_parts=("a", "b")), twice)


def test_branches_of_an_agent_with_one_reward_are_one_sample() -> None:
    """Three rows of a solved sample and one of an unsolved one: half are solved."""
    solved = [rollout(1.0, branch=row) for row in range(3)]
    both = group_of(*solved, rollout(0.0, 1))
    assert [r.reward for r in both.samples()] == [1.0, 0.0]
    assert Filter(False, None, EXACT).solved(both) == [True, False]
    other = group_of(*solved, rollout(0.5, branch=3))
    assert [r.reward for r in other.samples()] == [1.0, 0.5]


def test_a_prompt_that_is_known_to_be_outside_is_asked_for_again_later() -> None:
    wanted = filter_of(keep=[0.25, 0.75], again_after=10)
    assert wanted.asks_for(None, step=5)
    assert wanted.asks_for(Seen("0110", 4), step=5)
    assert [wanted.asks_for(Seen("0000", 4), step) for step in (5, 13, 14)] == [False, False, True]
    assert not filter_of(keep=[0.25, 0.75], again_after=None).asks_for(Seen("0000", 4), step=9_999)


def test_only_the_newest_responses_count() -> None:
    rates = PassRates({"math": 4}, Progress())
    rates.observe(1, "math", "p", [True, True, True])
    rates.observe(2, "math", "p", [False, False])
    rates.observe(2, "other", "p", [True])
    assert rates.of("math", "p") == Seen("1100", 2)
    assert rates.of("other", "p") is None


def test_a_checkpoint_holds_what_was_trained_on_and_the_rest_is_observed_again() -> None:
    progress = Progress()
    rates = PassRates({"math": 8}, progress)
    for step in (1, 2, 3):
        rates.observe(step, "math", "p", [True, False])
    progress.step = 1
    state = json.loads(json.dumps(rates.state_dict()))
    later = PassRates({"math": 8}, Progress(step=1))
    later.load_state_dict(state)
    assert later.of("math", "p") == Seen("10", 1)
    for step in (2, 3):
        later.observe(step, "math", "p", [True, False])
    assert later.of("math", "p") == rates.of("math", "p") == Seen("101010", 3)


def record(folder: Path, config: str, *recorded: tuple[str, str, float | None, bool]) -> Path:
    """A run with this config.yaml and these training rollouts: domain, prompt, score, greedy."""
    lines = [
        json.dumps({**rollout(score, prompt=prompt).to_dict(), "domain": domain, "greedy": greedy})
        for domain, prompt, score, greedy in recorded
    ]
    (folder / "rollouts").mkdir(parents=True)
    (folder / "config.yaml").write_text(config)
    (folder / "rollouts" / "step-000001.jsonl").write_text("".join(line + "\n" for line in lines))
    return folder


def outcomes(folder: Path, domain: str = "math", prompt_ids: str = "abc") -> list[tuple[str, bool]]:
    return recorded_outcomes(str(folder), "field", EXACT, domain=domain, prompt_ids=set(prompt_ids))


def test_recorded_rollouts_of_another_run(tmp_path: Path) -> None:
    """Greedy responses, responses without a score and evaluations do not count, nor do prompts that are gone."""
    train = [("rows", "a", 1.0, False), ("rows", "a", 0.0, False), ("rows", "b", 1.0, True), ("rows", "c", None, False)]
    folder = record(tmp_path, "steps: 1\n", *train, ("rows", "gone", 1.0, False))
    (folder / "rollouts" / "eval-000001.jsonl").write_text((folder / "rollouts" / "step-000001.jsonl").read_text())
    assert outcomes(folder) == [("a", True), ("a", False)]


def test_of_a_recorded_run_with_domains_only_this_one_counts(tmp_path: Path) -> None:
    """Both domains have a prompt a."""
    both = ("math", "a", 1.0, False), ("code", "a", 0.0, False)
    assert outcomes(record(tmp_path / "with", "domains: {math: {}, code: {}}\n", *both)) == [("a", True)]
    assert outcomes(record(tmp_path / "without", "steps: 1\n", *both)) == [("a", True), ("a", False)]
    with pytest.raises(ConfigError, match="no response that could be judged to a training prompt of the domain 'chat'"):
        outcomes(tmp_path / "with", domain="chat")


def test_a_recorded_run_that_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    folder = record(tmp_path / "run", "steps: 1\n", ("rows", "a", 1.0, False))
    with (folder / "rollouts" / "step-000001.jsonl").open("a") as file:
        file.write('{"prompt_id": "a"}\n')
    with pytest.raises(ConfigError, match=r"step-000001\.jsonl:2: reading a recorded rollout: KeyError: 'domain'"):
        outcomes(folder)
    with pytest.raises(ConfigError, match="elsewhere', which is not the folder of a run"):
        outcomes(tmp_path / "elsewhere")
    (folder / "rollouts" / "step-000001.jsonl").unlink()
    with pytest.raises(ConfigError, match="has no recorded training rollouts"):
        outcomes(folder)
