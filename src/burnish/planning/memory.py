"""An estimate of a run's memory, from the model's sizes alone.

Symbols: P parameters (Q of them trained: all, or only the adapters'), b bytes per weight (4 or 2), L layers, H hidden
size, F feed-forward size, N tokens in one forward and backward pass, V vocabulary, K = key/value heads x head size.

| item | bytes | why |
|---|---|---|
| weights | P b; with `model.quantization` 1 or 1/2 and 1/16 for each of a linear layer | a scale for 64 weights |
| gradients | 4 Q, times those held at once with several lanes or trainers (`gradients_at_once`) | summed in float32 |
| exchanged at a time | 16 MiB at most, 64 on a GPU, with several trainers | sums travel in pieces |
| master weights | 4 Q, only below float32 | small updates would round to nothing |
| Adam | 8 Q | two float32 moments |
| reference | P b, only with a KL and without adapters | |
| critic | P b, 4 P, 4 P (below float32) + 8 P, only a separate one | its weights, gradients, masters and moments |
| activations | N b L A with A = 8 H + 2 K + 3 F; with gradient checkpointing N b (L H + A) | backward pass |
| log-probabilities | b N V + 12 x 2^19 up to 2^26 logits, else 12 x 2^22; 12 N H | logits kept or in chunks |
| the same on a GPU | 4 N V and b N V, at most 2^29 and b 2^27, 2^30 if there are more; 12 x 2^25; 12 N H | |
| the same, `debug.plain` | (b + 16) N V + 12 N H | logits, softmax and gradients at the same time |
| key/value cache | 2 L K b x rows x tokens of a row; 4 for b on a CPU | rows decoded in parallel |
| logits of decoding steps | 32 V x rows, local engine on a GPU; sizes rounded up | held, up to 2^30 with the cache |
| kept conversations | the same of all conversations of a step, at most 2^30 | they go on after an answer |
| sampling policy | P b, reward models with `normalization.on: policy` | it samples responses to measure scores on |
| reward models | P b and N b A, of each reward that is one, with its own P, b, N and A | it scores, a layer at a time |

A reward model that is trained has a score head instead of an output head: there are no log-probabilities, and P is a
little too large.

`Table` has these by role (models, sampling, saving); `burnish.planning.seats` says which process has which role.

Each line says in which phases of a step it is needed: the cache while sampling, passes of reward models while scoring
(at any time, if rollout workers sample ahead), log-probabilities before and in the update, gradients and activations in
the update only, and what rests meanwhile (`cluster.offload`) only in the phases that it is brought back for. The table
adds all of them up, which errs on the safe side; `peak_bytes` takes the phase that needs most. Not counted: PyTorch's
own working memory, fragmentation, and attention without a memory-saving kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from burnish.config import names
from burnish.config.domains import domain_settings, responses_per_step, used_domains
from burnish.config.schema import RlConfig, RmConfig, SftConfig
from burnish.config.schema_data import LoraConfig
from burnish.planning.model_facts import ModelFacts, RewardFacts

Trained = RlConfig | SftConfig | RmConfig
Phase = Literal[
    "sampling",
    "scoring",
    "log-probabilities",
    "reference",
    "values",
    "update",
    "optimizer step",
    "critic update",
    "critic's optimizer step",
    "checkpoint",
    "trial of the first checkpoint",
]
PHASES: tuple[Phase, ...] = get_args(Phase)
"""In the order of a step. `scoring`: by reward models; `update`: the forward and backward passes; `reference`,
`values`: its log-probabilities and the critic's values; the trial: the saved policy is loaded again and compared."""
Sharding = Literal["whole", "optimizer", "full"]
"""What each of several trainers keeps of a trained model; see `ParameterBytes.kept`."""

