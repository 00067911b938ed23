"""The table of policy losses, and the lookup of a name in a run file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.algorithms.policy_losses import clipped, covariance, divergence, weighted
from burnish.algorithms.registry import ARXIV, Formula, by_name, find_row, plugin_row
from burnish.errors import ConfigError

LOSS_INPUTS = ("logprobs_BT", "old_logprobs_BT", "advantages_BT", "mask_BT")
MORE_INPUTS = ("selection_BT", "turn_index_BT")


@dataclass(frozen=True)
class PolicyLossSpec(Formula):
    """A row of `POLICY_LOSSES`. With `selection`, tokens are selected from the entire minibatch before it is cut.

    `zero_at_zero_advantage`: a response whose advantages are all 0 has no gradient.
    """

    selection: Callable[..., Tensor] | None = None
    zero_at_zero_advantage: bool = True

    @property
    def more_inputs(self) -> tuple[str, ...]:
        """Tensors that it accepts by name, besides `LOSS_INPUTS`."""
        return tuple(name for name in super().options if name in MORE_INPUTS)

    @property
    def options(self) -> dict[str, object]:
        return {name: default for name, default in super().options.items() if name not in MORE_INPUTS}

    def check_numbers(self, numbers: Mapping[str, object]) -> None:
        """Raise now the ConfigError that the loss would raise at the first update. Plugins are not tried, because they
        may refuse the two tokens of the trial."""
        if self.name in POLICY_LOSSES:
            tokens_12 = torch.ones(1, 2)
            try:
                loss = self.function(-tokens_12, -tokens_12, torch.tensor([[1.0, -1.0]]), tokens_12, **numbers)
            except ConfigError as error:
                raise ConfigError(f"algorithm.loss_options: {error.message}", remedy=error.remedy) from None
            if not bool(loss.per_token_BT.isfinite().all()):
                given = ", ".join(f"{name}: {value}" for name, value in numbers.items())
                raise ConfigError(f"the loss {self.name!r} is not finite with {given}", remedy="change these numbers")

    def select(
        self,
        logprobs_BT: Tensor,
        old_logprobs_BT: Tensor,
        advantages_BT: Tensor,
        mask_BT: Tensor,
        options: Mapping[str, object],
    ) -> Tensor | None:
        """Compute `selection_BT` of an entire minibatch, to be cut like it. None if the loss selects nothing."""
        if self.selection is None:
            return None
        tensors = dict(zip(LOSS_INPUTS, (logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT), strict=True))
        wanted, numbers = Formula(self.selection, "", "", ""), {**self.options, **options}
        known = {name: numbers[name] for name in wanted.option_names if name in numbers}
        return self.selection(*(tensors[name] for name in wanted.inputs), **known)


POLICY_LOSSES: dict[str, PolicyLossSpec] = by_name(
    PolicyLossSpec(
        clipped.ppo_clip,
        "pessimistic clip of the token ratio",
        ARXIV + "1707.06347",
        "max(-A rho, -A clip(rho, 1 - clip_low, 1 + clip_high))",
    ),
    PolicyLossSpec(
        weighted.reinforce,
        "plain policy gradient; one update per rollout",
        "https://doi.org/10.1007/BF00992696",
        "-A logprob",
    ),
    PolicyLossSpec(
        clipped.gspo,
        "clip of the sequence ratio",
        ARXIV + "2507.18071",
        "max(-A s, -A clip(s, 1 - clip_low, 1 + clip_high)), s = exp(mean_t d)",
    ),
    PolicyLossSpec(
        clipped.turn_gspo,
        "clip of the ratio of each turn of a conversation",
        ARXIV + "2511.20718",
        "max(-A s, -A clip(s, 1 - clip_low, 1 + clip_high)), s = exp(mean_turn d)",
    ),
    PolicyLossSpec(
        clipped.gmpo,
        "geometric mean of clipped token ratios",
        ARXIV + "2507.20673",
        "-A exp(mean_t bounded d), d <= clip_high where A > 0, d >= -clip_low where A < 0",
    ),
    PolicyLossSpec(
        weighted.cispo,
        "clips the weight but keeps every token's gradient",
        ARXIV + "2506.13585",
        "-sg(clip(rho, 1 - clip_low, ratio_cap)) A logprob",
    ),
    PolicyLossSpec(
        weighted.tis,
        "truncated importance sampling",
        ARXIV + "2503.14286",
        "-sg(clip(rho, ratio_low, ratio_high)) A logprob",
    ),
    PolicyLossSpec(
        weighted.topr,
        "tis for bad responses, full weight for good ones",
        ARXIV + "2503.14286",
        "-w A logprob, w = sg(clip(rho, ratio_low, ratio_high)) where A < 0, else 1",
    ),
    PolicyLossSpec(
        weighted.sapo,
        "smooth gate instead of the clip",
        ARXIV + "2511.20347",
        "-A sigmoid(tau (rho - 1)) 4 / tau, tau by the sign of A",
    ),
    PolicyLossSpec(
        covariance.kl_cov,
        "KL penalty on the tokens that reduce entropy most",
        ARXIV + "2505.22617",
        "-A rho + coef |d| on the tokens of highest covariance",
        selection=covariance.covariance_selection,
        zero_at_zero_advantage=False,
    ),
    PolicyLossSpec(
        covariance.clip_cov,
        "ppo_clip without the tokens that reduce entropy most",
        ARXIV + "2505.22617",
        "ppo_clip, 0 on the unclipped tokens of highest covariance inside (covariance_low, covariance_high)",
        selection=covariance.unclipped_selection,
        zero_at_zero_advantage=False,
    ),
    PolicyLossSpec(
        weighted.kimi,
        "policy gradient with a quadratic pull to the old policy",
        ARXIV + "2501.12599",
        "-A logprob + tau / 2 d^2",
        zero_at_zero_advantage=False,
    ),
    PolicyLossSpec(
        divergence.dppo,
        "drops tokens by the distance of probabilities, not by their ratio",
        ARXIV + "2602.04879",
        "-sg(min(rho, ratio_cap)) A logprob, 0 where D > clip_high, p > p_old, A > 0 or D > clip_low, p < p_old, A < 0",
    ),
)


def resolve_policy_loss(name: str) -> PolicyLossSpec:
    """Find the loss called `name`: a key of `POLICY_LOSSES`, `package.module:function` or `path/to/file.py:function`.

    A plugin takes the four tensors of `LOSS_INPUTS` and numbers after a bare `*`, and returns a `PolicyLoss`. If one of
    the numbers is `turn_index_BT=None`, it is the tensor of that name. ConfigError otherwise.
    """
    if ":" not in name:
        return find_row(name, POLICY_LOSSES, "policy loss")
    row = plugin_row(PolicyLossSpec, name, "policy loss", zero_at_zero_advantage=False)
    if row.inputs != LOSS_INPUTS:
        raise ConfigError(
            f"policy loss {name!r} takes ({', '.join(row.inputs)})",
            remedy=f"change it to take ({', '.join(LOSS_INPUTS)}), and numbers after a bare *",
        )
    return row
