"""`burnish.plan`: what a run would do, without doing it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from burnish.config.kinds import find_kind, load
from burnish.config.loading import LoadedConfig
from burnish.config.schema import RlConfig, RunConfig
from burnish.errors import CheckpointError, ConfigError
from burnish.models.loading_bars import without_loading_bars
from burnish.planning.fitting import Fitting, Reload
from burnish.planning.machines import Machine
from burnish.planning.memory import bytes_in_words
from burnish.planning.microbatch import microbatch_of
from burnish.planning.model_facts import ModelFacts, RewardFacts
from burnish.planning.plan import Plan, PlanLine, Preview, seated
from burnish.planning.processes import runs_on_gpu, sharding_of
from burnish.planning.timing import RunTime, times_of
from burnish.simulation.gantt import seconds_in_words

if TYPE_CHECKING:
    from burnish.api.preparing import Given


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
        for seat in self.plan.seats:
            line = f"{seat.name}: {', '.join(seat.holds)}; {seat.computes}"
            if self.plan.memory:
                line += f"; {bytes_in_words(seat.host_bytes)} of memory"
                line += f", {bytes_in_words(seat.device_bytes)} of its GPU" if seat.gpu is not None else ""
            yield line


def plan(config: Given, **fields: object) -> RunPlan:
    """Plan what `burnish.train` (or `sft`, or `reward_model`, depending on the fields) would do with the same
    arguments.

    It writes nothing, loads no weights and downloads nothing. What the run would refuse before loading its model is
    refused here too (BurnishError).
    """
    from burnish.api.inputs import Inputs, write_inputs
    from burnish.api.preparing import kind_of, next_folder, output_of, prepare
    from burnish.rewards.loading import functions_at_hand

    kind = kind_of(config, fields)
    with tempfile.TemporaryDirectory(prefix="burnish-plan-") as made, without_loading_bars():
        inputs = Inputs(Path(made) / "inputs")
        if output_of(config) is None and "output" not in fields:
            fields["output"] = str(next_folder(kind))
        loaded = prepare(kind, config, fields, inputs, "burnish.plan")
        write_inputs(inputs, may_change=True)
        notes: list[str] = []
        with functions_at_hand(inputs.functions):
            found = plan_of(loaded, notes)
    return RunPlan(found, loaded.config, (*found.warnings, *notes))


@dataclass(frozen=True, slots=True)
class Assumed:
    """Assumptions of a plan: mean tokens of a response, the price of a device for an hour, and a machine that is not
    here, for which `reload` reads the run file with further words (None: this machine)."""

    response_tokens: float | None = None
    price: float | None = None
    machine: Machine | None = None
    reload: Reload | None = None


def plan_of(loaded: LoadedConfig, notes: list[str], assumed: Assumed | None = None) -> Plan:
    """The plan of a checked run; adds notes for the user to `notes`. Reads local data and rewards, but loads no weights
    and downloads nothing. Raises what the run would refuse (BurnishError), for another machine only what it would
    refuse there."""
    from burnish.checkpointing.sources import check_output
    from burnish.trainers.placement import model_facts, reward_facts, this_machine, with_kept_speed

    assumed = assumed or Assumed()
    longest = loaded.config.rollout.max_response_tokens if isinstance(loaded.config, RlConfig) else 0
    if assumed.response_tokens is not None and assumed.response_tokens > longest:
        raise ConfigError(
            f"--response-tokens is {assumed.response_tokens:g}, longer than any response of this run",
            remedy="give at most rollout.max_response_tokens; only runs of `burnish rl` take it",
        )
    here = assumed.machine is None
    if here:
        check_output(loaded.config)
    config = _pinned(loaded.config, notes, here=here)
    facts: ModelFacts | None = model_facts(config)
    if facts is None:
        notes.append(
            f"model.path {config.model.path!r} is not a local model folder or a known name, so its sizes and memory "
            "are unknown; a folder with its config.json is enough"
        )
    rewards = reward_facts(config)
    notes.extend(
        f"reward {reward.label!r} is not a local model folder, so its sizes are unknown and its memory is not counted"
        for reward in rewards
        if reward.facts is None
    )
    if here:
        notes.extend(_emulation_notes(config))
        if config.cluster.joins_cluster:
            notes.append(
                "trainers and workers are on the Ray cluster's machines: --on (docs/plan.md) compares with those"
            )
    kind = find_kind(config.kind)
    data: Preview = load(kind.preview)(config, facts, here=here)
    notes.extend(data.notes)
    machine = assumed.machine or this_machine()
    plan = seated(load(kind.plan)(config, data, facts), config, facts, machine, rewards)
    if facts is None:
        return plan

    def settled(config: RunConfig) -> RunConfig:
        """With the tokens of a micro-batch that this machine has memory for, if the run file leaves them to it."""
        tokens = microbatch_of(config, facts, machine, rewards).tokens
        return config.changed("optimization", tokens_per_microbatch=tokens)

    config = settled(config)
    machine = with_kept_speed(machine, config, facts) if here else machine
    plan = replace(plan, machine=machine)
    time = _time_of(plan, config, facts, rewards, data, assumed)
    if time is not None or here:
        plan = replace(plan, time=time, lines=(*plan.lines, *time_lines(time)))
    if assumed.reload is None or here:
        return plan
    notes.extend(_notes_elsewhere(plan, machine))
    reload = assumed.reload
    fit = Fitting(lambda words: settled(reload(words)), facts, machine, rewards).search(config)
    changed = settled(reload(fit.words)) if fit.changes else None
    later = None if changed is None else _time_of(plan, changed, facts, rewards, data, assumed)
    return replace(plan, fit=fit, changed_time=later)


def _notes_elsewhere(plan: Plan, machine: Machine) -> Iterator[str]:
    """Notes on cards that do nothing, and on a time that is unknown."""
    used = len({seat.gpu for seat in plan.seats if seat.gpu is not None})
    if used < len(machine.gpu_bytes):
        yield f"{used} of {len(machine.gpu_bytes)} cards are used (model.device, cluster.trainers, rollout_workers)"
    if machine.speed is None:
        yield "the time is unknown: name a known card, or state tflops and bandwidth_gbs in a file (docs/plan.md)"


def _pinned(config: RunConfig, notes: list[str], *, here: bool) -> RunConfig:
    """The run with its model paths that name runs replaced. Elsewhere such a run may be missing."""
    from burnish.trainers.chaining import pinned

    try:
        config, chained = pinned(config)
    except CheckpointError as error:
        if here:
            raise
        chained = [error.message]
    notes.extend(chained)
    return config


def _time_of(
    plan: Plan, config: RunConfig, facts: ModelFacts, rewards: tuple[RewardFacts, ...], data: Preview, assumed: Assumed
) -> RunTime | None:
    """The time of the run on the machine of its plan; None if the speed of the machine is unknown."""
    machine = plan.machine
    if machine is None or machine.speed is None or (machine.gpu_bytes and not runs_on_gpu(config, machine)):
        return None
    mean = data.tokens / (config.texts_each * data.rows) if data.tokens and data.rows else None
    lengths = times_of(config).assumed(config, mean, assumed.response_tokens or recorded_response(config))
    sharding = sharding_of(config, facts, machine, rewards).sharding
    times = times_of(config)(config, facts, machine, machine.speed, lengths, rewards, sharding)
    evaluation = (plan.evaluations or 0) * times.evaluation(data.heldout)
    return times.of_run(plan.steps, evaluation, assumed.price)


def time_lines(time: RunTime | None) -> Iterator[PlanLine]:
    """The time of a run as lines of its plan. None: this machine's speed is unknown."""
    topic = "time (estimate)"
    if time is None:
        because = "no fast path of a CPU has been timed here yet: a run, or burnish doctor FILE, does it"
        yield PlanLine(topic, "one step", "unknown", because)
        return
    for phase in time.phases:
        because = f"{phase.because}; while the policy learns" if phase.aside else phase.because
        yield PlanLine(topic, phase.phase, seconds_in_words(phase.seconds), because)
    yield PlanLine(topic, "one step", seconds_in_words(time.step_seconds), time.lengths.because)
    each = time.tokens_per_second / time.devices
    because = f"{time.tokens_per_step:,.0f} tokens a step; {each:,.0f} for each of {time.devices}"
    yield PlanLine(topic, "tokens a second", f"{time.tokens_per_second:,.0f}", because)
    if time.run_seconds is None:
        return
    because = f"{time.steps:,} steps" + (", and evaluations" if time.evaluation else "")
    yield PlanLine(topic, "whole run", seconds_in_words(time.run_seconds), because)
    if time.cost is not None:
        because = f"{time.devices} x {time.run_seconds / 3600:,.2f} h x {time.price:g}"
        yield PlanLine(topic, "cost", f"{time.cost:,.2f}", because)


def recorded_response(config: RunConfig) -> float | None:
    """Mean tokens of a response in what the run has done so far; None if it has not begun."""
    from burnish.observability.history import read_rows

    file = Path(config.output) / "metrics.jsonl"
    rows = list(read_rows(file)) if file.is_file() else []
    found = [float(row["rollout/response_tokens_mean"]) for row in rows if "rollout/response_tokens_mean" in row]
    return sum(found) / len(found) if found else None


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
