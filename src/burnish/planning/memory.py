"""An estimate of a run's memory, from the model's sizes alone.

Symbols: P parameters (Q of them trained: all, or only the adapters'), b bytes per weight (4 or 2), L layers, H hidden
size, F feed-forward size, N tokens in one forward and backward pass, V vocabulary, K = key/value heads x head size.

| item | bytes | why |
|---|---|---|
| weights | P b; with `model.quantization` 1 or 1/2 and 1/16 for each of a linear layer | a scale for 64 weights |
| gradients | 4 Q, times those held at once with several lanes or trainers (`gradients_at_once`) | summed in float32 |
| master weights | 4 Q, only below float32 | small updates would round to nothing |
| Adam | 8 Q | two float32 moments |
| reference | P b, only with a KL and without adapters | |
| critic | P b, 4 P, 4 P (below float32) + 8 P, only a separate one | its weights, gradients, masters and moments |
| activations | N b L A with A = 8 H + 2 K + 3 F; with gradient checkpointing N b (L H + A) | backward pass |
| log-probabilities | b N V + 12 x 2^19 up to 2^26 logits, else 12 x 2^22; 12 N H | logits kept or in chunks |
| the same, `debug.plain` | (b + 16) N V + 12 N H | logits, softmax and gradients at the same time |
| key/value cache | 2 L K b x rows x tokens of a row; 4 for b on a CPU | rows decoded in parallel |
| kept conversations | the same of all conversations of a step, at most 2^30 | they go on after an answer |
| sampling policy | P b, reward models with `normalization.on: policy` | it samples responses to measure scores on |
| reward models | P b and N b A, of each reward that is one, with its own P, b, N and A | it scores, a layer at a time |

A reward model that is trained has a score head instead of an output head: there are no log-probabilities, and P is a
little too large.

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
]
PHASES: tuple[Phase, ...] = get_args(Phase)
"""In the order of a step. `scoring`: by reward models; `update`: the forward and backward passes; `reference`,
`values`: its log-probabilities and the critic's values."""
Sharding = Literal["whole", "optimizer", "full"]
"""What each of several trainers keeps of a trained model; see `ParameterBytes.kept`."""

_CHUNK_LOGITS, _KEPT_LOGITS, _BLOCK_LOGITS = 1 << 22, 1 << 26, 1 << 19  # as in burnish.forward.logprobs
_UPDATE: tuple[Phase, ...] = ("update", "optimizer step")
_CRITIC_UPDATE: tuple[Phase, ...] = ("critic update", "critic's optimizer step")
_BITS, _SHARE_A_SCALE = {"int8": 8, "nf4": 4}, 64  # as in burnish.forward.quantized_layers
_KEPT_BYTES = 1 << 30  # as in burnish.rollouts.local.kept
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
    def of(dtype: str) -> ParameterBytes:
        """With the whole model in one process."""
        return ParameterBytes(4, 4, 0, 8) if dtype == "float32" else ParameterBytes(2, 4, 4, 8)

    def kept(self, sharding: Sharding, trainers: int) -> ParameterBytes:
        """What each of several trainers keeps: everything, a slice of the optimizer only, or slices of everything; the
        weights that train are then the masters."""
        whole = 1 if sharding == "full" else trainers
        optimizer = trainers if sharding == "whole" else 1
        return ParameterBytes(
            0 if sharding == "full" and self.master > 0 else self.weight * whole / trainers,
            self.gradient * whole / trainers,
            self.master * optimizer / trainers,
            self.moments * optimizer / trainers,
        )

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


def width_of(config: Trained) -> int:
    """Bytes of one weight."""
    return 4 if config.model.dtype == "float32" else 2


def estimate_memory(
    config: Trained, facts: ModelFacts, rewards: Sequence[RewardFacts] = (), on_gpu: bool | None = None
) -> tuple[MemoryItem, ...]:
    """The lines of the table above for this run in one process, without those of zero bytes. `rewards`: its reward
    models. on_gpu: where it computes, if the machine is known."""
    scoring = [item for reward in rewards for item in reward_items(config, reward)]
    return (*trainer_items(config, facts), *sampling_items(config, facts, on_gpu), *scoring)


