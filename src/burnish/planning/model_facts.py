"""The sizes of a model, read without loading it: from `config.json` and the headers of the safetensors files, or from a
table of known models (`known.yaml`)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from burnish.config.names import MODEL_REWARD
from burnish.config.schema_optimization import TOKENS_PER_SCORING
from burnish.outside.reading import files_of_weights

if TYPE_CHECKING:
    from burnish.config.schema import RewardConfig

_MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The sizes that memory and time depend on. `context_tokens` is None if the model's config names no limit;
    `intermediate_size` is the sum over all experts that work on a token."""

    num_parameters: int
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_size: int
    vocabulary_size: int
    context_tokens: int | None
    critic: ModelFacts | None = None
    """The sizes of a critic that begins from other weights, if they are known."""
    teachers: tuple[ModelFacts | None, ...] = ()
    """The sizes of the teachers other than the policy, where they are known."""
    body_per_token: int | None = None
    """Numbers that work on one token, without embedding and head: of experts only those chosen for it. None: all."""

    @property
    def teacher(self) -> ModelFacts | None:
        """The sizes of the only teacher, if they are known."""
        return next(iter(self.teachers), None)

    @property
    def body(self) -> int:
        """`body_per_token`, or all but one matrix of embeddings if that is not known."""
        head = self.vocabulary_size * self.hidden_size
        return max(0, self.num_parameters - head) if self.body_per_token is None else self.body_per_token


@dataclass(frozen=True, slots=True)
class RewardFacts:
    """Sizes of a reward model that its memory depends on. `facts` is None if it is not a local folder or has an unknown
    layout. device: as the run file has it."""

    label: str
    facts: ModelFacts | None
    width: int
    """Bytes of one weight."""
    device: str
    tokens_per_microbatch: int


def read_reward_facts(rewards: Iterable[RewardConfig]) -> tuple[RewardFacts, ...]:
    """Read the sizes of the reward models among the rewards. Options that a run would refuse count as not set."""
    return tuple(_reward_facts(reward) for reward in rewards if reward.is_model)


def _reward_facts(reward: RewardConfig) -> RewardFacts:
    options, facts = reward.options, read_model_facts(Path(reward.name.removeprefix(MODEL_REWARD)).expanduser())
    width, device = 2 if options.get("dtype") == "bfloat16" else 4, str(options.get("device", "auto"))
    budget = options.get("tokens_per_microbatch")
    tokens = budget if isinstance(budget, int) else TOKENS_PER_SCORING
    return RewardFacts(reward.log_label, facts, width, device, tokens)


def read_model_facts(folder: Path) -> ModelFacts | None:
    """The sizes of a local model folder; None if it is not local, or its config has an unknown layout."""
    path = folder / "config.json"
    if not path.is_file():
        return None
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # loading the model will report what is wrong with the file
    if not isinstance(raw, dict):
        return None
    return facts_of(raw, num_parameters=count_parameters(folder))


