"""Plan of a run, computed before it starts. Pure arithmetic, without files, models or torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from burnish.config.schema_run import RunConfig
from burnish.planning.fitting import Fit, MemoryTable, memory_tables
from burnish.planning.machines import Machine
from burnish.planning.memory import PHASES, MemoryItem, bytes_in, bytes_in_words, estimate_memory
from burnish.planning.microbatch import microbatch_of
from burnish.planning.model_facts import ModelFacts, RewardFacts
from burnish.planning.processes import PlannedProcess, ShardingChoice, runs_on_gpu, seats_of, sharding_of
from burnish.planning.shortages import refuse_impossible, seat_warnings
from burnish.planning.timing import RunTime


@dataclass(frozen=True, slots=True)
class PlanLine:
    """One derived value: its name, the value, and the arithmetic behind it."""

    topic: str
    name: str
    value: str
    because: str


@dataclass(frozen=True, slots=True)
class ModelRole:
    """A model that the run loads, and why."""

    role: str
    because: str


@dataclass(frozen=True, slots=True)
class Preview:
    """Rows to train on (prompts, examples or comparisons) and their tokens, optimizer steps of `optimization.epochs`
    passes over examples, and held-out prompts; None for what cannot be known without a download. `notes` are for the
    user."""

    rows: int | None = None
    tokens: int | None = None
    steps: int | None = None
    notes: tuple[str, ...] = ()
    heldout: int | None = None


NOTHING_KNOWN = Preview()


@dataclass(frozen=True, slots=True)
class Plan:
    """The arithmetic of a run. Counts of an RL run assume that no reward fails and no group is refilled."""

    steps: int | None
    optimizer_steps: int | None
    passes_over_data: float | None
    models: tuple[ModelRole, ...]
    lines: tuple[PlanLine, ...]
    warnings: tuple[str, ...] = ()
    evaluations: int | None = None
    memory: tuple[MemoryItem, ...] = ()
    seats: tuple[PlannedProcess, ...] = ()
    """The processes of the run, the command's own first. Like `memory` empty until `seated` has seen the machine."""
    machine: Machine | None = None
    """The machine of `seats`."""
    tables: tuple[MemoryTable, ...] = ()
    """The memory of the processes by phase and by kind of tensors; empty if the model's sizes are unknown."""
    fit: Fit | None = None
    """Result of the check against a machine that is not here; None for this machine, where a misfit is refused."""
    time: RunTime | None = None
    """Time of the run; None if the model's sizes or the machine's speed are unknown."""
    changed_time: RunTime | None = None
    """Time with the changes of `fit`."""

    @property
    def memory_bytes(self) -> int:
        """Sum of the memory estimate; 0 if the model's sizes are unknown."""
        return sum(item.num_bytes for item in self.memory)


def seated(
    plan: Plan, config: RunConfig, facts: ModelFacts | None, machine: Machine, rewards: Sequence[RewardFacts] = ()
) -> Plan:
    """The plan with the processes of the run on this machine. ConfigError if it cannot have them. `rewards`: its reward
    models."""
    microbatch = microbatch_of(config, facts, machine, rewards)
    chosen = PlanLine("one step", "tokens of a micro-batch, at most", f"{microbatch.tokens:,}", microbatch.because)
    given = [chosen] if config.optimization.tokens_per_microbatch == "auto" else []
    config = config.changed("optimization", tokens_per_microbatch=microbatch.tokens)
    seats = seats_of(config, facts, machine, rewards)
    refuse_impossible(config, seats, machine, facts)
    warnings = (*plan.warnings, *seat_warnings(config, seats, machine))
    sharding = sharding_of(config, facts, machine, rewards)
    lines = (*plan.lines, *given, *_process_lines(config, sharding, seats, machine), *_phase_lines(seats))
    memory = () if facts is None else estimate_memory(config, facts, rewards, runs_on_gpu(config, machine))
    tables = memory_tables(seats, machine) if memory else ()
    return replace(plan, seats=seats, memory=memory, lines=lines, warnings=warnings, tables=tables, machine=machine)


