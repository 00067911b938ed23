"""An estimate of a run's memory, from the model's sizes alone.

Symbols: P parameters (Q of them trained: all, or only the adapters'), b bytes per weight (4 or 2), L layers, H hidden
size, F feed-forward size, N tokens in one forward and backward pass, V vocabulary, K = key/value heads x head size.

| item | bytes | why |
|---|---|---|
| weights | P b | |
| gradients | 4 Q | summed in float32 |
| master weights | 4 Q, only below float32 | small updates would round to nothing |
| Adam | 8 Q | two float32 moments |
| reference | P b, only with a KL and without adapters | |
| critic | P b + 4 P (below float32) + 4 P + 8 P, only a separate one | its weights, masters, gradients and moments |
| activations | N b L A with A = 8 H + 2 K + 3 F; with gradient checkpointing N b (L H + A) | backward pass |
| log-probabilities | b N V + 12 x 2^19 up to 2^26 logits, else 12 x 2^22; 12 N H | logits kept or in chunks |
| the same, `debug.plain` | (b + 16) N V + 12 N H | logits, softmax and gradients at the same time |
| key/value cache | 2 L K b x rows x tokens of a row; 4 for b with `model.device: cpu` | rows decoded in parallel |
| sampling policy | P b, reward models with `normalization.on: policy` | it samples responses to measure scores on |

A reward model has a score head instead of an output head: there are no log-probabilities, and P is a little too large.

The cache and the activations are not needed at the same time. Both are listed, so the sum errs on the safe side. Not
counted: PyTorch's own working memory, fragmentation, and attention without a memory-saving kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

from burnish.config import names
from burnish.config.schema import RlConfig, RmConfig, SftConfig
from burnish.config.schema_data import LoraConfig
from burnish.planning.model_facts import ModelFacts

Trained = RlConfig | SftConfig | RmConfig

_CHUNK_LOGITS, _KEPT_LOGITS, _BLOCK_LOGITS = 1 << 22, 1 << 26, 1 << 19  # as in burnish.forward.logprobs
_NORMALIZATION_ROWS = 64  # as `max_batch_rows` in burnish.trainers.reward_model.normalization


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """One line of the estimate."""

    name: str
    num_bytes: int
    formula: str


def estimate_memory(config: Trained, facts: ModelFacts) -> tuple[MemoryItem, ...]:
    """The lines of the table above for this run, without those of zero bytes."""
    width = 4 if config.model.dtype == "float32" else 2
    trained = _trained(config.model.lora, facts)
    trains = "reward model" if isinstance(config, RmConfig) else "policy"
    items = [
        _copy(f"{trains} weights", facts, width),
        MemoryItem("gradients", 4 * trained, f"{trained:,} trained parameters x 4 bytes (float32)"),
        MemoryItem("master weights", 0 if width == 4 else 4 * trained, f"{trained:,} x 4 bytes (float32)"),
        MemoryItem("Adam moments", 8 * trained, f"{trained:,} x 2 x 4 bytes (float32)"),
        *_role_items(config, facts, width),
        _activations(config, facts, width),
        *([] if isinstance(config, RmConfig) else [_logprobs(config, facts, width)]),
    ]
    return tuple(item for item in items if item.num_bytes > 0)


def _trained(lora: LoraConfig | None, facts: ModelFacts) -> int:
    """All parameters, or those of the adapters: rank x (inputs + outputs) for each adapted matrix of each layer."""
    if lora is None:
        return facts.num_parameters
    hidden, inner = facts.hidden_size, facts.intermediate_size
    query = facts.num_attention_heads * facts.head_size
    key_value = facts.num_key_value_heads * facts.head_size
    # Query and output, key and value, and the three matrices of a gated feed-forward layer.
    ends = 2 * (hidden + query) + 2 * (hidden + key_value) + 3 * (hidden + inner)
    return facts.num_layers * lora.rank * ends


def _role_items(config: Trained, facts: ModelFacts, width: int) -> list[MemoryItem]:
    """Models other than the trained one, and the cache of the sampler."""
    if isinstance(config, RmConfig):
        return _normalization_items(config, facts, width)
    if isinstance(config, SftConfig):
        return []
    items = []
    if config.algorithm.kl_in != "none" and config.model.lora is None:
        items.append(_copy("reference weights", facts, width))
    items += _critic_items(config, facts, width)
    rollout = config.rollout
    rows = min(rollout.max_batch_rows, rollout.prompts_per_step * rollout.group_size)
    tokens = rollout.max_prompt_tokens + rollout.max_response_tokens
    return [*items, _cache(rows, tokens, facts, _cache_width(config, width))]


def _normalization_items(config: RmConfig, facts: ModelFacts, width: int) -> list[MemoryItem]:
    settings = config.normalization
    if settings.kind == "none" or settings.on != "policy":
        return []
    rows = min(_NORMALIZATION_ROWS, settings.responses)
    return [
        _copy("sampling policy", facts, width),
        _cache(rows, config.max_tokens, facts, _cache_width(config, width)),
    ]


def _copy(name: str, facts: ModelFacts, width: int) -> MemoryItem:
    return MemoryItem(name, facts.num_parameters * width, f"{facts.num_parameters:,} parameters x {width} bytes")


def _cache_width(config: Trained, width: int) -> int:
    """Bytes per number in the cache. Fused decoding on a CPU keeps float32; other decoding uses the model's dtype."""
    return 4 if config.model.device == "cpu" else width


