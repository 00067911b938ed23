"""Plans of runs on given texts, `burnish sft` and `burnish distill`, with their memory and time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from burnish.config.schema import SftConfig
from burnish.config.schema_distill import COMPLETE, SAMPLED_ROWS, DistillConfig
from burnish.config.schema_run import RunConfig
from burnish.planning.memory import MemoryItem, Phase, RoleMemory, comparison, passes_item, weights_item
from burnish.planning.model_facts import ModelFacts
from burnish.planning.plan import NOTHING_KNOWN, ModelRole, Plan, PlanLine, Preview, count_in_words, plan_of_passes
from burnish.planning.processes import Processes
from burnish.planning.timing import PhaseTime, StepTimes


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


def plan_distill(config: DistillConfig, data: Preview = NOTHING_KNOWN, facts: ModelFacts | None = None) -> Plan:
    """The plan of `burnish distill`: the plan of `burnish sft` with the teacher added."""
    plan = plan_sft(config, data, facts)
    reads = "reads the texts once" if config.teacher.cache else "reads what the student reads"
    teacher = config.teacher
    named = teacher.path or f"{teacher.name} at {teacher.url} (which a plan does not ask)"
    because = f"{named}, frozen: {reads}, for divergence {config.divergence}"
    share = PlanLine("whole run", "steps whose responses are sampled", f"{config.sampled_share:.0%}", "sampled_share")
    lines = (*plan.lines, share) if config.sampled_share else plan.lines
    unknown = facts is not None and facts.teacher is None and teacher.path is not None
    message = f"the sizes of teacher.path {config.teacher.path!r} are unknown, so its memory is not counted"
    warnings = (*plan.warnings, message) if unknown else plan.warnings
    return replace(plan, models=(*plan.models, ModelRole("teacher", because)), lines=lines, warnings=warnings)


class DistillTable(SftTable):
    """A policy and its teacher, whole in each trainer, and keys and values of the responses that it samples."""

    config: DistillConfig

    def beside(self) -> Iterator[MemoryItem]:
        """The teacher, unless it has read all texts before."""
        return iter(()) if self.config.teacher.cache else self._teacher("update")

    def _teacher(self, phase: Phase) -> Iterator[MemoryItem]:
        """The teacher's weights, and its pass over a micro-batch, a layer at a time."""
        facts = self.facts.teacher
        if facts is None:
            return
        width = 2 if (self.config.teacher.dtype or self.config.model.dtype) == "bfloat16" else 4
        weights = weights_item("teacher", facts, width)
        rests = weights.needed_in(phase, if_any="teacher" in self.offload)
        yield replace(weights, phases=(phase,)) if self.config.teacher.cache else rests
        yield passes_item("teacher's pass", facts, self.pass_tokens(self.config), width, phase)

    def logprobs(self) -> Iterator[MemoryItem]:
        """Logits of both models in a chunk of rows, with what the divergence and its gradient are computed from."""
        yield replace(comparison(self, self.facts.teacher or self.facts), name="log-probabilities")

    def sampling(self) -> Iterator[MemoryItem]:
        """Keys and values of as many responses as are sampled at once, or the teacher while it fills its cache."""
        if self.config.sampled_share:
            yield self.cache(SAMPLED_ROWS, self.config.max_tokens)
        # Whether a complete cache is of this teacher and these texts, the run itself finds out.
        elif (folder := self.config.teacher.cache) is not None and not Path(folder, COMPLETE).expanduser().exists():
            yield from self._teacher("teacher")

    def of_loop(self) -> Iterator[MemoryItem]:
        """Memory of sampling or filling the cache, which the command's process does."""
        return self.sampling()


class DistillProcesses(Processes):
    """Each trainer has the teacher, too, unless it has read all texts before."""

    config: DistillConfig

    def holds(self) -> tuple[str, ...]:
        return super().holds() if self.config.teacher.cache else (*super().holds(), "teacher")


class DistillTimes(SftTimes):
    """Before the update of `burnish sft` the passes of the teacher. Sampling is not counted, nor is filling a cache."""

    config: DistillConfig

    def before_update(self) -> Iterator[PhaseTime]:
        if self.facts.teacher is not None and self.config.teacher.cache is None:
            tokens = self.read() / self.trainers
            seconds = self.passes(self.facts.teacher, tokens, self.scored / self.trainers)
            yield PhaseTime("teacher", seconds, f"a forward pass of {tokens:,.0f} tokens")
