"""The sizes of a model, read without loading it: from `config.json` and the headers of the safetensors files."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from burnish.config.names import MODEL_REWARD
from burnish.config.schema_optimization import TOKENS_PER_SCORING
from burnish.outside.reading import files_of_weights

if TYPE_CHECKING:
    from burnish.config.schema import RewardConfig

_MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The sizes that memory depends on. `context_tokens` is None if the model's config names no limit."""

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


@dataclass(frozen=True, slots=True)
class RewardFacts:
    """What the memory of a reward model depends on. `facts` is None if it is not a local folder or has an unknown
    layout. device: as the run file has it."""

    label: str
    facts: ModelFacts | None
    width: int
    """Bytes of one weight."""
    device: str
    tokens_per_microbatch: int


def read_reward_facts(rewards: Iterable[RewardConfig]) -> tuple[RewardFacts, ...]:
    """Those of the reward models among the rewards. Options that a run would refuse count as if they were not set."""
    found = []
    for reward in rewards:
        if reward.is_model:
            facts = read_model_facts(Path(reward.name.removeprefix(MODEL_REWARD)).expanduser())
            budget = reward.options.get("tokens_per_microbatch")
            found.append(
                RewardFacts(
                    reward.log_label,
                    facts,
                    2 if reward.options.get("dtype") == "bfloat16" else 4,
                    str(reward.options.get("device", "auto")),
                    budget if isinstance(budget, int) else TOKENS_PER_SCORING,
                )
            )
    return tuple(found)


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

    Without `num_parameters` (no weights available), parameters are estimated for a decoder of attention, gated or plain
    feed-forward and tied or untied embeddings. Norms and biases are left out, so the result is about 1 % too low.
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
    if num_parameters is None:
        attention = hidden * head_size * (2 * heads + 2 * key_values)
        per_layer = attention + (3 if gated else 2) * hidden * intermediate
        embeddings = vocabulary * hidden * (1 if words.get("tie_word_embeddings", not gated) else 2)
        positions = 0 if gated else (_first(words, "n_positions") or 0) * hidden
        num_parameters = layers * per_layer + embeddings + positions
    return ModelFacts(
        num_parameters=num_parameters,
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_attention_heads=heads,
        num_key_value_heads=key_values,
        head_size=head_size,
        vocabulary_size=vocabulary,
        context_tokens=_first(words, "max_position_embeddings", "n_positions", "max_seq_len"),
    )


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
