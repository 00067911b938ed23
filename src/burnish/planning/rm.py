"""Plan of a run of `burnish rm`, with its memory and time."""

from __future__ import annotations

from collections.abc import Iterator

from burnish.config.schema import RmConfig
from burnish.config.schema_run import RunConfig
from burnish.planning.memory import MemoryItem, RoleMemory
from burnish.planning.model_facts import ModelFacts
from burnish.planning.plan import NOTHING_KNOWN, ModelRole, Plan, PlanLine, Preview, count_in_words, plan_of_passes
from burnish.planning.processes import Processes
from burnish.planning.timing import Lengths, StepTimes

_NORMALIZATION_ROWS = 64  # as `max_batch_rows` in burnish.trainers.reward_model.normalization


def plan_rm(config: RmConfig, data: Preview = NOTHING_KNOWN, facts: ModelFacts | None = None) -> Plan:
    """The plan of `burnish rm`."""
    epochs, size = config.optimization.epochs, config.optimization.comparisons_per_batch
    rows, tokens = count_in_words(data.rows), count_in_words(data.tokens)
    split = f", without held_out_fraction {config.held_out_fraction:g}" if config.held_out_fraction else ""
    lines = (
        PlanLine("data", "comparisons", rows, f"data.train{split}"),
        PlanLine("data", "tokens", tokens, "all candidates with their prompts, one pass"),
        PlanLine("one step", "comparisons", f"{size:,}", "optimization.comparisons_per_batch"),
    )
    steps = None if data.rows is None else -(-epochs * data.rows // size)
    passes = None if config.steps is None or data.rows is None else config.steps * size / data.rows
    because = f"{epochs} (optimization.epochs) passes / {size:,}", f"steps x {size:,} / comparisons"
    return plan_of_passes(config, facts, _models(config), lines, steps=steps, passes=passes, because=because)


def _models(config: RmConfig) -> Iterator[ModelRole]:
    yield ModelRole("reward_model", "its adapters and head are trained" if config.model.lora else "is trained")
    if config.normalization.kind != "none" and config.normalization.on == "policy":
        path = config.normalization.policy or config.model.path
        yield ModelRole("policy", f"{path} samples responses once, for normalization.kind {config.normalization.kind}")


class RmTable(RoleMemory):
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
        """Nothing, as there is no output head."""
        return iter(())

    def sampling(self) -> Iterator[MemoryItem]:
        """The policy whose responses scores are measured on, with its keys and values."""
        settings = self.config.normalization
        if settings.kind != "none" and settings.on == "policy":
            yield self.weights("sampling policy")
            yield self.cache(min(_NORMALIZATION_ROWS, settings.responses), self.config.max_tokens)

    def of_loop(self) -> Iterator[MemoryItem]:
        """Memory of the policy that the command's process samples from to normalise scores."""
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
