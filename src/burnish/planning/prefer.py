"""Plan of a run of `burnish prefer`, with its memory and time."""

from __future__ import annotations

from burnish.config.schema_prefer import START, PreferConfig
from burnish.config.schema_run import RunConfig
from burnish.planning.memory import RoleMemory
from burnish.planning.model_facts import ModelFacts
from burnish.planning.plan import NOTHING_KNOWN, ModelRole, Plan, PlanLine, Preview, count_in_words, plan_of_passes
from burnish.planning.timing import StepTimes


def plan_prefer(config: PreferConfig, data: Preview = NOTHING_KNOWN, facts: ModelFacts | None = None) -> Plan:
    """The plan of `burnish prefer`."""
    epochs, size = config.optimization.epochs, config.optimization.comparisons_per_batch
    rows, tokens = count_in_words(data.rows), count_in_words(data.tokens)
    lines = (
        PlanLine("data", "comparisons", rows, "data.train, rated responses for kto"),
        PlanLine("data", "tokens", tokens, "all responses with their prompts, one pass"),
        PlanLine("one step", "comparisons", f"{size:,}", "optimization.comparisons_per_batch"),
    )
    steps = None if data.rows is None else -(-epochs * data.rows // size)
    passes = None if config.steps is None or data.rows is None else config.steps * size / data.rows
    because = f"{epochs} (optimization.epochs) passes / {size:,}", f"steps x {size:,} / comparisons"
    models = [ModelRole("policy", "its adapters are trained" if config.model.lora else "is trained")]
    if config.reference != START:
        models.append(ModelRole("reference", f"{config.reference} scores all responses once, before the policy trains"))
    return plan_of_passes(config, facts, models, lines, steps=steps, passes=passes, because=because)


class PreferTable(RoleMemory):
    """A policy, and nothing else: the reference has scored all responses before the first step."""

    @staticmethod
    def pass_tokens(config: RunConfig) -> int:
        """A pair is never split, however small the budget."""
        assert isinstance(config, PreferConfig)
        pair = min(config.texts_each, 2) * config.max_tokens
        step = config.optimization.comparisons_per_batch * config.texts_each * config.max_tokens
        return max(min(config.optimization.microbatch_tokens, -(-step // config.cluster.num_lanes)), pair)


class PreferTimes(StepTimes):
    """An update on whole comparisons."""

    config: PreferConfig

    def sizes(self) -> tuple[float, float]:
        texts = float(self.config.optimization.comparisons_per_batch * self.config.texts_each)
        return texts, texts
