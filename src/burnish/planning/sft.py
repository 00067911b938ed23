"""What a run of `burnish sft` will do, computed before it starts, with its memory and time."""

from __future__ import annotations

from collections.abc import Iterator

from burnish.config.schema import SftConfig
from burnish.config.schema_run import RunConfig
from burnish.planning.memory import Table
from burnish.planning.model_facts import ModelFacts
from burnish.planning.plan import (
    NOTHING_KNOWN,
    ModelRole,
    Plan,
    PlanLine,
    Preview,
    context_warning,
    count_in_words,
    number_in_words,
)
from burnish.planning.timing import StepTimes


def plan_sft(config: SftConfig, data: Preview = NOTHING_KNOWN, facts: ModelFacts | None = None) -> Plan:
    """The plan of `burnish sft`."""
    num_steps = data.steps
    epochs = config.optimization.epochs
    steps = config.steps if config.steps is not None else num_steps
    passes: float | None = float(epochs)
    if config.steps is not None:
        passes = None if num_steps is None else config.steps * epochs / num_steps
    return Plan(
        steps=steps,
        optimizer_steps=steps,
        passes_over_data=passes,
        models=(ModelRole("policy", "is trained"),),
        lines=tuple(_lines(config, data, steps, passes)),
        warnings=tuple(context_warning(config.max_tokens, "max_tokens", facts)),
    )


def _lines(config: SftConfig, data: Preview, steps: int | None, passes: float | None) -> Iterator[PlanLine]:
    optimization = config.optimization
    yield PlanLine(
        "data", "examples", count_in_words(data.rows), f"data.train, at most {config.max_tokens} tokens each"
    )
    yield PlanLine("data", "tokens", count_in_words(data.tokens), "all examples, one pass")
    batch = f"{optimization.tokens_per_batch:,}"
    yield PlanLine("one step", "tokens, at most", batch, "optimization.tokens_per_batch, whole examples")
    because = "steps" if config.steps is not None else f"batches of {optimization.epochs} (optimization.epochs) passes"
    yield PlanLine("whole run", "optimizer steps", count_in_words(steps), because)
    because = "optimization.epochs" if config.steps is None else "steps / steps of one pass"
    yield PlanLine("whole run", "passes over the data", number_in_words(passes), because)


class SftTable(Table):
    """A policy, and nothing else."""

    @staticmethod
    def pass_tokens(config: RunConfig) -> int:
        assert isinstance(config, SftConfig)
        step, budget = config.optimization.tokens_per_batch, config.optimization.microbatch_tokens
        longest = min(config.max_tokens, step, budget)  # a lane's share is never less than one example
        return min(budget, max(-(-step // config.cluster.num_lanes), longest))


class SftTimes(StepTimes):
    """An update on as many examples as fit into a step."""

    config: SftConfig

    def sizes(self) -> tuple[float, float]:
        examples = self.config.optimization.tokens_per_batch / max(1.0, self.lengths.response)
        return examples, examples
