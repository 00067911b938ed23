"""Drawing tokens from logits, all rows at once.

Order of the filters: temperature, then top-k, then top-p on what top-k left (renormalised), then min-p. Reported
log-probabilities are of the distribution after all filters, from which the token was drawn.
Shapes: R rows, V vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from burnish.config.engines import FALLBACK, EngineTraits
from burnish.errors import RolloutError
from burnish.rollouts.engine import Sampling

_BLOCK = 256
"""Tokens per block of the two-level cumulative sum. Only one block per row is summed token by token."""

_COLDEST = 1e-30
"""Logits divided by a temperature below this one may overflow in float32."""


def check_sampling(sampling: Sampling) -> None:
    """Raise RolloutError if a sampling setting is out of range."""
    checks = (
        ("max_response_tokens", sampling.max_response_tokens, sampling.max_response_tokens >= 1, "at least 1"),
        (
            "temperature",
            sampling.temperature,
            _COLDEST <= sampling.temperature < math.inf,
            f"at least {_COLDEST:g} (greedy has its own switch)",
        ),
        ("top_k", sampling.top_k, sampling.top_k >= 0, "0 (off) or more"),
        ("top_p", sampling.top_p, 0.0 < sampling.top_p <= 1.0, "above 0 and at most 1 (off)"),
        ("min_p", sampling.min_p, 0.0 <= sampling.min_p < 1.0, "at least 0 (off) and below 1"),
        ("stop", sampling.stop, "" not in sampling.stop, "without empty texts"),
    )
    for name, value, good, wanted in checks:
        if not good:
            raise RolloutError(f"sampling.{name} is {value!r}", remedy=f"{name} must be {wanted}")


def check_traits(sampling: Sampling, traits: EngineTraits) -> None:
    """Raise RolloutError if an engine with these traits would sample something else."""
    if sampling.temperature < traits.lowest_temperature and not sampling.greedy:
        raise RolloutError(
            f"sampling.temperature is {sampling.temperature:g}, but {traits.label} samples at "
            f"{traits.lowest_temperature:g} or above",
            remedy=f"raise the temperature, or use rollout.engine: {FALLBACK}",
        )
    if sampling.stop and not traits.takes_stop_texts:
        raise RolloutError(
            f"sampling.stop is {list(sampling.stop)!r:.80}, but {traits.label} takes no stop texts",
            remedy=f"use stop_token_ids, or rollout.engine: {FALLBACK}",
        )


def sample(logits_RV: Tensor, uniforms_R: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """One token per row: (tokens_R int64, logprobs_R float32).

    logits_RV in any float type; uniforms_R float64 in [0, 1) (not used when greedy). The token is the inverse of the
    cumulative distribution (in order of token ids, as precise as `_block_sums`) at the row's uniform number, so it
    depends only on that row's logits and number.
    """
    logits_RV = logits_RV.float()
    scaled_RV = logits_RV if sampling.temperature == 1.0 else logits_RV / sampling.temperature
    if sampling.greedy:
        return _likeliest(logits_RV, scaled_RV)
    kept_RV = filter_logits(scaled_RV, top_k=sampling.top_k, top_p=sampling.top_p, min_p=sampling.min_p)
    probabilities_RV = kept_RV.softmax(-1)
    tokens_R, total_R = invert_cumulative(probabilities_RV, uniforms_R)
    chosen_R = probabilities_RV.gather(-1, tokens_R[:, None])[:, 0]
    # A float32 softmax does not sum to exactly 1, and the draw was made relative to the actual sum.
    return tokens_R, (chosen_R / total_R).log().float()


def _likeliest(logits_RV: Tensor, scaled_RV: Tensor) -> tuple[Tensor, Tensor]:
    tokens_R = logits_RV.argmax(-1)
    chosen_R = scaled_RV.gather(-1, tokens_R[:, None])[:, 0]
    return tokens_R, chosen_R - scaled_RV.logsumexp(-1)


def filter_logits(logits_RV: Tensor, *, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Tensor:
    """The logits, with tokens that a filter drops set to -inf. The most likely token always stays.

    top_k keeps the k most likely tokens, and any as likely as the k-th. top_p keeps the smallest set of the most likely
    tokens with at least that mass (equally likely ones in order of id). min_p drops tokens less likely than that
    fraction of the most likely one.
    """
    if 0 < top_k < logits_RV.shape[-1]:
        threshold_R1 = logits_RV.topk(top_k, dim=-1).values[:, -1:]
        logits_RV = logits_RV.masked_fill(logits_RV < threshold_R1, -math.inf)
    if top_p < 1.0:
        logits_RV = logits_RV.masked_fill(_outside_nucleus(logits_RV, top_p), -math.inf)
    if min_p > 0.0:
        threshold_R1 = logits_RV.amax(-1, keepdim=True) + math.log(min_p)
        logits_RV = logits_RV.masked_fill(logits_RV < threshold_R1, -math.inf)
    return logits_RV


def _outside_nucleus(logits_RV: Tensor, top_p: float) -> Tensor:
    """True where the tokens before this one, in order of likelihood, already have the mass (Holtzman 2019,
    https://arxiv.org/abs/1904.09751)."""
    ordered_RV, order_RV = logits_RV.sort(dim=-1, descending=True, stable=True)
    mass_RV = ordered_RV.softmax(-1)
    before_RV = mass_RV.cumsum(-1, dtype=torch.float64) - mass_RV
    return torch.empty_like(before_RV, dtype=torch.bool).scatter_(-1, order_RV, before_RV >= top_p)


def invert_cumulative(weights_RV: Tensor, uniforms_R: Tensor) -> tuple[Tensor, Tensor]:
    """(tokens_R, totals_R): the first token whose cumulative weight exceeds uniform * total, and the float64 totals,
    exact to float32 rounding.

    weights_RV are not negative and need not sum to 1. A token of weight 0 is never drawn.
    """
    vocabulary = weights_RV.shape[1]
    cumulative_RN = _block_sums(weights_RV).cumsum(-1)
    total_R = cumulative_RN[:, -1]
    target_R = uniforms_R * total_R
    block_R = _first_above(cumulative_RN, target_R)
    before_RN = torch.nn.functional.pad(cumulative_RN, (1, 0))
    rest_R = target_R - before_RN.gather(-1, block_R[:, None])[:, 0]
    columns_RK = block_R[:, None] * _BLOCK + torch.arange(_BLOCK, device=weights_RV.device)
    inner_RK = weights_RV.gather(-1, columns_RK.clamp(max=vocabulary - 1)).masked_fill_(columns_RK >= vocabulary, 0.0)
    tokens_R = block_R * _BLOCK + _first_above(inner_RK.cumsum(-1, dtype=torch.float64), rest_R)
    return tokens_R.clamp(max=vocabulary - 1), total_R


def _block_sums(weights_RV: Tensor) -> Tensor:
    """(R, N) float64: sums over _BLOCK columns each, with the rest in the last block.

    Within a block they are float32 and pairwise, because summing in float64 would first copy all weights to float64.
    """
    rows, vocabulary = weights_RV.shape
    whole = vocabulary - vocabulary % _BLOCK
    sums_RN = weights_RV[:, :whole].view(rows, -1, _BLOCK).sum(-1)
    if whole < vocabulary:
        sums_RN = torch.cat([sums_RN, weights_RV[:, whole:].sum(-1, keepdim=True)], dim=1)
    return sums_RN.double()


def _first_above(cumulative_RN: Tensor, target_R: Tensor) -> Tensor:
    """The first index whose cumulative sum exceeds the target. Rounding may not make the target equal the total."""
    last_R = cumulative_RN[:, -1]
    below_R = torch.minimum(target_R, torch.nextafter(last_R, torch.zeros_like(last_R)))
    # Sums that are not finite have no order. The index stays in range, and the log-probability shows the caller.
    return torch.searchsorted(cumulative_RN, below_R[:, None], right=True)[:, 0].clamp(max=cumulative_RN.shape[-1] - 1)
