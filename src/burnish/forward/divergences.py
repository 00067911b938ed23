"""Divergence of a student's token distributions from a teacher's, and its gradient, without (N, V) tensors.

Shapes: N positions, H hidden size (of student and teacher each their own), V vocabulary, R rows of a chunk. T and S are
the distributions of teacher and student at a temperature t; M = b T + (1 - b) S:

| name | per position |
|---|---|
| `forward_kl` | KL(T \\|\\| S) (Hinton et al. 2015, https://arxiv.org/abs/1503.02531) |
| `reverse_kl` | KL(S \\|\\| T) (Gu et al. 2023, https://arxiv.org/abs/2306.08543) |
| `jsd` | b KL(T \\|\\| M) + (1 - b) KL(S \\|\\| M) (Agarwal et al. 2023, https://arxiv.org/abs/2306.13649) |

each times t^2, so that the gradient keeps its size. `jsd` / b tends to `forward_kl` as b tends to 0, and
`jsd` / (1 - b) to `reverse_kl` as b tends to 1.

Both passes walk in chunks of whole rows. The backward pass computes a chunk's logits again and differentiates the
formula there, so that what is kept between the passes are the hidden states.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from burnish.forward.logprobs import (
    CHUNK_ELEMENTS,
    DEVICE_BLOCK_ELEMENTS,
    LEAST_LOGPROB,
    HeadGradients,
    HeadTransform,
    head_logits,
    reduction_dtype,
    slices,
)

Divergence = Callable[[Tensor, Tensor], Tensor]
"""(logits of the student, logits of the teacher), both (R, V), to the divergence (R,), differentiable in the first."""


def divergence(
    student_RV: Tensor,
    teacher_RV: Tensor,
    *,
    name: str,
    temperature: float = 1.0,
    beta: float = 0.5,
    top_k: int | None = None,
) -> Tensor:
    """Divergence in nats at each position, (R,), times the square of the temperature; see the table above.

    top_k: keep the k likeliest tokens of the teacher and add up all others as one class, on both sides. That is a lower
    bound of the divergence over all tokens, and equal to it where the two agree on the proportions of the others.
    beta: the teacher's share of the mixture of `jsd`, between 0 and 1 exclusive.
    """
    log_s, log_t = (
        torch.log_softmax(logits / temperature, -1).clamp(min=LEAST_LOGPROB) for logits in (student_RV, teacher_RV)
    )
    if top_k is not None and top_k < log_t.shape[-1]:
        kept = log_t.topk(top_k).indices
        log_s, log_t = _rest_as_one(log_s, kept), _rest_as_one(log_t, kept)
    return temperature**2 * _DIVERGENCES[name](log_s, log_t, beta)


def _jsd(log_s: Tensor, log_t: Tensor, beta: float) -> Tensor:
    log_m = torch.logaddexp(log_t + math.log(beta), log_s + math.log1p(-beta))
    return beta * _kl(log_t, log_m) + (1 - beta) * _kl(log_s, log_m)


_DIVERGENCES: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "forward_kl": lambda log_s, log_t, beta: _kl(log_t, log_s),
    "reverse_kl": lambda log_s, log_t, beta: _kl(log_s, log_t),
    "jsd": _jsd,
}


def _kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def _rest_as_one(log_p: Tensor, kept: Tensor) -> Tensor:
    """Log-probabilities of the kept tokens (R, k) and, last, of all others together."""
    rest = log_p.scatter(-1, kept, -math.inf).logsumexp(-1, keepdim=True)
    return torch.cat((log_p.gather(-1, kept), rest), -1)


@dataclass(frozen=True, slots=True)
class HeadInput:
    """Hidden states (N, H), and the head that makes logits of them; or logits (N, V) themselves, without a `weight_VH`.

    Logits from the id `vocabulary` on belong to no token and are left out (None: all are kept).
    """

    hidden_NH: Tensor
    weight_VH: Tensor | None = None
    bias_V: Tensor | None = None
    transform: HeadTransform | None = None
    vocabulary: int | None = None

    def raw(self, rows: slice) -> Tensor:
        """Output of the head at these positions, (R, V)."""
        if self.weight_VH is None:
            return self.hidden_NH[rows, : self.vocabulary]
        return head_logits(self.hidden_NH[rows], self.weight_VH, self.bias_V)[:, : self.vocabulary]

    def logits(self, raw_RV: Tensor) -> Tensor:
        """The model's logits in at least float32, from the output of the head."""
        logits_RV = raw_RV.to(reduction_dtype(raw_RV))
        return logits_RV if self.transform is None else self.transform(logits_RV)


class Compared(NamedTuple):
    """At each of N positions: the student's log-probability of the token that is there, the divergence from the
    teacher, and whether both find the same token likeliest (bool)."""

    logprobs_N: Tensor
    divergence_N: Tensor
    agrees_N: Tensor