def _cache(rows: int, tokens: int, facts: ModelFacts, width: int) -> MemoryItem:
    per_token = 2 * facts.num_layers * facts.num_key_value_heads * facts.head_size * width
    formula = f"{rows} rows x {tokens} tokens x {per_token:,} bytes"
    return MemoryItem("key/value cache", rows * tokens * per_token, formula)


def _critic_items(config: RlConfig, facts: ModelFacts, width: int) -> list[MemoryItem]:
    """A separate critic is a second trained model. It has no output head, but that is counted as well."""
    if config.algorithm.estimator not in names.CRITIC_ESTIMATORS or config.critic.kind == "shared":
        return []
    each = width + 4 + 8 + (0 if width == 4 else 4)
    formula = f"{facts.num_parameters:,} parameters x {each} bytes (weights, gradients, optimizer)"
    return [MemoryItem("critic", facts.num_parameters * each, formula)]


def _activations(config: Trained, facts: ModelFacts, width: int) -> MemoryItem:
    tokens = microbatch_tokens(config)
    layer = 8 * facts.hidden_size + 2 * facts.num_key_value_heads * facts.head_size + 3 * facts.intermediate_size
    if config.model.gradient_checkpointing:
        numbers = facts.num_layers * facts.hidden_size + layer
        formula = f"{tokens:,} tokens x {numbers:,} numbers x {width} bytes (gradient checkpointing)"
    else:
        numbers = facts.num_layers * layer
        formula = f"{tokens:,} tokens x {numbers:,} numbers x {width} bytes"
    return MemoryItem("activations", tokens * numbers * width, formula)


def _logprobs(config: RlConfig | SftConfig, facts: ModelFacts, width: int) -> MemoryItem:
    tokens = microbatch_tokens(config)
    logits = tokens * facts.vocabulary_size
    if config.debug.plain:
        formula = f"{logits:,} logits x {width + 16} bytes (debug.plain), {tokens:,} tokens x {facts.hidden_size} x 12"
        return MemoryItem("log-probabilities", (width + 16) * logits + 12 * tokens * facts.hidden_size, formula)
    kept = logits if logits <= _KEPT_LOGITS else 0
    chunk = min(logits, _BLOCK_LOGITS if kept else _CHUNK_LOGITS)
    formula = f"3 chunks of {chunk:,} logits and {tokens:,} tokens x {facts.hidden_size} x 3, 4 bytes each"
    if kept:
        formula = f"{kept:,} kept logits x {width} bytes, {formula}"
    num_bytes = width * kept + 4 * (3 * chunk + 3 * tokens * facts.hidden_size)
    return MemoryItem("log-probabilities", num_bytes, formula)


def microbatch_tokens(config: Trained) -> int:
    """Tokens in one forward and backward pass: the budget, or less if a whole optimizer step is smaller."""
    budget = config.optimization.tokens_per_microbatch
    if isinstance(config, SftConfig):
        return min(budget, config.optimization.tokens_per_batch)
    if isinstance(config, RmConfig):  # a comparison is never split, however small the budget
        one = (config.candidates or 2) * config.max_tokens
        return max(min(budget, config.optimization.comparisons_per_batch * one), one)
    rollout = config.rollout
    longest = rollout.max_prompt_tokens + rollout.max_response_tokens
    responses = -(-rollout.prompts_per_step * rollout.group_size // config.optimization.minibatches)
    return max(min(budget, responses * longest), longest)
