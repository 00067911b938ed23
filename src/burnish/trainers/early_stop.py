"""The early end of a run (`stop_when`): its metric as measured so far, which checkpoints hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from burnish.checkpointing.chaining import is_best_when_lowest
from burnish.config.schema_evaluation import StopConfig
from burnish.errors import ConfigError, suggestion

_LINES_TO_COME = 10
"""Steps within which a metric of the steps has to be measured; some are not measured in every step. A metric of
evaluations has to be in the first."""


_STATE = ("step", "latest", "best", "since_best", "lines_without", "ended")


@dataclass(slots=True)
class EarlyStop:
    """Measurements of the metric of a rule: the latest and the best one, and how many have come since the best. Without
    a rule nothing is measured, and no run ends.

    The same step is observed once, also if an error interrupts it and it is completed after a resume.
    """

    rule: StopConfig | None = None
    step: int = -1
    latest: float | None = None
    best: float | None = None
    since_best: int = 0
    lines_without: int = 0
    """Lines before the first measurement that could have had the metric."""
    ended: bool = False
    """The last step ended the run. If only another rule says so, the run makes one more step, which then is its last.
    """

    def ends_with(self, step: int, row: Mapping[str, float]) -> bool:
        """Take note of a step's metrics, and return whether it is the run's last."""
        self.observe(step, row)
        self.ended = bool(self.reason())
        return self.ended

    def observe(self, step: int, row: Mapping[str, float]) -> None:
        """Take note of a step's metrics."""
        rule = self.rule
        if rule is None or step <= self.step:
            return
        self.step = step
        if rule.metric not in row:
            # Only the line of an evaluation could have had a metric of evaluations, and step 0 has nothing else.
            could_have = any(name.startswith("eval/") for name in row) if rule.metric.startswith("eval/") else step > 0
            self.lines_without += self.latest is None and could_have
            return
        self.latest = value = row[rule.metric]
        sign = -1 if is_best_when_lowest(rule.metric) else 1
        if self.best is None or sign * value > sign * self.best:
            self.best, self.since_best = value, 0
        else:
            self.since_best += 1

    def reason(self) -> str:
        """Say why the run ends here; empty if it goes on."""
        rule = self.rule
        if rule is None or self.latest is None:
            return ""
        if rule.above is not None and self.latest >= rule.above:
            return f"{rule.metric} is {self.latest:.4g}, which is {rule.above:g} or more"
        if rule.below is not None and self.latest <= rule.below:
            return f"{rule.metric} is {self.latest:.4g}, which is {rule.below:g} or less"
        if rule.no_better_for is not None and self.since_best >= rule.no_better_for:
            return f"{rule.metric} was best at {self.best:.4g}, {self.since_best} measurements ago"
        return ""

    def check_measured(self, row: Mapping[str, float]) -> None:
        """Raise ConfigError if the metric should have been measured by now. `row`: the newest measurements."""
        rule = self.rule
        if rule is not None and self.lines_without >= (1 if rule.metric.startswith("eval/") else _LINES_TO_COME):
            alike = [name for name in row if name.startswith("eval/") == rule.metric.startswith("eval/")]
            raise ConfigError(
                f"stop_when.metric is {rule.metric!r}, which this run has not measured by step {self.step}",
                remedy=f"{suggestion(rule.metric, alike)}; set another metric and start again, and the run goes on",
            )

    def state_dict(self) -> dict[str, object]:
        state = {name: getattr(self, name) for name in _STATE}
        return state if self.rule is None else state | {"metric": self.rule.metric}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the measurements, unless they are of a different metric from the one that decides now."""
        if self.rule is not None and state.get("metric") == self.rule.metric:
            for name in _STATE:
                setattr(self, name, state[name])
