"""Attention over a packed row through FlexAttention: a mask as a function, compiled into the kernel.

For number types that FlashAttention does not take, float32 above all. Blocks of the mask in which no key is seen are
skipped, so that a prompt is read once for all its responses here, too. Shapes: S slots, H heads, K key heads, D head
size. FlexAttention has no backward pass on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from burnish.forward.batch import Bools, Ints, upload
from burnish.forward.packing import Packing

BLOCK = 128
"""Slots in a block of the mask, FlexAttention's own choice."""


@dataclass(frozen=True, eq=False)
class FlexAttention:
    """A way to attend in a packed row (`burnish.forward.attention.PackedAttention`)."""

    packing: Packing
    device: torch.device

    def attend(self, query_SHD: Tensor, key_SKD: Tensor, value_SKD: Tensor, scaling: float | None) -> Tensor:
        """(S, H, D). `scaling` None is 1 / sqrt(D)."""
        query, key, value = (states.transpose(0, 1)[None] for states in (query_SHD, key_SKD, value_SKD))
        run = _flex if query.device.type == "cpu" else _compiled()
        output = run(query, key, value, self.mask, scaling)
        return output[0].transpose(0, 1)

    @cached_property
    def mask(self) -> BlockMask:
        """Mask of the blocks of keys that each block of queries sees, and of the slots within them."""
        seen = self._seen_blocks()
        counts, order = seen.sum(1), np.argsort(~seen, axis=1, kind="stable")
        counts_11B, order_11BB = (upload(part.astype(np.int32)[None, None], self.device) for part in (counts, order))
        own, other = self._sequences()
        own_S, other_S = upload(own, self.device), upload(other, self.device)

        def sees(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return ((own_S[query] == own_S[key]) & (query >= key)) | (other_S[query] == own_S[key])

        size = self.packing.size
        return BlockMask.from_kv_blocks(
            counts_11B, order_11BB, BLOCK_SIZE=BLOCK, mask_mod=sees, seq_lengths=(size, size)
        )

    def _sequences(self) -> tuple[Ints, Ints]:
        """Number of each slot's own sequence, and of the prompt that it sees as well (-1: none)."""
        packing = self.packing
        own, other = np.empty(packing.size, dtype=np.int64), np.full(packing.size, -1)
        responses = packing.response_spans()
        for number, (span, group) in enumerate(zip(packing.prompt_spans(), packing.groups, strict=True)):
            own[span] = number
            for row in group:
                own[responses[row]] = len(packing.groups) + row
                other[responses[row]] = number
        return own, other

    def _seen_blocks(self) -> Bools:
        """(blocks, blocks): whether any slot of this block of queries sees any of that block of keys."""
        packing = self.packing
        count = -(-packing.size // BLOCK)
        seen = np.zeros((count, count), dtype=np.bool_)
        for span in (*packing.prompt_spans(), *packing.response_spans()):
            blocks = _blocks_of(span)
            seen[blocks, blocks] |= np.tri(blocks.stop - blocks.start, dtype=np.bool_)
        for queries, keys in zip(packing.answer_spans(), packing.prompt_spans(), strict=True):
            seen[_blocks_of(queries), _blocks_of(keys)] = True
        return seen


def _blocks_of(span: slice) -> slice:
    """The blocks that these slots are in."""
    if span.stop == span.start:
        return slice(0, 0)
    return slice(span.start // BLOCK, (span.stop - 1) // BLOCK + 1)


def _flex(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask, scaling: float | None) -> Tensor:
    shares_keys = query.shape[1] != key.shape[1]
    return flex_attention(query, key, value, block_mask=mask, scale=scaling, enable_gqa=shares_keys)


@cache
def _compiled() -> Callable[..., Tensor]:
    """Without compilation FlexAttention computes all scores."""
    return torch.compile(_flex, dynamic=True)
