"""When a run ends early: conditions on one metric, measured once a step."""

from typing import Any

import pytest

from burnish.config.loading import load_run_data
from burnish.config.schema_evaluation import EvaluationConfig, StopConfig
from burnish.errors import ConfigError
from burnish.planning.rl import num_evaluations
from burnish.trainers.early_stop import EarlyStop


def ends_after(values: list[float | None], rule: StopConfig) -> int | None:
    """The step that ends a run which measures these values, None for a step without the metric."""
    seen = EarlyStop(rule)
    for step, value in enumerate(values, start=1):
        if seen.ends_with(step, {} if value is None else {rule.metric: value}):
            return step
    return None


@pytest.mark.parametrize(
    ("conditions", "values", "end"),
    [
        ({"above": 0.9}, [0.5, None, 0.9], 3),
        ({"above": 0.9}, [0.5, 0.89], None),
        ({"below": 0.2}, [0.5, 0.1], 2),
        ({"no_better_for": 2}, [0.1, 0.5, 0.5, None, 0.4, 0.6], 5),
        ({"no_better_for": 2}, [0.1, 0.5, 0.4, 0.6, 0.5], None),
        ({"above": 0.9, "no_better_for": 1}, [0.95], 1),
    ],
)
def test_the_step_that_ends_a_run(conditions: dict[str, Any], values: list[float | None], end: int | None) -> None:
    assert ends_after(values, StopConfig(metric="eval/accuracy", **conditions)) == end


def test_a_loss_is_better_when_lower() -> None:
    assert ends_after([1.0, 0.5, 0.6, 0.7], StopConfig(metric="eval/loss", no_better_for=2)) == 4


def test_a_step_counts_once_and_its_state_is_restored() -> None:
    rule = StopConfig(metric="eval/loss", no_better_for=3)
    seen, again = EarlyStop(rule), EarlyStop(rule)
    for step, value in ((1, 1.0), (2, 1.5), (2, 1.5)):
        seen.observe(step, {"eval/loss": value})
    assert (seen.best, seen.since_best, seen.reason()) == (1.0, 1, "")
    again.load_state_dict(seen.state_dict())
    assert again == seen
    for rule in (StopConfig(metric="eval/accuracy", above=1.0), None):
        other = EarlyStop(rule)
        other.load_state_dict(seen.state_dict())
        assert other == EarlyStop(rule)


def test_a_metric_that_never_comes_is_an_error_with_its_neighbours() -> None:
    seen, row = EarlyStop(StopConfig(metric="eval/acuracy", above=0.9)), {"eval/accuracy": 1.0, "policy/loss": 0.0}
    seen.observe(4, {"policy/loss": 0.0})
    seen.check_measured({"policy/loss": 0.0})  # a step without an evaluation
    seen.observe(5, row)
    told = r"'eval/acuracy', which this run has not measured by step 5\n.*eval/accuracy"
    with pytest.raises(ConfigError, match=told):
        seen.check_measured(row)
    seen = EarlyStop(StopConfig(metric="reward/domain/b", above=0.9))
    for step in range(10):  # of step 0 there is only an evaluation
        seen.observe(step, row)
        seen.check_measured(row)
    seen.observe(10, row)
    with pytest.raises(ConfigError, match="by step 10"):
        seen.check_measured(row)


RULE = {"stop_when": {"metric": "eval/accuracy", "above": 1}}


def config_of(**fields: Any) -> Any:
    data = {"model": "m", "data": {"train": "t", "eval": "e"}, "rewards": "exact", "steps": 10}
    return load_run_data({**data, **fields}, (), "rl").config


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"stop_when": {"metric": "eval/accuracy"}}, "stop_when has no condition"),
        ({**RULE, "evaluation": {"every_steps": None}}, "is 'eval/accuracy', but evaluation.every_steps is null"),
        ({**RULE, "data": {"train": "t"}}, "stop_when.metric is 'eval/accuracy', but data.eval is empty"),
        ({"stop_when": {"metric": "eval/loss", "no_better_for": 0}}, "stop_when.no_better_for is 0"),
        ({"evaluation": {"start_step": 11}}, "evaluation.start_step is 11, but the run has 10 steps"),
        ({"evaluation": {"start_step": 2, "at_start": True}}, "evaluation.at_start asks for an evaluation before"),
    ],
)
def test_what_cannot_come_true_is_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        config_of(**fields)


def test_no_evaluation_before_its_start() -> None:
    """Of ten steps, every third from the fifth on, and the last."""
    late = EvaluationConfig(every_steps=3, start_step=5)
    assert [step for step in range(1, 11) if late.due(step, last=step == 10)] == [6, 9, 10]
    assert not late.begins
    assert EvaluationConfig(every_steps=3).begins
    assert num_evaluations(config_of(evaluation={"every_steps": 3, "start_step": 5})) == 3
    assert num_evaluations(config_of(evaluation={"every_steps": 3})) == 5
