"""First difference between two runs: its step, its quantity, and the size of it.

Quantities are compared in the order in which a step computes them, so the first one that differs is the nearest to the
cause. A run that differs in a later quantity of the same step differs because of it.
"""

from __future__ import annotations

import filecmp
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from burnish.checkpointing.run import Difference, RunDirectory, differences
from burnish.checkpointing.store import FINGERPRINT_FILE, CheckpointStore, read_hashes, reading_own
from burnish.errors import DataError
from burnish.observability.history import read_rows
from burnish.observability.recorder import read_rollouts, recorded_files
from burnish.outside.reading import read_json, reading
from burnish.types import Json

QUANTITIES = (
    *("prompts", "sampled tokens", "log-probabilities of the sampler", "rewards", "log-probabilities of the trainer"),
    *("advantages", "loss", "gradient norm", "learning rate", "other metrics", "weights", "evaluation"),
)
"""In the order of the loop."""
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "prompts": ("domain", "prompt_id", "prompt", "answer", "prompt_tokens"),
    "sampled tokens": ("response_tokens", "turns"),
    "log-probabilities of the sampler": ("rollout_logprobs",),
    "rewards": ("status", "reward", "reward_parts", "token_rewards"),
    "log-probabilities of the trainer": ("old_logprobs", "ref_logprobs", "teacher_logprobs"),
    "advantages": ("kept", "token_values", "token_returns", "advantage", "token_advantages"),
}
"""Columns of recorded rollouts."""
_BEGINNINGS: Mapping[str, tuple[str, ...]] = {
    "evaluation": ("eval/",),
    "log-probabilities of the trainer": (
        *("rollout/logprob_diff_mean", "rollout/logprob_diff_max", "rollout/logprob_k3"),
        "kl/",
    ),
    "sampled tokens": ("rollout/", "conversation/", "tool/", "agent/", "environment/"),
    "rewards": ("reward/", "groups/", "domain/"),
    "advantages": ("advantage/",),
    "loss": ("policy/", "critic/", "train/"),
}
"""Beginnings of the names of metrics; the first one that fits decides."""
_ENDS = {"grad_norm": "gradient norm", "learning_rate": "learning rate"}
_BY_CHANCE = (
    *("time/", "throughput/", "judge/", "eval/judge/", "conversation/restarts", "eval/conversation/restarts"),
    *("rollout/lost_workers", "eval/rollout/lost_workers", "rollout/engine_restarts", "eval/rollout/engine_restarts"),
)
"""Beginnings of metrics that say how a run went on its machine, and not what it learned."""
_SHOWN_CHARACTERS = 60