def trainer_items(
    config: Trained, facts: ModelFacts, trainers: int = 1, sharding: Sharding = "whole"
) -> tuple[MemoryItem, ...]:
    """What each of `trainers` processes needs to train: the trained models, the reference, and the passes."""
    width, trained = width_of(config), num_trained(config.model.lora, facts)
    per = ParameterBytes.of(config.model.dtype).kept(sharding, trainers)
    held = gradients_at_once(config.cluster.num_lanes, trainers, sharding)
    frozen = width / (trainers if sharding == "full" else 1)
    shared = "" if trainers == 1 or sharding == "whole" else f", in slices of {trainers} trainers"
    times = "" if held == 1 else f" x {held:g} at once (cluster.lanes)"
    trains = "reward model" if isinstance(config, RmConfig) else "policy"
    words = f"{trained:,} trained parameters x 4 bytes (float32)"
    items = [
        _policy_weights(config, facts, f"{trains} weights", per.weight if config.model.lora is None else frozen),
        MemoryItem("gradients", round(trained * per.gradient * held), words + times, _UPDATE),
        _between_steps(config, "master weights", trained * per.master, f"{trained:,} x 4 bytes (float32){shared}"),
        _between_steps(config, "Adam moments", trained * per.moments, f"{trained:,} x 2 x 4 bytes (float32){shared}"),
        *_other_models(config, facts, per, held, frozen),
        _activations(config, facts, width),
        *([] if isinstance(config, RmConfig) else [_logprobs(config, facts, width)]),
    ]
    return tuple(item for item in items if item.num_bytes > 0)


def _policy_weights(config: Trained, facts: ModelFacts, name: str, each: float) -> MemoryItem:
    """Those of the trained model. `each`: bytes that a trainer keeps of one that is not in few bits."""
    width, quantization = width_of(config), config.model.quantization
    if quantization is None:
        return MemoryItem(
            name, round(facts.num_parameters * each), f"{facts.num_parameters:,} parameters x {width} bytes"
        )
    few, per_weight = _linear_weights(facts), _BITS[quantization] / 8 + 4 / _SHARE_A_SCALE
    rest = max(0, facts.num_parameters - few)
    formula = f"{few:,} x {per_weight:g} bytes ({quantization}) + {rest:,} x {width} bytes"
    return MemoryItem(name, round(few * per_weight + rest * each), formula)


def _between_steps(config: Trained, name: str, num_bytes: float, formula: str) -> MemoryItem:
    """What only an optimizer step and a checkpoint read."""
    item = MemoryItem(name, round(num_bytes), formula)
    return item.needed_in("optimizer step", "checkpoint", if_any="optimizer" in config.cluster.offload)


def num_trained(lora: LoraConfig | None, facts: ModelFacts) -> int:
    """All parameters, or those of the adapters: rank x (inputs + outputs) for each adapted matrix of each layer."""
    if lora is None:
        return facts.num_parameters
    return facts.num_layers * lora.rank * sum(count * (one + other) for count, one, other in _matrices(facts))


def _linear_weights(facts: ModelFacts) -> int:
    """Weights of the linear layers, without embeddings and head."""
    return facts.num_layers * sum(count * one * other for count, one, other in _matrices(facts))


def _matrices(facts: ModelFacts) -> tuple[tuple[int, int, int], ...]:
    """(how many, size, size) in each layer: query and output, key and value, and the three of a gated feed-forward
    layer."""
    hidden = facts.hidden_size
    query = facts.num_attention_heads * facts.head_size
    key_value = facts.num_key_value_heads * facts.head_size
    return (2, hidden, query), (2, hidden, key_value), (3, hidden, facts.intermediate_size)


def _other_models(
    config: Trained, facts: ModelFacts, per: ParameterBytes, held: float, frozen: float
) -> list[MemoryItem]:
    """Models on a trainer other than the policy. `frozen`: bytes that it keeps of a weight that does not train."""
    if not isinstance(config, RlConfig):
        return []
    items = []
    elsewhere = config.cluster.own_process
    if config.algorithm.kl_in != "none" and config.model.lora is None and "reference" not in elsewhere:
        weights = copy_of_weights("reference weights", facts, width_of(config))
        own = replace(weights, num_bytes=round(facts.num_parameters * frozen))
        items.append(own.needed_in("reference", if_any="reference" in config.cluster.offload))
    return items if "critic" in elsewhere else [*items, *_critic_items(config, facts, per, held)]


