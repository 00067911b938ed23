"""KL divergence to the reference policy: per-token estimators and the controllers of the coefficient.

With d = logprob - ref_logprob on a token that the policy sampled, k1, k2 and k3 estimate KL(policy || reference) as in
http://joschu.net/blog/kl-approx.html. All return the shape of their inputs, in nats. With the loss mask as `mask`,
masked slots are 0, whatever they contained; without it every slot is computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from torch import Tensor

from burnish.algorithms.masking import as_float
from burnish.algorithms.ratios import clamp_log_ratio, log_ratio, ratio
from burnish.algorithms.registry import Formula, by_name, find_row
from burnish.errors import ConfigError, DivergenceError

KLFunction = Callable[..., Tensor]
SCHULMAN = "http://joschu.net/blog/kl-approx.html"


def k1(logprobs: Tensor, ref_logprobs: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """d. Unbiased value, high variance, may be negative. In a loss its gradient has mean 0, so use it in rewards."""
    return log_ratio(logprobs, ref_logprobs, mask)


def k2(logprobs: Tensor, ref_logprobs: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """d^2 / 2. Biased value, but its gradient equals the KL divergence's if the tokens are on-policy."""
    return log_ratio(logprobs, ref_logprobs, mask).square() / 2


def k3(logprobs: Tensor, ref_logprobs: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """exp(-d) + d - 1. Unbiased value, low variance, never negative. d is clamped to [-20, 20].

    Beyond the clamp the value is constant and the gradient is exactly 0, so a token that has drifted that far is no
    longer pulled back. `kl/clamped_fraction` is the fraction of such tokens. k2, and k3+ in a loss, keep a gradient.
    """
    d = clamp_log_ratio(log_ratio(logprobs, ref_logprobs, mask))
    return (-d).expm1() + d  # expm1 keeps the digits that exp(-d) - 1 loses near d = 0


def absolute(logprobs: Tensor, ref_logprobs: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """|d|. A distance, not an estimate of the KL divergence."""
    return log_ratio(logprobs, ref_logprobs, mask).abs()


def straight_through(estimator: KLFunction) -> KLFunction:
    """The `+` form of an estimator: its value, with the gradient of k2."""

    def plus(logprobs: Tensor, ref_logprobs: Tensor, *, mask: Tensor | None = None) -> Tensor:
        value = estimator(logprobs, ref_logprobs, mask=mask)
        gradient = k2(logprobs, ref_logprobs, mask=mask)
        return value.detach() + (gradient - gradient.detach())  # the difference is 0, but has k2's gradient

    plus.__doc__ = f"Value of {estimator.__name__}, gradient of k2."
    return plus


KL_ESTIMATORS: dict[str, Formula] = by_name(
    Formula(k1, "unbiased value; the usual choice inside rewards", SCHULMAN, "d"),
    Formula(k2, "correct gradient; the sound choice inside a loss", SCHULMAN, "d^2 / 2"),
    Formula(k3, "unbiased, non-negative, low variance value", SCHULMAN, "exp(-d) + d - 1"),
    Formula(absolute, "distance of the log-probabilities", SCHULMAN, "|d|", alias="abs"),
    Formula(straight_through(k1), "k1 as logged, k2 as trained", SCHULMAN, "sg(k1) + k2 - sg(k2)", alias="k1+"),
    Formula(straight_through(k2), "the same as k2", SCHULMAN, "sg(k2) + k2 - sg(k2)", alias="k2+"),
    Formula(straight_through(k3), "k3 as logged, k2 as trained", SCHULMAN, "sg(k3) + k2 - sg(k2)", alias="k3+"),
    Formula(
        straight_through(absolute), "|d| as logged, k2 as trained", SCHULMAN, "sg(|d|) + k2 - sg(k2)", alias="abs+"
    ),
)


def resolve_kl(name: str) -> Formula:
    """Find the row of `KL_ESTIMATORS` called `name`. ConfigError with the nearest name if there is none."""
    return find_row(name, KL_ESTIMATORS, "KL estimator")


def kl_loss(
    logprobs_BT: Tensor,
    ref_logprobs_BT: Tensor,
    mask_BT: Tensor,
    *,
    estimator: str = "k3",
    old_logprobs_BT: Tensor | None = None,
) -> Tensor:
    """KL term of a loss per token `[B, T]`, 0 in masked slots. It still has to be aggregated and weighted.

    With `old_logprobs_BT` each token is weighted by rho = exp(logprob - old_logprob), including its gradient, which
    corrects the estimate on tokens from an older policy (DeepSeek-V3.2, https://arxiv.org/abs/2512.02556).
    """
    penalty = resolve_kl(estimator).function(logprobs_BT, ref_logprobs_BT, mask=mask_BT)
    if old_logprobs_BT is None:
        return penalty
    return penalty * ratio(logprobs_BT, as_float(old_logprobs_BT).detach(), mask_BT)


class KLController:
    """Holds the coefficient of the KL penalty. This one never changes it; `AdaptiveKL` does."""

    def __init__(self, coef: float) -> None:
        if not (math.isfinite(coef) and coef >= 0):
            raise ConfigError(f"kl_coef is {coef}", remedy="set kl_coef to a finite number that is at least 0")
        self.coef = float(coef)

    def update(self, kl: float | Tensor, num_sequences: int) -> float:
        """Return the coefficient for the next step. Call it after the step that used the last one."""
        return self.coef

    def state_dict(self) -> dict[str, float]:
        return {"coef": self.coef}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self.coef = float(state["coef"])


class AdaptiveKL(KLController):
    """Adapts the coefficient so that the measured KL approaches `target` (https://arxiv.org/abs/1909.08593).

    After each step: error = clip(kl / target - 1, -0.2, 0.2); coef *= 1 + error * num_sequences / horizon.

    Args:
        coef: initial coefficient. target: KL in nats, measured in the same way as the one given to `update` (summed
            over the response in the published recipe). horizon: in sequences; larger is slower.
    """

    ERROR_LIMIT = 0.2

    def __init__(self, coef: float, target: float, horizon: float) -> None:
        super().__init__(coef)
        self.target = _positive("kl_target", target)
        self.horizon = _positive("kl_horizon", horizon)

    def update(self, kl: float | Tensor, num_sequences: int) -> float:
        """Adapt to the KL of the step just made and return the coefficient for the next one.

        Raises DivergenceError if `kl` is not finite, because a controller that gets NaN never recovers, and
        ConfigError for so many sequences that the coefficient could become negative.
        """
        measured = float(kl)
        if not math.isfinite(measured):
            raise DivergenceError(
                f"the KL to the reference is {measured}", remedy="lower the learning rate or raise kl_coef"
            )
        if num_sequences * self.ERROR_LIMIT >= self.horizon:
            raise ConfigError(
                f"kl_horizon is {self.horizon:g}, but a step has {num_sequences} responses: it could make the "
                "coefficient negative",
                remedy=f"set kl_horizon above {num_sequences * self.ERROR_LIMIT:g}; 10000 is usual",
            )
        error = min(max(measured / self.target - 1, -self.ERROR_LIMIT), self.ERROR_LIMIT)
        self.coef *= 1 + error * num_sequences / self.horizon
        return self.coef


def _positive(field: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{field} is {value}", remedy=f"set {field} to a finite number above 0")
    return float(value)
