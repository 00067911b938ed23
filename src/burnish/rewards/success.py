"""Criterion for a solved response, for accuracy, pass@k and maj@k, and for the gold check."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from burnish.errors import ConfigError, suggestion
from burnish.rewards.registry import BUILT_INS
from burnish.types import RewardStatus, Rollout

if TYPE_CHECKING:
    from burnish.config.domains import DomainSettings
    from burnish.config.schema import RewardConfig
    from burnish.config.schema_evaluation import RlEvaluationConfig

OWN_TOP_SCORE = 1.0
"""The assumed top score of a user's own reward, or environment, unless `evaluation.success_score` is set."""
TOLERANCE = 1e-6
"""For rounding: the sum of a hundred token rewards can be slightly below its exact value."""
NOT_MEASURED = "accuracy, pass@k and maj@k are not measured"


@dataclass(frozen=True, slots=True)
class Success:
    """The criterion: label of a reward, or `label/part` -> lowest sufficient score, before weighting.

    field: the path of the field that names the reward; empty if the criterion follows from the rewards.
    """

    thresholds: Mapping[str, float]
    field: str = ""

    def solved(self, rollout: Rollout) -> bool | None:
        """Return whether every reward of the criterion that scored the response reaches its threshold.

        None if that cannot be decided, because the response has no reward or none of the parts. A response whose reward
        failed and got `scoring.failure_score` is not solved.
        """
        if rollout.reward is None:
            return None
        parts = rollout.reward_parts
        found = [(parts[name], least) for name, least in self.thresholds.items() if name in parts]
        if rollout.status is not RewardStatus.OK and len(found) < len(self.thresholds):
            return False
        return all(_reaches(score, least) for score, least in found) if found else None

    def check_parts(self, rollouts: Sequence[Rollout]) -> None:
        """Raise ConfigError if responses were scored, but none has the part that the run file names. Rewards that it
        does not name need not score any of these responses."""
        if not self.field:
            return
        scored = [rollout for rollout in rollouts if rollout.status is RewardStatus.OK and rollout.reward is not None]
        known = dict.fromkeys(name for rollout in scored for name in rollout.reward_parts)
        for name in self.thresholds:
            if scored and name not in known:
                raise ConfigError(
                    f"{self.field} is {name!r}, but no held-out response has a score of this name",
                    remedy=suggestion(name, known),
                )

    def shortfalls(self, rollout: Rollout) -> list[str]:
        """`exact 0, below 1` for each reward of the criterion that does not reach its threshold."""
        parts = rollout.reward_parts
        return [
            f"{name} {parts[name]:g}, below {least:g}"
            for name, least in self.thresholds.items()
            if name in parts and not _reaches(parts[name], least)
        ]

    def __str__(self) -> str:
        return " and ".join(f"{name} at least {least:g}" for name, least in self.thresholds.items())


def full_marks(rewards: Sequence[RewardConfig], answer_labels: Sequence[str]) -> Success | None:
    """The default criterion: every reward that compares with the answer reaches its top score.

    That score is declared for built-ins and 1 for a user's own reward. `answer_labels`: the rewards that compare with
    the answer (`ProcessRewardScorer.answer_labels`). A reward with a negative weight is a penalty and not part of the
    criterion, nor is an audit. None if no reward compares with the answer.
    """
    tops = _declared_tops(rewards)
    judging = [r.log_label for r in rewards if r.log_label in answer_labels and r.weight >= 0 and not r.audit]
    return Success({label: tops.get(label, OWN_TOP_SCORE) for label in judging}) if judging else None


def success_of(
    rewards: Sequence[RewardConfig],
    answer_labels: Sequence[str],
    evaluation: RlEvaluationConfig,
    path: Callable[[str], str] = "evaluation.{}".format,
    *,
    shared: bool = False,
) -> Success | None:
    """The criterion of a run: `evaluation.success` and `success_score`, else `full_marks`.

    path: from the name of a setting of the evaluation to its path in the run file, for messages. shared: the settings
    are for all domains, and may have no effect on some of them.

    None if `evaluation.success` is not set and no reward compares with the answer. Raises ConfigError for a threshold
    above the top score of a built-in reward, and for one that nothing is compared with.
    """
    least, tops = evaluation.success_score, _declared_tops(rewards)
    if evaluation.success is None:
        judged = full_marks(rewards, answer_labels)
        if judged is None and least is not None and not shared:
            raise ConfigError(
                f"{path('success_score')} is {least:g}, but no reward compares with the answer and could reach it",
                remedy=f"set {path('success')} to the reward that decides, or remove it",
            )
        if judged is None or least is None:
            return judged
        success = Success(dict.fromkeys(judged.thresholds, least))
    else:
        threshold = tops.get(evaluation.success, OWN_TOP_SCORE) if least is None else least
        success = Success({evaluation.success: threshold}, path("success"))
    for name, threshold in success.thresholds.items():
        top = tops.get(name, math.inf)
        if not _reaches(top, threshold):
            raise ConfigError(
                f"{path('success_score')} is {threshold:g}, which {name!r} cannot reach: it gives at most {top:g}",
                remedy=f"set it to {top:g} or less (scores are compared before weighting)",
            )
    return success


def success_of_domain(domain: DomainSettings, answer_labels: Sequence[str]) -> Success | None:
    """`success_of` for one domain, which may override settings of the evaluation."""
    own = domain.own.evaluation.model_dump(exclude_none=True)

    def path(name: str) -> str:
        return f"domains.{domain.name}.evaluation.{name}" if name in own else f"evaluation.{name}"

    shared = domain.name is not None and "success_score" not in own
    return success_of(domain.rewards, answer_labels, domain.evaluation, path, shared=shared)


def why_not_measured(evaluation: RlEvaluationConfig) -> str:
    """The line that a run without a criterion prints."""
    reason = "no reward compares with the answer"
    if evaluation.success_score is not None:
        reason += f", so evaluation.success_score {evaluation.success_score:g} has no effect"
    return f"{NOT_MEASURED}: {reason} (set evaluation.success to the reward that decides)"


def _declared_tops(rewards: Sequence[RewardConfig]) -> dict[str, float]:
    """Top scores of the built-in rewards that have one, by label."""
    found = {reward.log_label: BUILT_INS[reward.name].top_score for reward in rewards if reward.name in BUILT_INS}
    return {label: top for label, top in found.items() if top is not None}


def _reaches(score: float, threshold: float) -> bool:
    return score >= threshold - TOLERANCE * max(1.0, abs(threshold))
