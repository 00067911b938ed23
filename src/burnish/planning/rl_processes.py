"""The processes of a run of `burnish rl`: its models, engines and small processes, and the memory that each needs.

`REWARD_WORKER_BYTES` and `CONVERSATION_PROCESS_BYTES` were measured like `PROCESS_BYTES` of
`burnish.planning.processes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from burnish.config import names
from burnish.config.domains import domain_settings, responses_per_step, used_domains
from burnish.config.schema import RlConfig
from burnish.config.schema_run import RunConfig
from burnish.config.schema_teacher import OWN_POLICY
from burnish.planning.memory import (
    PHASES,
    MemoryItem,
    Phase,
    RoleMemory,
    bytes_in_words,
    comparison,
    passes_item,
    weights_item,
)
from burnish.planning.model_facts import RewardFacts
from burnish.planning.processes import ON_GPU, UNKNOWN, PlannedProcess, Processes, joined, saving, saving_on_host
from burnish.planning.rl import teacher_facts

REWARD_WORKER_BYTES = 16 << 20
"""A process that runs rewards that import nothing large."""
CONVERSATION_PROCESS_BYTES = 6 << 20
"""A process that runs the tools or the environment of one conversation, if these keep little."""
_CRITIC_UPDATE: tuple[Phase, ...] = ("critic update", "critic's optimizer step")
_KEPT_BYTES = 1 << 30  # as in burnish.rollouts.local.reusable_rows
_HELD_BYTES = 1 << 30  # as in burnish.rollouts.local.static_decoder


class RlTable(RoleMemory):
    """Besides the policy: reference, critic, engine, reward models and the weights on their way to rollout workers."""

    config: RlConfig

    @staticmethod
    def pass_tokens(config: RunConfig) -> int:
        assert isinstance(config, RlConfig)
        longest = config.longest_text
        responses = -(-responses_per_step(config) // config.optimization.minibatches)
        each_lane = -(-responses * longest // config.cluster.num_lanes)
        return max(min(config.optimization.microbatch_tokens, each_lane), longest)

    @staticmethod
    def may_rest(config: RunConfig) -> Iterator[str]:
        assert isinstance(config, RlConfig)
        there = {
            "optimizer": True,
            "reference": config.has_reference and config.model.lora is None,
            "teacher": any(path != OWN_POLICY or config.model.lora is None for path in config.teacher_paths),
            "critic": config.has_separate_critic,
            "reward_model": any(reward.is_model for reward in config.all_rewards),
            "rollout_engine": config.engine.traits.sleeps != "never" and not config.cluster.rollout_workers,
        }
        return (role for role, is_there in there.items() if is_there and role not in config.cluster.own_models)

    @property
    def updates(self) -> tuple[Phase, ...]:
        return ("update", "critic update") if self.config.has_separate_critic else ("update",)

    def beside(self) -> Iterator[MemoryItem]:
        """Reference, teachers and critic, unless they have their own processes."""
        own = self.config.cluster.own_process
        yield from () if "reference" in own else self.reference()
        yield from () if "teacher" in own else self.teachers()
        yield from () if "critic" in own else self.critic()

    def reference(self) -> Iterator[MemoryItem]:
        """Memory of the reference. Empty with LoRA, where the policy without its adapters is the reference."""
        if self.config.has_reference and self.config.model.lora is None:
            num_bytes = round(self.facts.num_parameters * self.frozen)
            weights = replace(self.weights("reference weights"), num_bytes=num_bytes)
            yield weights.needed_in("reference", if_any="reference" in self.offload)

    def teachers(self) -> Iterator[MemoryItem]:
        """Memory of teachers of known sizes. The policy's weights count only where it has no adapters to turn off."""
        for path, facts in zip(self.config.teacher_paths, teacher_facts(self.config, self.facts), strict=True):
            if facts is None or (path == OWN_POLICY and self.config.model.lora is not None):
                continue
            weights = weights_item(f"weights of teacher {path}", facts, self.width)
            yield weights.needed_in("teacher", if_any="teacher" in self.offload)
            phases: tuple[Phase, ...] = ("teacher", "update") if self.config.compares_vocabulary else ("teacher",)
            yield passes_item("passes of a teacher", facts, self.pass_tokens(self.config), self.width, *phases)
            if self.config.compares_vocabulary:
                yield comparison(self, facts)

    def critic(self) -> Iterator[MemoryItem]:
        """A separate one is a second trained model. It has no output head, but that is counted as well."""
        if not self.config.has_separate_critic:
            return
        own, rests = self.facts.critic, "critic" in self.offload
        count = (own or self.facts).num_parameters

        def item(what: str, each: float) -> MemoryItem:
            return MemoryItem(f"critic {what}", round(count * each), f"{count:,} parameters x {each:g} bytes")

        yield item("weights", self.kept.weight).needed_in("values", *_CRITIC_UPDATE, "checkpoint", if_any=rests)
        yield replace(item("gradients", self.gradients), phases=_CRITIC_UPDATE)
        state, rests = item("masters and moments", self.kept.optimizer), rests or "optimizer" in self.offload
        yield state.needed_in("critic's optimizer step", "checkpoint", if_any=rests)
        if own is not None:
            yield replace(self.activations(own), name="critic activations", phases=("critic update",))

    def alone(self, model: str) -> Iterator[MemoryItem]:
        """Memory of the whole `reference`, `teacher` or `critic` in its own process."""
        if model != "critic":
            yield from self.teachers() if model == "teacher" else [self.weights("reference weights")]
            yield from self.logprobs()
            return
        yield self.weights("policy weights, which it begins with")
        yield from self.critic()
        if self.facts.critic is None:
            yield self.activations()

    def logprobs(self) -> Iterator[MemoryItem]:
        """Also of the reference and of teachers."""
        there: dict[Phase, bool] = {"reference": self.config.has_reference, "teacher": bool(self.config.teacher_paths)}
        for item in super().logprobs():
            before, update = item.phases
            yield replace(item, phases=(before, *(phase for phase, is_there in there.items() if is_there), update))

    def states(self) -> Iterator[tuple[str, int]]:
        yield from super().states()
        if self.config.has_separate_critic:
            yield "critic", (self.facts.critic or self.facts).num_parameters

    def of_trainers(self) -> Iterator[MemoryItem]:
        """They also sample where no other process does."""
        yield from self.trained()
        yield from () if self.config.cluster.rollout_workers else self.engine()

    def engine(self) -> Iterator[MemoryItem]:
        """Memory of the engine: its copies of the weights, what it takes for itself, and its key/value cache."""
        traits, rests = self.config.engine.traits, "rollout_engine" in self.offload
        if traits.copies:
            yield self.weights(f"weights in {traits.label}").needed_in("sampling", if_any=rests)
        for name, num_bytes in traits.memory.items():
            yield MemoryItem(name, num_bytes, "as the engine says").needed_in("sampling", if_any=rests)
        if traits.lays_out_weights and not self.on_gpu:
            # Decoders on a CPU lay the matrices out anew for each call; whether they do depends on the processor. Of
            # weights in few bits only the head, because they use them as they are.
            item = replace(self.weights("weights laid out for decoding"), phases=("sampling",), at_most=True)
            if self.config.model.quantization is not None and not self.config.cluster.rollout_workers:
                head = self.facts.vocabulary_size * self.facts.hidden_size
                formula = f"{head:,} weights of the head x {self.width} bytes"
                item = replace(item, num_bytes=head * self.width, formula=formula)
            yield item
            if self.config.cluster.rollout_workers:
                yield replace(item, name="the next weights, while they are laid out")
        yield from self.sampling()

    def sampling(self) -> Iterator[MemoryItem]:
        """Keys and values where responses are sampled."""
        asked = max(responses_per_step(self.config), _evaluated(self.config))
        rows = min(self.config.rollout.max_batch_rows, -(-asked // self.config.cluster.num_lanes))
        if self.computes_on_gpu and self.config.engine.traits.fixed_steps and not self.config.debug.plain:
            rows, tokens = _rounded_up(rows, self.config.longest_text)
            yield from _fixed_steps(self.cache(rows, tokens), rows, self.facts.vocabulary_size)
        else:
            yield self.cache(rows, self.config.longest_text)
        if _keeps_conversations(self.config):
            whole = self.cache(responses_per_step(self.config), self.config.longest_text)
            most = replace(whole, num_bytes=_KEPT_BYTES, formula=f"{bytes_in_words(_KEPT_BYTES)}, however many")
            yield replace(whole if whole.num_bytes < _KEPT_BYTES else most, name="kept conversations")

    def versions(self) -> Iterator[MemoryItem]:
        """The host's memory through which rollout workers get weights: this version, the next one while it is written,
        and those with which batches ahead of training are still to be sampled."""
        if not self.config.cluster.rollout_workers:
            return
        this, ahead = self.weights("weights in shared memory"), self.config.max_staleness
        yield this
        if ahead == 0:
            yield replace(this, name="their next version, while it is written", phases=("sampling",))
        else:
            formula = f"{this.formula} x {ahead + 1} (max_staleness + 1)"
            yield MemoryItem("later versions in shared memory", (ahead + 1) * this.num_bytes, formula, at_most=True)

    def scoring(self, rewards: Sequence[RewardFacts]) -> Iterator[MemoryItem]:
        return (item for reward in rewards for item in reward_items(self.config, reward))


def _keeps_conversations(config: RlConfig) -> bool:
    """Return whether an engine may keep keys and values between the turns of conversations: where it samples in the
    process that holds them, and in one portion."""
    talks = any(domain.conversation is not None for domain in domain_settings(config))
    alone = config.cluster.num_lanes == 1 and not config.cluster.rollout_workers
    return talks and alone and config.engine.traits.keeps_rows


def _rounded_up(rows: int, tokens: int) -> tuple[int, int]:
    """Rows and tokens of decoding steps of fixed shapes."""
    rows = 1 << (rows - 1).bit_length()
    return rows, -(-tokens // 1024) * 1024 if tokens > 1024 else max(64, 1 << (tokens - 1).bit_length())


def _fixed_steps(cache: MemoryItem, rows: int, vocabulary_size: int) -> Iterator[MemoryItem]:
    """Memory of decoding steps of fixed shapes: their graphs have logits, and small ones stay until the next step."""
    size = 32 * rows * vocabulary_size
    formula = f"{rows} rows x {vocabulary_size:,} logits x 32 bytes"
    phases: tuple[Phase, ...] = PHASES if cache.num_bytes + size <= _HELD_BYTES else ("sampling",)
    yield replace(cache, phases=phases)
    yield MemoryItem("logits of decoding steps", size, formula, phases, at_most=True)


def _evaluated(config: RlConfig) -> int:
    """Most responses that an evaluation asks for at once; however many prompts there are, where nothing limits them."""
    if not (config.named_sources("eval") and config.evaluation.happens):
        return 0
    settings = [domain.evaluation for domain in used_domains(config, domain_settings(config), "eval")]
    most = [config.rollout.max_batch_rows if one.max_prompts is None else one.max_prompts for one in settings]
    return sum(prompts * max(1, one.samples) for prompts, one in zip(most, settings, strict=True))


def reward_items(config: RlConfig, reward: RewardFacts) -> tuple[MemoryItem, ...]:
    """Memory of a reward model on the device where it scores: its weights, and its passes without gradient, which keep
    one layer's numbers at a time."""
    facts = reward.facts
    if facts is None:
        return ()
    # Rollout workers sample ahead of training, and what they have sampled is scored while the policy learns.
    ahead = config.max_staleness > 0 and config.cluster.rollout_workers > 0
    phases: tuple[Phase, ...] = PHASES if ahead else ("scoring",)
    weights = weights_item(f"weights of reward {reward.label!r}", facts, reward.width)
    tokens = _scored_tokens(config, reward.tokens_per_microbatch)
    passes = passes_item(f"passes of reward {reward.label!r}", facts, tokens, reward.width, *phases)
    return weights.needed_in(*phases, if_any="reward_model" in config.cluster.offload), passes


def _scored_tokens(config: RlConfig, budget: int) -> int:
    """Tokens in one pass of a reward model: its budget, or less if a step has less and nothing is evaluated."""
    longest = config.longest_text
    step = responses_per_step(config) * longest
    return max(longest, budget if config.named_sources("eval") and config.evaluation.happens else min(budget, step))


class RlProcesses(Processes):
    """Besides controller and trainers: models with their own process, rollout workers, and the small processes of
    rewards, tools and environments."""

    config: RlConfig
    table: RlTable

    def seats(self) -> Iterator[PlannedProcess]:
        config, controller = self.config, self.controller()
        apart = "reward_model" in config.cluster.own_process
        yield from [controller] if apart else self._with_judges(controller)
        yield from self.trainers()
        yield from self._own_models()
        yield from self._workers()
        count = config.scoring.workers
        item = MemoryItem("processes", count * REWARD_WORKER_BYTES, f"{count} x {bytes_in_words(REWARD_WORKER_BYTES)}")
        yield PlannedProcess(f"{count} reward worker{'s' * (count > 1)}", ("rewards",), 1, None, (item,), small=True)
        yield from _conversation_seats(config)

    def holds(self) -> tuple[str, ...]:
        config, found = self.config, [*super().holds()]
        own = config.cluster.own_process
        if config.has_reference and "reference" not in own:
            found.append("reference" if config.model.lora is None else "reference (adapters off)")
        if config.teacher_paths and "teacher" not in own:
            found.append("teacher" if len(config.teacher_paths) == 1 else f"{len(config.teacher_paths)} teachers")
        if config.algorithm.estimator in names.CRITIC_ESTIMATORS and "critic" not in own:
            found.append(f"{config.critic.kind} critic")
        if not config.cluster.rollout_workers:
            found.append(f"{config.rollout.engine} engine with the policy's weights")
        return tuple(found)

    def _own_models(self) -> Iterator[PlannedProcess]:
        """Models with their own process."""
        cluster = self.config.cluster
        for model, name in zip(cluster.own_process, cluster.own_names, strict=True):
            if model == "reward_model":
                yield from self._with_judges(self.seat(name, ()))
            else:
                whole = RlTable(self.config, self.facts or UNKNOWN, self.on_gpu)
                host = [*saving_on_host(whole, [model], sends=True)]
                yield self.seat(name, (name,), host, [*whole.alone(model), *saving(whole, [model])])

    def _workers(self) -> Iterator[PlannedProcess]:
        """The rollout workers, each of which may take several GPUs."""
        config, engine = self.config, [*self.table.engine()]
        for number in range(config.cluster.rollout_workers):
            holds = (f"{config.rollout.engine} engine with a copy of the weights",)
            copy, on_host = [self.table.weights("weights")], config.engine.traits.copies  # its own is on the GPU
            worker = self.seat(f"rollout worker {number}", holds, copy * on_host, [*copy * (not on_host), *engine])
            for _ in range(config.engine.gpus - 1):
                next(self.gpus)
            yield replace(worker, num_gpus=config.engine.gpus)

    def _with_judges(self, seat: PlannedProcess) -> Iterator[PlannedProcess]:
        """The seat with reward models, and one for each GPU other than its own on which it has some."""
        count = sum(reward.is_model for reward in self.config.all_rewards)
        words = ("reward model",) if count == 1 else (f"{count} reward models",) if count else ()
        items: dict[int | None, list[MemoryItem]] = {}
        for reward in self.rewards:
            items.setdefault(self._gpu_of(reward, seat), []).extend(reward_items(self.config, reward))
        for gpu in (None, seat.gpu):
            seat = joined(seat, items.pop(gpu, []), on_gpu=gpu is not None)
        yield replace(seat, holds=(*seat.holds, *words))
        for gpu, there in sorted(items.items(), key=str):
            yield joined(PlannedProcess(f"{seat.name}{ON_GPU}{gpu}", words, seat.threads, gpu, ()), there, on_gpu=True)

    def _gpu_of(self, reward: RewardFacts, seat: PlannedProcess) -> int | None:
        """The GPU that a reward model of this process scores on; None for the CPU. The controller sees all of them."""
        kind, _, number = reward.device.partition(":")
        if kind not in ("auto", "cuda") or not self.machine.gpu_bytes:
            return None
        if seat.gpu is not None and "reward_model" in self.config.cluster.own_process:
            return seat.gpu
        gpu = int(number) if number.isdigit() else 0
        return gpu if gpu < len(self.machine.gpu_bytes) else None  # loading it says that there is no such GPU


def _conversation_seats(config: RlConfig) -> Iterator[PlannedProcess]:
    """The processes of environments, of agents and of tools, as many as conversations may be held at the same time."""
    talks = [domain.conversation for domain in domain_settings(config) if domain.conversation is not None]
    if held := [talk for talk in talks if talk.agent is not None or talk.own_tools or talk.environment is not None]:
        count = min(max(talk.max_open for talk in held), responses_per_step(config))
        formula = f"{count} x {bytes_in_words(CONVERSATION_PROCESS_BYTES)}"
        item = MemoryItem("processes", count * CONVERSATION_PROCESS_BYTES, formula, ("sampling",), at_most=True)
        name = f"{count} conversation process{'es' * (count > 1)}"
        yield PlannedProcess(name, ("tools, environments",), 1, None, (item,), small=True)
