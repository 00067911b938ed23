"""Batches by token budget: whole examples, in the order drawn, up to a number of tokens (without padding)."""

from __future__ import annotations

from collections.abc import Sequence

from burnish.data.samplers import PromptSampler
from burnish.errors import DataError


def next_batch(
    lengths: Sequence[int], tokens_per_batch: int, sampler: PromptSampler, position: int
) -> tuple[list[int], int]:
    """The batch that begins after `position` draws, and the position after it.

    A batch ends when the next example does not fit. It may span the end of a pass over the data. DataError for an
    example that is longer than a batch.
    """
    batch: list[int] = []
    room = tokens_per_batch
    while True:
        (index,) = sampler.take(1, position + len(batch))
        length = lengths[index]
        if not 0 < length <= tokens_per_batch:
            raise DataError(
                f"example {index} has {length:,} tokens and does not fit a batch of {tokens_per_batch:,} tokens",
                remedy="raise optimization.tokens_per_batch, or lower max_tokens",
            )
        if length > room:
            return batch, position + len(batch)
        batch.append(index)
        room -= length
