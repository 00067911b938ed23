"""What a run will do, computed before it starts. Pure arithmetic, without files, models or torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from burnish.config import names
from burnish.config.domains import at_step, domain_settings, responses_per_step
from burnish.config.schema import RlConfig, SftConfig
from burnish.planning.fitting import Fit, MemoryTable, memory_tables
from burnish.planning.machines import Machine
from burnish.planning.memory import PHASES, MemoryItem, Trained, bytes_in, bytes_in_words, estimate_memory
from burnish.planning.microbatch import microbatch_of, with_microbatch
from burnish.planning.model_facts import ModelFacts, RewardFacts
from burnish.planning.room import refuse_impossible, seat_warnings
from burnish.planning.seats import Choice, Seat, runs_on_gpu, seats_of, sharding_of
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
    seats: tuple[Seat, ...] = ()
    """The processes of the run, the command's own first. Like `memory` empty until `seated` has seen the machine."""
    machine: Machine | None = None
    """That of `seats`."""
    tables: tuple[MemoryTable, ...] = ()
    """The memory of the processes by phase and by kind of tensors; empty if the model's sizes are unknown."""
    fit: Fit | None = None
    """Whether it fits a machine that is not here; None for this machine, on which the rest is refused."""
    time: RunTime | None = None
    """None if the model's sizes or the machine's speed are unknown."""
    changed_time: RunTime | None = None
    """The same with the changes of `fit`."""

    @property
    def memory_bytes(self) -> int:
        """Sum of the memory estimate; 0 if the model's sizes are unknown."""
        return sum(item.num_bytes for item in self.memory)


def seated(
    plan: Plan, config: Trained, facts: ModelFacts | None, machine: Machine, rewards: Sequence[RewardFacts] = ()
) -> Plan:
    """The plan with the processes of the run on this machine. ConfigError if it cannot have them. `rewards`: its reward
    models."""
    microbatch = microbatch_of(config, facts, machine, rewards)
    chosen = PlanLine("one step", "tokens of a micro-batch, at most", f"{microbatch.tokens:,}", microbatch.because)
    given = [chosen] if config.optimization.tokens_per_microbatch == "auto" else []
    config = with_microbatch(config, microbatch.tokens)
    seats = seats_of(config, facts, machine, rewards)
    refuse_impossible(config, seats, machine, facts)
    warnings = (*plan.warnings, *seat_warnings(config, seats, machine))
    sharding = sharding_of(config, facts, machine, rewards)
    lines = (*plan.lines, *given, *_process_lines(config, sharding, seats, machine), *_phase_lines(seats))
    memory = () if facts is None else estimate_memory(config, facts, rewards, runs_on_gpu(config, machine))
    tables = memory_tables(seats, machine) if memory else ()
    return replace(plan, seats=seats, memory=memory, lines=lines, warnings=warnings, tables=tables, machine=machine)


def _process_lines(config: Trained, sharding: Choice, seats: Sequence[Seat], machine: Machine) -> Iterator[PlanLine]:
    cluster = config.cluster
    if not cluster.uses_processes:
        return
    because = "cluster.trainers" + (" + rollout_workers + own_process" if isinstance(config, RlConfig) else "")
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


def _phase_lines(seats: Sequence[Seat]) -> Iterator[PlanLine]:
    """The memory of the process that trains, or of the first one that does, in each phase of a step: where it
    computes, and what is there in this phase only."""
    seat = next((seat for seat in seats if seat.name.startswith("trainer")), seats[0])
    items = seat.host if seat.gpu is None else seat.device
    some = [item for item in items if len(item.phases) < len(PHASES)]
    for phase in PHASES:
        there = [f"{item.name} {bytes_in_words(item.num_bytes)}" for item in some if phase in item.phases]
        if there:
            memory = bytes_in_words(bytes_in(phase, items))
            yield PlanLine(f"memory of {seat.name}", phase, memory, f"with {', '.join(there)}")


def plan_rl(
    config: RlConfig,
    *,
    num_prompts: int | None = None,
    facts: ModelFacts | None = None,
) -> Plan:
    """The plan of `burnish rl`. If known, `num_prompts` are those in data.train, and `facts` the model's sizes."""
    rollout, optimization = config.rollout, config.optimization
    passes = None if not num_prompts else config.steps * rollout.prompts_per_step / num_prompts
    evaluations = num_evaluations(config)
    return Plan(
        steps=config.steps,
        optimizer_steps=config.steps * optimization.epochs * optimization.minibatches,
        passes_over_data=passes,
        evaluations=evaluations,
        models=tuple(_models(config)),
        lines=(
            *_sampling_lines(config, num_prompts, passes),
            *_update_lines(config),
            *_other_lines(config, evaluations),
        ),
        warnings=tuple(_warnings(config, num_prompts, facts)),
    )


