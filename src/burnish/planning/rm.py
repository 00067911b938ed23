"""What a run of `burnish rm` will do, computed before it starts, with its memory and time."""

from __future__ import annotations

from collections.abc import Iterator

from burnish.config.schema import RmConfig
from burnish.config.schema_run import RunConfig
from burnish.planning.memory import MemoryItem, Table
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
from burnish.planning.seats import Processes
from burnish.planning.timing import Lengths, StepTimes

_NORMALIZATION_ROWS = 64  # as `max_batch_rows` in burnish.trainers.reward_model.normalization


def plan_rm(config: RmConfig, data: Preview = NOTHING_KNOWN, facts: ModelFacts | None = None) -> Plan:
    """The plan of `burnish rm`."""
    num_comparisons = data.rows
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
        lines=tuple(_lines(config, data, steps, passes)),
        warnings=tuple(context_warning(config.max_tokens, "max_tokens", facts)),
    )


def _models(config: RmConfig) -> Iterator[ModelRole]:
    yield ModelRole("reward_model", "its adapters and head are trained" if config.model.lora else "is trained")
    if config.normalization.kind != "none" and config.normalization.on == "policy":
        path = config.normalization.policy or config.model.path
        yield ModelRole("policy", f"{path} samples responses once, for normalization.kind {config.normalization.kind}")


def _lines(config: RmConfig, data: Preview, steps: int | None, passes: float | None) -> Iterator[PlanLine]:
    optimization = config.optimization
    split = f", without held_out_fraction {config.held_out_fraction:g}" if config.held_out_fraction else ""
    yield PlanLine("data", "comparisons", count_in_words(data.rows), f"data.train{split}")
    yield PlanLine("data", "tokens", count_in_words(data.tokens), "all candidates with their prompts, one pass")
    size = f"{optimization.comparisons_per_batch:,}"
    yield PlanLine("one step", "comparisons", size, "optimization.comparisons_per_batch")
    because = "steps" if config.steps is not None else f"{optimization.epochs} (optimization.epochs) passes / {size}"
    yield PlanLine("whole run", "optimizer steps", count_in_words(steps), because)
    because = "optimization.epochs" if config.steps is None else f"steps x {size} / comparisons"
    yield PlanLine("whole run", "passes over the data", number_in_words(passes), because)


class RmTable(Table):
    """A model with a score head instead of an output head, and the policy that it is normalised on."""

    config: RmConfig
    weights_name = "reward model weights"

    @staticmethod
    def pass_tokens(config: RunConfig) -> int:
        """A comparison is never split, however small the budget."""
        assert isinstance(config, RmConfig)
        one, size = config.texts_each * config.max_tokens, config.optimization.comparisons_per_batch
        return max(min(config.optimization.microbatch_tokens, -(-size * one // config.cluster.num_lanes)), one)

    def logprobs(self) -> Iterator[MemoryItem]:
        """None, as there is no output head."""
        return iter(())

    def sampling(self) -> Iterator[MemoryItem]:
        """The policy whose responses scores are measured on, with its keys and values."""
        settings = self.config.normalization
        if settings.kind != "none" and settings.on == "policy":
            yield self.weights("sampling policy")
            yield self.cache(min(_NORMALIZATION_ROWS, settings.responses), self.config.max_tokens)

    def of_loop(self) -> Iterator[MemoryItem]:
        """It samples from that policy."""
        return self.sampling()

    def loaded_again(self) -> Iterator[MemoryItem]:
        """Nothing: a reward model is not compared with the saved one."""
        return iter(())


class RmProcesses(Processes):
    """The trained model has another name."""

    trained = "reward model"


class RmTimes(StepTimes):
    """An update on comparisons, none of whose tokens is scored by itself."""

    config: RmConfig

    @staticmethod
    def assumed(config: RunConfig, prompt: float | None, response: float | None) -> Lengths:
        mean = StepTimes.assumed(config, prompt, response)
        return Lengths(mean.response, 0.0, mean.because)

    def sizes(self) -> tuple[float, float]:
        texts = float(self.config.optimization.comparisons_per_batch * self.config.texts_each)
        return texts, texts
