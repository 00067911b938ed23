"""Plan of a run of `burnish distill`, with its memory and time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from burnish.config.schema_distill import COMPLETE, SAMPLED_ROWS, DistillConfig
from burnish.planning.memory import MemoryItem, Phase, comparison, passes_item, weights_item
from burnish.planning.model_facts import ModelFacts
from burnish.planning.plan import NOTHING_KNOWN, ModelRole, Plan, PlanLine, Preview
from burnish.planning.processes import Processes
from burnish.planning.sft import SftTable, SftTimes, plan_sft
from burnish.planning.timing import PhaseTime


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


def is_cached(config: DistillConfig) -> bool:
    """Return whether `teacher.cache` is complete. The run itself compares teacher and texts."""
    return config.teacher.cache is not None and Path(config.teacher.cache, COMPLETE).expanduser().exists()


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
        elif self.config.teacher.cache is not None and not is_cached(self.config):
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
