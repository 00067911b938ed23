"""Losses on pairs of responses (DPO and its kin) and on single rated ones (KTO), one number for each. See
docs/algorithms.md.

In formulas, w is the chosen response and l the rejected one, r = beta (log p - log p_ref) the reward that a policy
implies, D the difference of the two log-ratios, h = beta D, and s the logistic function.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.algorithms.masking import as_float
from burnish.errors import ConfigError, suggestion

EXPONENT_LIMIT = 60.0
"""Above this `exp` goes on along its tangent. exp(60) = 1e26, times a log-ratio of 1e4 and summed over a step, stays
below float32's 3e38; a clamp would leave the pairs that are most wrong without a gradient."""
LEAST_NLL = 1e-6
"""Least negative log-likelihood of a token in odds, which are infinite at probability 1."""
REVERSE_KL = "reverse_kl"
DIVERGENCES = (REVERSE_KL, "forward_kl", "js", "alpha")


@dataclass(frozen=True, slots=True)
class Pairs:
    """Log-probabilities of P pairs of responses, each summed over its response's tokens, all `[P]`.

    chosen, rejected: under the policy. ref_chosen, ref_rejected: under the frozen reference (zeros where a loss needs
    none). chosen_tokens, rejected_tokens: numbers of trained tokens. ValueError if the shapes differ.
    """

    chosen: Tensor
    rejected: Tensor
    ref_chosen: Tensor
    ref_rejected: Tensor
    chosen_tokens: Tensor
    rejected_tokens: Tensor

    def __post_init__(self) -> None:
        shapes = {field.name: tuple(getattr(self, field.name).shape) for field in fields(self)}
        if len(set(shapes.values())) > 1:
            raise ValueError(f"the tensors of pairs differ in shape: {shapes}")

    @property
    def chosen_ratio(self) -> Tensor:
        """log p - log p_ref of the chosen responses."""
        return as_float(self.chosen) - as_float(self.ref_chosen)

    @property
    def rejected_ratio(self) -> Tensor:
        """log p - log p_ref of the rejected responses."""
        return as_float(self.rejected) - as_float(self.ref_rejected)

    def per_token(self) -> Pairs:
        """Divide all log-probabilities by the numbers of tokens, which become 1.

        A loss that itself takes means (`simpo`, `orpo`, the likelihood in `cpo`) then divides by 1, so that
        means stay as they are.
        """
        one = torch.ones_like(self.chosen_tokens)
        policy = _mean(self.chosen, self.chosen_tokens), _mean(self.rejected, self.rejected_tokens)
        reference = _mean(self.ref_chosen, self.chosen_tokens), _mean(self.ref_rejected, self.rejected_tokens)
        return Pairs(*policy, *reference, one, one)


def sigmoid(
    pairs: Pairs, *, beta: float = 0.1, label_smoothing: float = 0.0, divergence: str = REVERSE_KL, alpha: float = 0.5
) -> Tensor:
    """-(1 - e) log s(h) - e log s(-h), DPO (https://arxiv.org/abs/2305.18290).

    Args:
        label_smoothing: e, at most 1/2: probability that a label is the wrong way round (https://ericmitchell.ai/cdpo.pdf).
        divergence: from the reference, one of `DIVERGENCES` (https://arxiv.org/abs/2309.16240).
        alpha: of the divergence `alpha`, above 0 (reverse KL) and at most 1 (forward KL).
    """
    if not 0 <= label_smoothing <= 0.5:
        raise ConfigError(f"label_smoothing is {label_smoothing}", remedy="set it to between 0 and 0.5")
    margin = _margin(pairs, beta, divergence, alpha)
    return -(1 - label_smoothing) * F.logsigmoid(margin) - label_smoothing * F.logsigmoid(-margin)


