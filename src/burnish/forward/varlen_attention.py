"""Attention over a packed row through FlashAttention's kernel for sequences of any length, on a GPU.

Sequences follow each other in the packed row, so that the kernel reads queries, keys and values where they are:

1. every sequence, prompt or response, attends causally to itself;
2. all responses of a prompt, which are next to each other, attend to the prompt without a mask;
3. the two outputs of a response are joined by their log-sum-exps (`burnish.forward.merged_attention`).

No prompt is copied or read twice. The backward pass of each part takes the joined output and log-sum-exps, as in
FlashAttention (Dao et al. 2022, https://arxiv.org/abs/2205.14135, algorithm 4). Gradients that PyTorch derives would be
wrong: the kernel gives none for its log-sum-exps. Shapes: S slots, H heads, K key heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from burnish.forward.batch import Ints, upload
from burnish.forward.gathering import deterministic
from burnish.forward.merged_attention import join
from burnish.forward.packing import Packing
from burnish.forward.versions import key_sharing


@dataclass(frozen=True, slots=True, eq=False)
class SequenceEnds:
    """Sequences of queries, and the sequence of keys that each of them sees.

    queries, keys (N + 1,) int32 on the device: the start of each, and the end of the last; longest_query, longest_key.
    """

    queries: Tensor
    keys: Tensor
    longest_query: int
    longest_key: int
    is_causal: bool

    @staticmethod
    def of(queries_N: Ints, keys_N: Ints, device: torch.device, *, is_causal: bool) -> SequenceEnds:
        """From their lengths."""
        queries, keys = (upload(np.cumsum([0, *lengths], dtype=np.int32), device) for lengths in (queries_N, keys_N))
        return SequenceEnds(queries, keys, int(queries_N.max()), int(keys_N.max()), is_causal)


@dataclass(frozen=True, eq=False)
class VarlenAttention:
    """A way to attend in a packed row (`burnish.forward.attention.PackedAttention`)."""

    packing: Packing
    device: torch.device

    @cached_property
    def itself(self) -> SequenceEnds:
        """Part 1, over all slots."""
        packing = self.packing
        lengths = np.concatenate([packing.prompt_lengths, packing.response_lengths[packing.order]])
        lengths = lengths[lengths > 0]
        return SequenceEnds.of(lengths, lengths, self.device, is_causal=True)

    @cached_property
    def prompts(self) -> SequenceEnds | None:
        """Part 2: queries counted from the first response slot; None where no response has a slot."""
        if self.first_response == self.packing.size:
            return None
        lengths = np.array([span.stop - span.start for span in self.packing.answer_spans()])
        return SequenceEnds.of(lengths, self.packing.prompt_lengths, self.device, is_causal=False)

    @property
    def first_response(self) -> int:
        """The slot after all prompts."""
        return int(self.packing.prompt_lengths.sum())

    def attend(self, query_SHD: Tensor, key_SKD: Tensor, value_SKD: Tensor, scaling: float | None) -> Tensor:
        """(S, H, D); differentiable once. `scaling` None is 1 / sqrt(D)."""
        return _VarlenAttention.apply(query_SHD, key_SKD, value_SKD, self, scaling)


def varlen_forward(
    query: Tensor, key: Tensor, value: Tensor, ends: SequenceEnds, scaling: float | None
) -> tuple[Tensor, Tensor]:
    """(output (Q, H, D), log-sum-exps of the scores (H, Q) float32) by PyTorch's kernel: bfloat16 and float16 only."""
    from torch.nn.attention.varlen import AuxRequest, varlen_attn

    shared = query.shape[1] // key.shape[1]
    options: dict[str, Any] = {}
    sharing = key_sharing(query.device.type) if shared > 1 else "unasked"
    if sharing == "asked":
        options["enable_gqa"] = True
    elif sharing == "repeated":
        key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    output, sums_HQ = varlen_attn(
        query,
        key,
        value,
        ends.queries,
        ends.keys,
        ends.longest_query,
        ends.longest_key,
        return_aux=AuxRequest(lse=True),
        scale=scaling,
        window_size=(-1, 0) if ends.is_causal else (-1, -1),
        **options,
    )
    return output, sums_HQ


def varlen_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    sums_HQ: Tensor,
    ends: SequenceEnds,
    scaling: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value, given `output` and `sums_HQ` over all keys, other parts included."""
    import torch.nn.attention.varlen

    heads, shared = key.shape[1], query.shape[1] // key.shape[1]
    repeats = shared > 1 and key_sharing(query.device.type) == "repeated"
    if repeats:
        key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    random_state = torch.zeros(2, dtype=torch.uint64, device=query.device)  # of dropout, which is not used
    grad_query, grad_key, grad_value = torch.ops.torch_attn._varlen_attn_backward(
        grad,
        query,
        key,
        value,
        output,
        sums_HQ,
        ends.queries,
        ends.keys,
        ends.longest_query,
        ends.longest_key,
        ends.is_causal,
        random_state,
        scaling,
        [-1, 0] if ends.is_causal else [-1, -1],
    )
    if repeats:
        grad_key, grad_value = (part.unflatten(1, (heads, shared)).sum(2) for part in (grad_key, grad_value))
    return grad_query, grad_key, grad_value


class _Context(FunctionCtx):
    """Tensors kept for the backward pass."""

    saved_tensors: tuple[Tensor, ...]
    layout: VarlenAttention
    scaling: float | None


class _VarlenAttention(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: _Context, query: Tensor, key: Tensor, value: Tensor, layout: VarlenAttention, scaling: float | None
    ) -> Tensor:
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        output, sums_HS = varlen_forward(query, key, value, layout.itself, scaling)
        first, prompts = layout.first_response, layout.prompts
        if prompts is not None:
            part, part_sums = varlen_forward(query[first:], key[:first], value[:first], prompts, scaling)
            join(output[first:], sums_HS[:, first:].T, part, part_sums.T)
        ctx.save_for_backward(query, key, value, output, sums_HS)
        ctx.layout, ctx.scaling = layout, scaling
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, grad_SHD: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        query, key, value, output, sums_HS = ctx.saved_tensors
        layout, scaling = ctx.layout, ctx.scaling
        grad, first = grad_SHD.contiguous(), layout.first_response
        with deterministic(grad.device):
            grads = varlen_backward(grad, query, key, value, output, sums_HS, layout.itself, scaling)
            if layout.prompts is not None:
                responses = (grad[first:], query[first:], key[:first], value[:first], output[first:])
                sums_HQ = sums_HS[:, first:].contiguous()
                parts = varlen_backward(*responses, sums_HQ, layout.prompts, scaling)
                for whole, part, slots in zip(
                    grads, parts, (slice(first, None), slice(first), slice(first)), strict=True
                ):
                    whole[slots] += part
        return *grads, None, None
