"""The result of a policy loss, and the metrics that all policy losses report."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.algorithms import kl
from burnish.algorithms.masking import fill_masked
from burnish.algorithms.ratios import beyond_limit, clamp_log_ratio, log_ratio
from burnish.types import Metric, Reduction


@dataclass(frozen=True)
class PolicyLoss:
    """The loss per token `[B, T]`, exactly 0 in masked slots, and metrics that merge exactly over micro-batches."""

    per_token_BT: Tensor
    metrics: dict[str, Metric]


@dataclass(frozen=True)
class Tokens:
    """The inputs of a loss with masked slots replaced, and the log-ratios and ratios that nearly every loss needs."""

    logprobs_BT: Tensor
    advantages_BT: Tensor  # constants: they never carry a gradient
    log_ratio_BT: Tensor  # clamped logprob - old_logprob; 0 where masked
    ratio_BT: Tensor  # its exp; 1 where masked
    clamped_BT: Tensor  # where the log-ratio was clamped, so no gradient flows through the ratio
    mask_BT: Tensor

    def result(self, loss_BT: Tensor, metrics: dict[str, Metric]) -> PolicyLoss:
        return PolicyLoss(fill_masked(loss_BT, self.mask_BT), metrics)

    def metrics(
        self,
        *,
        ratio_BT: Tensor | None = None,
        clipped_low_BT: Tensor | None = None,
        clipped_high_BT: Tensor | None = None,
    ) -> dict[str, Metric]:
        """Metrics over the trained tokens. Give `ratio_BT` if the loss does not use the ratio of each token.

        approx_kl estimates KL(old || current) with k3, because the tokens were sampled from the old policy.
        """
        ratio = (self.ratio_BT if ratio_BT is None else ratio_BT).detach()
        count = self.mask_BT.sum()
        low, high = self._count(clipped_low_BT), self._count(clipped_high_BT)
        # As arguments of k3 only the difference of the log-probabilities matters: 0 - log_ratio is old - current.
        approx_kl = self._mean(kl.k3(torch.zeros_like(ratio), self.log_ratio_BT.detach()))
        return {
            "clip_fraction": Metric(Reduction.MEAN, low + high, count),
            "clip_fraction_low": Metric(Reduction.MEAN, low, count),
            "clip_fraction_high": Metric(Reduction.MEAN, high, count),
            "ratio_mean": self._mean(ratio),
            "ratio_max": Metric(Reduction.MAX, fill_masked(ratio, self.mask_BT, -torch.inf).max(), count),
            "ratio_min": Metric(Reduction.MIN, fill_masked(ratio, self.mask_BT, torch.inf).min(), count),
            "ratio_clamped_fraction": self.share(self.clamped_BT),
            "approx_kl": approx_kl,
        }

    def share(self, chosen_BT: Tensor) -> Metric:
        """Fraction of the trained tokens where `chosen_BT` is True."""
        return self._mean(chosen_BT.to(self.ratio_BT.dtype))

    def _count(self, chosen_BT: Tensor | None) -> Tensor:
        """Number of chosen trained tokens, as a float, 0-d. With None it is 0."""
        chosen_BT = torch.zeros_like(self.mask_BT) if chosen_BT is None else chosen_BT
        return self._sum(chosen_BT.to(self.ratio_BT.dtype))

    def _mean(self, values_BT: Tensor) -> Metric:
        return Metric(Reduction.MEAN, self._sum(values_BT), self.mask_BT.sum())

    def _sum(self, values_BT: Tensor) -> Tensor:
        return fill_masked(values_BT.detach(), self.mask_BT).sum()


def read_tokens(logprobs_BT: Tensor, old_logprobs_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor) -> Tokens:
    """Convert the arguments of a policy loss to `Tokens`. ValueError if their shapes differ."""
    full_BT = log_ratio(logprobs_BT, old_logprobs_BT.detach(), mask_BT)
    log_ratio_BT = clamp_log_ratio(full_BT)
    return Tokens(
        logprobs_BT=fill_masked(logprobs_BT, mask_BT),
        advantages_BT=fill_masked(advantages_BT.detach(), mask_BT),
        log_ratio_BT=log_ratio_BT,
        ratio_BT=log_ratio_BT.exp(),
        clamped_BT=beyond_limit(full_BT),
        mask_BT=mask_BT.bool(),
    )
