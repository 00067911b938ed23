"""Sums over plays: step times, splits, the knee, failures."""

from dataclasses import replace

import pytest

from burnish.errors import ConfigError
from burnish.simulation.forecast import (
    best_checkpoint_steps,
    best_split,
    forecast,
    goodput_of,
    knee,
    least_step_seconds,
    synchronous,
)
from burnish.simulation.lengths import RecordedLengths
from burnish.simulation.settings import Decoding, Failures, Layout, Phase, SimulationSettings

SETTINGS = SimulationSettings(
    prompts_per_step=8,
    group_size=2,
    steps=100,
    lengths=RecordedLengths((100,)),
    decoding=Decoding(base_seconds=0.01, row_seconds=0.01),
    update=Phase(fixed_seconds=1.0, divided_seconds=12.0),
    price_per_device_hour=3.0,
)


def test_a_colocated_step() -> None:
    # Four devices, four rows each: 100 x 0.05 s of sampling, 1 + 3 s of training.
    found = forecast(SETTINGS, Layout.together(4))
    assert found.step_seconds == pytest.approx(9)
    assert (found.trainer_wait_seconds, found.sampler_idle_fraction) == (0, pytest.approx(0, abs=1e-6))
    assert found.tokens_per_second_per_device == pytest.approx(1600 / 9 / 4)
    assert found.hours == pytest.approx(100 * 9 / 3600)
    assert found.money == pytest.approx(found.hours * 12)
    assert (found.staleness, found.goodput) == ({0: 1.0}, 1.0)


def test_separate_pools_are_as_fast_as_the_slower_one() -> None:
    # Two devices sample for 100 x 0.09 s; six train for 3 s. With one step behind, sampling never stops.
    found = forecast(replace(SETTINGS, max_staleness=1), Layout(2, 6))
    assert found.step_seconds == pytest.approx(9, rel=1e-3)
    assert found.trainer_wait_seconds == pytest.approx(6, rel=1e-2)
    assert found.staleness == {1: 1.0}
    # The other way round the trainers, 1 + 12 / 2 s, never wait.
    found = forecast(replace(SETTINGS, max_staleness=1), Layout(6, 2))
    assert found.step_seconds == pytest.approx(7, rel=1e-3)
    assert found.sampler_idle_fraction > 0.3


def test_the_best_split_is_the_best_of_all() -> None:
    settings = replace(SETTINGS, max_staleness=1)
    best = best_split(settings, 8)
    steps = {n: forecast(settings, Layout(n, 8 - n)).step_seconds for n in range(1, 8)}
    assert best.step_seconds == pytest.approx(min(steps.values()), rel=0.02)


def test_the_best_split_needs_an_engine_and_a_trainer() -> None:
    with pytest.raises(ConfigError, match="4 devices cannot hold an engine of 4 and a trainer"):
        best_split(replace(SETTINGS, devices_per_engine=4), 4)


def test_the_knee_is_where_doubling_no_longer_pays() -> None:
    at = knee(SETTINGS)
    twice = forecast(SETTINGS, Layout.together(2 * at.layout.devices))
    half = forecast(SETTINGS, Layout.together(at.layout.devices // 2))
    assert twice.step_seconds > 0.9 * at.step_seconds
    assert at.step_seconds <= 0.9 * half.step_seconds
    assert knee(replace(SETTINGS, max_staleness=2)).layout == at.layout


@pytest.mark.slow
def test_no_number_of_devices_beats_the_longest_response() -> None:
    assert least_step_seconds(SETTINGS) == pytest.approx(100 * 0.02 + 1)
    many = forecast(SETTINGS, Layout.together(4096))
    assert many.step_seconds == pytest.approx(least_step_seconds(SETTINGS), rel=0.01)


def test_goodput_of_colocated_devices() -> None:
    failures = Failures(mtbf_hours=100, restart_seconds=360, checkpoint_seconds=36)
    settings = replace(SETTINGS, failures=failures, checkpoint_every_steps=10)
    # 100 devices fail once an hour; a failure costs 360 s and half of ten steps of 72 s; a checkpoint 36 of 720 s.
    expected = 1 / (1 + (360 + 360) / 3600 + 36 / 720)
    assert goodput_of(settings, Layout.together(100), 72) == pytest.approx(expected)
    assert goodput_of(SETTINGS, Layout.together(100), 72) == 1


def test_failed_samplers_cost_less_than_failed_trainers() -> None:
    settings = replace(SETTINGS, failures=Failures(1000), checkpoint_every_steps=10)
    assert goodput_of(settings, Layout(90, 10), 60) > goodput_of(settings, Layout(10, 90), 60)


def test_the_best_checkpoint_interval() -> None:
    # sqrt(2 x 50 s x 10 h) = 1,897 s for ten trainers of 100 h each.
    assert best_checkpoint_steps(Failures(100, checkpoint_seconds=50), Layout.together(10), 100) == 19


def test_synchronous_takes_the_rules_away() -> None:
    found = synchronous(replace(SETTINGS, max_staleness=2, window=4, partial=True))
    assert (found.max_staleness, found.window, found.partial) == (0, 0, False)
