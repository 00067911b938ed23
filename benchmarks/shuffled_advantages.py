"""The control of a learning run: GRPO's advantages, dealt out to the samples of the step at random.

    algorithm: {estimator: "shuffled_advantages:shuffled_grpo"}     with this folder on PYTHONPATH

Sizes and signs of the advantages stay what they are, and so does everything else in the loop; only their tie to the
responses that earned them is cut. What still rises under this estimator does not rise because of the reward.
"""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.algorithms.advantages import grpo

_ORDER = torch.Generator().manual_seed(0)


def shuffled_grpo(scores_B: Tensor, group_ids_B: Tensor, *, allow_single: bool = False) -> Tensor:
    """Group-normalised advantages (B,) in a random order, a fresh one at every call."""
    advantages_B = grpo(scores_B, group_ids_B, allow_single=allow_single)
    return advantages_B[torch.randperm(len(advantages_B), generator=_ORDER)]
