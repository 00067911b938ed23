"""What an optimizer step of a reward model minimises."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from burnish.algorithms.preference_losses import best_lead, best_of, bradley_terry, share_of_first
from burnish.config.schema import RmConfig
from burnish.models.reward_learner import ComparedScores
from burnish.models.roles import ObjectiveValue
from burnish.types import Metric, Reduction


@dataclass(frozen=True, slots=True)
class PreferenceLoss:
    """Mean loss over the comparisons of the step; each micro-batch adds its share of it."""

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
    scores, best, mask = compared.scores_BK.detach(), compared.best_B, compared.mask_BK
    decided = ~compared.tie_B
    hits = share_of_first(scores, best, mask_BK=mask)
    lead = best_lead(scores, best, mask_BK=mask)
    return {
        "train/loss": Metric(Reduction.MEAN, per_comparison.detach().sum(), len(per_comparison)),
        "train/accuracy": Metric(Reduction.MEAN, hits[decided].sum(), decided.sum()),
        "rm/score_gap": Metric(Reduction.MEAN, lead[decided].sum(), decided.sum()),
        "rm/score_mean": Metric(Reduction.MEAN, scores[mask].sum(), mask.sum()),
    }
