"""Notes of the trainer on each rollout of a step, for the recorded files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from burnish.forward.batch import Batch
from burnish.models.roles import RowEntropies
from burnish.observability.recorder import RolloutNote
from burnish.trainers.rl.batching import scored
from burnish.trainers.rl.collection import Collected
from burnish.types import RolloutGroup, RowKey


def rollout_notes(
    collected: Collected,
    batch: Batch | None,
    why_left_out: Callable[[RolloutGroup], str],
    entropies: Iterable[RowEntropies] = (),
) -> dict[RowKey, RolloutNote]:
    """Collect the trainer's notes on each rollout, by row. Groups that a filter left out are marked."""
    kept_ids = {group.group_id for group in collected.groups}
    left_out = [(group, why_left_out(group)) for group in collected.sampled if group.group_id not in kept_ids]
    notes = {
        rollout.key: RolloutNote(kept=False, dropped_because=why)
        for group, why in left_out
        for rollout in group.rollouts
        if rollout.reward is not None
    }
    if batch is not None:
        rows = [rollout for _, rollout in scored(collected.groups)]
        notes |= {r.key: note for r, note in zip(rows, notes_of(batch.to("cpu"), entropies), strict=True)}
    return notes


def notes_of(batch: Batch, entropies: Iterable[RowEntropies] = ()) -> Iterator[RolloutNote]:
    """One note per row of a batch in the host's memory. Whole tensors become lists at once: row by row takes longer
    than a small model's update."""
    trained_B = batch.loss_mask.sum(dim=1)
    means = [None] * len(batch) if batch.advantages is None else _means(batch.advantages, batch.loss_mask, trained_B)
    columns = {
        "token_advantages": batch.advantages,
        "old_logprobs": batch.old_logprobs,
        "ref_logprobs": batch.ref_logprobs,
        "teacher_logprobs": batch.teacher_logprobs,
        "token_values": batch.values,
        "token_returns": batch.returns,
    }
    known = {name: values.tolist() for name, values in columns.items() if values is not None}
    # Rounded, for a shorter file: nothing is computed from them.
    by_row = {
        row: values
        for rows_B, entropy_BT in entropies
        for row, values in zip(rows_B.tolist(), entropy_BT.double().round(decimals=4).tolist(), strict=True)
    }
    lengths = zip(batch.response_lengths.tolist(), trained_B.tolist(), strict=True)
    for row, (length, trained) in enumerate(lengths):
        yield RolloutNote(
            kept=trained > 0,
            dropped_because="" if trained else "truncated",
            advantage=means[row] if trained else None,
            token_entropy=tuple(by_row[row][:length]) if row in by_row else None,
            **{name: tuple(rows[row][:length]) for name, rows in known.items()},
        )


def _means(values_BT: Tensor, mask_BT: Tensor, counts_B: Tensor) -> list[float]:
    sums_B = torch.where(mask_BT, values_BT, 0.0).sum(dim=1)
    return (sums_B / counts_B.clamp(min=1)).tolist()
