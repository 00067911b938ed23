"""Losses on plain tensors for your own training loop: no configuration, no models, only torch.

Shapes are in the argument names: B sequences, T response tokens (right-padded), K candidates. `mask_BT` is True where a
token was sampled by the policy and is trained on. The content of masked slots never changes a result.

- Policy losses (`ppo_clip`, `gspo`, `cispo` ...) take (logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT) and their
  own parameters by name. They return a `PolicyLoss`: `per_token_BT`, which still has to be aggregated, and metrics.
- `token_mean` and `sequence_mean_...` reduce a loss per token to one number. If the optimizer step is cut into
  micro-batches, give each call the counts of the entire step.
- `kl_loss` is the KL to a reference per token; `k1`, `k2` and `k3` are its estimators.
- `dynamic_nll` is the loss of dynamic fine-tuning per token.
- `clipped_value` is a critic's loss per token.
- `bradley_terry` and `best_of` are reward-model losses per comparison.
- `preferences` has the losses of preference optimisation: `preferences.sigmoid(preferences.Pairs(...), beta=0.1)` is
  DPO's, one number per pair of responses.

Advantages come from `burnish.algorithms.advantages`. docs/algorithms.md has every formula with its source.
"""

from burnish.algorithms import policy_losses
from burnish.algorithms.aggregation import (
    count_sequences,
    count_tokens,
    sequence_mean_token_mean,
    sequence_mean_token_sum,
    sequence_mean_token_sum_norm,
    token_mean,
    turn_mean_token_mean,
)
from burnish.algorithms.comparison_losses import best_of, bradley_terry
from burnish.algorithms.kl import k1, k2, k3, kl_loss
from burnish.algorithms.pair_losses import formulas as preferences
from burnish.algorithms.policy_losses import *  # noqa: F403  all of them
from burnish.algorithms.token_losses import clipped_value, dynamic_nll

__all__ = [
    "best_of",
    "bradley_terry",
    "clipped_value",
    "count_sequences",
    "count_tokens",
    "dynamic_nll",
    "k1",
    "k2",
    "k3",
    "kl_loss",
    "preferences",
    "sequence_mean_token_mean",
    "sequence_mean_token_sum",
    "sequence_mean_token_sum_norm",
    "token_mean",
    "turn_mean_token_mean",
]
__all__ += policy_losses.__all__
