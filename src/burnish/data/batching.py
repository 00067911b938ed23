"""Batches by token budget: whole examples, in the order drawn, up to a number of tokens (without padding)."""

from __future__ import annotations

from collections.abc import Sequence

from burnish.data.samplers import PromptSampler
from burnish.errors import DataError


def batches_by_tokens(lengths: Sequence[int], tokens_per_batch: int, order: Sequence[int]) -> list[list[int]]:
    """Cut `order` (indices into `lengths`) into batches of at most `tokens_per_batch` tokens.

    A batch ends when the next example does not fit. DataError for an example that is longer than a batch.
    """
    batches: list[list[int]] = []
    room = 0
    for index in order:
        _check_fits(index, lengths[index], tokens_per_batch)
        if lengths[index] > room:
            batches.append([])
            room = tokens_per_batch
        batches[-1].append(index)
        room -= lengths[index]
    return batches


def next_batch(
    lengths: Sequence[int], tokens_per_batch: int, sampler: PromptSampler, position: int
) -> tuple[list[int], int]:
    """The batch that begins after `position` draws, and the position after it.

    A batch may span the end of a pass over the data. Repeated calls give the batches that `batches_by_tokens` would
    make of the sampler's endless order.
    """
    batch: list[int] = []
    room = tokens_per_batch
    while True:
        (index,) = sampler.take(1, position + len(batch))
        _check_fits(index, lengths[index], tokens_per_batch)
        if lengths[index] > room:
            return batch, position + len(batch)
        batch.append(index)
        room -= lengths[index]


def _check_fits(index: int, length: int, tokens_per_batch: int) -> None:
    if not 0 < length <= tokens_per_batch:
        raise DataError(
            f"example {index} has {length:,} tokens and does not fit a batch of {tokens_per_batch:,} tokens",
            remedy="raise optimization.tokens_per_batch, or lower max_tokens",
        )
