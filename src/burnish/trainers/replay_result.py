"""Results of a replay: its changes in a few numbers, and response by response in files."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

from burnish.checkpointing.run import CONFIG_FILE, dump_config
from burnish.config.schema import RlConfig
from burnish.observability.atomic import write_text_atomically
from burnish.trainers.replay import Replayed, ReplayedResponse
from burnish.trainers.replay_gradients import ReplayedGradient, picture
from burnish.trainers.result import new_eval_folder

REPLAY_FOLDER = "replay"
CHANGES_FILE = "changes.jsonl"
SUMMARY_FILE = "summary.json"
GRADIENTS_FILE, PICTURE_FILE = "gradients.json", "gradients.svg"
_AS_GOOD = 1e-5
"""Difference up to which two numbers are the same, relative to the larger one: a recording has been rounded."""


@dataclasses.dataclass(frozen=True, slots=True)
class SideSummary:
    """The responses of the replayed steps on one side: as recorded, or now. Means of nothing are None."""

    scored: int
    score_mean: float | None
    trained: int
    advantage_size: float | None
    """Mean of the absolute advantages."""


@dataclasses.dataclass(frozen=True, slots=True)
class ReplaySummary:
    """Differences between a replay and the recording.

    Of `responses`: how many have another score (or have one on one side alone), another advantage, and an advantage of
    another sign. orders_changed: of the pairs of siblings, the share that the scores put in another order (equal counts
    as one). score_correlation, advantage_correlation: Pearson's, over the responses that have both, None if one
    side is constant.
    """

    responses: int
    before: SideSummary
    after: SideSummary
    scores_changed: int
    advantages_changed: int
    signs_changed: int
    orders_changed: float | None
    score_correlation: float | None
    advantage_correlation: float | None


def summary_of(rows: Sequence[Replayed]) -> ReplaySummary:
    """The differences of all these responses."""
    advantages = [(row.before.advantage, row.after.advantage) for row in rows]
    scores = [(row.before.reward, row.after.reward) for row in rows]
    return ReplaySummary(
        responses=len(rows),
        before=_side([row.before for row in rows]),
        after=_side([row.after for row in rows]),
        scores_changed=sum(differ(*pair) for pair in scores),
        advantages_changed=sum(differ(*pair) for pair in advantages),
        signs_changed=sum(_sign(old) != _sign(new) for old, new in advantages),
        orders_changed=_mean([float(changed) for changed in _orders(rows)]),
        score_correlation=_correlation(scores),
        advantage_correlation=_correlation(advantages),
    )


def most_changed(rows: Sequence[Replayed], count: int) -> list[Replayed]:
    """The responses that differ at all, by how much their advantages do, then by how much their scores do."""
    changed = [row for row in rows if _distance(row) != (0.0, 0.0)]
    return sorted(changed, key=_distance, reverse=True)[:count]


def differ(old: float | None, new: float | None) -> bool:
    """Return whether two numbers differ by more than rounding, or only one of them is there."""
    if old is None or new is None:
        return old is not new
    return abs(old - new) > _AS_GOOD * max(abs(old), abs(new), 1e-3)


def write_replay(config: RlConfig, rows: Sequence[Replayed]) -> Path:
    """Write the responses, the summary and the configuration to a new folder `replay/NNN` of the run; returns it."""
    folder = new_eval_folder(Path(config.output), REPLAY_FOLDER)
    write_text_atomically(folder / CONFIG_FILE, dump_config(config))
    found = dataclasses.asdict(summary_of(rows))
    write_text_atomically(folder / SUMMARY_FILE, json.dumps(found, indent=2) + "\n")
    lines = (json.dumps(dataclasses.asdict(row), ensure_ascii=False, default=str) for row in rows)
    write_text_atomically(folder / CHANGES_FILE, "".join(f"{line}\n" for line in lines))
    return folder


def write_gradients(config: RlConfig, rows: Sequence[ReplayedGradient]) -> Path:
    """Write the gradients, their picture and the configuration to a new folder `replay/NNN` of the run; returns it."""
    folder = new_eval_folder(Path(config.output), REPLAY_FOLDER)
    write_text_atomically(folder / CONFIG_FILE, dump_config(config))
    found = [dataclasses.asdict(row) for row in rows]
    write_text_atomically(folder / GRADIENTS_FILE, json.dumps(found, indent=2, allow_nan=False) + "\n")
    write_text_atomically(folder / PICTURE_FILE, picture(rows))
    return folder


def _side(standings: Sequence[ReplayedResponse]) -> SideSummary:
    scores = [one.reward for one in standings if one.reward is not None]
    advantages = [abs(one.advantage) for one in standings if one.advantage is not None]
    return SideSummary(len(scores), _mean(scores), len(advantages), _mean(advantages))


def _orders(rows: Sequence[Replayed]) -> Iterator[bool]:
    """Yield for each pair of siblings that have scores on both sides whether their order has changed."""
    groups: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for row in rows:
        if row.before.reward is not None and row.after.reward is not None:
            groups.setdefault((row.step, row.group_id), []).append((row.before.reward, row.after.reward))
    for pairs in groups.values():
        for (old, new), (other_old, other_new) in combinations(pairs, 2):
            yield _order(old, other_old) != _order(new, other_new)


def _order(one: float, other: float) -> int:
    return 0 if not differ(one, other) else 1 if one > other else -1


def _sign(advantage: float | None) -> int:
    """Return the sign of an advantage: 0 also for a response that is not trained on."""
    return 0 if advantage is None else (advantage > 0) - (advantage < 0)


def _distance(row: Replayed) -> tuple[float, float]:
    """Return the distance of the advantages, and of the scores. A missing one counts as 0: it moves the policy as
    little."""
    before, after = row.before, row.after
    pairs = (before.advantage, after.advantage), (before.reward, after.reward)
    advantage, score = (abs((old or 0.0) - (new or 0.0)) if differ(old, new) else 0.0 for old, new in pairs)
    return advantage, score


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _correlation(pairs: Sequence[tuple[float | None, float | None]]) -> float | None:
    both = [(old, new) for old, new in pairs if old is not None and new is not None]
    if len(both) < 2:
        return None
    old_mean, new_mean = (sum(values) / len(both) for values in zip(*both, strict=True))
    shared = sum((old - old_mean) * (new - new_mean) for old, new in both)
    sizes = [math.sqrt(sum((pair[i] - mean) ** 2 for pair in both)) for i, mean in ((0, old_mean), (1, new_mean))]
    return shared / (sizes[0] * sizes[1]) if all(size > _AS_GOOD for size in sizes) else None
