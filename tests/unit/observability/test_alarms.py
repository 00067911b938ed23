"""Each detector, and that it fires once."""

import json

import pytest

from burnish.observability.alarms import DETECTORS, Alarm, AlarmBell, replay

HEALTHY = {
    "reward/mean": 0.5, "reward/std": 0.4, "rollout/truncated_fraction": 0.1, "groups/constant_fraction": 0.4,
    "policy/first_ratio_deviation": 1e-6, "policy/entropy": 1.0, "kl/reference_per_token": 0.02, "kl/reference": 12.0,
    "kl/clamped_fraction": 0.0, "policy/ratio_clamped_fraction": 0.0,
    "reward/failed_fraction": 0.0, "policy/grad_norm": 0.3, "policy/optimizer_steps": 4, "critic/value_mean": 0.5,
    "environment/failed_fraction": 0.0, "tool/malformed_fraction": 0.1, "tool/invalid_fraction": 0.2,
    "conversation/restarts": 0.0, "critic/explained_variance": 0.3, "critic/return_mean": 0.6, "critic/return_std": 0.4,
}  # fmt: skip


def steps(count: int, **changes: float) -> list[dict[str, float]]:
    changed = {name.replace("__", "/"): value for name, value in changes.items()}
    return [HEALTHY | changed for _ in range(count)]


def fired(rows: list[dict[str, float]]) -> list[tuple[str, int]]:
    bell = AlarmBell()
    return names([alarm for step, row in enumerate(rows, start=1) for alarm in bell.check(step, row)])


def test_a_healthy_run_is_quiet() -> None:
    assert fired(steps(50)) == []


@pytest.mark.parametrize(
    ("name", "metric", "value", "step"),
    [
        ("reward constant", "reward/std", 1e-9, 13),
        ("all truncated", "rollout/truncated_fraction", 1.0, 12),
        ("constant groups", "groups/constant_fraction", 0.95, 13),
        ("sampler and trainer disagree", "policy/first_ratio_deviation", 2e-3, 11),
        ("entropy collapse", "policy/entropy", 0.04, 13),
        ("KL runaway", "kl/reference_per_token", 0.51, 12),
        ("KL clamped", "kl/clamped_fraction", 1e-4, 12),
        ("ratio clamped", "policy/ratio_clamped_fraction", 1e-4, 11),
        ("reward failures", "reward/failed_fraction", 0.02, 11),
        ("gradient zero", "policy/grad_norm", 0.0, 12),
        ("critic worse than a constant", "critic/explained_variance", -0.01, 20),
        ("critic far from the returns", "critic/value_mean", 0.15, 20),
        ("environments fail", "environment/failed_fraction", 0.11, 13),
        ("calls that cannot be made", "tool/malformed_fraction", 0.31, 20),
        ("calls that cannot be made", "tool/invalid_fraction", 0.41, 20),
        ("tools restarted", "conversation/restarts", 1.0, 11),
    ],
)
def test_each_fires_once_after_its_patience(name: str, metric: str, value: float, step: int) -> None:
    assert fired([*steps(10), *[HEALTHY | {metric: value}] * 25]) == [(name, step)]


def test_equal_scores_are_no_alarm_where_a_teacher_judges() -> None:
    assert fired([HEALTHY | {"reward/std": 0.0, "groups/constant_fraction": 1.0, "kl/teacher": 0.3}] * 25) == []


@pytest.mark.parametrize(
    ("metric", "value"),
    [("groups/constant_fraction", 0.9), ("policy/first_ratio_deviation", 1e-3), ("policy/entropy", 0.06),
     ("kl/reference_per_token", 0.49), ("rollout/truncated_fraction", 0.99), ("critic/explained_variance", 0.0),
     ("critic/value_mean", 0.25), ("environment/failed_fraction", 0.1), ("tool/malformed_fraction", 0.3)],
)  # fmt: skip
def test_values_at_the_edge_stay_quiet(metric: str, value: float) -> None:
    assert fired([*steps(10), *[HEALTHY | {metric: value}] * 25]) == []


CUT, TURNS = "rollout/truncated_fraction", "conversation.max_turn_tokens"
RESPONSES = "rollout.max_response_tokens (or the domain's)"