def plan_of_passes(
    config: RunConfig,
    facts: ModelFacts | None,
    models: Iterable[ModelRole],
    lines: Iterable[PlanLine],
    *,
    steps: int | None,
    passes: float | None,
    because: tuple[str, str],
) -> Plan:
    """The plan of a run that makes `optimization.epochs` passes over the data, in so many `steps`, or the steps that
    the run file names, in so many `passes`; because: of the one and of the other. lines: of the data and one step."""
    reasons = because[0], "optimization.epochs"
    if config.steps is None:
        passes = float(config.optimization.epochs)
    else:
        steps, reasons = config.steps, ("steps", because[1])
    of_steps = PlanLine("whole run", "optimizer steps", count_in_words(steps), reasons[0])
    of_passes = PlanLine("whole run", "passes over the data", count_in_words(passes, 2), reasons[1])
    warnings = tuple(context_warning(config.longest_text, "max_tokens", facts))
    return Plan(steps, steps, passes, tuple(models), (*lines, of_steps, of_passes), warnings)


def _process_lines(
    config: RunConfig, sharding: ShardingChoice, seats: Sequence[PlannedProcess], machine: Machine
) -> Iterator[PlanLine]:
    cluster = config.cluster
    if not cluster.uses_processes:
        return
    names = ("trainers", "rollout_workers", "own_process")
    because = f"cluster.{' + '.join(name for name in names if name in type(cluster).model_fields)}"
    because += f"; {machine.name} has {machine.cores} cores" if machine.is_here else ""
    yield PlanLine("processes", "with a model", str(cluster.num_processes), because)
    if cluster.runs_on == "torchrun":
        because = f"on one node: torchrun --nproc-per-node {cluster.num_processes} -m burnish ..."
        yield PlanLine("processes", "ranks of torchrun", str(cluster.num_processes), because)
    because = "cluster.lanes" if cluster.lanes is not None else "as many as give every process something to do"
    yield PlanLine("processes", "lanes", str(cluster.num_lanes), f"{because}; the numbers follow from it")
    if cluster.trainers > 1:
        yield PlanLine("processes", "sharding", sharding.sharding, sharding.because)
    if all(len(seat.host) + len(seat.device) < 2 for seat in seats):
        return  # the model's sizes are unknown
    together = bytes_in_words(sum(seat.host_bytes for seat in seats))
    there = "" if machine.memory_bytes is None else f"; {machine.name} has {bytes_in_words(machine.memory_bytes)}"
    because = f"of all processes{there}"
    yield PlanLine("processes", "host memory, at most", together, because)


def _phase_lines(seats: Sequence[PlannedProcess]) -> Iterator[PlanLine]:
    """The memory of the (first) training process in each phase of a step, where it computes, with the items that are
    there in this phase only."""
    seat = next((seat for seat in seats if seat.name.startswith("trainer")), seats[0])
    items = seat.host if seat.gpu is None else seat.device
    some = [item for item in items if len(item.phases) < len(PHASES)]
    for phase in PHASES:
        there = [f"{item.name} {bytes_in_words(item.num_bytes)}" for item in some if phase in item.phases]
        if there:
            memory = bytes_in_words(bytes_in(phase, items))
            yield PlanLine(f"memory of {seat.name}", phase, memory, f"with {', '.join(there)}")


def context_warning(longest: int, words: str, facts: ModelFacts | None) -> Iterator[str]:
    """A warning if `longest` tokens exceed the model's context."""
    if facts is not None and facts.context_tokens is not None and longest > facts.context_tokens:
        yield f"{words} is {longest:,}, but the model's context holds {facts.context_tokens:,} tokens"


def count_in_words(number: float | None, decimals: int = 0) -> str:
    """`12,345`, or `1.50` with two decimals, or `unknown`."""
    return "unknown" if number is None else f"{number:,.{decimals}f}"