_CHUNK_LOGITS, _KEPT_LOGITS, _BLOCK_LOGITS = 1 << 22, 1 << 26, 1 << 19  # as in burnish.forward.logprobs
_DEVICE_LOGITS, _DEVICE_BLOCK_LOGITS = 1 << 27, 1 << 25  # as there
_PIECE_NUMBERS, _PIECE_NUMBERS_ON_GPU = 1 << 20, 1 << 22  # as in burnish.forward.team
_UPDATE: tuple[Phase, ...] = ("update", "optimizer step")
_CRITIC_UPDATE: tuple[Phase, ...] = ("critic update", "critic's optimizer step")
_BITS, _SHARE_A_SCALE = {"int8": 8, "nf4": 4}, 64  # as in burnish.forward.quantized_layers
_KEPT_BYTES = 1 << 30  # as in burnish.rollouts.local.kept
_HELD_BYTES = 1 << 30  # as in burnish.rollouts.local.static_decoder
_LOADED_AGAIN_BYTES = 20 << 30  # as in burnish.models.saved
_NORMALIZATION_ROWS = 64  # as `max_batch_rows` in burnish.trainers.reward_model.normalization


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """One line of the estimate: when it is needed, whether less may do (`at_most`), as when texts are short, and
    whether it is somewhere else in the other phases (`rests`)."""

    name: str
    num_bytes: int
    formula: str
    phases: tuple[Phase, ...] = PHASES
    at_most: bool = False
    rests: bool = False

    def needed_in(self, *phases: Phase, if_any: bool) -> MemoryItem:
        """The same if it rests in all other phases; unchanged without `if_any`."""
        return replace(self, phases=phases, rests=True) if if_any else self


def bytes_in(phase: Phase, items: Iterable[MemoryItem]) -> int:
    """The bytes of one phase."""
    return sum(item.num_bytes for item in items if phase in item.phases)


def peak_bytes(items: Iterable[MemoryItem], *, certain: bool = False) -> int:
    """The bytes of the phase that needs most; with `certain` only what is needed however short the texts are."""
    counted = [item for item in items if not (certain and item.at_most)]
    return max(bytes_in(phase, counted) for phase in PHASES)


@dataclass(frozen=True, slots=True)
class ParameterBytes:
    """Bytes that one parameter of a trained model takes, by what they are for. `optimizer`: masters and moments."""

    weight: float
    gradient: float
    master: float
    moments: float

    @staticmethod
    def of(dtype: str, sharding: Sharding = "whole", trainers: int = 1) -> ParameterBytes:
        """What each of several trainers keeps: everything, a slice of the optimizer only, or slices of everything; the
        weights that train are then the masters."""
        master, slices = 0 if dtype == "float32" else 4, trainers if sharding == "full" else 1
        weight = 0 if sharding == "full" and master > 0 else (2 if master else 4) / slices
        of_optimizer = 1 if sharding == "whole" else trainers
        return ParameterBytes(weight, 4 / slices, master / of_optimizer, 8 / of_optimizer)

    @property
    def optimizer(self) -> float:
        return self.master + self.moments


def gradients_at_once(lanes: int, trainers: int, sharding: Sharding = "whole") -> float:
    """Gradients of all trained parameters that a trainer holds at the same time, at most.

    In the passes: the lane that is being added up, and a sum for each level of the tree over the trainer's own lanes.
    When trainers exchange them: the own sum, the slice of the total that this trainer adds up, and, unless it keeps
    only that slice, the total.
    """
    own = lanes // trainers
    passes = float((own - 1).bit_length() + 1)
    if trainers == 1:
        return passes
    return max(passes, 1 + 1 / trainers + (sharding == "whole"))


def estimate_memory(
    config: Trained, facts: ModelFacts, rewards: Sequence[RewardFacts] = (), on_gpu: bool | None = None
) -> tuple[MemoryItem, ...]:
    """The lines of the table above for this run in one process, without those of zero bytes. `rewards`: its reward
    models. on_gpu: where it computes, if the machine is known."""
    table = Table(config, facts, on_gpu)
    scoring = [item for reward in rewards for item in reward_items(config, reward)]
    return (*table.trained(), *table.sampling(), *scoring)