@pytest.mark.parametrize(
    ("row", "knob"),
    [
        ({}, f"{RESPONSES} up"),
        ({"conversation/cut_turn_fraction": 1.0}, f"{TURNS} up"),
        ({"conversation/cut_turn_fraction": 0.4, "domain/a/prompts": 1.0}, f"{TURNS}, {RESPONSES} up"),
        ({CUT: 0.5, "conversation/out_of_turns_fraction": 0.5}, f"{RESPONSES}, conversation.max_turns up"),
    ],
)
def test_the_field_that_cut_every_response_is_named(row: dict[str, float], knob: str) -> None:
    bell = AlarmBell()
    found = [alarm for step in (1, 2) for alarm in bell.check(step, {CUT: 1.0} | row)]
    assert [alarm.knob.partition(", or rollout.stop")[0] for alarm in found] == [knob]
    ended_by_turns = {CUT: 0.0, "conversation/out_of_turns_fraction": 1.0}
    assert not any(AlarmBell().check(step, ended_by_turns) for step in (1, 2))  # as a game ends


def test_a_critic_that_warms_up_is_given_time() -> None:
    """In its warm-up the policy makes no optimizer step; only what follows counts."""
    alone = {name: value for name, value in HEALTHY.items() if name != "policy/optimizer_steps"}
    warming = [alone | {"critic/explained_variance": -1.0}] * 15
    bad = steps(12, critic__explained_variance=-0.2)
    assert fired([*warming, *steps(5)]) == []
    assert fired([*warming, *bad]) == [("critic worse than a constant", 25)]


def test_returns_that_are_all_alike_need_no_exact_values() -> None:
    solved = {"critic__return_mean": 1.0, "critic__return_std": 0.0}
    assert fired(steps(30, **solved, critic__value_mean=0.9)) == []
    assert fired(steps(30, **solved, critic__value_mean=0.7)) == [("critic far from the returns", 10)]


def test_a_reward_that_is_for_no_response_is_named_after_ten_steps() -> None:
    silent, partly = {"reward/not_mine_fraction/sql": 1.0}, {"reward/not_mine_fraction/sql": 0.99}
    assert fired([partly] * 30) == []
    assert fired([silent] * 9 + [partly] + [silent] * 9) == []
    assert fired([silent] * 30) == [("reward sql silent", 10)]
    assert fired([silent, {}] * 10) == [("reward sql silent", 19)]  # a step that asks it nothing does not count


def test_a_good_step_in_between_starts_the_patience_again() -> None:
    bad = HEALTHY | {"reward/std": 0.0}
    assert fired([bad, bad, HEALTHY, bad, bad]) == []


def test_a_row_without_the_metric_neither_counts_nor_resets() -> None:
    bad = HEALTHY | {"policy/grad_norm": 0.0}
    assert fired([bad, {"eval/reward_mean": 1.0}, bad]) == [("gradient zero", 3)]


def test_resumed_alarms_carry_on() -> None:
    gamed = [{"reward/mean": 0.1 * n, "reward/audit/judge": 1.0 - 0.1 * n} for n in range(1, 12)]
    healthy_then_not = [*steps(5), *steps(6, policy__entropy=0.01, policy__grad_norm=0.0)]
    rows = [row | parting for row, parting in zip(healthy_then_not, gamed, strict=True)]
    for cut in range(len(rows) + 1):
        first, second = AlarmBell(), AlarmBell()
        names = [a.name for step, row in enumerate(rows[:cut]) for a in first.check(step, row)]
        second.load_state(json.loads(json.dumps(first.state())))
        names += [a.name for step, row in enumerate(rows[cut:]) for a in second.check(step, row)]
        assert sorted(names) == ["entropy collapse", "gradient zero", "reward gamed: judge"]


def test_replay_is_the_same_as_live() -> None:
    (alarm,) = replay([{"step": step} | row for step, row in enumerate(steps(9, reward__failed_fraction=0.5), start=4)])
    assert (alarm.name, alarm.step) == ("reward failures", 4)
    assert "50.0%" in alarm.message
    assert len({detector.name for detector in DETECTORS}) == len(DETECTORS) == 21


@pytest.mark.parametrize(
    ("correlation", "rule", "accuracy", "rings"),
    [
        (0.9, 0.7, 0.71, True),
        (-0.9, 0.7, 0.6, True),
        (0.9, 0.7, 0.8, False),
        (0.5, 0.7, 0.6, False),
        (0.9, 0.4, 0.4, False),
    ],
)
def test_a_reward_model_that_counts_tokens(correlation: float, rule: float, accuracy: float, rings: bool) -> None:
    row = {"eval/length_correlation": correlation, "eval/length_rule_accuracy": rule, "eval/accuracy": accuracy}
    assert [alarm.name for alarm in AlarmBell().check(1, row)] == ["length explains the preference"] * rings


