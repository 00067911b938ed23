"""Notes of the trainer on each rollout of a step, for the recorded files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from burnish.forward.batch import Batch
from burnish.observability.recorder import RolloutNote
from burnish.trainers.rl.batching import scored
from burnish.trainers.rl.collection import Collected
from burnish.types import RolloutGroup, RowKey


def rollout_notes(
    collected: Collected, batch: Batch | None, why_left_out: Callable[[RolloutGroup], str]
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
        notes |= {r.key: note for r, note in zip(rows, notes_of(batch.to("cpu")), strict=True)}
    return notes


def notes_of(batch: Batch) -> Iterator[RolloutNote]:
    """One note per row of a batch in the host's memory. Whole tensors become lists at once: row by row takes longer
    than a small model's update."""
    lengths = batch.response_lengths.tolist()
    trained_B = batch.loss_mask.sum(dim=1)
    advantages = _rows(batch.advantages, lengths)
    means = [None] * len(batch) if batch.advantages is None else _means(batch.advantages, batch.loss_mask, trained_B)
    columns = zip(
        trained_B.tolist(),
        means,
        advantages,
        *(
            _rows(values, lengths)
            for values in (
                batch.old_logprobs,
                batch.ref_logprobs,
                batch.teacher_logprobs,
                batch.values,
                batch.returns,
            )
        ),
        strict=True,
    )
    for trained, mean, token_advantages, old, reference, teacher, token_values, token_returns in columns:
        yield RolloutNote(
            kept=trained > 0,
            dropped_because="" if trained else "truncated",
            advantage=mean if trained else None,
            token_advantages=token_advantages,
            old_logprobs=old,
            ref_logprobs=reference,
            teacher_logprobs=teacher,
            token_values=token_values,
            token_returns=token_returns,
        )


def _means(values_BT: Tensor, mask_BT: Tensor, counts_B: Tensor) -> list[float]:
    sums_B = torch.where(mask_BT, values_BT, 0.0).sum(dim=1)
    return (sums_B / counts_B.clamp(min=1)).tolist()


def _rows(values_BT: Tensor | None, lengths: Sequence[int]) -> list[tuple[float, ...] | None]:
    """The values at the response's tokens, row by row."""
    if values_BT is None:
        return [None] * len(lengths)
    return [tuple(row[:length]) for row, length in zip(values_BT.tolist(), lengths, strict=True)]
