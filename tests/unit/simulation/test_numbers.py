"""Where numbers come from: a file, a recorded run, the run file."""

import json
from pathlib import Path

import pytest

from burnish.config.loading import load_run_file
from burnish.config.schema import RlConfig
from burnish.errors import ConfigError, DataError
from burnish.simulation.lengths import LogNormalLengths, RecordedLengths
from burnish.simulation.numbers import read_numbers, simulation_settings
from burnish.simulation.recorded import Recording, read_recording
from burnish.simulation.settings import Decoding, Failures, Phase

RUN = "model: m\ndata: {train: t.jsonl}\nrewards: exact\nsteps: 4\nrollout: {prompts_per_step: 2, group_size: 3}\n"
NUMBERS = """\
lengths: {median: 100, sigma: 1.0, longest: 500}
decoding: {base_seconds: 4e-3, row_seconds: 1e-5}
update: {1: 12, 2: 7, 4: 4.5}
push: {fixed_seconds: 0.5}
failures: {mtbf_hours: 1000}
max_staleness: 1
partial: true
"""


def config(tmp_path: Path) -> RlConfig:
    (tmp_path / "run.yaml").write_text(RUN)
    return load_run_file(tmp_path / "run.yaml", (), "rl").config


def numbers(tmp_path: Path, text: str) -> dict[str, object]:
    (tmp_path / "numbers.yaml").write_text(text)
    return read_numbers(tmp_path / "numbers.yaml")


def recorded(folder: Path, *, devices: int = 1) -> Recording:
    """Six steps of three responses with prompts of 5 tokens; decoding takes 0.1 s a pass and 0.01 s a token."""
    (folder / "rollouts").mkdir(parents=True)
    (folder / "config.yaml").write_text(f"rollout: {{max_batch_rows: 2}}\ncluster: {{trainers: {devices}}}\n")
    rows = []
    for step in range(1, 7):
        lengths = [step, 2 * step, 3]
        lines = [{"prompt_tokens": [0] * 5, "response_tokens": [1] * tokens, "greedy": False} for tokens in lengths]
        (folder / "rollouts" / f"step-{step:06d}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        passes = max(2 * step, step + 3)  # two places: the third response follows the first
        decode = 0.1 * passes + 0.01 * sum(lengths)
        named = {"generate": decode + 0.5, "reward": 0.2, "logprobs": 0.4, "update": 2.0, "record": 0.1}
        row = {f"time/{name}_seconds": seconds for name, seconds in named.items()}
        row |= {"time/decode_seconds": decode, "time/prefill_seconds": 0.3, "step": step}
        rows.append(row | {"time/step_seconds": sum(named.values()) + 0.05})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_recording(folder)


def test_a_file_of_numbers(tmp_path: Path) -> None:
    found = numbers(tmp_path, NUMBERS)
    assert found["lengths"] == LogNormalLengths(100, 1.0, 500)
    assert found["decoding"] == Decoding(4e-3, 1e-5)
    assert found["push"] == Phase(0.5)
    assert found["failures"] == Failures(1000)
    assert (found["max_staleness"], found["partial"]) == (1, True)
    update = found["update"]
    assert isinstance(update, Phase)
    assert (update.fixed_seconds, update.divided_seconds) == pytest.approx((2, 10))


def test_all_problems_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    text = "lenghts: {median: 3}\ndecoding: {row_seconds: -1}\ngroup_size: 2.5\npartial: maybe\nwindow: [1]\n"
    with pytest.raises(ConfigError) as caught:
        numbers(tmp_path, text)
    message = str(caught.value)
    for part in (
        "numbers.yaml:1: lenghts is not a known key",
        "did you mean lengths?",
        "decoding.base_seconds is missing",
        "decoding.row_seconds is -1",
        "group_size is 2.5",
        "partial is 'maybe'",
        "window is [1]",
    ):
        assert part in message


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("lengths: {median: 3}\n", "does not say what they are"),
        ("lengths:\n", "lengths is empty (null)"),
        ("lengths: {mean: 600, sigma: 1, longest: 500}\n", "does not fit responses of at most 500"),
        ("update: {0: 3}\n", "3 on 0 devices"),
        ("update: fast\n", "update is 'fast'"),
        ("- 1\n", "not a section"),
        ("price_per_device_hour: .inf\n", "price_per_device_hour is inf"),
        ("update: [\n", "not readable as YAML"),
    ],
)
def test_problems_of_a_file(tmp_path: Path, text: str, part: str) -> None:
    with pytest.raises(ConfigError, match=r"numbers\.yaml") as caught:
        numbers(tmp_path, text)
    assert part in str(caught.value)


def test_a_recorded_run(tmp_path: Path) -> None:
    recording = recorded(tmp_path / "run")
    assert [step.step for step in recording.steps] == [3, 4, 5, 6]  # two to warm up
    assert recording.steps[0].responses == ((5, 3), (5, 6), (5, 3))
    assert recording.responses_per_step == 3
    assert recording.prompt_tokens == 5
    # 0.05 s between the phases, 0.1 s of recording, 0.2 s of generating outside of the engine.
    assert recording.mean("other_seconds") == pytest.approx(0.35)


def test_a_recorded_run_becomes_settings(tmp_path: Path) -> None:
    found = simulation_settings(config(tmp_path), [recorded(tmp_path / "run")])
    assert found.decoding.base_seconds == pytest.approx(0.1)
    assert found.decoding.row_seconds == pytest.approx(0.01)
    assert found.lengths == RecordedLengths.of([3, 6, 3, 4, 8, 3, 5, 10, 3, 6, 12, 3])
    assert found.prefill_seconds == pytest.approx(0.1)
    # Three responses were recorded; the run file asks for six.
    assert (found.update, found.logprobs) == (Phase(0, 4.0), Phase(0, pytest.approx(0.8)))
    assert (found.steps, found.rows_per_engine, found.reward_seconds) == (4, 256, pytest.approx(0.2))


def test_two_recorded_runs_tell_what_does_not_divide(tmp_path: Path) -> None:
    recordings = [recorded(tmp_path / "one"), recorded(tmp_path / "two", devices=2)]
    assert simulation_settings(config(tmp_path), recordings).update == Phase(pytest.approx(2.0), 0.0)


def test_typed_numbers_go_before_recorded_ones(tmp_path: Path) -> None:
    typed = numbers(tmp_path, "update: {fixed_seconds: 9}\ngroup_size: 5\n")
    found = simulation_settings(config(tmp_path), [recorded(tmp_path / "run")], typed)
    assert (found.update, found.group_size) == (Phase(9), 5)
    assert found.logprobs.divided_seconds == pytest.approx(0.4 * 10 / 3)


def test_passes_are_counted_in_each_lane(tmp_path: Path) -> None:
    """Three responses in two lanes with two places each: two beside each other, and one alone."""
    first = recorded(tmp_path / "run", devices=2).steps[0]
    assert first.decoded.iterations == 3 + 6  # of 3, 6 and 3 tokens; lanes get the first and third, the second


def test_without_numbers_the_missing_ones_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"lengths, decoding, update[\s\S]*--from RUN"):
        simulation_settings(config(tmp_path))


def test_folders_that_are_no_runs(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no step with both metrics and rollouts"):
        read_recording(tmp_path)
    recorded(tmp_path / "run")
    (tmp_path / "run" / "rollouts" / "step-000004.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match="reading its metrics and rollouts"):
        read_recording(tmp_path / "run")