def robust(
    pairs: Pairs, *, beta: float = 0.1, label_smoothing: float = 0.1, divergence: str = REVERSE_KL, alpha: float = 0.5
) -> Tensor:
    """(-(1 - e) log s(h) + e log s(-h)) / (1 - 2e), which has the mean of `sigmoid` on clean labels if a share e of the
    labels is the wrong way round (https://arxiv.org/abs/2403.00409). Takes the divergences of `sigmoid`."""
    if not 0 <= label_smoothing < 0.5:
        raise ConfigError(f"label_smoothing is {label_smoothing}", remedy="for robust, set it from 0 to below 0.5")
    margin = _margin(pairs, beta, divergence, alpha)
    unscaled = label_smoothing * F.logsigmoid(-margin) - (1 - label_smoothing) * F.logsigmoid(margin)
    return unscaled / (1 - 2 * label_smoothing)


def hinge(pairs: Pairs, *, beta: float = 0.1, divergence: str = REVERSE_KL, alpha: float = 0.5) -> Tensor:
    """max(0, 1 - h), SLiC-HF against a reference (https://arxiv.org/abs/2305.10425). Takes the divergences of
    `sigmoid`."""
    return F.relu(1 - _margin(pairs, beta, divergence, alpha))


def ipo(pairs: Pairs, *, beta: float = 0.1) -> Tensor:
    """(D - 1 / (2 beta))^2 (https://arxiv.org/abs/2310.12036). D is of sums, as published; `Pairs.per_token` makes it
    one of means."""
    _check_beta(beta)
    return (pairs.chosen_ratio - pairs.rejected_ratio - 1 / (2 * beta)).square()


def exo_pair(pairs: Pairs, *, beta: float = 0.1, label_smoothing: float = 1e-3) -> Tensor:
    """KL(softmax(r_w, r_l) || (1 - e, e)), EXO on pairs (https://arxiv.org/abs/2402.00856). `label_smoothing` is e, at
    most 1/2, and not 0, which makes the KL infinite."""
    if not 0 < label_smoothing <= 0.5:
        raise ConfigError(f"label_smoothing of exo_pair is {label_smoothing}", remedy="set it above 0, to at most 0.5")
    margin = _margin(pairs, beta)
    chosen, rejected = F.logsigmoid(margin), F.logsigmoid(-margin)
    right, wrong = math.log1p(-label_smoothing), math.log(label_smoothing)
    return chosen.exp() * (chosen - right) + rejected.exp() * (rejected - wrong)


def nca_pair(pairs: Pairs, *, beta: float = 0.1) -> Tensor:
    """-log s(r_w) - log s(-r_w) / 2 - log s(-r_l) / 2, NCA on pairs (https://arxiv.org/abs/2402.05369)."""
    chosen, rejected = _rewards(pairs, beta)
    return -F.logsigmoid(chosen) - 0.5 * F.logsigmoid(-chosen) - 0.5 * F.logsigmoid(-rejected)


def apo_zero(pairs: Pairs, *, beta: float = 0.1) -> Tensor:
    """1 - s(r_w) + s(r_l), which raises the chosen and lowers the rejected response
    (https://arxiv.org/abs/2408.06266)."""
    chosen, rejected = _rewards(pairs, beta)
    return torch.sigmoid(-chosen) + torch.sigmoid(rejected)


def apo_down(pairs: Pairs, *, beta: float = 0.1) -> Tensor:
    """s(r_w) + 1 - s(r_w - r_l), which lowers both, the rejected response further
    (https://arxiv.org/abs/2408.06266)."""
    chosen, rejected = _rewards(pairs, beta)
    return torch.sigmoid(chosen) + torch.sigmoid(rejected - chosen)


def sppo_hard(pairs: Pairs, *, beta: float = 0.1) -> Tensor:
    """(log ratio_w - 1 / (2 beta))^2 + (log ratio_l + 1 / (2 beta))^2, SPPO with a chosen response that always wins
    (https://arxiv.org/abs/2405.00675)."""
    _check_beta(beta)
    return (pairs.chosen_ratio - 0.5 / beta).square() + (pairs.rejected_ratio + 0.5 / beta).square()


