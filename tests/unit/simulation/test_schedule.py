"""The play of steps, against times computed by hand."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.errors import ConfigError
from burnish.simulation.engine import Engine, SimulatedResponse
from burnish.simulation.lengths import LogNormalLengths, RecordedLengths
from burnish.simulation.schedule import play
from burnish.simulation.settings import Decoding, Failures, Layout, Phase, SimulationSettings

TEN_TOKENS = RecordedLengths((10,))
PLAIN = SimulationSettings(
    prompts_per_step=2,
    group_size=2,
    steps=10,
    lengths=TEN_TOKENS,
    decoding=Decoding(base_seconds=1.0),
    update=Phase(divided_seconds=8.0),
)
UNEVEN = replace(PLAIN, prompts_per_step=16, group_size=4, lengths=LogNormalLengths(20, 1.0, 200))


def test_decoding_and_its_inverse() -> None:
    decoding = Decoding(base_seconds=2.0, row_seconds=0.5, context_seconds=0.01)
    # Three tokens of two rows from a context of 100: 2 + 1 + (1.00, 1.02, 1.04).
    assert decoding.seconds(3, 2, 100) == pytest.approx(12.06)
    assert decoding.tokens(12.06, 2, 100) == pytest.approx(3)


@settings(max_examples=30)
@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.integers(1, 9), st.floats(0, 1e4), st.floats(0.1, 1e3))
def test_tokens_invert_seconds(base: float, row: float, context: float, rows: int, tokens: float, many: float) -> None:
    decoding = Decoding(base + 0.01, row, context)
    assert decoding.seconds(decoding.tokens(many, rows, tokens), rows, tokens) == pytest.approx(many)


def test_rows_share_an_engine() -> None:
    engine = Engine(0, Decoding(base_seconds=1.0, row_seconds=1.0), prompt_tokens=0)
    engine.join(0.0, SimulatedResponse(1, 0, 4, 0), 0.0)
    engine.join(4.0, SimulatedResponse(1, 1, 2, 0), 0.0)  # two tokens done; from now on a token takes 3 seconds
    assert engine.next_end() == pytest.approx(10.0)
    assert len(engine.finish(10.0)) == 2
    assert engine.next_end() is None


def test_a_prompt_stops_the_engine() -> None:
    engine = Engine(0, Decoding(base_seconds=1.0), prompt_tokens=0)
    engine.join(0.0, SimulatedResponse(1, 0, 4, 0), prefill_seconds=0.5)
    engine.join(2.0, SimulatedResponse(1, 1, 1, 0), prefill_seconds=3.0)  # 1.5 of 4 tokens are done
    assert engine.next_end() == pytest.approx(2.0 + 3.0 + 1.0)


def test_colocated_steps_alternate() -> None:
    # 10 s of sampling, 8 / 2 s of updating, 1 s for the weights.
    timeline = play(replace(PLAIN, push=Phase(1.0)), Layout.together(2), 3)
    assert [(step.ready, step.updated) for step in timeline.steps] == [(10, 14), (25, 29), (40, 44)]
    assert all(step.staleness == {0: 4} for step in timeline.steps)


def test_rows_of_an_engine_wait_for_places() -> None:
    timeline = play(replace(PLAIN, rows_per_engine=2), Layout.together(1), 1)
    assert timeline.steps[0].ready == 20  # four responses, two at a time, on one engine


def test_rewards_delay_a_batch() -> None:
    assert play(replace(PLAIN, reward_seconds=2.5), Layout.together(2), 1).steps[0].ready == 12.5


def test_separate_pools_with_staleness_one() -> None:
    # Sampling 10 s on two engines, updates 8 s on one trainer; batch s + 2 is asked for when step s is done.
    timeline = play(replace(PLAIN, max_staleness=1), Layout(2, 1), 6)
    steps = timeline.steps
    assert [dict(step.staleness) for step in steps] == [{0: 4}, *[{1: 4}] * 5]
    # Sampling takes longer than training, so a batch is ready every 10 s and the trainer waits for 2 s.
    assert [step.ready for step in steps] == [10, 20, 30, 40, 50, 60]
    assert [step.waited for step in steps] == [10, 2, 2, 2, 2, 2]


@pytest.mark.parametrize("k", [0, 1, 2, 3])
def test_exact_staleness_is_the_formula(k: int) -> None:
    timeline = play(replace(UNEVEN, max_staleness=k), Layout(4, 2), 8)
    for step in timeline.steps:
        assert step.staleness == {step.step - 1 - max(0, step.step - 1 - k): 64}


def test_nothing_overlaps_without_staleness() -> None:
    timeline = play(UNEVEN, Layout(4, 2), 5)
    for before, after in pairwise(timeline.steps):
        starts = [span.start for span in timeline.spans if span.step == after.step]
        assert min(starts) >= before.updated


def test_an_engine_finishes_one_version_before_the_next() -> None:
    timeline = play(replace(UNEVEN, max_staleness=1), Layout(4, 2), 8)
    for engine in range(4):
        spans = sorted((s for s in timeline.spans if s.engine == engine and s.step > 2), key=lambda s: s.step)
        for before, after in pairwise(spans):
            assert after.start >= before.end - 1e-6


def test_engines_get_equal_shares_of_every_batch() -> None:
    # Both engines finish batch 2 at the same time; neither takes what the other is about to be free for.
    settings = replace(PLAIN, decoding=Decoding(base_seconds=0.1, row_seconds=1.0), max_staleness=1)
    timeline = play(settings, Layout(2, 4), 6)
    assert [step.ready for step in timeline.steps] == [21, 42, 63, 84, 105, 126]  # 10 x (0.1 + 2 rows)


def test_partial_rollouts_begin_at_once() -> None:
    settings = replace(UNEVEN, max_staleness=1, partial=True, update=Phase(divided_seconds=1.0))
    timeline = play(settings, Layout(4, 2), 8)
    overlaps = [
        before
        for before in timeline.spans
        for after in timeline.spans
        if after.engine == before.engine and before.step < after.step and after.start < before.end - 1e-6
    ]
    assert overlaps
    assert all(max(step.staleness) <= 1 for step in timeline.steps)


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 20), st.integers(0, 2), st.booleans())
def test_a_window_bounds_staleness(window: int, k: int, partial: bool) -> None:
    chosen = replace(UNEVEN, window=window, max_staleness=k, partial=partial)
    timeline = play(chosen, Layout(4, 2), 6)
    for step in timeline.steps:
        assert sum(step.staleness.values()) == 64
        assert min(step.staleness) >= 0
        assert max(step.staleness) <= k + 1 + -(-(2 * window - 1) // 16)


def test_a_window_saves_waiting_for_the_slow() -> None:
    exact = play(UNEVEN, Layout(4, 2), 6)
    window = play(replace(UNEVEN, window=8), Layout(4, 2), 6)
    assert window.steps[-1].updated < exact.steps[-1].updated


def test_streaming_begins_before_the_batch_is_complete() -> None:
    whole = play(UNEVEN, Layout(4, 2), 1).steps[0]
    parts = play(replace(UNEVEN, stream=4), Layout(4, 2), 1).steps[0]
    assert parts.began < whole.began
    assert parts.ready == pytest.approx(whole.ready)  # the last part waits for the same response
    ends = max(parts.ready, parts.began + 3.0) + 1.0  # 4 parts of 4 seconds on 2 devices
    assert parts.updated == pytest.approx(ends)
    assert parts.staleness == whole.staleness


def test_a_large_step_is_played_on_a_part_of_the_engines() -> None:
    large = replace(UNEVEN, prompts_per_step=2048, rows_per_engine=1024)
    timeline = play(large, Layout.together(64), 2)
    assert len({span.engine for span in timeline.spans}) == 8
    whole = play(replace(UNEVEN, prompts_per_step=256, rows_per_engine=1024), Layout.together(8), 2)
    assert timeline.steps[0].ready >= whole.steps[0].ready  # waits for the longest of eight times as many


def test_the_same_seed_gives_the_same_play() -> None:
    assert play(UNEVEN, Layout(4, 2), 4) == play(UNEVEN, Layout(4, 2), 4)
    assert play(UNEVEN, Layout(4, 2), 4) != play(replace(UNEVEN, seed=1), Layout(4, 2), 4)


def test_layouts_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="cannot hold an engine of 4"):
        play(replace(PLAIN, devices_per_engine=4), Layout(2, 2), 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("decoding", Decoding(0.0)),
        ("failures", Failures(0.0)),
        ("failures", Failures(float("inf"))),
        ("price_per_device_hour", float("nan")),
    ],
)
def test_settings_out_of_range(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        replace(PLAIN, **{name: value})