def plan_sft(
    config: SftConfig,
    *,
    num_examples: int | None = None,
    num_tokens: int | None = None,
    num_steps: int | None = None,
    facts: ModelFacts | None = None,
) -> Plan:
    """The plan of `burnish sft`.

    `num_examples` and `num_tokens` describe data.train, and `num_steps` is the number of optimizer steps that
    `optimization.epochs` passes take, if known.
    """
    epochs = config.optimization.epochs
    steps = config.steps if config.steps is not None else num_steps
    passes: float | None = float(epochs)
    if config.steps is not None:
        passes = None if num_steps is None else config.steps * epochs / num_steps
    return Plan(
        steps=steps,
        optimizer_steps=steps,
        passes_over_data=passes,
        models=(ModelRole("policy", "is trained"),),
        lines=tuple(_sft_lines(config, num_examples, num_tokens, steps, passes)),
        warnings=tuple(context_warning(config.max_tokens, "max_tokens", facts)),
    )


def _sft_lines(
    config: SftConfig, num_examples: int | None, num_tokens: int | None, steps: int | None, passes: float | None
) -> Iterator[PlanLine]:
    optimization = config.optimization
    yield PlanLine(
        "data", "examples", count_in_words(num_examples), f"data.train, at most {config.max_tokens} tokens each"
    )
    yield PlanLine("data", "tokens", count_in_words(num_tokens), "all examples, one pass")
    batch = f"{optimization.tokens_per_batch:,}"
    yield PlanLine("one step", "tokens, at most", batch, "optimization.tokens_per_batch, whole examples")
    because = "steps" if config.steps is not None else f"batches of {optimization.epochs} (optimization.epochs) passes"
    yield PlanLine("whole run", "optimizer steps", count_in_words(steps), because)
    because = "optimization.epochs" if config.steps is None else "steps / steps of one pass"
    yield PlanLine("whole run", "passes over the data", number_in_words(passes), because)


def split_evenly(total: int, parts: int) -> tuple[int, ...]:
    """The sizes of `parts` parts that differ by at most one, larger ones first."""
    size, larger = divmod(total, parts)
    return (size + 1,) * larger + (size,) * (parts - larger)


def num_evaluations(config: RlConfig) -> int:
    """Number of evaluations in the whole run: at the start, every `every_steps` steps, and after the last step."""
    if not config.named_sources("eval"):
        return 0
    every = config.evaluation.every_steps
    after = set() if every is None else {*range(every, config.steps + 1, every), config.steps}
    return len(after) + int(config.evaluation.begins)


def _models(config: RlConfig) -> Iterator[ModelRole]:
    algorithm = config.algorithm
    for reward in config.all_rewards:
        if reward.is_model:
            path = reward.name.removeprefix(names.MODEL_REWARD)
            yield ModelRole("reward_model", f"rewards names {path}; it scores with weight {reward.weight:g}")
    what = "its adapters are trained" if config.model.lora else "is trained"
    yield ModelRole("policy", f"{what}; {_sampler(config)}")
    yield from _critic(config)
    if algorithm.kl_in == "none":
        return
    because = f"algorithm.kl_in is {algorithm.kl_in} with kl_coef {algorithm.kl_coef:g}"
    if config.model.lora:
        because += "; it is the policy with its adapters off, not a second copy"
    yield ModelRole("reference", because)


def _sampler(config: RlConfig) -> str:
    engine = config.rollout.engine
    if engine != "vllm":
        return f"the {engine} engine samples from it"
    python = config.rollout.vllm.python or "this interpreter"
    return f"the vllm engine samples from a second copy, in its own process ({python})"


def _critic(config: RlConfig) -> Iterator[ModelRole]:
    critic, estimator = config.critic, config.algorithm.estimator
    if estimator not in names.CRITIC_ESTIMATORS:
        return
    needs = f"the estimator {estimator} needs values"
    if critic.kind == "shared":
        yield ModelRole("critic", f"{needs}; a head on the policy's backbone (critic.kind shared), not a second model")
        return
    start = "a copy of the policy" if critic.init == "policy" else critic.init
    yield ModelRole("critic", f"{needs}; all weights of its own backbone are trained, starting from {start}")


