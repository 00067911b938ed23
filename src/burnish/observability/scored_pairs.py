"""Pairs of responses, for `burnish prefer`, from the scored groups that a run has recorded."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from burnish.errors import DataError
from burnish.observability.recorder import RecordedLine, each_rollout, recorded_files
from burnish.outside.reading import reading
from burnish.types import Json


@dataclass(frozen=True, slots=True)
class PairRule:
    """Choice of pairs. take: the best and the worst response of each group, or every two. margin: least difference of
    their scores, above which they are a pair. label: the part of the reward that scores; None: the whole."""

    take: Literal["best_worst", "all"] = "best_worst"
    margin: float = 0.0
    label: str | None = None


@dataclass(slots=True)
class FoundPairs:
    """Rows for a file of comparisons, and the number of groups that gave none, by reason."""

    rows: list[dict[str, Json]] = field(default_factory=list)
    without: Counter[str] = field(default_factory=Counter)


def pairs_of_run(folder: Path, rule: PairRule, steps: range | None = None) -> FoundPairs:
    """Make pairs from the training rollouts of a run, of all steps or of these. DataError if there are none, or if a
    file is damaged."""
    files = recorded_files(folder / "rollouts")
    chosen = {step: path for step, path in files.items() if steps is None or step in steps}
    if not chosen:
        known = f"{min(files)} to {max(files)}" if files else "none"
        raise DataError(f"{folder} has no rollouts of such steps", remedy=f"steps with rollouts: {known}")
    found = FoundPairs()
    for path in chosen.values():
        with reading(f"{path}: reading recorded rollouts", DataError, remedy="remove it, or record that step again"):
            for lines in _groups(each_rollout(path)):
                _add_pairs(lines, rule, found)
    return found


def _groups(lines: Iterable[RecordedLine]) -> list[list[RecordedLine]]:
    """The sampled responses to each prompt of a step; not the greedy ones."""
    groups: dict[tuple[str, int], list[RecordedLine]] = defaultdict(list)
    for line in lines:
        if not line.get("greedy"):
            groups[line["prompt_id"], line["group_id"]].append(line)
    return list(groups.values())


def _add_pairs(lines: Sequence[RecordedLine], rule: PairRule, found: FoundPairs) -> None:
    if any(line.get("turns") for line in lines):
        found.without["responses of several turns"] += 1
        return
    scored = [(score, line) for line in lines if (score := _score(line, rule.label)) is not None]
    if len(scored) < 2:
        found.without["fewer than two scored responses"] += 1
        return
    ordered = sorted(scored, key=lambda one: -one[0])  # stable: of equal scores the earlier sample is first
    couples = [(ordered[0], ordered[-1])] if rule.take == "best_worst" else list(itertools.combinations(ordered, 2))
    rows = [
        _row(better, worse, first - second)
        for (first, better), (second, worse) in couples
        if first - second > rule.margin and better["response"].strip() and worse["response"].strip()
    ]
    if not rows:
        found.without["no two that differ enough"] += 1
    found.rows += rows


def _score(line: RecordedLine, label: str | None) -> float | None:
    if line.get("reward") is None:
        return None
    if label is None:
        return float(line["reward"])
    parts = line.get("reward_parts") or {}
    if label not in parts:
        raise DataError(
            f"the rollouts have no reward {label!r}", remedy=f"rewards are {', '.join(sorted(parts)) or '(none)'}"
        )
    return None if parts[label] is None else float(parts[label])


def _row(better: RecordedLine, worse: RecordedLine, margin: float) -> dict[str, Json]:
    row = {"prompt": better["prompt"], "chosen": better["response"], "rejected": worse["response"], "margin": margin}
    row |= {"id": f"{better['step']}:{better['prompt_id']}", "answer": better.get("answer")}
    row |= {"domain": better["domain"] or None}
    return {name: value for name, value in row.items() if value is not None}


def described(found: FoundPairs) -> Iterator[str]:
    """Sentences for the command line."""
    yield f"pairs: {len(found.rows):,}"
    for reason, count in found.without.most_common():
        yield f"groups without a pair, {reason}: {count:,}"