class ComparedValue(NamedTuple):
    """A value in both runs. place: a metric, a column with the response that it belongs to, or a tensor."""

    quantity: str
    place: str
    first: Json
    second: Json

    def differs(self, tolerance: float) -> bool:
        """Return whether the values differ: numbers with fractions by more than this share of the larger one."""
        if self.first == self.second:
            return False
        both = [one for one in (self.first, self.second) if isinstance(one, (int, float))]
        if self.distance is None or not any(isinstance(one, float) for one in both):
            return True
        return self.distance > tolerance * max(map(abs, both))

    @property
    def distance(self) -> float | None:
        """Absolute difference; None unless both values are numbers."""
        first, second = self.first, self.second
        if not isinstance(first, (int, float)) or not isinstance(second, (int, float)):
            return None
        return None if isinstance(first, bool) or isinstance(second, bool) else abs(first - second)


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The step and quantity in which two runs first differ.

    example: the first value of it that differs. changed: values of the quantity that differ, of `compared`. largest:
    the largest absolute difference of numbers; None if there are no numbers. later: further quantities of the step that
    differ.
    """

    step: int
    quantity: str
    example: ComparedValue
    changed: int
    compared: int
    largest: float | None
    later: tuple[str, ...]

    def __str__(self) -> str:
        share = f"{self.changed:,} of {self.compared:,} values differ"
        far = "" if self.largest is None else f", by up to {self.largest:.3g}"
        first, second = (f"{one!r}"[:_SHOWN_CHARACTERS] for one in (self.example.first, self.example.second))
        then = f"; then {', '.join(self.later)}" if self.later else ""
        return (
            f"step {self.step}, {self.quantity}: {share}{far}; first {self.example.place}: {first} and {second}{then}"
        )


def different_settings(first: Path, second: Path) -> list[Difference]:
    """Differences of two runs before their first step: configuration, and files, versions and machine as their newest
    checkpoints noted them. `output` is left out."""
    found = differences(RunDirectory(first).read_config(), RunDirectory(second).read_config())
    ours, theirs = _fingerprints(first), _fingerprints(second)
    return [one for one in found if one.field != "output"] + (differences(ours, theirs) if ours and theirs else [])


def common_steps(first: Path, second: Path) -> list[int]:
    """Steps of which both runs have a line of metrics. DataError if there is none."""
    rows = [_rows_by_step(folder) for folder in (first, second)]
    found = sorted(rows[0].keys() & rows[1].keys())
    if not found:
        ranges = (f"steps {min(of):,} to {max(of):,}" if of else "no steps" for of in rows)
        raise DataError(
            f"{first} and {second} have no step in common: their metrics.jsonl have {' and '.join(ranges)}",
            remedy="compare runs that have made the same steps",
        )
    return found


def first_difference(
    first: Path, second: Path, steps: Sequence[int], *, tolerance: float = 0.0
) -> FirstDifference | None:
    """The first difference of two runs in these steps, which both have; None if there is none.

    Times and the like are left out, and quantities that one of the runs has not measured. tolerance: share of a number
    up to which another one counts as the same; 0 compares bits. Raises DataError or CheckpointError for a damaged file.
    """
    rows = [_rows_by_step(folder) for folder in (first, second)]
    stores = [CheckpointStore(folder) for folder in (first, second)]
    saved = set(stores[0].steps()).intersection(stores[1].steps())
    for step in steps:
        pairs = [*_rollout_pairs(first, second, step), *_metric_pairs(rows[0][step], rows[1][step])]
        if step in saved:
            pairs += _weight_pairs(*(store.at(step).folder for store in stores))
        differing = [pair for pair in pairs if pair.differs(tolerance)]
        if differing:
            return _summed_up(step, pairs, differing)
    return None


def _summed_up(step: int, pairs: Sequence[ComparedValue], differing: Sequence[ComparedValue]) -> FirstDifference:
    quantities = [quantity for quantity in QUANTITIES if any(pair.quantity == quantity for pair in differing)]
    of_first = [pair for pair in differing if pair.quantity == quantities[0]]
    return FirstDifference(
        step=step,
        quantity=quantities[0],
        example=of_first[0],
        changed=len(of_first),
        compared=sum(pair.quantity == quantities[0] for pair in pairs),
        largest=max((pair.distance for pair in of_first if pair.distance is not None), default=None),
        later=tuple(quantities[1:]),
    )


def _rows_by_step(folder: Path) -> dict[int, dict[str, float]]:
    return {int(row["step"]): row for row in read_rows(folder / "metrics.jsonl")}


def _fingerprints(folder: Path) -> dict[str, Json]:
    """Fingerprints in the newest checkpoint; empty without any."""
    store = CheckpointStore(folder)
    files = [store.at(step).folder / FINGERPRINT_FILE for step in store.steps()[-1:]]
    if not files or not files[0].exists():
        return {}
    with reading_own(str(files[0])):
        return dict(read_json(files[0]))


def _metric_pairs(first: Mapping[str, float], second: Mapping[str, float]) -> Iterator[ComparedValue]:
    for name in first:
        if name in second and not name.startswith(("step", *_BY_CHANCE)):
            yield ComparedValue(_quantity_of(name), name, first[name], second[name])


def _quantity_of(metric: str) -> str:
    begins = (quantity for quantity, names in _BEGINNINGS.items() if metric.startswith(names))
    return _ENDS.get(metric.rpartition("/")[2]) or next(begins, "other metrics")


def _rollout_pairs(first: Path, second: Path, step: int) -> Iterator[ComparedValue]:
    """Values of the recorded rollouts; none if the files are the same, or one run has none of this step."""
    one, other = (recorded_files(folder / "rollouts").get(step) for folder in (first, second))
    if one is None or other is None or filecmp.cmp(one, other, shallow=False):
        return
    with reading(f"{one} or {other}: reading recorded rollouts", DataError, remedy="remove it to compare without it"):
        lines = [read_rollouts(one), read_rollouts(other)]
    yield ComparedValue("prompts", "number of responses", *map(len, lines))
    for ours, theirs in zip(*lines, strict=False):  # their numbers have been compared
        response = f"prompt {ours.get('prompt_id')!r}, sample {ours.get('sample_index')}"
        for quantity, columns in _COLUMNS.items():
            for name in columns:
                if name in ours and name in theirs:
                    yield from _leaves(quantity, f"{name} of {response}", ours[name], theirs[name])


def _leaves(quantity: str, place: str, first: Json, second: Json) -> Iterator[ComparedValue]:
    """The values inside two values, pair by pair."""
    if isinstance(first, list) and isinstance(second, list):
        yield ComparedValue(quantity, f"length of {place}", len(first), len(second))
        for index, (one, other) in enumerate(zip(first, second, strict=False)):
            yield from _leaves(quantity, f"[{index}] of {place}", one, other)
    elif isinstance(first, dict) and isinstance(second, dict):
        for key in dict.fromkeys((*first, *second)):
            yield from _leaves(quantity, f"{key} of {place}", first.get(key), second.get(key))
    else:
        yield ComparedValue(quantity, place, first, second)


def _weight_pairs(first: Path, second: Path) -> Iterator[ComparedValue]:
    """For each tensor of two checkpoints the entry that differs most. Files with the same hash are not read."""
    ours, theirs = read_hashes(first), read_hashes(second)
    for name in sorted(ours.keys() & theirs.keys()):
        if name.endswith(".safetensors") and ours[name] != theirs[name]:
            yield from _tensor_pairs(name, first / name, second / name)


def _tensor_pairs(file: str, first: Path, second: Path) -> Iterator[ComparedValue]:
    from safetensors import safe_open  # with torch, which takes seconds and is needed only here

    with reading_own(f"{first} or {second}"), safe_open(first, "pt") as ours, safe_open(second, "pt") as theirs:
        for name in sorted({*ours.keys()} & {*theirs.keys()}):
            one, other = ours.get_tensor(name).flatten(), theirs.get_tensor(name).flatten()
            place = f"{name} in {file}"
            if one.shape != other.shape:
                yield ComparedValue("weights", f"size of {place}", one.numel(), other.numel())
            elif one.numel():
                at = int((one.double() - other.double()).abs().argmax())
                yield ComparedValue("weights", place, float(one[at]), float(other[at]))