def _sampling_lines(config: RlConfig, num_prompts: int | None, passes: float | None) -> Iterator[PlanLine]:
    rollout = config.rollout
    prompts, responses = rollout.prompts_per_step, responses_per_step(config)
    yield PlanLine("one step", "prompts", f"{prompts:,}", "rollout.prompts_per_step")
    if config.domains:
        yield PlanLine("one step", "responses, at most", f"{responses:,}", "each domain's prompts x its group_size")
        yield from _domain_lines(config)
    else:
        product = f"{prompts} prompts x {rollout.group_size} (rollout.group_size)"
        yield PlanLine("one step", "responses", f"{responses:,}", product)
    if config.algorithm.estimator in names.GREEDY_ESTIMATORS:
        because = f"the estimator {config.algorithm.estimator} needs one per prompt; they are not trained on"
        yield PlanLine("one step", "greedy responses", f"{prompts:,}", because)
    most = responses * rollout.max_response_tokens
    because = f"{responses} responses x {rollout.max_response_tokens} (rollout.max_response_tokens)"
    yield PlanLine("one step", "response tokens, at most", f"{most:,}", because)
    if any(domain.refills for domain in domain_settings(config)):
        rounds = config.algorithm.max_refills
        because = f"groups that do not teach are refilled in up to {rounds} more rounds (algorithm.max_refills)"
        yield PlanLine("one step", "responses with refills, at most", f"{responses * (rounds + 1):,}", because)
    whole = config.steps * prompts
    yield PlanLine("whole run", "steps", f"{config.steps:,}", "steps")
    yield PlanLine("whole run", "responses", f"{config.steps * responses:,}", f"{config.steps} steps x {responses}")
    because = f"{whole:,} prompts drawn / {count_in_words(num_prompts)} in data.train"
    if config.data.query is not None:
        because += ", including those without a query (data.query)"
    yield PlanLine("whole run", "passes over the data", number_in_words(passes), because)


def _domain_lines(config: RlConfig) -> Iterator[PlanLine]:
    """The part of each domain in a step."""
    domains = domain_settings(config)
    for domain in domains:
        parts = []
        for first in sorted({first for other in domains for first in other.shares}):
            share = at_step(domain.shares, first) / sum(at_step(other.shares, first) for other in domains)
            since = f" from step {first}" if first else ""
            parts.append(f"{config.rollout.prompts_per_step * share:.3g}{since}")
        rewards = ", ".join(reward.log_label for reward in domain.rewards)
        because = f"x {domain.group_size} responses; rewards: {rewards}"
        yield PlanLine("one step", f"prompts of {domain.name}", ", ".join(parts), because)


def _update_lines(config: RlConfig) -> Iterator[PlanLine]:
    optimization = config.optimization
    sizes = split_evenly(responses_per_step(config), optimization.minibatches)
    shown = f"{sizes[0]:,}" if len(set(sizes)) == 1 else f"{sizes[-1]:,} or {sizes[0]:,}"
    because = f"responses / {optimization.minibatches} (optimization.minibatches)"
    yield PlanLine("one step", "responses per minibatch", shown, because)
    per_step = optimization.epochs * optimization.minibatches
    because = f"{optimization.epochs} (optimization.epochs) x {optimization.minibatches} (optimization.minibatches)"
    yield PlanLine("one step", "optimizer steps", f"{per_step:,}", because)
    total = config.steps * per_step
    yield PlanLine("whole run", "optimizer steps", f"{total:,}", f"{config.steps} steps x {per_step}")
    if config.algorithm.estimator in names.CRITIC_ESTIMATORS:
        yield from _critic_lines(config, total)
    rate = _learning_rate(config, config.policy_updates)
    yield PlanLine("whole run", "learning rate", rate, "optimization.schedule, warmup_steps")
    old = "needed: more than one update per step" if per_step > 1 else "not needed: one update per step"
    if per_step == 1 and config.algorithm.kl_in == "reward":
        old = "needed: the KL in the reward reads them"
    yield PlanLine("one step", "pass for old log-probabilities", old.partition(":")[0], old.partition(": ")[2])


