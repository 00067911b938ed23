"""Plan of a run of `burnish sft`, with its memory and time."""

from __future__ import annotations

from burnish.config.schema import SftConfig
from burnish.config.schema_run import RunConfig
from burnish.planning.memory import RoleMemory
from burnish.planning.model_facts import ModelFacts
from burnish.planning.plan import NOTHING_KNOWN, ModelRole, Plan, PlanLine, Preview, count_in_words, plan_of_passes
from burnish.planning.timing import StepTimes


def plan_sft(config: SftConfig, data: Preview = NOTHING_KNOWN, facts: ModelFacts | None = None) -> Plan:
    """The plan of `burnish sft`."""
    optimization, rows, tokens = config.optimization, count_in_words(data.rows), count_in_words(data.tokens)
    epochs, batch = optimization.epochs, f"{optimization.tokens_per_batch:,}"
    lines = (
        PlanLine("data", "examples", rows, f"data.train, at most {config.max_tokens} tokens each"),
        PlanLine("data", "tokens", tokens, "all examples, one pass"),
        PlanLine("one step", "tokens, at most", batch, "optimization.tokens_per_batch, whole examples"),
    )
    models = [ModelRole("policy", "is trained")]
    passes = None if config.steps is None or data.steps is None else config.steps * epochs / data.steps
    because = f"batches of {epochs} (optimization.epochs) passes", "steps / steps of one pass"
    return plan_of_passes(config, facts, models, lines, steps=data.steps, passes=passes, because=because)


class SftTable(RoleMemory):
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
