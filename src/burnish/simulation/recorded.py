"""Measurements of a recorded run for a simulation: lengths from its rollouts, seconds from its metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from burnish.algorithms.balancing import deal
from burnish.config.yaml_text import parse_yaml
from burnish.errors import DataError
from burnish.observability.history import read_rows
from burnish.observability.recorder import RecordedLine, num_sampled, read_rollouts, recorded_files
from burnish.outside.reading import reading
from burnish.simulation.fit import DecodedStep, decoded_step

METRICS_FILE = "metrics.jsonl"
_REMEDY = "give the `output` of a finished or interrupted `burnish rl`"
_DEFAULT_PLACES = 256
_WARM_UP = 2
"""Number of first steps to leave out if at least as many remain: kernels are built and tried in them."""
_NAMED = ("generate", "reward", "logprobs", "values", "update", "sync")


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One recorded step: its responses as (prompt, response) lengths, and the seconds of its phases."""

    step: int
    responses: tuple[tuple[int, int], ...]
    decoded: DecodedStep
    prefill_seconds: float
    reward_seconds: float
    logprobs_seconds: float
    update_seconds: float
    push_seconds: float
    other_seconds: float


@dataclass(frozen=True, slots=True)
class Recording:
    """A run of `burnish rl` as a simulation sees it. `devices`: number of devices that trained (and sampled) it."""

    folder: Path
    devices: int
    steps: tuple[RecordedStep, ...]

    @property
    def lengths(self) -> list[int]:
        return [tokens for step in self.steps for _, tokens in step.responses]

    @property
    def responses_per_step(self) -> float:
        return sum(len(step.responses) for step in self.steps) / len(self.steps)

    @property
    def prompt_tokens(self) -> float:
        """Mean length of a response's prompt."""
        prompts = [prompt for step in self.steps for prompt, _ in step.responses]
        return sum(prompts) / len(prompts)

    def mean(self, name: str) -> float:
        """Mean over the steps of a field of `RecordedStep`, in seconds."""
        return sum(getattr(step, name) for step in self.steps) / len(self.steps)


def read_recording(folder: Path) -> Recording:
    """Read a run's metrics and rollouts.

    Raises DataError if the folder is not a run's, or if no step has both metrics and rollouts.
    """
    with reading(f"run folder {folder}: reading its metrics and rollouts"):
        rows = {int(row["step"]): row for row in read_rows(folder / METRICS_FILE)}
        files = recorded_files(folder / "rollouts")
        both = sorted(rows.keys() & files.keys())
        if not both:
            raise DataError(f"{folder} has no step with both metrics and rollouts", remedy=_REMEDY)
        if len(both) >= 2 * _WARM_UP:
            both = both[_WARM_UP:]
        config = _config(folder)
        places = _number(config, "rollout", "max_batch_rows", _DEFAULT_PLACES)
        trainers = _number(config, "cluster", "trainers", 1)
        workers = _number(config, "cluster", "rollout_workers", 0)
        lanes = _number(config, "cluster", "lanes", trainers * max(1, -(-workers // trainers)))
        steps = [_recorded_step(rows[step], read_rollouts(files[step]), places, lanes) for step in both]
        return Recording(folder, trainers, tuple(steps))


def _recorded_step(row: Mapping[str, float], lines: Sequence[RecordedLine], places: int, lanes: int) -> RecordedStep:
    responses = tuple(_lengths(lines))
    generate, prefill = row.get("time/generate_seconds", 0.0), row.get("time/prefill_seconds", 0.0)
    decode = row.get("time/decode_seconds", generate - prefill)  # an engine of your own may not measure it
    named = sum(row.get(f"time/{phase}_seconds", 0.0) for phase in _NAMED)
    return RecordedStep(
        step=int(row["step"]),
        responses=responses,
        decoded=_decoded(lines, places, lanes, decode),
        prefill_seconds=prefill,
        reward_seconds=row.get("time/reward_seconds", 0.0),
        logprobs_seconds=row.get("time/logprobs_seconds", 0.0) + row.get("time/values_seconds", 0.0),
        update_seconds=row.get("time/update_seconds", 0.0),
        push_seconds=row.get("time/sync_seconds", 0.0),
        other_seconds=max(0.0, row["time/step_seconds"] - named) + max(0.0, generate - prefill - decode),
    )


def _decoded(lines: Sequence[RecordedLine], places: int, lanes: int, seconds: float) -> DecodedStep:
    """Sum up the decoding of all portions of the step (`burnish.rollouts.portions`). `seconds` is their sum, too."""
    groups: dict[object, list[tuple[int, int]]] = {}
    for number, (line, lengths) in enumerate(zip(lines, _lengths(lines), strict=True)):
        groups.setdefault(line.get("group_id", ("alone", number)), []).append(lengths)
    rows = [*groups.values()]
    dealt = deal([len(some) for some in rows], lanes)
    # Longest prompts first, as the local engine begins them.
    portions = [sorted((row for i in some for row in rows[i]), key=lambda row: -row[0]) for some in dealt if some]
    return decoded_step(portions, places, seconds)  # none where no prompt was of the right difficulty


def _lengths(lines: Sequence[RecordedLine]) -> Iterator[tuple[int, int]]:
    """Yield prompt and response lengths. Texts of tools and environments were read and not sampled, so they count as
    prompt: decoding depends on the sampled tokens, training passes on all tokens."""
    for line in lines:
        sampled = num_sampled(line)
        given = len(line["response_tokens"]) - sampled
        yield len(line["prompt_tokens"]) + given, max(1, sampled)


def _config(folder: Path) -> Mapping[str, object]:
    path = folder / "config.yaml"
    data = parse_yaml(path.read_text(encoding="utf-8")).data if path.exists() else None
    return data if isinstance(data, dict) else {}


def _number(config: Mapping[str, object], section: str, name: str, default: int) -> int:
    found = config.get(section)
    value = found.get(name) if isinstance(found, dict) else None
    return value if type(value) is int and value > 0 else default