def discopop(pairs: Pairs, *, beta: float = 0.1, tau: float = 0.05) -> Tensor:
    """-(1 - g) log s(h) + g exp(-h), g = s(h / tau), the loss that DiscoPOP found (https://arxiv.org/abs/2406.08414)."""
    if not 0 < tau <= 1:
        raise ConfigError(f"tau of discopop is {tau}", remedy="set it above 0, to at most 1 (usually 0.05)")
    margin = _margin(pairs, beta)
    # With tau of at most 1 the gate closes at least as fast as exp grows, so that their product is at most 1.
    exponential = (F.logsigmoid(margin / tau) - margin).exp()
    return exponential - torch.sigmoid(-margin / tau) * F.logsigmoid(margin)


def aot(pairs: Pairs, *, beta: float = 0.1, label_smoothing: float = 0.0) -> Tensor:
    """`sigmoid` between the policy's margins and the reference's of the same rank (https://arxiv.org/abs/2406.05882).

    Sorts the pairs that it is given, so give it the whole step, or parts of a step whose reference has been re-paired
    by `aot_order`: matched ranks stay matched in any part.
    """
    order = aot_order(pairs)
    matched = replace(pairs, ref_chosen=pairs.ref_chosen[order], ref_rejected=pairs.ref_rejected[order])
    return sigmoid(matched, beta=beta, label_smoothing=label_smoothing)


def aot_order(pairs: Pairs) -> Tensor:
    """Index `[P]` of the pair whose reference log-probabilities belong to each pair of the policy in `aot`."""
    return _same_rank(
        as_float(pairs.chosen) - as_float(pairs.rejected), as_float(pairs.ref_chosen) - as_float(pairs.ref_rejected)
    )


def aot_unpaired(pairs: Pairs, *, beta: float = 0.1, label_smoothing: float = 0.0) -> Tensor:
    """`sigmoid` between the chosen log-ratio and the rejected one of the same rank (https://arxiv.org/abs/2406.05882).

    Sorts the pairs that it is given, so give it the whole step, or parts of a step whose rejected responses have been
    re-paired by `aot_unpaired_order`.
    """
    order = aot_unpaired_order(pairs)
    matched = replace(pairs, rejected=pairs.rejected[order], ref_rejected=pairs.ref_rejected[order])
    return sigmoid(matched, beta=beta, label_smoothing=label_smoothing)


def aot_unpaired_order(pairs: Pairs) -> Tensor:
    """Index `[P]` of the rejected response that belongs to each chosen one in `aot_unpaired`."""
    return _same_rank(pairs.chosen_ratio, pairs.rejected_ratio)


def sft(pairs: Pairs) -> Tensor:
    """-log p(w), usually with a weight beside another loss. `Pairs.per_token` makes it the mean over tokens of RPO
    (https://arxiv.org/abs/2404.19733)."""
    return -as_float(pairs.chosen)


def simpo(pairs: Pairs, *, beta: float = 2.0, gamma: float = 1.0) -> Tensor:
    """-log s(beta (log p(w) / |w| - log p(l) / |l|) - gamma), without a reference (https://arxiv.org/abs/2405.14734)."""
    _check_beta(beta)
    margin = _mean(pairs.chosen, pairs.chosen_tokens) - _mean(pairs.rejected, pairs.rejected_tokens)
    return -F.logsigmoid(beta * margin - gamma)


def cpo(pairs: Pairs, *, beta: float = 0.1, alpha: float = 1.0) -> Tensor:
    """-log s(beta (log p(w) - log p(l))) - alpha log p(w) / |w|, without a reference (https://arxiv.org/abs/2401.08417)."""
    _check_beta(beta)
    margin = as_float(pairs.chosen) - as_float(pairs.rejected)
    return -F.logsigmoid(beta * margin) - alpha * _mean(pairs.chosen, pairs.chosen_tokens)


def orpo(pairs: Pairs, *, lam: float = 0.1) -> Tensor:
    """-log p(w) / |w| - lam log s(log odds(w) - log odds(l)), odds = m / (1 - m), m = exp(log p / |y|), without a
    reference (https://arxiv.org/abs/2403.07691)."""
    chosen, rejected = _mean(pairs.chosen, pairs.chosen_tokens), _mean(pairs.rejected, pairs.rejected_tokens)
    return -chosen - lam * F.logsigmoid(_log_odds(chosen) - _log_odds(rejected))