def _critic_lines(config: RlConfig, total: int) -> Iterator[PlanLine]:
    critic, bound = config.critic, config.algorithm.max_epoch_kl
    alone = total - config.policy_updates
    because = f"all of them; the first {alone:,} without the policy" if alone else "one with each of the policy's"
    yield PlanLine("whole run", "optimizer steps of the critic", f"{total:,}", because)
    rate = _critic_rate(config)
    because = "optimization.learning_rate" if critic.learning_rate is None else "critic.learning_rate"
    yield PlanLine(
        "whole run", "learning rate of the critic", f"{rate:g}", f"{because}, {config.optimization.schedule}"
    )
    if bound is not None:
        because = f"after an epoch with a KL above {bound:g} (algorithm.max_epoch_kl) the rest are skipped"
        yield PlanLine("one step", "epochs, at most", f"{config.optimization.epochs}", because)


def _learning_rate(config: RlConfig, total: int) -> str:
    optimization = config.optimization
    words = f"{optimization.learning_rate:g}, {optimization.schedule}"
    if optimization.warmup_steps:
        words += f" after {optimization.warmup_steps} warm-up steps"
    if optimization.schedule_unit == "step":
        words += ", the same in all optimizer steps of a step"
    if optimization.schedule != "constant":
        end = optimization.learning_rate * optimization.final_learning_rate_fraction
        words += f", to {end:g} at optimizer step {total:,}"
    return words


def _other_lines(config: RlConfig, evaluations: int) -> Iterator[PlanLine]:
    yield PlanLine("whole run", "evaluations", str(evaluations), _when_evaluated(config))
    every = config.checkpoint.every_steps
    saves = -(-config.steps // every) if every is not None else 1
    because = f"every {every} steps and after the last" if every is not None else "after the last step"
    yield PlanLine("whole run", "checkpoints", str(saves), f"{because}; the newest {config.checkpoint.keep} are kept")


def _when_evaluated(config: RlConfig) -> str:
    if not config.named_sources("eval"):
        return "data.eval is empty"
    every = config.evaluation.every_steps
    times = ["before the first step"] if config.evaluation.begins else []
    times += [] if every is None else [f"every {every} steps and after the last"]
    return ", ".join(times) or "evaluation.every_steps is null"


def _warnings(config: RlConfig, num_prompts: int | None, facts: ModelFacts | None) -> Iterator[str]:
    rollout = config.rollout
    if num_prompts is not None and num_prompts < rollout.prompts_per_step:
        yield (
            f"data.train has {num_prompts} prompts, fewer than rollout.prompts_per_step {rollout.prompts_per_step}, so "
            "a step draws some of them more than once"
        )
    longest = rollout.max_prompt_tokens + rollout.max_response_tokens
    yield from context_warning(longest, "rollout.max_prompt_tokens + max_response_tokens", facts)
    yield from _slow_critic(config, facts)
    if rollout.group_size == 1 and config.algorithm.estimator == "raw" and config.algorithm.kl_in == "none":
        yield "plain REINFORCE without a baseline or KL learns slowly and may drift"


def _critic_rate(config: RlConfig) -> float:
    """The critic's own learning rate, or the policy's."""
    own = config.critic.learning_rate
    return config.optimization.learning_rate if own is None else own


def _slow_critic(config: RlConfig, facts: ModelFacts | None) -> Iterator[str]:
    """A warning if the whole run is too short for a critic's values, which start at 0, to reach 1.

    An Adam step moves each of H weights by about the learning rate, and hidden states are about 1 in size, so a value
    moves by about learning rate x H per step. The scale of the rewards is not known here; most are around 1.
    """
    fresh = config.critic.kind == "shared" or config.critic.init == "policy"
    if facts is None or not fresh or config.algorithm.estimator not in names.CRITIC_ESTIMATORS:
        return
    steps = config.steps * config.optimization.epochs * config.optimization.minibatches
    rate = _critic_rate(config)
    reach = rate * facts.hidden_size * steps
    if reach < 1:
        yield (
            f"the critic's values start at 0 and move by about {reach:.2g} in the whole run (critic.learning_rate "
            f"{rate:g} x hidden size {facts.hidden_size:,} x {steps:,} optimizer steps): too little "
            "for rewards of about 1; raise critic.learning_rate"
        )


def context_warning(longest: int, words: str, facts: ModelFacts | None) -> Iterator[str]:
    """A warning if `longest` tokens exceed the model's context."""
    if facts is not None and facts.context_tokens is not None and longest > facts.context_tokens:
        yield f"{words} is {longest:,}, but the model's context holds {facts.context_tokens:,} tokens"


def count_in_words(number: int | None) -> str:
    """`12,345`, or `unknown`."""
    return "unknown" if number is None else f"{number:,}"


def number_in_words(number: float | None) -> str:
    """`1.50`, or `unknown`."""
    return "unknown" if number is None else f"{number:,.2f}"