def compare_plainly(student: HeadInput, teacher: HeadInput, targets_N: Tensor, divergence: Divergence) -> Compared:
    """The definition, with all logits at once and the gradient by PyTorch alone."""
    return _compare(student.logits(student.raw(_ALL)), teacher.logits(teacher.raw(_ALL)), targets_N, divergence)


def compare_in_chunks(
    student: HeadInput,
    teacher: HeadInput,
    targets_N: Tensor,
    divergence: Divergence,
    *,
    accumulate_in_place: bool = False,
    chunk_elements: int | None = None,
) -> Compared:
    """`compare_plainly`, differentiable in the student's hidden states, weight and bias, with at most
    `chunk_elements` logits of each model at a time (at least a row; None: as suits the device).

    `accumulate_in_place`: as in `chunked_token_scores`. Raises ValueError for heads of different sizes.
    """
    if student.weight_VH is None:
        return compare_plainly(student, teacher, targets_N, divergence)
    on_cpu, vocabulary = student.hidden_NH.device.type == "cpu", student.weight_VH.shape[0]
    elements = chunk_elements or (CHUNK_ELEMENTS if on_cpu else DEVICE_BLOCK_ELEMENTS)
    plan = _Comparison(student, teacher, targets_N, divergence, max(1, elements // vocabulary), accumulate_in_place)
    return Compared(*_CompareInChunks.apply(student.hidden_NH, student.weight_VH, student.bias_V, plan))


_ALL = slice(None)


def _compare(student_RV: Tensor, teacher_RV: Tensor, targets_R: Tensor, divergence: Divergence) -> Compared:
    if student_RV.shape != teacher_RV.shape:
        shapes = f"{tuple(student_RV.shape)} and {tuple(teacher_RV.shape)}"
        raise ValueError(
            f"logits of student and teacher have the shapes {shapes}, so they are not over the same tokens"
        )
    log_p = torch.log_softmax(student_RV, -1)
    return Compared(
        log_p.gather(-1, targets_R[:, None])[:, 0],
        divergence(student_RV, teacher_RV),
        student_RV.argmax(-1) == teacher_RV.argmax(-1),
    )


@dataclass(frozen=True, slots=True)
class _Comparison:
    student: HeadInput
    teacher: HeadInput
    targets_N: Tensor
    divergence: Divergence
    rows_at_once: int
    accumulate_in_place: bool

    def chunks(self) -> Iterator[slice]:
        return slices(len(self.targets_N), self.rows_at_once)

    def compare(self, raw_RV: Tensor, rows: slice) -> Compared:
        """Compare at these positions; `raw_RV` is the output of the student's head there."""
        teacher_RV = self.teacher.logits(self.teacher.raw(rows))
        return _compare(self.student.logits(raw_RV), teacher_RV, self.targets_N[rows], self.divergence)


class _ComparisonContext(FunctionCtx):
    plan: _Comparison
    weight: Tensor
    saved_tensors: tuple[Tensor, Tensor | None]
    needs_input_grad: tuple[bool, bool, bool, bool]


class _CompareInChunks(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: _ComparisonContext, hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, plan: _Comparison
    ) -> tuple[Tensor, ...]:
        ctx.weight = weight_VH  # the very leaf: its .grad is written when accumulate_in_place
        ctx.save_for_backward(hidden_NH, bias_V)  # type: ignore[arg-type]  # its stub does not know that None is allowed
        ctx.plan = replace(plan, student=replace(plan.student, hidden_NH=hidden_NH.detach()))
        parts = [ctx.plan.compare(ctx.plan.student.raw(rows), rows) for rows in plan.chunks()]
        logprobs_N, divergence_N, agrees_N = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        ctx.mark_non_differentiable(agrees_N)
        return logprobs_N, divergence_N, agrees_N

    @staticmethod
    @once_differentiable
    def backward(  # type: ignore[override]
        ctx: _ComparisonContext, grad_logprobs_N: Tensor, grad_divergence_N: Tensor, _: Tensor
    ) -> tuple[Tensor | None, ...]:
        hidden_NH, bias_V = ctx.saved_tensors
        plan = ctx.plan
        gradients = HeadGradients(
            hidden_NH, ctx.weight, bias_V, ctx.needs_input_grad[:3], in_place=plan.accumulate_in_place
        )
        for rows in plan.chunks():
            raw_RV = plan.student.raw(rows).detach().requires_grad_()
            with torch.enable_grad():
                compared = plan.compare(raw_RV, rows)
                outer = (grad_logprobs_N[rows], grad_divergence_N[rows])
                (grad_raw_RV,) = torch.autograd.grad((compared.logprobs_N, compared.divergence_N), raw_RV, outer)
            gradients.add(slice(0, raw_RV.shape[1]), [(rows, grad_raw_RV)])
        return *gradients.finish(), None