class Table:
    """The memory items of each role of a run, where it computes if nothing else is said.

    on_gpu: where it computes, if the machine is known. trainers, sharding: what a trainer keeps of trained models.
    """

    def __init__(
        self,
        config: Trained,
        facts: ModelFacts,
        on_gpu: bool | None = None,
        trainers: int = 1,
        sharding: Sharding = "whole",
    ) -> None:
        self.config, self.facts, self.on_gpu = config, facts, on_gpu
        self.trainers, self.sharding = trainers, sharding
        self.width = int(ParameterBytes.of(config.model.dtype).weight)
        self.kept = ParameterBytes.of(config.model.dtype, sharding, trainers)
        self.frozen = self.width / (trainers if sharding == "full" else 1)
        """Bytes that a trainer keeps of a weight that does not train."""
        self.gradients = self.kept.gradient * gradients_at_once(config.cluster.num_lanes, trainers, sharding)
        self.offload = config.cluster.offload
        self.has_kl = isinstance(config, RlConfig) and config.algorithm.kl_in != "none"

    def trained(self) -> Iterator[MemoryItem]:
        """What each trainer needs to train: the models of its process, and their passes."""
        elsewhere = self.config.cluster.own_process if isinstance(self.config, RlConfig) else ()
        models = [*self.policy()]
        models += [] if "reference" in elsewhere else self.reference()
        models += [] if "critic" in elsewhere else self.critic()
        return (item for item in (*models, self.activations(), *self.logprobs()) if item.num_bytes > 0)

    def policy(self) -> Iterator[MemoryItem]:
        """The model that is trained, with its gradients and its optimizer."""
        trained, held = num_trained(self.config.model.lora, self.facts), self.gradients / self.kept.gradient
        yield self._policy_weights()
        formula = f"{trained:,} trained parameters x 4 bytes (float32)"
        formula += "" if held == 1 else f" x {held:g} at once (cluster.lanes)"
        yield MemoryItem("gradients", round(trained * self.gradients), formula, _UPDATE)
        if self.trainers > 1:
            piece = min(_PIECE_NUMBERS_ON_GPU if self.on_gpu else _PIECE_NUMBERS, trained)
            formula = f"{piece:,} numbers x 4 bytes, packed, joined, received, passed on"
            both = isinstance(self.config, RlConfig) and has_separate_critic(self.config)
            phases: tuple[Phase, ...] = ("update", "critic update") if both else ("update",)
            yield MemoryItem("exchanged at a time", 16 * piece, formula, phases, at_most=True)
        sliced = "" if self.trainers == 1 or self.sharding == "whole" else f", in slices of {self.trainers} trainers"
        for name, each, factor in (
            ("master weights", self.kept.master, 4),
            ("Adam moments", self.kept.moments, "2 x 4"),
        ):
            item = MemoryItem(name, round(trained * each), f"{trained:,} x {factor} bytes (float32){sliced}")
            yield item.needed_in("optimizer step", "checkpoint", if_any="optimizer" in self.offload)

    def _policy_weights(self) -> MemoryItem:
        name = "reward model weights" if isinstance(self.config, RmConfig) else "policy weights"
        each = self.kept.weight if self.config.model.lora is None else self.frozen
        count, quantization = self.facts.num_parameters, self.config.model.quantization
        if quantization is None:
            return replace(self.weights(name), num_bytes=round(count * each))
        few = self.facts.num_layers * sum(number * one * other for number, one, other in _matrices(self.facts))
        per_weight, rest = _BITS[quantization] / 8 + 4 / _SHARE_A_SCALE, max(0, count - few)
        formula = f"{few:,} x {per_weight:g} bytes ({quantization}) + {rest:,} x {self.width} bytes"
        return MemoryItem(name, round(few * per_weight + rest * each), formula)

    def reference(self) -> Iterator[MemoryItem]:
        """None where adapters are switched off instead."""
        if self.has_kl and self.config.model.lora is None:
            weights = self.weights("reference weights")
            weights = replace(weights, num_bytes=round(self.facts.num_parameters * self.frozen))
            yield weights.needed_in("reference", if_any="reference" in self.offload)

    def critic(self) -> Iterator[MemoryItem]:
        """A separate one is a second trained model. It has no output head, but that is counted as well."""
        if not isinstance(self.config, RlConfig) or not has_separate_critic(self.config):
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
        """What the `reference` or the `critic` needs in a process of its own, whole."""
        if model == "reference":
            yield self.weights("reference weights")
            yield from self.logprobs()
            return
        yield self.weights("policy weights, which it begins with")
        yield from self.critic()
        if self.facts.critic is None:
            yield self.activations()

    def engine(self) -> Iterator[MemoryItem]:
        """What an engine makes of the weights that it samples with, and what it samples in."""
        if isinstance(self.config, RlConfig) and self.config.rollout.engine == "vllm":
            rests = "rollout_engine" in self.offload
            yield self.weights("weights in vLLM").needed_in("sampling", if_any=rests)
        elif isinstance(self.config, RlConfig) and self.config.rollout.engine == "local" and not self.on_gpu:
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
        """Keys and values where responses are sampled, and for a reward model normalised on a policy that policy."""
        if isinstance(self.config, RlConfig):
            asked = max(responses_per_step(self.config), _evaluated(self.config))
            rows = min(self.config.rollout.max_batch_rows, -(-asked // self.config.cluster.num_lanes))
            if self._on_gpu and self.config.rollout.engine == "local" and not self.config.debug.plain:
                yield from self._fixed_steps(rows, _longest(self.config))
            else:
                yield self._cache(rows, _longest(self.config))
            yield from self._kept_conversations(self.config)
        elif isinstance(self.config, RmConfig) and self.config.normalization.kind != "none":
            settings = self.config.normalization
            if settings.on == "policy":
                yield self.weights("sampling policy")
                yield self._cache(min(_NORMALIZATION_ROWS, settings.responses), self.config.max_tokens)

    def _cache(self, rows: int, tokens: int) -> MemoryItem:
        """Kernels on a CPU keep float32; other decoding uses the model's dtype."""
        facts = self.facts
        width = self.width if self._on_gpu else 4
        per_token = 2 * facts.num_layers * facts.num_key_value_heads * facts.head_size * width
        formula = f"{rows} rows x {tokens} tokens x {per_token:,} bytes"
        return MemoryItem("key/value cache", rows * tokens * per_token, formula, ("sampling",), at_most=True)

    def _fixed_steps(self, rows: int, tokens: int) -> Iterator[MemoryItem]:
        """Of decoding steps of fixed shapes, which the local engine may take: sizes are rounded up, their graphs have
        logits, and what is small enough stays until the next step."""
        rows = 1 << (rows - 1).bit_length()
        tokens = -(-tokens // 1024) * 1024 if tokens > 1024 else max(64, 1 << (tokens - 1).bit_length())
        cache = self._cache(rows, tokens)
        size = 32 * rows * self.facts.vocabulary_size
        formula = f"{rows} rows x {self.facts.vocabulary_size:,} logits x 32 bytes"
        phases: tuple[Phase, ...] = PHASES if cache.num_bytes + size <= _HELD_BYTES else ("sampling",)
        yield replace(cache, phases=phases)
        yield MemoryItem("logits of decoding steps", size, formula, phases, at_most=True)

    @property
    def _on_gpu(self) -> bool:
        device = self.config.model.device
        return device.startswith("cuda") or (device == "auto" and bool(self.on_gpu))

    def _kept_conversations(self, config: RlConfig) -> Iterator[MemoryItem]:
        """Keys and values that the local engine keeps between the turns of conversations, where it samples in the
        process that holds them and in one portion."""
        talks = any(domain.conversation is not None for domain in domain_settings(config))
        alone = config.cluster.num_lanes == 1 and not config.cluster.rollout_workers
        if talks and alone and config.rollout.engine == "local":
            whole = replace(self._cache(responses_per_step(config), _longest(config)), name="kept conversations")
            most = replace(whole, num_bytes=_KEPT_BYTES, formula=f"{bytes_in_words(_KEPT_BYTES)}, however many")
            yield whole if whole.num_bytes < _KEPT_BYTES else most

    def versions(self) -> Iterator[MemoryItem]:
        """The host's memory through which rollout workers get weights: this version, the next one while it is written,
        and those with which batches ahead of training are still to be sampled."""
        if not isinstance(self.config, RlConfig) or not self.config.cluster.rollout_workers:
            return
        this, ahead = self.weights("weights in shared memory"), self.config.max_staleness
        yield this
        if ahead == 0:
            yield replace(this, name="their next version, while it is written", phases=("sampling",))
        else:
            formula = f"{this.formula} x {ahead + 1} (max_staleness + 1)"
            yield MemoryItem("later versions in shared memory", (ahead + 1) * this.num_bytes, formula, at_most=True)

    def saving(self, *models: str) -> Iterator[MemoryItem]:
        """What the process of these models copies of their state where it computes, if that is saved. Checkpoints are
        written from where the state is, unless it rests."""
        if self.sharding == "whole" and "optimizer" in self.offload:
            yield from self._largest("optimizer state, copied before it rests", models)
        if self.sharding != "full" and self.config.model.lora is not None and "policy" in models:
            yield replace(self.weights("merged weights, to be saved"), phases=("checkpoint",))

    def saving_on_host(self, *models: str, sends: bool) -> Iterator[MemoryItem]:
        """What it copies to the host's memory, if it is not there anyway. `sends`: the controller writes it."""
        if (self.on_gpu or self.sharding == "full") and {"policy", "critic"} & set(models):
            yield replace(self.weights("weights, copied to be saved"), phases=("checkpoint",))
        if sends and self.sharding != "whole":
            yield from self._largest("optimizer state, collected from slices", models)
        if sends:
            yield from self._largest("optimizer state, sent to the controller", models)

    def _largest(self, name: str, models: Sequence[str]) -> Iterator[MemoryItem]:
        """A copy of the optimizer state of one of the models at a time; none if they have none."""
        if counts := [count for model, count in self._states() if model in models]:
            yield self._state_of(name, max(counts))

    def collected(self, *models: str) -> Iterator[MemoryItem]:
        """The optimizer states of these models in a controller that gets them from other processes: all of them, and
        the message that brings the last one."""
        states = [(model, count) for model, count in self._states() if model in models]
        for model, count in states:
            whose = "" if model == "policy" else f"{model}'s "
            yield self._state_of(f"{whose}optimizer state, to be saved", count)
        for _, count in states[-1:]:
            yield self._state_of("the message with the last of them", count)

    def loaded_again(self) -> Iterator[MemoryItem]:
        """The policy of the first checkpoint, in the controller, which compares it with the one that is trained."""
        item = replace(self.weights("saved policy"), phases=("trial of the first checkpoint",), at_most=True)
        if not isinstance(self.config, RmConfig) and item.num_bytes <= _LOADED_AGAIN_BYTES:
            yield item

    def _states(self) -> Iterator[tuple[str, int]]:
        """Models whose optimizer state is saved, in that order, and how many parameters of each are trained."""
        yield "policy", num_trained(self.config.model.lora, self.facts)
        if isinstance(self.config, RlConfig) and has_separate_critic(self.config):
            yield "critic", (self.facts.critic or self.facts).num_parameters

    def _state_of(self, name: str, count: int) -> MemoryItem:
        each = ParameterBytes.of(self.config.model.dtype).optimizer
        return MemoryItem(name, round(each * count), f"{count:,} x {each:g} bytes", ("checkpoint",))

    def weights(self, name: str) -> MemoryItem:
        """The model's weights once more."""
        return _weights(name, self.facts, self.width)

    def activations(self, of: ModelFacts | None = None) -> MemoryItem:
        """Of the backward pass, of both models if the critic has the policy's sizes."""
        facts, tokens = of or self.facts, microbatch_tokens(self.config)
        numbers, words = facts.num_layers * _layer_numbers(facts), ""
        if self.config.model.gradient_checkpointing:
            numbers, words = facts.num_layers * facts.hidden_size + _layer_numbers(facts), " (gradient checkpointing)"
        formula = f"{tokens:,} tokens x {numbers:,} numbers x {self.width} bytes{words}"
        both = isinstance(self.config, RlConfig) and has_separate_critic(self.config) and self.facts.critic is None
        phases: tuple[Phase, ...] = ("update", "critic update") if both else ("update",)
        return MemoryItem("activations", tokens * numbers * self.width, formula, phases, at_most=True)

    def logprobs(self) -> Iterator[MemoryItem]:
        """None for a reward model, which has no output head."""
        if isinstance(self.config, RmConfig):
            return
        tokens, hidden, width = microbatch_tokens(self.config), self.facts.hidden_size, self.width
        logits = tokens * self.facts.vocabulary_size
        if self.config.debug.plain:
            formula = f"{logits:,} logits x {width + 16} bytes (debug.plain), {tokens:,} tokens x {hidden} x 12"
            num_bytes = (width + 16) * logits + 12 * tokens * hidden
        elif self._on_gpu:
            kept, again = min(logits, _DEVICE_LOGITS), min(max(0, logits - _DEVICE_LOGITS), _DEVICE_LOGITS)
            block, factor = min(logits, _DEVICE_BLOCK_LOGITS), width if width < 4 else 0
            formula = f"{kept + again:,} logits x 4 bytes, {kept:,} x {factor}, "
            formula += f"3 blocks of {block:,} logits and {tokens:,} tokens x {hidden} x 3, 4 bytes each"
            num_bytes = 4 * (kept + again) + factor * kept + 4 * (3 * block + 3 * tokens * hidden)
        else:
            kept = logits if logits <= _KEPT_LOGITS else 0
            chunk = min(logits, _BLOCK_LOGITS if kept else _CHUNK_LOGITS)
            formula = f"{kept:,} kept logits x {width} bytes, " if kept else ""
            formula += f"3 chunks of {chunk:,} logits and {tokens:,} tokens x {hidden} x 3, 4 bytes each"
            num_bytes = width * kept + 4 * (3 * chunk + 3 * tokens * hidden)
        reference: tuple[Phase, ...] = ("reference",) if self.has_kl else ()
        phases: tuple[Phase, ...] = ("log-probabilities", *reference, "update")
        yield MemoryItem("log-probabilities", num_bytes, formula, phases, at_most=True)


def num_trained(lora: LoraConfig | None, facts: ModelFacts) -> int:
    """All parameters, or those of the adapters: rank x (inputs + outputs) for each adapted matrix of each layer."""
    if lora is None:
        return facts.num_parameters
    return facts.num_layers * lora.rank * sum(count * (one + other) for count, one, other in _matrices(facts))


def _matrices(facts: ModelFacts) -> tuple[tuple[int, int, int], ...]:
    """(how many, size, size) in each layer: query and output, key and value, and the three of a gated feed-forward
    layer."""
    hidden = facts.hidden_size
    query = facts.num_attention_heads * facts.head_size
    key_value = facts.num_key_value_heads * facts.head_size
    return (2, hidden, query), (2, hidden, key_value), (3, hidden, facts.intermediate_size)


def _evaluated(config: RlConfig) -> int:
    """Most responses that an evaluation asks for at once; however many prompts there are, where nothing limits them."""
    if not (config.named_sources("eval") and config.evaluation.happens):
        return 0
    settings = [domain.evaluation for domain in used_domains(config, domain_settings(config), "eval")]
    most = [config.rollout.max_batch_rows if one.max_prompts is None else one.max_prompts for one in settings]
    return sum(prompts * max(1, one.samples) for prompts, one in zip(most, settings, strict=True))


def reward_items(config: Trained, reward: RewardFacts) -> tuple[MemoryItem, ...]:
    """What a reward model needs where it scores: its weights, and its passes without gradient, of which one layer's
    numbers are there at a time."""
    facts = reward.facts
    if facts is None or not isinstance(config, RlConfig):
        return ()
    # Rollout workers sample ahead of training, and what they have sampled is scored while the policy learns.
    ahead = config.max_staleness > 0 and config.cluster.rollout_workers > 0
    phases: tuple[Phase, ...] = PHASES if ahead else ("scoring",)
    weights = _weights(f"weights of reward {reward.label!r}", facts, reward.width)
    tokens = _scored_tokens(config, reward.tokens_per_microbatch)
    passes = MemoryItem(
        f"passes of reward {reward.label!r}",
        tokens * _layer_numbers(facts) * reward.width,
        f"{tokens:,} tokens x {_layer_numbers(facts):,} numbers x {reward.width} bytes",
        phases,
        at_most=True,
    )
    return weights.needed_in(*phases, if_any="reward_model" in config.cluster.offload), passes


def _scored_tokens(config: RlConfig, budget: int) -> int:
    """Tokens in one pass of a reward model: its budget, or less if a step has less and nothing is evaluated."""
    longest = _longest(config)
    step = responses_per_step(config) * longest
    return max(longest, budget if config.named_sources("eval") and config.evaluation.happens else min(budget, step))


def _weights(name: str, facts: ModelFacts, width: int) -> MemoryItem:
    return MemoryItem(name, facts.num_parameters * width, f"{facts.num_parameters:,} parameters x {width} bytes")


def has_separate_critic(config: RlConfig) -> bool:
    """Whether the run trains a critic with a backbone of its own."""
    return config.algorithm.estimator in names.CRITIC_ESTIMATORS and config.critic.kind == "separate"


def num_rollout_workers(config: Trained) -> int:
    return config.cluster.rollout_workers if isinstance(config, RlConfig) else 0


def _layer_numbers(facts: ModelFacts) -> int:
    """Numbers that the backward pass of one layer needs, for each token: A in the table."""
    return 8 * facts.hidden_size + 2 * facts.num_key_value_heads * facts.head_size + 3 * facts.intermediate_size


def _longest(config: RlConfig) -> int:
    """Tokens of a prompt and its response, at most."""
    return config.rollout.max_prompt_tokens + config.rollout.max_response_tokens


def microbatch_tokens(config: Trained) -> int:
    """Tokens in one forward and backward pass: the budget, or less if a lane has less of an optimizer step."""
    budget, lanes = config.optimization.microbatch_tokens, config.cluster.num_lanes
    if isinstance(config, SftConfig):
        step = config.optimization.tokens_per_batch
        longest = min(config.max_tokens, step, budget)  # a lane's share is never less than one example
        return min(budget, max(-(-step // lanes), longest))
    if isinstance(config, RmConfig):  # a comparison is never split, however small the budget
        one = (config.candidates or 2) * config.max_tokens
        return max(min(budget, -(-config.optimization.comparisons_per_batch * one // lanes)), one)
    longest = _longest(config)
    responses = -(-responses_per_step(config) // config.optimization.minibatches)
    return max(min(budget, -(-responses * longest // lanes)), longest)


def bytes_in_words(number: float) -> str:
    """`1.5 GiB` and the like."""
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.2f} GiB"
