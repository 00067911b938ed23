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
from functools import partial
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


class Likeliest(NamedTuple):
    """A model's k likeliest tokens at each of N positions, likeliest first: their ids (N, k), and the log-probabilities
    of each and, last, of all other tokens together (N, k + 1)."""

    ids_NK: Tensor
    logprobs_NC: Tensor

    def at(self, rows: slice) -> Likeliest:
        """Part of the positions."""
        return Likeliest(self.ids_NK[rows], self.logprobs_NC[rows])


Divergence = Callable[[Tensor, Tensor | Likeliest], Tensor]
"""(logits (R, V) of the student, logits or likeliest tokens of the teacher) to the divergence (R,), differentiable in
the first."""


def divergence(
    student_RV: Tensor,
    teacher: Tensor | Likeliest,
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
    teacher: logits (R, V), or what is left of them at this temperature: the likeliest tokens.
    """
    log_s = _logprobs(student_RV, temperature)
    if isinstance(teacher, Tensor):
        log_t = _logprobs(teacher, temperature)
        if top_k is not None and top_k < log_t.shape[-1]:
            teacher = _likeliest(log_t, top_k)
    if isinstance(teacher, Likeliest):
        log_s, log_t = _rest_as_one(log_s, teacher.ids_NK), teacher.logprobs_NC
    return temperature**2 * _DIVERGENCES[name](log_s, log_t, beta)


def _logprobs(logits_RV: Tensor, temperature: float) -> Tensor:
    return torch.log_softmax(logits_RV / temperature, -1).clamp(min=LEAST_LOGPROB)


def _likeliest(log_p: Tensor, k: int) -> Likeliest:
    kept = log_p.topk(k).indices
    return Likeliest(kept, _rest_as_one(log_p, kept))


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
    rest = log_p.scatter(-1, kept, -math.inf).logsumexp(-1, keepdim=True).clamp(min=LEAST_LOGPROB)
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

    def at(self, rows: slice) -> Tensor:
        """The model's logits at these positions."""
        return self.logits(self.raw(rows))


class Compared(NamedTuple):
    """At each of N positions: the student's log-probability of the token that is there, the divergence from the
    teacher, and whether both find the same token likeliest (bool)."""

    logprobs_N: Tensor
    divergence_N: Tensor
    agrees_N: Tensor


class PromptScores(NamedTuple):
    """Of N tokens of a text: log-probabilities, ranks (1: no token is likelier there), and the likeliest tokens."""

    logprobs_N: Tensor
    ranks_N: Tensor
    likeliest: Likeliest


@torch.no_grad()
def score_tokens(head: HeadInput, targets_N: Tensor, k: int, *, temperature: float = 1.0) -> PromptScores:
    """Score the tokens that follow these hidden states, and find the k likeliest ones, in chunks of whole rows."""
    parts = []
    for rows in [*slices(len(targets_N), _rows_at_once(head))] or [slice(0)]:
        log_p = _logprobs(head.at(rows), temperature)
        own_R = log_p.gather(-1, targets_N[rows, None])
        ranks_R = 1 + (log_p > own_R).sum(-1)
        parts.append((own_R[:, 0], ranks_R, *_likeliest(log_p, min(k, log_p.shape[-1]))))
    logprobs_N, ranks_N, *likeliest = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    return PromptScores(logprobs_N, ranks_N, Likeliest(*likeliest))


def _rows_at_once(head: HeadInput, chunk_elements: int | None = None) -> int:
    usual = CHUNK_ELEMENTS if head.hidden_NH.device.type == "cpu" else DEVICE_BLOCK_ELEMENTS
    width = head.hidden_NH.shape[1] if head.weight_VH is None else head.weight_VH.shape[0]
    return max(1, (chunk_elements or usual) // width)


CompareHeads = Callable[[HeadInput, HeadInput | Likeliest, Tensor], Compared]
"""(student, teacher, tokens (N,)) at N positions to the comparison by some divergence."""


def comparison(divergence: Divergence, *, plain: bool) -> CompareHeads:
    """`compare_plainly` or `compare_in_chunks`, which adds gradients in place, with this divergence."""
    compare = compare_plainly if plain else partial(compare_in_chunks, accumulate_in_place=True)
    return partial(compare, divergence=divergence)


def compare_plainly(
    student: HeadInput, teacher: HeadInput | Likeliest, targets_N: Tensor, divergence: Divergence
) -> Compared:
    """The definition, with all logits at once and the gradient by PyTorch alone."""
    return _compare(student.at(_ALL), teacher.at(_ALL), targets_N, divergence)


def compare_in_chunks(
    student: HeadInput,
    teacher: HeadInput | Likeliest,
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
    rows = _rows_at_once(student, chunk_elements)
    plan = _Comparison(student, teacher, targets_N, divergence, rows, accumulate_in_place)
    return Compared(*_CompareInChunks.apply(student.hidden_NH, student.weight_VH, student.bias_V, plan))


_ALL = slice(None)


def _compare(student_RV: Tensor, teacher: Tensor | Likeliest, targets_R: Tensor, divergence: Divergence) -> Compared:
    if isinstance(teacher, Tensor) and student_RV.shape != teacher.shape:
        shapes = f"{tuple(student_RV.shape)} and {tuple(teacher.shape)}"
        raise ValueError(
            f"logits of student and teacher have the shapes {shapes}, so they are not over the same tokens"
        )
    log_p = torch.log_softmax(student_RV, -1)
    return Compared(
        log_p.gather(-1, targets_R[:, None])[:, 0],
        divergence(student_RV, teacher),
        student_RV.argmax(-1) == (teacher.argmax(-1) if isinstance(teacher, Tensor) else teacher.ids_NK[:, 0]),
    )


@dataclass(frozen=True, slots=True)
class _Comparison:
    student: HeadInput
    teacher: HeadInput | Likeliest
    targets_N: Tensor
    divergence: Divergence
    rows_at_once: int
    accumulate_in_place: bool

    def chunks(self) -> Iterator[slice]:
        return slices(len(self.targets_N), self.rows_at_once)

    def compare(self, raw_RV: Tensor, rows: slice) -> Compared:
        """Compare at these positions; `raw_RV` is the output of the student's head there."""
        return _compare(self.student.logits(raw_RV), self.teacher.at(rows), self.targets_N[rows], self.divergence)


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
            gradients.add(rows, slice(0, raw_RV.shape[1]), grad_raw_RV)
        return *gradients.finish(), None
