"""When a response counts as solved: what accuracy, pass@k and maj@k count, and what a gold answer must reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from burnish.errors import ConfigError
from burnish.rewards.registry import BUILT_INS
from burnish.types import RewardStatus, Rollout
from burnish.words import suggestion

if TYPE_CHECKING:
    from burnish.config.schema import RewardConfig
    from burnish.config.schema_evaluation import RlEvaluationConfig

OWN_TOP_SCORE = 1.0
"""What a full score of a user's own reward is taken to be; `evaluation.success_score` says otherwise."""
TOLERANCE = 1e-6
"""Token rewards of a hundred tokens add up to a little less than their sum on paper."""
NOT_MEASURED = "accuracy, pass@k and maj@k are not measured"


@dataclass(frozen=True, slots=True)
class Success:
    """What judges a response: label of a reward, or `label/part`, to the least score, before any weight."""

    thresholds: Mapping[str, float]

    def solved(self, rollout: Rollout) -> bool | None:
        """Whether every judging reward reaches its threshold.

        None for a response that cannot be judged: it has no reward, or a part that judges is missing from it. One
        whose reward failed and was given `scoring.failure_score` is not solved.
        """
        if rollout.reward is None:
            return None
        found = [(rollout.reward_parts.get(name), least) for name, least in self.thresholds.items()]
        if any(score is None for score, _ in found):
            return None if rollout.status is RewardStatus.OK else False
        return all(score is not None and _reaches(score, least) for score, least in found)

    def check_parts(self, rollouts: Sequence[Rollout]) -> None:
        """ConfigError when something that judges is in none of these responses, though rewards have scored some."""
        scored = [rollout for rollout in rollouts if rollout.status is RewardStatus.OK and rollout.reward is not None]
        known = dict.fromkeys(name for rollout in scored for name in rollout.reward_parts)
        for name in self.thresholds:
            if scored and name not in known:
                raise ConfigError(
                    f"evaluation.success is {name!r}, but the rewards give no such part", remedy=suggestion(name, known)
                )

    def shortfalls(self, rollout: Rollout) -> list[str]:
        """`exact 0, below 1` for each judging reward that stays below its threshold."""
        parts = rollout.reward_parts
        return [
            f"{name} {parts[name]:g}, below {least:g}"
            for name, least in self.thresholds.items()
            if name in parts and not _reaches(parts[name], least)
        ]

    def __str__(self) -> str:
        return " and ".join(f"{name} at least {least:g}" for name, least in self.thresholds.items())


def full_marks(rewards: Sequence[RewardConfig], answer_labels: Sequence[str]) -> Success | None:
    """Every reward that compares with the answer (`ProcessRewardScorer.answer_labels`) reaches its best: a built-in's
    declared one, 1 for a user's own. A reward with a negative weight is a penalty and judges nothing.

    None when no reward compares with the answer.
    """
    tops = {
        label: OWN_TOP_SCORE if (top := _declared_top(reward)) is None else top
        for label, reward in _by_label(rewards).items()
        if label in answer_labels and reward.weight >= 0
    }
    return Success(tops) if tops else None


def success_of(
    rewards: Sequence[RewardConfig], answer_labels: Sequence[str], evaluation: RlEvaluationConfig
) -> Success | None:
    """What a run counts as solved: `evaluation.success` and `success_score`, else `full_marks`.

    None when the run file names no reward and none compares with the answer. Raises ConfigError for a threshold above
    the best that a built-in reward can give.
    """
    least, by_label = evaluation.success_score, _by_label(rewards)
    if evaluation.success is None:
        judged = full_marks(rewards, answer_labels)
        if judged is None or least is None:
            return judged
        thresholds = dict.fromkeys(judged.thresholds, least)
    else:
        thresholds = {evaluation.success: _threshold(evaluation.success, least, by_label)}
    for name, threshold in thresholds.items():
        _check_reachable(name, threshold, by_label)
    return Success(thresholds)


def why_not_measured(evaluation: RlEvaluationConfig) -> str:
    """The one line for a run without `Success`."""
    reason = "no reward compares with the answer"
    if evaluation.success_score is not None:
        reason += f", so evaluation.success_score {evaluation.success_score:g} judges nothing"
    return f"{NOT_MEASURED}: {reason} (evaluation.success names a reward to judge by)"


def _by_label(rewards: Sequence[RewardConfig]) -> dict[str, RewardConfig]:
    return {reward.log_label: reward for reward in rewards}


def _threshold(name: str, least: float | None, rewards: Mapping[str, RewardConfig]) -> float:
    """The threshold of a named reward, or of one of its parts (the run file has been checked to have it)."""
    if least is not None:
        return least
    top = _declared_top(rewards[name]) if name in rewards else None
    return OWN_TOP_SCORE if top is None else top


def _check_reachable(name: str, threshold: float, rewards: Mapping[str, RewardConfig]) -> None:
    top = _declared_top(rewards[name]) if name in rewards else None
    if top is not None and not _reaches(top, threshold):
        raise ConfigError(
            f"evaluation.success_score is {threshold:g}, which {name!r} cannot reach: it gives at most {top:g}",
            remedy=f"set it to {top:g} or less (a score is judged before its weight)",
        )


def _declared_top(reward: RewardConfig) -> float | None:
    return BUILT_INS[reward.name].top_score if reward.name in BUILT_INS else None


def _reaches(score: float, threshold: float) -> bool:
    return score >= threshold - TOLERANCE * max(1.0, abs(threshold))
