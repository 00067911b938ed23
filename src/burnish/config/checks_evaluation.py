"""Fields of held-out evaluation that cannot work; see `burnish.config.checks`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from burnish.config import names
from burnish.config.problems import Problem
from burnish.words import suggestion

if TYPE_CHECKING:
    from burnish.config.schema import RlConfig
    from burnish.config.schema_evaluation import EvaluationConfig


def judging_reward(config: RlConfig) -> Iterator[Problem]:
    """The reward that says whether a response is solved."""
    name = config.evaluation.success
    if name is None or not config.rewards:  # code may hand rewards over itself
        return
    rewards = {reward.label or names.short_reward_name(reward.name): reward for reward in config.rewards}
    label = name if name in rewards else name.partition("/")[0]
    if label not in rewards:
        message = f"is {name!r}, which is not the label of a reward"
        yield Problem("evaluation.success", message, suggestion(name, rewards))
        return
    is_model = name == label and rewards[label].name.startswith(names.MODEL_REWARD)
    if is_model and config.evaluation.success_score is None:
        message = f"is not set, but evaluation.success is {name!r}, a reward model, whose scores have no best one"
        remedy = "set it to the score from which a response counts as solved"
        yield Problem("evaluation.success_score", message, remedy)


def unused_by_losses(evaluation: EvaluationConfig) -> Iterator[Problem]:
    """Fields about sampled responses, in a run whose evaluation samples none."""
    for field, value, is_set in (
        ("samples", evaluation.samples, evaluation.samples > 0),
        ("success", evaluation.success, evaluation.success is not None),
    ):
        if is_set:
            message = f"is {value!r}, but nothing would read it: only the evaluation of `burnish rl` samples responses"
            yield Problem(f"evaluation.{field}", message, "remove it")