def kto(
    ratio_B: Tensor,
    desirable_B: Tensor,
    kl: Tensor,
    *,
    beta: float = 0.1,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Tensor:
    """1 - s(beta (log ratio - z)) of a desirable and 1 - s(beta (z - log ratio)) of an undesirable response, each times
    its weight, `[B]` (https://arxiv.org/abs/2402.01306).

    Args:
        ratio_B: log p - log p_ref, summed over the tokens of each response.
        desirable_B: bool, True for good responses.
        kl: mean log-ratio of mismatched responses in the whole step, 0-d; z is `kto_z` of it.
    """
    _check_beta(beta)
    reward = beta * (as_float(ratio_B) - kto_z(kl))
    good, bad = desirable_weight * torch.sigmoid(-reward), undesirable_weight * torch.sigmoid(reward)
    return torch.where(desirable_B.bool(), good, bad)


def kto_z(mismatched_ratio_B: Tensor) -> Tensor:
    """max(0, mean log-ratio) of responses behind prompts that they do not answer, 0-d and without gradient: an estimate
    of the policy's KL from the reference. Give it the whole step; the z of a z is itself."""
    return as_float(mismatched_ratio_B).mean().clamp(min=0).detach()


def _check_beta(beta: float) -> None:
    if not 0 < beta < math.inf:
        raise ConfigError(f"beta is {beta}", remedy="set it above 0 (usually 0.1)")


def _rewards(pairs: Pairs, beta: float) -> tuple[Tensor, Tensor]:
    _check_beta(beta)
    return beta * pairs.chosen_ratio, beta * pairs.rejected_ratio


def _margin(pairs: Pairs, beta: float, divergence: str = REVERSE_KL, alpha: float = 0.5) -> Tensor:
    """h = beta (f'(u_w) - f'(u_l)), u = p / p_ref, in which constants of f' cancel (table 1 of 2309.16240)."""
    _check_beta(beta)
    chosen, rejected = pairs.chosen_ratio, pairs.rejected_ratio
    if divergence == REVERSE_KL:  # log u
        return beta * (chosen - rejected)
    if divergence == "js":  # log(2u / (1 + u)) = log 2 + log s(log u)
        return beta * (F.logsigmoid(chosen) - F.logsigmoid(rejected))
    if divergence == "forward_kl":  # -1 / u
        return beta * (_expm1(-rejected) - _expm1(-chosen))
    if divergence != "alpha":
        raise ConfigError(f"unknown divergence {divergence!r}", remedy=suggestion(divergence, DIVERGENCES))
    if not 0 < alpha <= 1:
        remedy = "set it above 0 (reverse KL), to at most 1 (forward KL)"
        raise ConfigError(f"alpha of the divergence is {alpha}", remedy=remedy)
    return beta / alpha * (_expm1(-alpha * rejected) - _expm1(-alpha * chosen))  # (1 - u^-alpha) / alpha


def _expm1(exponent: Tensor) -> Tensor:
    """exp - 1, and its tangent above `EXPONENT_LIMIT`."""
    inside = exponent.clamp(max=EXPONENT_LIMIT)
    return inside.expm1() + inside.exp() * (exponent - inside)


def _same_rank(values: Tensor, others: Tensor) -> Tensor:
    """Index of the one among `others` that has the rank of each value. Equal numbers rank in the order of the rows."""
    ranks = values.detach().argsort(stable=True).argsort()
    return others.detach().argsort(stable=True)[ranks]


def _mean(logprobs: Tensor, tokens: Tensor) -> Tensor:
    """Mean over tokens; 0 for a response without trained ones, whose sum is 0."""
    return as_float(logprobs) / tokens.clamp(min=1)


def _log_odds(mean: Tensor) -> Tensor:
    """log(m / (1 - m)) of m = exp(mean)."""
    return mean - (-torch.expm1(mean.clamp(max=-LEAST_NLL))).log()
