"""Log-probabilities and entropy of chosen tokens in vocabulary chunks.

Shapes: N positions, H hidden size, V vocabulary. The forward pass walks over vocabulary chunks and keeps a running
log-sum-exp per position (Milakov and Gimelshein 2018, https://arxiv.org/abs/1805.02867). A few logits are kept for the
backward pass; where they would be many, it computes each chunk's once more, and peak extra memory is one chunk and the
gradients instead of several (N, V) tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_ELEMENTS = 1 << 22
"""Logits at a time: 16 MiB in float32, which a processor's last cache may hold through all that is done with them."""
TOKENS_PER_CHUNK = 1024
KEPT_ELEMENTS = 1 << 26
"""Up to so many logits of a call are kept for its backward pass: 256 MiB."""


@dataclass(frozen=True, slots=True)
class HeadTransform:
    """What a model does to `hidden @ weight.T + bias` before it calls the result logits.

    `scale` multiplies (Cohere, Granite); `softcap` c then maps x to c tanh(x / c) (Gemma); None leaves x as it is.
    """

    scale: float = 1.0
    softcap: float | None = None

    def __call__(self, logits: Tensor) -> Tensor:
        scaled = logits if self.scale == 1.0 else logits * self.scale
        return scaled if self.softcap is None else self.softcap * torch.tanh(scaled / self.softcap)