def test_a_target_says_what_a_runaway_is() -> None:
    """0.8 nats a token are many, but 19 a response are meant where the target is 10; 31 are not."""
    bell = AlarmBell()
    for step in range(1, 8):
        row = {"kl/reference": 19.0 if step > 3 else 0.5, "kl/reference_per_token": 0.8 if step > 3 else 0.02}
        assert not bell.check(step, {**row, "kl/target": 10.0})
    far = {"kl/reference": 31.0, "kl/reference_per_token": 1.3, "kl/target": 10.0}
    assert not bell.check(8, far)
    assert [alarm.name for alarm in bell.check(9, far)] == ["KL runaway"]


@pytest.mark.parametrize(
    ("tokens", "start", "per_token", "rings"),
    [
        (2, 0.0, 0.25, False),  # half a nat a response
        (1, 0.0, 9.0, False),  # one token made certain that had a chance of 1 in 8,000
        (8, 0.0, 1.2, False),  # 9.6 nats a response
        (9, 0.0, 1.2, True),
        (100, 0.0, 0.4, False),
        (100, 0.0, 0.6, True),  # 60 nats a response, from 0
        (100, 0.08, 0.6, False),  # less than ten times what it began with
        (100, 0.08, 0.9, True),
        (1000, 0.0, 0.3, False),
    ],
)
def test_a_runaway_is_far_per_response_and_per_token(tokens: int, start: float, per_token: float, rings: bool) -> None:
    """A run that begins at its reference has first readings of 0: ten times as much is nothing."""

    def row(kl: float) -> dict[str, float]:
        return {"kl/reference_per_token": kl, "kl/reference": kl * tokens}

    assert fired([*[row(start)] * 5, *[row(per_token)] * 3]) == [("KL runaway", 7)] * rings


def names(alarms: list[Alarm]) -> list[tuple[str, int]]:
    return [(alarm.name, alarm.step) for alarm in alarms]


def test_a_domain_without_prompts_is_named_after_five_steps() -> None:
    rows = [{"step": n, "domain/code/prompts": 0.0, "domain/code/missing": 3.0, "domain/math/prompts": 4.0}
            for n in range(1, 8)]  # fmt: skip
    assert names(replay(rows)) == [("domain code starved", 5)]
    seldom = [{**rows[0], "step": n} if n % 3 == 0 else {"step": n} for n in range(20)]
    assert names(replay(seldom)) == [("domain code starved", 12)], "steps without places for it do not count"


def test_a_domain_whose_groups_say_nothing_is_named() -> None:
    rows = [{"step": n, "domain/math/constant_fraction": 1.0 if n > 2 else 0.5} for n in range(1, 9)]
    assert names(replay(rows)) == [("domain math constant", 7)]


def test_a_domain_that_falls_while_the_mean_rises_is_named() -> None:
    """Both begin at .5; from step 4 on the mean is .6, and the domain .46 or .44: 8 % and 12 % below."""
    for low, expected in ((0.46, []), (0.44, [("domain falls: code", 8)])):
        rows = [{"step": n, "reward/mean": 0.5 + 0.1 * (n > 3), "reward/domain/code": 0.5 if n <= 3 else low,
                 "reward/domain/math": 0.7} for n in range(1, 10)]  # fmt: skip
        assert names(replay(rows)) == expected


def test_an_audit_that_falls_while_the_reward_rises_is_named_once() -> None:
    rows = [{"step": n, "reward/mean": 0.1 * n, "reward/audit/judge": 1.0 - 0.1 * n} for n in range(1, 14)]
    (alarm,) = replay(rows)
    assert (alarm.name, alarm.step) == ("reward gamed: judge", 8)
    assert "audit judge fell from 0.8 to 0.2" in alarm.message


def test_a_mean_that_falls_as_well_is_no_sign_of_gaming() -> None:
    rows = [{"step": n, "reward/mean": -0.1 * n, "reward/audit/judge": 1.0 - 0.1 * n} for n in range(1, 14)]
    assert replay(rows) == []


def test_a_restart_during_an_evaluation_is_told_as_well() -> None:
    bell = AlarmBell()
    assert not bell.check(1, {"rollout/engine_restarts": 0.0, "eval/rollout/engine_restarts": 0.0})
    found = bell.check(2, {"rollout/engine_restarts": 0.0, "eval/rollout/engine_restarts": 1.0})
    assert [alarm.name for alarm in found] == ["engine restarted"]
