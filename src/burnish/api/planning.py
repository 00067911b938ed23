"""`burnish.plan`: what a run would do, without doing it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from burnish.api.inputs import Inputs
from burnish.api.preparing import Given, kind_of, next_folder, output_of, prepare
from burnish.config.loading import LoadedConfig
from burnish.config.schema import RlConfig, RmConfig, RunConfig, SftConfig
from burnish.models.loading_bars import without_loading_bars
from burnish.planning.plan import Plan

if TYPE_CHECKING:
    from burnish.planning.model_facts import ModelFacts


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The arithmetic of a run (`plan`), its resolved configuration, and notes. Print it for an overview."""

    plan: Plan
    config: RunConfig
    notes: tuple[str, ...]

    @property
    def steps(self) -> int | None:
        """Steps of the run; None if that depends on data that would have to be downloaded."""
        return self.plan.steps

    @property
    def optimizer_steps(self) -> int | None:
        """Optimizer steps of the whole run."""
        return self.plan.optimizer_steps

    @property
    def memory_bytes(self) -> int:
        """Estimate of the memory that the run needs; 0 if the model's sizes are unknown."""
        return self.plan.memory_bytes

    def __repr__(self) -> str:
        lines = [f"burnish.RunPlan of {self.config.output}"]
        for topic in dict.fromkeys(line.topic for line in self.plan.lines):
            chosen = [line for line in self.plan.lines if line.topic == topic]
            width = max(len(line.name) for line in chosen)
            lines += ["", topic, *(f"  {line.name:<{width}}  {line.value}  ({line.because})" for line in chosen)]
        lines += ["", "models", *(f"  {role.role}: {role.because}" for role in self.plan.models)]
        lines += ["", "processes of the run", *(f"  {line}" for line in self._seats())]
        if self.plan.memory:
            lines += ["", f"memory, at most {self.memory_bytes / 2**30:.2f} GiB"]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def _seats(self) -> Iterator[str]:
        """One line for each process. Without the model's sizes their memory is unknown."""
        from burnish.planning.memory import bytes_in_words

        for seat in self.plan.seats:
            line = f"{seat.name}: {', '.join(seat.holds)}; {seat.computes}"
            if self.plan.memory:
                line += f"; {bytes_in_words(seat.host_bytes)} of memory"
                line += f", {bytes_in_words(seat.device_bytes)} of its GPU" if seat.gpu is not None else ""
            yield line


def plan(config: Given, **fields: object) -> RunPlan:
    """What `burnish.train` (or `sft`, or `reward_model`, depending on the fields) would do with the same arguments.

    It writes nothing, loads no weights and downloads nothing. What the run would refuse before loading its model is
    refused here too (BurnishError).
    """
    from burnish.rewards.in_memory import functions_at_hand

    kind = kind_of(config, fields)
    with tempfile.TemporaryDirectory(prefix="burnish-plan-") as made, without_loading_bars():
        inputs = Inputs(Path(made) / "inputs")
        if output_of(config) is None and "output" not in fields:
            fields["output"] = str(next_folder(kind))
        call = prepare(kind, config, fields, inputs, "burnish.plan")
        inputs.write(may_change=True)
        notes: list[str] = []
        with functions_at_hand(inputs.functions):
            found = plan_of(call.loaded, notes)
    return RunPlan(found, call.loaded.config, (*found.warnings, *notes))


def plan_of(loaded: LoadedConfig, notes: list[str]) -> Plan:
    """The plan of a checked run; adds notes for the user to `notes`. Reads local data and rewards, but loads no weights
    and downloads nothing. Raises what the run would refuse (BurnishError)."""
    from burnish.checkpointing.sources import check_output
    from burnish.planning.plan import seated
    from burnish.trainers.chaining import pinned
    from burnish.trainers.placement import model_facts, reward_facts, this_machine

    check_output(loaded.config)
    config, chained = pinned(loaded.config)
    notes.extend(chained)
    facts: ModelFacts | None = model_facts(config)
    if facts is None:
        notes.append(
            f"model.path {config.model.path!r} is not a local model folder, so its sizes and memory are unknown"
        )
    rewards = reward_facts(config)
    notes.extend(
        f"reward {reward.label!r} is not a local model folder, so its sizes are unknown and its memory is not counted"
        for reward in rewards
        if reward.facts is None
    )
    notes.extend(_emulation_notes(config))
    match config:
        case RlConfig():
            plan = _rl_plan(config, facts, notes)
        case RmConfig():
            plan = _rm_plan(config, facts, notes)
        case SftConfig():
            plan = _sft_plan(config, facts, notes)
        case _:
            raise TypeError(f"no plan for {type(config).__name__}")
    return seated(plan, config, facts, this_machine(), rewards)


def _emulation_notes(config: RunConfig) -> Iterator[str]:
    """A note if the processor that the run would use only emulates the run's dtype."""
    from burnish.machine.processor import emulation_note

    if config.model.dtype != "bfloat16" or config.model.device not in ("auto", "cpu"):
        return
    note = emulation_note()
    if note is None:
        return
    import torch

    if config.model.device == "cpu" or not torch.cuda.is_available():
        yield f"model.dtype is bfloat16: {note}"


def _rl_plan(config: RlConfig, facts: ModelFacts | None, notes: list[str]) -> Plan:
    """The plan of `burnish rl`. Raises its errors, as far as they can be found without weights and downloads."""
    from burnish.planning.plan import plan_rl
    from burnish.trainers.rl.preflight import check_fit, preview

    if facts is not None:
        check_fit(config, facts.context_tokens, facts.vocabulary_size)
    num_prompts, further = preview(config, None if facts is None else facts.context_tokens)
    if num_prompts is None:
        notes.append("data.train names a data set on the hub, so the number of prompts is unknown")
    notes.extend(further)
    return plan_rl(config, num_prompts=num_prompts, facts=facts)


def _rm_plan(config: RmConfig, facts: ModelFacts | None, notes: list[str]) -> Plan:
    """The plan of `burnish rm`. A local model's tokenizer shows how many comparisons fit, which gives the steps."""
    from burnish.planning.plan_rm import plan_rm
    from burnish.trainers.preview import preview_rm

    found = preview_rm(config, None if facts is None else facts.context_tokens)
    notes.extend(found.notes)
    return plan_rm(config, num_comparisons=found.rows, num_tokens=found.tokens, facts=facts)


def _sft_plan(config: SftConfig, facts: ModelFacts | None, notes: list[str]) -> Plan:
    """The plan of `burnish sft`. A local model's tokenizer shows how long the examples are, which gives the steps."""
    from burnish.planning.plan import plan_sft
    from burnish.trainers.preview import preview_sft

    found = preview_sft(config, None if facts is None else facts.context_tokens)
    notes.extend(found.notes)
    return plan_sft(config, num_examples=found.rows, num_tokens=found.tokens, num_steps=found.steps, facts=facts)
