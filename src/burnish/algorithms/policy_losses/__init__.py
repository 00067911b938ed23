"""Policy losses per token; `aggregation` reduces them to one number. See docs/algorithms.md."""

from burnish.algorithms.policy_losses.clipped import gmpo, gspo, ppo_clip, turn_gspo
from burnish.algorithms.policy_losses.covariance import clip_cov, covariance_selection, kl_cov, unclipped_selection
from burnish.algorithms.policy_losses.divergence import dppo
from burnish.algorithms.policy_losses.result import PolicyLoss
from burnish.algorithms.policy_losses.weighted import cispo, kimi, reinforce, sapo, tis, topr

__all__ = [
    "PolicyLoss",
    "cispo",
    "clip_cov",
    "covariance_selection",
    "dppo",
    "gmpo",
    "gspo",
    "kimi",
    "kl_cov",
    "ppo_clip",
    "reinforce",
    "sapo",
    "tis",
    "topr",
    "turn_gspo",
    "unclipped_selection",
]
