"""Attention over a packed row for any device: the prompt's keys are copied next to the keys of each response.

PyTorch's fused attention with a mask does the rest. It needs no kernel of its own and works in every number type, but
it reads a prompt once for each response.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from burnish.forward.batch import Bools, Ints, upload
from burnish.forward.gathering import gather_rows
from burnish.forward.packing import Packing, bunches

SPREAD = 2.0
"""As in merged attention on a CPU, but devices other than CPUs are quicker with few and large operations."""


@dataclass(frozen=True, eq=False)
class CopiedPrompts:
    """A way to attend in a packed row (`burnish.forward.attention.PackedAttention`)."""

    packing: Packing
    device: torch.device
    dtype: torch.dtype

    def attend(self, query_SHD: Tensor, key_SKD: Tensor, value_SKD: Tensor, scaling: float | None) -> Tensor:
        """(S, H, D); differentiable once. `scaling` None is 1 / sqrt(D)."""
        heads, outputs = query_SHD.shape[1], []
        for block in self._blocks:
            output_NHQD = scaled_dot_product_attention(
                _gathered(query_SHD, block.queries_NQ),
                _repeated(_gathered(key_SKD, block.keys_NK), heads),
                _repeated(_gathered(value_SKD, block.keys_NK), heads),
                attn_mask=block.mask,
                is_causal=block.mask is None,
                scale=scaling,
            )
            outputs.append(output_NHQD.transpose(1, 2).flatten(0, 1))
        return gather_rows(torch.cat(outputs), self._places)

    @cached_property
    def _blocks(self) -> list[_Block]:
        return [*self._prompt_blocks(), *self._response_blocks()]

    def _prompt_blocks(self) -> Iterator[_Block]:
        packing = self.packing
        for bunch in bunches(packing.prompt_lengths.tolist(), SPREAD):
            slots = _padded(packing.prompt_starts[bunch], packing.prompt_lengths[bunch])
            index = upload(slots, self.device)
            yield _Block(index, index, None, slots, _inside(packing.prompt_lengths[bunch]))

    def _response_blocks(self) -> Iterator[_Block]:
        packing = self.packing
        group_B = np.empty_like(packing.response_starts)
        for number, group in enumerate(packing.groups):
            group_B[list(group)] = number
        for bunch in bunches(packing.response_lengths.tolist(), SPREAD):
            prompts = group_B[bunch]
            queries = _padded(packing.response_starts[bunch], packing.response_lengths[bunch])
            keys = _padded(packing.prompt_starts[prompts], packing.prompt_lengths[prompts])
            mask = self._mask(_inside(packing.prompt_lengths[prompts]), queries.shape[1])
            index, device = upload(queries, self.device), self.device
            together = torch.cat([upload(keys, device), index], dim=1)
            yield _Block(index, together, mask, queries, _inside(packing.response_lengths[bunch]))

    def _mask(self, in_prompt_NK: Bools, width: int) -> Tensor:
        """(N or 1, 1, width, K + width), added to the scores: the prompt, then the response so far."""
        if in_prompt_NK.all():
            in_prompt_NK = in_prompt_NK[:1]  # prompts of one length need no separate mask
        in_prompt = upload(in_prompt_NK, self.device)[:, None, None, :]
        causal = torch.ones(width, width, dtype=torch.bool, device=self.device).tril()
        visible = torch.cat([in_prompt.expand(-1, -1, width, -1), causal.expand(len(in_prompt), 1, -1, -1)], dim=3)
        return torch.zeros(visible.shape, dtype=self.dtype, device=self.device).masked_fill(~visible, -torch.inf)

    @cached_property
    def _places(self) -> Tensor:
        """(S,): where each slot is in the outputs of all blocks, one after the other and row by row."""
        slots = np.concatenate([block.slots_NQ.ravel() for block in self._blocks])
        real = np.concatenate([block.real_NQ.ravel() for block in self._blocks])
        places_S = np.zeros(self.packing.size, dtype=np.int64)
        places_S[slots[real]] = np.flatnonzero(real)
        return upload(places_S, self.device)


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """queries_NQ, keys_NK: slots, padding is any of the sequence's own; mask None is causal with the queries as keys.
    On the host slots_NQ, the queries once more, and real_NQ, where they are not padding."""

    queries_NQ: Tensor
    keys_NK: Tensor
    mask: Tensor | None
    slots_NQ: Ints
    real_NQ: Bools


def _inside(lengths_N: Ints) -> Bools:
    """(N, longest): True at the tokens of each sequence, False in its padding."""
    return np.arange(lengths_N.max()) < lengths_N[:, None]


def _padded(starts_N: Ints, lengths_N: Ints) -> Ints:
    """(N, longest): the slots of each sequence, and its last one again where it is shorter."""
    return starts_N[:, None] + np.minimum(np.arange(lengths_N.max()), lengths_N[:, None] - 1)


def _gathered(rows_SXD: Tensor, slots_NQ: Tensor) -> Tensor:
    """(N, X, Q, D): the slots' rows."""
    picked = gather_rows(rows_SXD, slots_NQ.flatten())
    return picked.unflatten(0, slots_NQ.shape).transpose(1, 2)


def _repeated(tensor: Tensor, heads: int) -> Tensor:
    """Key heads, each as often as query heads share it."""
    if tensor.shape[1] == heads:
        return tensor
    return tensor[:, :, None].expand(-1, -1, heads // tensor.shape[1], -1, -1).flatten(1, 2)
