"""What the optimizer step of a reward model minimises."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.algorithms.preference_losses import best_of, bradley_terry
from burnish.config.schema_rm import RmConfig
from burnish.models.reward_learner import ComparedScores
from burnish.models.roles import ObjectiveValue
from burnish.types import Metric, Reduction


@dataclass(frozen=True, slots=True)
class PreferenceLoss:
    """Mean loss of the comparisons of the step, of which a micro-batch adds its share."""

    loss: str = "bradley_terry"
    margins: bool = False
    label_smoothing: float = 0.0
    center_coef: float = 0.0

    @staticmethod
    def from_config(config: RmConfig) -> PreferenceLoss:
        return PreferenceLoss(config.loss, config.margins, config.label_smoothing, config.center_coef)

    def __call__(self, compared: ComparedScores, num_comparisons: int) -> ObjectiveValue:
        per_comparison = self.per_comparison(compared)
        return ObjectiveValue(per_comparison.sum() / num_comparisons, _metrics(compared, per_comparison))

    def per_comparison(self, compared: ComparedScores) -> Tensor:
        """Loss of each comparison, `[B]`."""
        scores, best = compared.scores_BK, compared.best_B
        if self.loss == "best_of":
            return best_of(scores, best, mask_BK=compared.mask_BK)
        chosen, rejected = (scores.gather(1, column[:, None]).squeeze(1) for column in (best, 1 - best))
        return bradley_terry(
            chosen,
            rejected,
            margin=compared.margin_B if self.margins else None,
            tie_B=compared.tie_B,
            center_coef=self.center_coef,
            label_smoothing=self.label_smoothing,
        )


def _metrics(compared: ComparedScores, per_comparison: Tensor) -> dict[str, Metric]:
    scores = compared.scores_BK.detach().masked_fill(~compared.mask_BK, -torch.inf)
    best, decided = scores.gather(1, compared.best_B[:, None]).squeeze(1), ~compared.tie_B
    others = scores.scatter(1, compared.best_B[:, None], -torch.inf).max(dim=1).values
    # Equal scores decide nothing: half a hit, as for a coin.
    hits = (best > others).float() + 0.5 * (best == others).float()
    candidates = compared.mask_BK.sum()
    return {
        "train/loss": Metric(Reduction.MEAN, per_comparison.detach().sum(), len(per_comparison)),
        "train/accuracy": Metric(Reduction.MEAN, hits[decided].sum(), decided.sum()),
        "rm/score_gap": Metric(Reduction.MEAN, (best - others)[decided].sum(), decided.sum()),
        "rm/score_mean": Metric(Reduction.MEAN, compared.scores_BK.detach()[compared.mask_BK].sum(), candidates),
    }