def own_items(config: RlConfig, facts: ModelFacts, model: str) -> tuple[MemoryItem, ...]:
    """What the `reference` or the `critic` needs in a process of its own: its weights, and its passes."""
    width = width_of(config)
    if model == "reference":
        return copy_of_weights("reference weights", facts, width), _logprobs(config, facts, width)
    per, held = ParameterBytes.of(config.model.dtype), gradients_at_once(config.cluster.num_lanes, 1, "whole")
    beginning = copy_of_weights("policy weights, which it begins with", facts, width)
    items = (beginning, *_critic_items(config, facts, per, held))
    return items if facts.critic is not None else (*items, _activations(config, facts, width))


def sampling_items(config: Trained, facts: ModelFacts, on_gpu: bool | None = None) -> tuple[MemoryItem, ...]:
    """What the process that samples needs in addition to the weights it samples with: the cache, and for a reward model
    normalised on a policy that policy. on_gpu: where it samples, if the machine is known."""
    width = width_of(config)
    if isinstance(config, SftConfig):
        return ()
    if isinstance(config, RlConfig):
        rollout = config.rollout
        at_once = -(-max(responses_per_step(config), _evaluated(config)) // config.cluster.num_lanes)
        tokens = rollout.max_prompt_tokens + rollout.max_response_tokens
        cache = _cache(min(rollout.max_batch_rows, at_once), tokens, facts, _cache_width(config, width, on_gpu))
        return (cache, *_kept_conversations(config, facts, width, on_gpu))
    settings = config.normalization
    if settings.kind == "none" or settings.on != "policy":
        return ()
    rows = min(_NORMALIZATION_ROWS, settings.responses)
    return (
        copy_of_weights("sampling policy", facts, width),
        _cache(rows, config.max_tokens, facts, _cache_width(config, width, on_gpu)),
    )


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
    weights = copy_of_weights(f"weights of reward {reward.label!r}", facts, reward.width)
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
    rollout = config.rollout
    longest = rollout.max_prompt_tokens + rollout.max_response_tokens
    step = responses_per_step(config) * longest
    return max(longest, budget if config.named_sources("eval") and config.evaluation.happens else min(budget, step))


def copy_of_weights(
    name: str, facts: ModelFacts, width: int, phases: tuple[Phase, ...] = PHASES, *, at_most: bool = False
) -> MemoryItem:
    """A model's weights once more."""
    formula = f"{facts.num_parameters:,} parameters x {width} bytes"
    return MemoryItem(name, facts.num_parameters * width, formula, phases, at_most)


def _kept_conversations(config: RlConfig, facts: ModelFacts, width: int, on_gpu: bool | None) -> Iterator[MemoryItem]:
    """Keys and values that the local engine keeps between the turns of conversations, where it samples in the process
    that holds them and in one portion."""
    talks = any(domain.conversation is not None for domain in domain_settings(config))
    alone = config.cluster.num_lanes == 1 and not config.cluster.rollout_workers
    if talks and alone and config.rollout.engine == "local":
        tokens = config.rollout.max_prompt_tokens + config.rollout.max_response_tokens
        whole = _cache(responses_per_step(config), tokens, facts, _cache_width(config, width, on_gpu))
        formula = whole.formula if whole.num_bytes < _KEPT_BYTES else f"{bytes_in_words(_KEPT_BYTES)}, however many"
        yield replace(whole, name="kept conversations", num_bytes=min(whole.num_bytes, _KEPT_BYTES), formula=formula)


def _cache_width(config: Trained, width: int, on_gpu: bool | None) -> int:
    """Bytes per number in the cache. Kernels on a CPU keep float32; other decoding uses the model's dtype."""
    device = config.model.device
    return width if device.startswith("cuda") or (device == "auto" and on_gpu) else 4


def _cache(rows: int, tokens: int, facts: ModelFacts, width: int) -> MemoryItem:
    per_token = 2 * facts.num_layers * facts.num_key_value_heads * facts.head_size * width
    formula = f"{rows} rows x {tokens} tokens x {per_token:,} bytes"
    return MemoryItem("key/value cache", rows * tokens * per_token, formula, ("sampling",), at_most=True)


def _critic_items(config: RlConfig, facts: ModelFacts, per: ParameterBytes, held: float) -> list[MemoryItem]:
    """A separate critic is a second trained model. It has no output head, but that is counted as well."""
    if not has_separate_critic(config):
        return []
    offload, count = config.cluster.offload, (facts.critic or facts).num_parameters

    def item(what: str, each: float, phases: tuple[Phase, ...] = PHASES) -> MemoryItem:
        return MemoryItem(f"critic {what}", round(count * each), f"{count:,} parameters x {each:g} bytes", phases)

    weights, state = item("weights", per.weight), item("masters and moments", per.optimizer)
    return [
        weights.needed_in("values", *_CRITIC_UPDATE, "checkpoint", if_any="critic" in offload),
        item("gradients", per.gradient * held, _CRITIC_UPDATE),
        state.needed_in("critic's optimizer step", "checkpoint", if_any="critic" in offload or "optimizer" in offload),
        *([] if facts.critic is None else [_activations_of_critic(config, facts.critic)]),
    ]


def _activations_of_critic(config: RlConfig, facts: ModelFacts) -> MemoryItem:
    passes = _activations(config, facts, width_of(config))
    return replace(passes, name="critic activations", phases=("critic update",))


def has_separate_critic(config: RlConfig) -> bool:
    """Whether the run trains a critic with a backbone of its own."""
    return config.algorithm.estimator in names.CRITIC_ESTIMATORS and config.critic.kind == "separate"


def _activations(config: Trained, facts: ModelFacts, width: int) -> MemoryItem:
    tokens = microbatch_tokens(config)
    layer = _layer_numbers(facts)
    if config.model.gradient_checkpointing:
        numbers = facts.num_layers * facts.hidden_size + layer
        formula = f"{tokens:,} tokens x {numbers:,} numbers x {width} bytes (gradient checkpointing)"
    else:
        numbers = facts.num_layers * layer
        formula = f"{tokens:,} tokens x {numbers:,} numbers x {width} bytes"
    critic = isinstance(config, RlConfig) and has_separate_critic(config) and facts.critic is None
    phases: tuple[Phase, ...] = ("update", "critic update") if critic else ("update",)
    return MemoryItem("activations", tokens * numbers * width, formula, phases, at_most=True)


def _layer_numbers(facts: ModelFacts) -> int:
    """Numbers that the backward pass of one layer needs, for each token: A in the table."""
    return 8 * facts.hidden_size + 2 * facts.num_key_value_heads * facts.head_size + 3 * facts.intermediate_size


def _logprobs(config: RlConfig | SftConfig, facts: ModelFacts, width: int) -> MemoryItem:
    tokens = microbatch_tokens(config)
    logits = tokens * facts.vocabulary_size
    has_reference = isinstance(config, RlConfig) and config.algorithm.kl_in != "none"
    phases: tuple[Phase, ...] = ("log-probabilities", *(("reference",) if has_reference else ()), "update")
    if config.debug.plain:
        formula = f"{logits:,} logits x {width + 16} bytes (debug.plain), {tokens:,} tokens x {facts.hidden_size} x 12"
        num_bytes = (width + 16) * logits + 12 * tokens * facts.hidden_size
        return MemoryItem("log-probabilities", num_bytes, formula, phases, at_most=True)
    kept = logits if logits <= _KEPT_LOGITS else 0
    chunk = min(logits, _BLOCK_LOGITS if kept else _CHUNK_LOGITS)
    formula = f"3 chunks of {chunk:,} logits and {tokens:,} tokens x {facts.hidden_size} x 3, 4 bytes each"
    if kept:
        formula = f"{kept:,} kept logits x {width} bytes, {formula}"
    num_bytes = width * kept + 4 * (3 * chunk + 3 * tokens * facts.hidden_size)
    return MemoryItem("log-probabilities", num_bytes, formula, phases, at_most=True)


def microbatch_tokens(config: Trained) -> int:
    """Tokens in one forward and backward pass: the budget, or less if a lane has less of an optimizer step."""
    budget, lanes = config.optimization.tokens_per_microbatch, config.cluster.num_lanes
    if isinstance(config, SftConfig):
        step = config.optimization.tokens_per_batch
        longest = min(config.max_tokens, step, budget)  # a lane's share is never less than one example
        return min(budget, max(-(-step // lanes), longest))
    if isinstance(config, RmConfig):  # a comparison is never split, however small the budget
        one = (config.candidates or 2) * config.max_tokens
        return max(min(budget, -(-config.optimization.comparisons_per_batch * one // lanes)), one)
    rollout = config.rollout
    longest = rollout.max_prompt_tokens + rollout.max_response_tokens
    responses = -(-responses_per_step(config) // config.optimization.minibatches)
    return max(min(budget, -(-responses * longest // lanes)), longest)


def bytes_in_words(number: float) -> str:
    """`1.5 GiB` and the like."""
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.2f} GiB"