def facts_of(config: Mapping[str, object], *, num_parameters: int | None = None) -> ModelFacts | None:
    """The sizes in a `config.json` with Llama-like or GPT-2-like names; None if some are missing.

    Without `num_parameters` (no weights available) parameters are counted from the sizes: exactly for the families of
    `known.yaml` and those built like them, up to biases and norms for others.
    """
    inner = config.get("text_config")
    words = {**config, **inner} if isinstance(inner, dict) else dict(config)
    hidden = _first(words, "hidden_size", "n_embd", "d_model")
    layers = _first(words, "num_hidden_layers", "n_layer", "num_layers")
    heads = _first(words, "num_attention_heads", "n_head", "num_heads")
    vocabulary = _first(words, "vocab_size")
    if hidden is None or layers is None or heads is None or vocabulary is None:
        return None
    intermediate = _first(words, "intermediate_size", "n_inner", "ffn_dim") or 4 * hidden
    key_values = _first(words, "num_key_value_heads") or heads
    head_size = _first(words, "head_dim") or hidden // heads
    gated = "n_embd" not in words  # only GPT-2 says `n_embd`; it has a plain feed-forward and learned positions
    experts = _expert_numbers(words, intermediate, hidden)
    own = _attention_numbers(words, hidden, heads * head_size, key_values * head_size, heads)
    dense = (3 if gated else 2) * hidden * intermediate
    dense_layers = layers if experts is None else _first(words, "first_k_dense_replace") or 0
    sparse, active = experts or (0, 0)
    if num_parameters is None:
        embeddings = vocabulary * hidden * (1 if words.get("tie_word_embeddings", not gated) else 2)
        positions = 0 if gated else (_first(words, "n_positions") or 0) * hidden
        last_norm = 0 if words.get("model_type") == "olmo" else hidden if gated else 2 * hidden
        feed_forward = dense_layers * dense + (layers - dense_layers) * sparse
        num_parameters = layers * own + feed_forward + embeddings + positions + last_norm
    return ModelFacts(
        num_parameters=num_parameters,
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=intermediate if experts is None else max(1, active // (3 * hidden)),
        num_attention_heads=heads,
        num_key_value_heads=key_values,
        head_size=head_size,
        vocabulary_size=vocabulary,
        context_tokens=_first(words, "max_position_embeddings", "n_positions", "max_seq_len"),
        body_per_token=layers * own + dense_layers * dense + (layers - dense_layers) * active,
    )


def _expert_numbers(words: Mapping[str, object], intermediate: int, hidden: int) -> tuple[int, int] | None:
    """(parameters of a layer's experts and router, parameters that work on one token). None for a model without
    experts."""
    count = _first(words, "num_experts", "num_local_experts", "n_routed_experts")
    if count is None:
        return None
    size = _first(words, "moe_intermediate_size") or intermediate
    shared = _first(words, "shared_expert_intermediate_size") or (_first(words, "n_shared_experts") or 0) * size
    per_token = _first(words, "num_experts_per_tok", "num_experts_per_token", "top_k") or 1
    biased = words.get("model_type") == "gpt_oss"
    each = 3 * hidden * size + (2 * size + hidden if biased else 0)
    always = hidden * count + biased * count + 3 * hidden * shared
    return always + count * each, always + min(per_token, count) * each


_NORMS = {"gemma2": 4, "gemma3": 4, "gemma3_text": 4, "glm4": 4, "olmo": 0}
"""Norms of a layer, where there are not two."""
_NORMS_OF_HEADS = ("qwen3", "qwen3_moe", "gemma3", "gemma3_text")
"""Families that norm each head's queries and keys; families in `_NORMS_OF_ALL_HEADS` norm all heads together."""
_NORMS_OF_ALL_HEADS = ("olmo2", "olmo3", "olmoe")
_BIAS_BUT_OUTPUT = ("qwen2", "qwen2_moe", "glm", "glm4", "glm4_moe")
"""Families with biases for queries, keys and values only."""


def _attention_numbers(words: Mapping[str, object], hidden: int, queries: int, keys: int, heads: int) -> int:
    """Numbers of a layer's attention, and of its norms; of GPT-2 also the feed-forward's biases."""
    family = str(words.get("model_type"))
    matrices = 2 * hidden * (queries + keys)
    if "n_embd" in words:
        feed_forward = _first(words, "n_inner") or 4 * hidden
        return matrices + 4 * hidden + 4 * hidden + feed_forward + hidden  # biases, two norms with biases
    numbers = matrices + _NORMS.get(family, 2) * hidden
    if words.get("attention_bias") or family in ("qwen2", "qwen2_moe"):
        numbers += queries + 2 * keys + (0 if family in _BIAS_BUT_OUTPUT else hidden)
    if family in _NORMS_OF_HEADS or (family == "glm4_moe" and words.get("use_qk_norm")):
        numbers += 2 * queries // heads
    if family in _NORMS_OF_ALL_HEADS:
        numbers += queries + keys
    return numbers + (heads if family == "gpt_oss" else 0)  # its attention sinks


@cache
def known() -> Mapping[str, Any]:
    """The sections of `known.yaml`."""
    return yaml.safe_load(Path(__file__).with_name("known.yaml").read_text(encoding="utf-8"))


@cache
def known_models() -> Mapping[str, Mapping[str, object]]:
    """The needed fields of each known model's config.json, by its name on the hub in lower case."""
    return {name.lower(): entry["config"] for entry in known()["models"] for name in entry["names"]}


def facts_by_name(name: str) -> ModelFacts | None:
    """The sizes of a model on the hub that is known without a download; None for others."""
    config = known_models().get(name.lower())
    return None if config is None else facts_of(config)


def count_parameters(folder: Path) -> int | None:
    """Number of elements in the safetensors files of a folder, from their headers; None without such files."""
    files = files_of_weights(folder)
    counts = [_elements(path) for path in files]
    return sum(c for c in counts if c is not None) if files and None not in counts else None


def _elements(path: Path) -> int | None:
    """Number of elements in one safetensors file.

    It begins with the length of the header (8 bytes, little endian) and the header as JSON, see
    https://github.com/huggingface/safetensors.
    """
    try:
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(length)) if 0 < length < _MAX_HEADER_BYTES else None
    except (OSError, ValueError):
        return None
    if not isinstance(header, dict):
        return None
    return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")


def _first(words: Mapping[str, object], *keys: str) -> int | None:
    for key in keys:
        value = words.get(key)
        if isinstance(value, list) and value:  # a size for each layer: the largest is the safe one
            value = max((size for size in value if isinstance(size, int)), default=None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
