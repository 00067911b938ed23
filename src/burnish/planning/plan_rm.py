"""What a run of `burnish rm` will do, computed before it starts."""

from __future__ import annotations

from collections.abc import Iterator

from burnish.config.schema import RmConfig
from burnish.planning.model_facts import ModelFacts
from burnish.planning.plan import ModelRole, Plan, PlanLine, context_warning, count_in_words, number_in_words


def plan_rm(
    config: RmConfig,
    *,
    num_comparisons: int | None = None,
    num_tokens: int | None = None,
    facts: ModelFacts | None = None,
) -> Plan:
    """The plan of `burnish rm`. `num_comparisons` and `num_tokens` describe data.train, if known."""
    epochs, size = config.optimization.epochs, config.optimization.comparisons_per_batch
    steps = config.steps
    if steps is None and num_comparisons is not None:
        steps = -(-epochs * num_comparisons // size)
    passes: float | None = float(epochs)
    if config.steps is not None:
        passes = None if num_comparisons is None else config.steps * size / num_comparisons
    return Plan(
        steps=steps,
        optimizer_steps=steps,
        passes_over_data=passes,
        models=tuple(_models(config)),
        lines=tuple(_lines(config, num_comparisons, num_tokens, steps, passes)),
        warnings=tuple(context_warning(config.max_tokens, "max_tokens", facts)),
    )


def _models(config: RmConfig) -> Iterator[ModelRole]:
    yield ModelRole("reward_model", "its adapters and head are trained" if config.model.lora else "is trained")
    if config.normalization.kind != "none" and config.normalization.on == "policy":
        path = config.normalization.policy or config.model.path
        yield ModelRole("policy", f"{path} samples responses once, for normalization.kind {config.normalization.kind}")


def _lines(
    config: RmConfig,
    num_comparisons: int | None,
    num_tokens: int | None,
    steps: int | None,
    passes: float | None,
) -> Iterator[PlanLine]:
    optimization = config.optimization
    split = f", without held_out_fraction {config.held_out_fraction:g}" if config.held_out_fraction else ""
    yield PlanLine("data", "comparisons", count_in_words(num_comparisons), f"data.train{split}")
    yield PlanLine("data", "tokens", count_in_words(num_tokens), "all candidates with their prompts, one pass")
    size = f"{optimization.comparisons_per_batch:,}"
    yield PlanLine("one step", "comparisons", size, "optimization.comparisons_per_batch")
    because = "steps" if config.steps is not None else f"{optimization.epochs} (optimization.epochs) passes / {size}"
    yield PlanLine("whole run", "optimizer steps", count_in_words(steps), because)
    because = "optimization.epochs" if config.steps is None else f"steps x {size} / comparisons"
    yield PlanLine("whole run", "passes over the data", number_in_words(passes), because)