def plain_token_scores(
    logits_NV: Tensor, targets_N: Tensor, *, temperature: float = 1.0, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """The definition: (log-probability of each target, entropy in nats or None), both (N,) in float32.

    For models whose head cannot be taken apart, and as the yardstick of the chunked form.
    """
    scaled_NV = logits_NV.to(_reduction_dtype(logits_NV)) / temperature
    log_normalizer_N = torch.logsumexp(scaled_NV, dim=-1)
    logprobs_N = scaled_NV.gather(-1, targets_N[:, None])[:, 0] - log_normalizer_N
    if not entropy:
        return logprobs_N, None
    probabilities_NV = torch.softmax(scaled_NV, dim=-1)
    return logprobs_N, log_normalizer_N - (probabilities_NV * scaled_NV).sum(-1)


def chunked_token_scores(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    *,
    temperature: float = 1.0,
    transform: HeadTransform | None = None,
    entropy: bool = False,
    accumulate_in_place: bool = False,
    chunk_elements: int = CHUNK_ELEMENTS,
    kept_elements: int = KEPT_ELEMENTS,
) -> tuple[Tensor, Tensor | None]:
    """(log-probability of each target, entropy in nats or None) of softmax(transform(hidden @ weight.T + bias) / T).

    Results are (N,) float32 (float64 for float64 input) and differentiable in hidden, weight and bias.
    `accumulate_in_place` adds the weight's gradient straight into `weight.grad` when weight is a leaf without hooks,
    so that a second micro-batch needs no second (V, H) buffer; `torch.autograd.grad` for the weight then sees nothing.
    Logits are kept for the backward pass where there are at most `kept_elements`.
    Raises ValueError for a temperature that is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    head = transform or HeadTransform()
    plan = _Plan(temperature, head.scale, head.softcap, entropy, accumulate_in_place, chunk_elements, kept_elements)
    logprobs_N, entropy_N = _ChunkedTokenScores.apply(hidden_NH, weight_VH, bias_V, targets_N, plan)
    return logprobs_N, entropy_N if entropy else None


@torch.no_grad()
def likeliest_tokens(
    hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, *, chunk_elements: int = CHUNK_ELEMENTS
) -> Tensor:
    """(N,) token ids of the largest logit, a few positions at a time; transform and temperature do not change it."""
    rows = max(1, chunk_elements // weight_VH.shape[0])
    parts = [torch.nn.functional.linear(part, weight_VH, bias_V).argmax(-1) for part in hidden_NH.split(rows)]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64, device=hidden_NH.device)


@dataclass(frozen=True, slots=True)
class _Plan:
    temperature: float
    scale: float
    softcap: float | None
    entropy: bool
    accumulate_in_place: bool
    chunk_elements: int
    kept_elements: int

    def token_chunks(self, num_tokens: int) -> Iterator[slice]:
        return _slices(num_tokens, TOKENS_PER_CHUNK)

    def vocabulary_chunks(self, num_tokens: int, vocabulary: int) -> Iterator[slice]:
        rows = max(1, min(num_tokens, TOKENS_PER_CHUNK))
        return _slices(vocabulary, max(1, self.chunk_elements // rows))


class _ChunkedTokenScores(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, targets_N: Tensor, plan: _Plan
    ) -> tuple[Tensor, Tensor]:
        kept_NV = _room_for_logits(hidden_NH, weight_VH, plan.kept_elements) if any(ctx.needs_input_grad[:3]) else None
        statistics = [
            _stream(
                hidden_NH[rows], weight_VH, bias_V, targets_N[rows], plan, None if kept_NV is None else kept_NV[rows]
            )
            for rows in plan.token_chunks(hidden_NH.shape[0])
        ]
        empty = hidden_NH.new_zeros(0, dtype=_reduction_dtype(hidden_NH))
        logprobs_N, log_normalizer_N, entropy_N = (
            torch.cat(parts) for parts in zip(*(statistics or [(empty, empty, empty)]), strict=True)
        )
        ctx.plan = plan
        ctx.kept = kept_NV
        ctx.set_materialize_grads(False)
        ctx.weight = weight_VH  # the very leaf: its .grad is written when accumulate_in_place
        ctx.save_for_backward(hidden_NH, bias_V, targets_N, log_normalizer_N, entropy_N)
        if not plan.entropy:
            ctx.mark_non_differentiable(entropy_N)
        return logprobs_N, entropy_N

    @staticmethod
    @once_differentiable
    def backward(  # type: ignore[override]
        ctx: Any, grad_logprobs_N: Tensor | None, grad_entropy_N: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        hidden_NH, bias_V, targets_N, log_normalizer_N, entropy_N = ctx.saved_tensors
        plan: _Plan = ctx.plan
        kept_NV, ctx.kept = ctx.kept, None  # overwritten by the gradient: a second backward pass computes them again
        if grad_logprobs_N is None:
            grad_logprobs_N = torch.zeros_like(log_normalizer_N)
        weight_VH: Tensor = ctx.weight
        gradients = _HeadGradients(hidden_NH, weight_VH, bias_V, plan, ctx.needs_input_grad[:3])
        for columns in plan.vocabulary_chunks(hidden_NH.shape[0], weight_VH.shape[0]):
            chunks = (
                (
                    rows,
                    _chunk_gradient(
                        _chunk_logits(
                            hidden_NH[rows], weight_VH[columns], None if bias_V is None else bias_V[columns], plan
                        )
                        if kept_NV is None
                        else kept_NV[rows, columns],
                        targets_N[rows] - columns.start,
                        log_normalizer_N[rows],
                        entropy_N[rows],
                        grad_logprobs_N[rows],
                        None if grad_entropy_N is None else grad_entropy_N[rows],
                        plan,
                    ).to(hidden_NH.dtype),
                )
                for rows in plan.token_chunks(hidden_NH.shape[0])
            )
            gradients.add(columns, chunks)
        return *gradients.finish(), None, None


def _room_for_logits(hidden_NH: Tensor, weight_VH: Tensor, limit: int) -> Tensor | None:
    """(N, V) for logits to be kept in, None where they are too many."""
    tokens, vocabulary = hidden_NH.shape[0], weight_VH.shape[0]
    if tokens * vocabulary > limit:
        return None
    return hidden_NH.new_empty(tokens, vocabulary, dtype=_reduction_dtype(hidden_NH))


def _stream(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    plan: _Plan,
    kept_NV: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(logprobs, log normaliser, entropy or zeros) of one token chunk, in one walk over the vocabulary; its logits go
    to `kept_NV`."""
    dtype = _reduction_dtype(hidden_NH)
    num_tokens = hidden_NH.shape[0]
    peak_N = hidden_NH.new_full((num_tokens,), -torch.inf, dtype=dtype)
    mass_N, moment_N, target_logits_N = (hidden_NH.new_zeros(num_tokens, dtype=dtype) for _ in range(3))
    for columns in plan.vocabulary_chunks(num_tokens, weight_VH.shape[0]):
        logits = _chunk_logits(hidden_NH, weight_VH[columns], None if bias_V is None else bias_V[columns], plan)
        if kept_NV is not None:
            kept_NV[:, columns] = logits
        _take_targets(logits, targets_N - columns.start, target_logits_N)
        new_peak_N = torch.maximum(peak_N, logits.amax(-1))
        shrink_N = torch.exp(peak_N - new_peak_N)
        logits.sub_(new_peak_N[:, None])
        if plan.entropy:
            # moment = sum of exp(x - peak) (x - peak); moving the peak shifts every term of it
            shift_N = torch.where(mass_N > 0, (peak_N - new_peak_N) * mass_N, 0.0)
            weights = torch.exp(logits)
            moment_N = (moment_N + shift_N) * shrink_N + torch.einsum("nv,nv->n", weights, logits)
            mass_N = mass_N * shrink_N + weights.sum(-1)
        else:
            mass_N = mass_N * shrink_N + logits.exp_().sum(-1)
        peak_N = new_peak_N
    log_mass_N = torch.log(mass_N)
    log_normalizer_N = peak_N + log_mass_N
    entropy_N = log_mass_N - moment_N / mass_N if plan.entropy else torch.zeros_like(log_mass_N)
    return target_logits_N - log_normalizer_N, log_normalizer_N, entropy_N


def _chunk_logits(hidden_NH: Tensor, weight_CH: Tensor, bias_C: Tensor | None, plan: _Plan) -> Tensor:
    """Logits of one chunk after transform and temperature, in the reduction dtype; the caller may overwrite them."""
    logits = torch.mm(hidden_NH, weight_CH.T) if bias_C is None else torch.addmm(bias_C, hidden_NH, weight_CH.T)
    logits = logits.to(_reduction_dtype(logits))
    if plan.softcap is None:
        factor = plan.scale / plan.temperature
        return logits if factor == 1.0 else logits.mul_(factor)
    return logits.mul_(plan.scale / plan.softcap).tanh_().mul_(plan.softcap / plan.temperature)


def _take_targets(logits: Tensor, columns_N: Tensor, out_N: Tensor) -> None:
    """Copy the logit at each position's column to `out_N` where the column lies inside this chunk."""
    inside_N = (columns_N >= 0) & (columns_N < logits.shape[1])
    taken_N = logits.gather(1, columns_N.clamp(0, logits.shape[1] - 1)[:, None])[:, 0]
    out_N.copy_(torch.where(inside_N, taken_N, out_N))


def _chunk_gradient(
    logits: Tensor,
    columns_N: Tensor,
    log_normalizer_N: Tensor,
    entropy_N: Tensor,
    grad_logprobs_N: Tensor,
    grad_entropy_N: Tensor | None,
    plan: _Plan,
) -> Tensor:
    """Gradient with respect to the raw head output of one chunk, in the place of its logits.

    d logprob / d x_j = [j = target] - p_j and d entropy / d x_j = -p_j (log p_j + entropy).
    """
    slope = None if plan.softcap is None else 1 - (logits * (plan.temperature / plan.softcap)).square_()
    log_p = logits.sub_(log_normalizer_N[:, None])
    if grad_entropy_N is not None:
        factor = (log_p + entropy_N[:, None]).mul_(-grad_entropy_N[:, None]).sub_(grad_logprobs_N[:, None])
        grad = log_p.exp_().mul_(factor)
    else:
        grad = log_p.exp_().mul_(-grad_logprobs_N[:, None])
    inside_N = (columns_N >= 0) & (columns_N < grad.shape[1])
    at_target_N = torch.where(inside_N, grad_logprobs_N, 0.0).to(grad.dtype)
    grad.scatter_add_(1, columns_N.clamp(0, grad.shape[1] - 1)[:, None], at_target_N[:, None])
    if plan.scale != plan.temperature:
        grad.mul_(plan.scale / plan.temperature)
    if slope is not None:
        grad.mul_(slope)
    return grad


class _HeadGradients:
    """Buffers of the backward pass; each is None when nobody asked for it. Sums over chunks run in float32."""

    def __init__(
        self, hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, plan: _Plan, needs: tuple[bool, bool, bool]
    ) -> None:
        self.hidden_NH = hidden_NH
        self.weight_VH = weight_VH
        self.in_place = plan.accumulate_in_place and weight_VH.is_leaf and not weight_VH._backward_hooks
        self.grad_hidden_NH = torch.zeros_like(hidden_NH, dtype=_reduction_dtype(hidden_NH)) if needs[0] else None
        self.grad_weight_VH = self._weight_buffer() if needs[1] else None
        self.grad_bias_V = torch.zeros_like(bias_V) if needs[2] and bias_V is not None else None

    def _weight_buffer(self) -> Tensor:
        if not self.in_place:
            return torch.zeros_like(self.weight_VH)
        if self.weight_VH.grad is None:
            self.weight_VH.grad = torch.zeros_like(self.weight_VH)
        return self.weight_VH.grad

    def add(self, columns: slice, rows_and_gradients: Iterator[tuple[slice, Tensor]]) -> None:
        """Add what the raw-logit gradients of one vocabulary chunk, given token chunk by token chunk, bring."""
        weight_CH = self.weight_VH[columns]
        sum_CH = None if self.grad_weight_VH is None else self._chunk_sum(self.grad_weight_VH[columns])
        for rows, grad_logits in rows_and_gradients:
            if self.grad_hidden_NH is not None:
                _add_product(self.grad_hidden_NH[rows], grad_logits, weight_CH)
            if sum_CH is not None:
                _add_product(sum_CH, grad_logits.T, self.hidden_NH[rows])
            if self.grad_bias_V is not None:
                self.grad_bias_V[columns].add_(grad_logits.sum(0, dtype=_reduction_dtype(grad_logits)))
        if sum_CH is not None and self.grad_weight_VH is not None and sum_CH.dtype != self.grad_weight_VH.dtype:
            self.grad_weight_VH[columns].add_(sum_CH)

    @staticmethod
    def _chunk_sum(grad_CH: Tensor) -> Tensor:
        """The place to add up a chunk of the weight's gradient: itself, or a float32 buffer beside a bf16 gradient."""
        dtype = _reduction_dtype(grad_CH)
        return grad_CH if grad_CH.dtype == dtype else torch.zeros_like(grad_CH, dtype=dtype)

    def finish(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """(hidden, weight, bias) gradients for autograd; the weight's is None when it was added in place."""
        hidden = None if self.grad_hidden_NH is None else self.grad_hidden_NH.to(self.hidden_NH.dtype)
        return hidden, None if self.in_place else self.grad_weight_VH, self.grad_bias_V


def _add_product(sum_AB: Tensor, left: Tensor, right: Tensor) -> None:
    if sum_AB.dtype == left.dtype:
        sum_AB.addmm_(left, right)
    else:
        sum_AB.add_(torch.mm(left, right))


def _reduction_dtype(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _slices(total: int, size: int) -> Iterator[slice]:
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))
