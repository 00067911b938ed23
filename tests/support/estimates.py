"""Any estimator on scores alone."""

import torch
from torch import Tensor

from burnish.algorithms import shaping
from burnish.algorithms.advantages import ESTIMATORS
from burnish.algorithms.masking import as_single_turn


def estimate(name: str, scores_B: Tensor, group_ids_B: Tensor, lengths_B: Tensor, **options: object) -> Tensor:
    """Advantages, (B,) or (B, 8), of responses of one turn each, whose last token is paid; of two components for
    `gdpo`, the second in proportion to the first."""
    mask_BT = torch.arange(8) < lengths_B[:, None]
    scores_B = scores_B.abs() if name == "maxrl" else scores_B
    tensors = {
        "scores_B": scores_B,
        "greedy_scores_B": scores_B.clone(),
        "group_ids_B": group_ids_B,
        "lengths_B": lengths_B,
        "parts_BC": torch.stack([scores_B, 0.3 * scores_B], dim=1),
        "weights_C": torch.tensor([1.0, 0.7]),
        "token_rewards_BT": shaping.token_rewards(scores_B, mask_BT),
        "mask_BT": mask_BT,
        "old_logprobs_BT": -torch.rand(mask_BT.shape),
        "ref_logprobs_BT": -torch.rand(mask_BT.shape),
        "turn_index_BT": as_single_turn(mask_BT),
        "observation_ids_BT": torch.zeros_like(mask_BT, dtype=torch.int64),
        "history_ids_BT": torch.zeros_like(mask_BT, dtype=torch.int64),
    }
    found = ESTIMATORS[name](tensors, options)
    return found[0] if ESTIMATORS[name].token_level else found
