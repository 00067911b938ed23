"""Plans of runs on comparisons, `burnish rm` and `burnish prefer`, with their memory and time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from burnish.config.schema import RmConfig
from burnish.config.schema_prefer import START, PreferConfig
from burnish.config.schema_rm import ComparedFields
from burnish.config.schema_run import RunConfig
from burnish.planning.memory import MemoryItem, RoleMemory
from burnish.planning.model_facts import ModelFacts
from burnish.planning.plan import NOTHING_KNOWN, ModelRole, Plan, PlanLine, Preview, count_in_words, plan_of_passes
from burnish.planning.timing import Lengths, StepTimes

_NORMALIZATION_ROWS = 64  # as `max_batch_rows` in burnish.trainers.reward_model.normalization


def plan_rm(config: RmConfig, data: Preview = NOTHING_KNOWN, facts: ModelFacts | None = None) -> Plan:
    """The plan of `burnish rm`."""
    split = f", without held_out_fraction {config.held_out_fraction:g}" if config.held_out_fraction else ""
    texts = "all candidates with their prompts, one pass"
    return plan_of_comparisons(config, data, facts, _models(config), f"data.train{split}", texts)


def plan_prefer(config: PreferConfig, data: Preview = NOTHING_KNOWN, facts: ModelFacts | None = None) -> Plan:
    """The plan of `burnish prefer`."""
    models = [ModelRole("policy", "its adapters are trained" if config.model.lora else "is trained")]
    if config.reference != START:
        models.append(ModelRole("reference", f"{config.reference} scores all responses once, before the policy trains"))
    rows, texts = "data.train, rated responses for kto", "all responses with their prompts, one pass"
    return plan_of_comparisons(config, data, facts, models, rows, texts)


def plan_of_comparisons(
    config: ComparedFields, data: Preview, facts: ModelFacts | None, models: Iterable[ModelRole], rows: str, texts: str
) -> Plan:
    """The plan of a run whose data are comparisons. rows, texts: which of them are counted, in words."""
    epochs, size = config.optimization.epochs, config.optimization.comparisons_per_batch
    lines = (
        PlanLine("data", "comparisons", count_in_words(data.rows), rows),
        PlanLine("data", "tokens", count_in_words(data.tokens), texts),
        PlanLine("one step", "comparisons", f"{size:,}", "optimization.comparisons_per_batch"),
    )
    steps = None if data.rows is None else -(-epochs * data.rows // size)
    passes = None if config.steps is None or data.rows is None else config.steps * size / data.rows
    because = f"{epochs} (optimization.epochs) passes / {size:,}", f"steps x {size:,} / comparisons"
    return plan_of_passes(config, facts, models, lines, steps=steps, passes=passes, because=because)


def _models(config: RmConfig) -> Iterator[ModelRole]:
    yield ModelRole("reward_model", "its adapters and head are trained" if config.model.lora else "is trained")
    if config.normalization.kind != "none" and config.normalization.on == "policy":
        path = config.normalization.policy or config.model.path
        yield ModelRole("policy", f"{path} samples responses once, for normalization.kind {config.normalization.kind}")


def comparison_tokens(config: RunConfig, together: int) -> int:
    """Tokens in one pass over comparisons, in which so many texts are read together, however small the budget."""
    assert isinstance(config, ComparedFields)
    step = config.optimization.comparisons_per_batch * config.texts_each * config.max_tokens
    share = min(config.optimization.microbatch_tokens, -(-step // config.cluster.num_lanes))
    return max(share, together * config.max_tokens)


class RmTable(RoleMemory):
    """A model with a score head instead of an output head, and the policy that it is normalised on."""

    config: RmConfig
    weights_name = "reward model weights"

    @staticmethod
    def pass_tokens(config: RunConfig) -> int:
        """A comparison is never split, however small the budget."""
        return comparison_tokens(config, config.texts_each)

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


class PreferTable(RoleMemory):
    """A policy, and nothing else: the reference has scored all responses before the first step."""

    @staticmethod
    def pass_tokens(config: RunConfig) -> int:
        """A pair is never split, however small the budget."""
        return comparison_tokens(config, min(config.texts_each, 2))


class ComparedTimes(StepTimes):
    """An update on whole comparisons."""

    config: ComparedFields

    def sizes(self) -> tuple[float, float]:
        texts = float(self.config.optimization.comparisons_per_batch * self.config.texts_each)
        return texts, texts


class RmTimes(ComparedTimes):
    """An update on whole comparisons, none of whose tokens is scored by itself."""

    @staticmethod
    def assumed(config: RunConfig, prompt: float | None, response: float | None) -> Lengths:
        mean = StepTimes.assumed(config, prompt, response)
        return Lengths(mean.response, 0.0, mean.because)
