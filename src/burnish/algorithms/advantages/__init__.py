"""Advantage estimators: from rewards to the advantage of each token over its expectation. See docs/algorithms.md."""

from burnish.algorithms.advantages.outcome import (
    Groups,
    best_of_n,
    dr_grpo,
    gdpo,
    gpg,
    grpo,
    grpo_batch_std,
    maxrl,
    online_dpo,
    opo,
    passk,
    raw,
    reinforce_plus_plus_baseline,
    remax,
    rloo,
)
from burnish.algorithms.advantages.returns import discounted_returns, gae, opd, reinforce_plus_plus, remax_per_token
from burnish.algorithms.advantages.table import ESTIMATOR_INPUTS, ESTIMATORS, Estimator, resolve_estimator
from burnish.algorithms.advantages.turns import gigpo, turn_grpo

__all__ = [
    "ESTIMATORS",
    "ESTIMATOR_INPUTS",
    "Estimator",
    "Groups",
    "best_of_n",
    "discounted_returns",
    "dr_grpo",
    "gae",
    "gdpo",
    "gigpo",
    "gpg",
    "grpo",
    "grpo_batch_std",
    "maxrl",
    "online_dpo",
    "opd",
    "opo",
    "passk",
    "raw",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "remax",
    "remax_per_token",
    "resolve_estimator",
    "rloo",
    "turn_grpo",
]
