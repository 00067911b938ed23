"""Recorded responses as rows for training: demonstrations for `burnish sft`, comparisons for `burnish prefer`."""

from __future__ import annotations

from typing import Literal

from burnish.board.index import IndexEntry, RolloutIndex
from burnish.errors import DataError
from burnish.observability.scored_pairs import PairRule, pairs_of_run
from burnish.types import Json

Form = Literal["best", "pairs"]


def rows_of_step(index: RolloutIndex, step: int, form: Form, least: float | None = None) -> list[dict[str, Json]]:
    """Make rows of a training step: of each group its best response, if its reward is at least `least`, or its best
    and its worst one. DataError if there are none."""
    if form == "pairs":
        rows = pairs_of_run(index.run_dir, PairRule(), range(step, step + 1)).rows
    else:
        rows = [_demonstration(index, entry) for entry in _best(index.entries("step", step), least)]
    if not rows:
        raise DataError(f"step {step} has no such rows", remedy="choose another step, or a lower reward")
    return rows


def _best(entries: list[IndexEntry], least: float | None) -> list[IndexEntry]:
    """The best response of each group; of equal ones the first."""
    best: dict[int, IndexEntry] = {}
    for entry in entries:
        if entry.greedy or entry.reward is None or (least is not None and entry.reward < least):
            continue
        before = best.get(entry.group_id)
        if before is None or before.reward is None or entry.reward > before.reward:
            best[entry.group_id] = entry
    return list(best.values())


def _demonstration(index: RolloutIndex, entry: IndexEntry) -> dict[str, Json]:
    """A row with prompt and response; with `messages` where either is a conversation."""
    (line,) = index.lines([entry])
    named = {"id": f"{line['step']}:{line['prompt_id']}", "reward": line["reward"]}
    if isinstance(line["prompt"], str) and not line.get("turns"):
        return {"prompt": line["prompt"], "completion": line["response"], **named}
    asked = line["prompt"] if isinstance(line["prompt"], list) else [{"role": "user", "content": line["prompt"]}]
    said = [message for turn in line.get("turns", ()) for message in turn["messages"]]
    return {"messages": [*asked, *(said or [{"role": "assistant", "content": line["response"]}])], **named}
