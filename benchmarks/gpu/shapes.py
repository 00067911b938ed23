"""Models made from shapes: a config.json and a tokenizer, no weights. Burnish makes those (`model.from_scratch`)."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, PreTrainedTokenizerFast

from burnish.config.schema_data import ModelConfig
from burnish.models import loading
from burnish.models.loading import LoadedModel, load_model
from burnish.planning.model_facts import ModelFacts, facts_of

PAD, EOS, UNKNOWN, FIRST_WORD = 0, 1, 2, 3
CONTEXT = 32_768


def qwen(kind: str, *sizes: int, head_dim: int = 0, vocabulary: int = 151_936, tied: bool = False) -> dict[str, Any]:
    """sizes: hidden, layers, heads, key heads, intermediate."""
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size")
    own = {"head_dim": head_dim} if head_dim else {}
    return {
        "model_type": kind,
        **dict(zip(names, sizes, strict=True)),
        **own,
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied,
    }


SHAPES: dict[str, dict[str, Any]] = {
    "0.5b": qwen("qwen2", 896, 24, 14, 2, 4864, tied=True),
    "1.7b": qwen("qwen3", 2048, 28, 16, 8, 6144, head_dim=128, tied=True),
    "4b": qwen("qwen3", 2560, 36, 32, 8, 9728, head_dim=128, tied=True),
    "7b": qwen("qwen2", 3584, 28, 28, 4, 18_944, vocabulary=152_064),
    "8b": qwen("qwen3", 4096, 36, 32, 8, 12_288, head_dim=128),
    "100m": qwen("llama", 768, 12, 12, 12, 3072, vocabulary=14),
    "toy": qwen("qwen2", 32, 2, 4, 2, 64, vocabulary=64, tied=True),
    "toy llama": qwen("llama", 32, 2, 4, 2, 64, vocabulary=14),
}
"""Qwen2.5 0.5 B and 7 B, Qwen3 1.7 B, 4 B and 8 B; a Llama of 113 million parameters."""


def write_shape(shape: Mapping[str, Any], folder: Path, tokenizer: PreTrainedTokenizerFast | None = None) -> Path:
    """The folder of a model of this shape, whose tokens are words unless there is another tokenizer. Next to a
    config.json, transformers would take the model's own class of tokenizers for it: it is in a folder of its own."""
    tokenizer = tokenizer or word_tokenizer(shape["vocab_size"])
    own = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    config = AutoConfig.for_model(**{"max_position_embeddings": CONTEXT, **own, **shape})
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder / "tokenizer")
    return folder


def model_fields(folder: Path) -> dict[str, Any]:
    """What a run file says of it."""
    return {"path": str(folder), "tokenizer": str(folder / "tokenizer"), "from_scratch": True}


def word_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """Every id from FIRST_WORD on is a word `w<id>`."""
    words = {"<pad>": PAD, "<eos>": EOS, "<unk>": UNKNOWN} | {f"w{n}": n for n in range(FIRST_WORD, vocabulary)}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    signs = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False, **signs)


def write_prompts(file: Path, vocabulary: int, count: int, tokens: int) -> Path:
    """Prompts of random words, one JSON object a line."""
    chance = random.Random(0)
    texts = (" ".join(f"w{chance.randrange(FIRST_WORD, vocabulary)}" for _ in range(tokens)) for _ in range(count))
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts), encoding="utf-8")
    return file


@contextmanager
def weights_made_on(device: str) -> Iterator[None]:
    """Random weights are drawn on the device: billions of them take minutes on a host. They are others than a CPU's."""
    on_host = loading._random_model

    def on_device(*given: Any) -> Any:
        with torch.device(device):
            return on_host(*given)

    loading._random_model = on_device
    try:
        yield
    finally:
        loading._random_model = on_host


def load_shape(folder: Path, device: str, dtype: str = "bfloat16", **fields: Any) -> LoadedModel:
    with weights_made_on(device):
        return load_model(ModelConfig(**model_fields(folder), device=device, dtype=dtype, **fields))


def facts(shape: Mapping[str, Any]) -> ModelFacts:
    found = facts_of(shape)
    if found is None:
        raise ValueError(f"a shape lacks sizes: {shape}")
    return found


def trunk_weights(sizes: ModelFacts) -> int:
    """In the matrices of all layers."""
    attention = sizes.head_size * (2 * sizes.num_attention_heads + 2 * sizes.num_key_value_heads)
    return sizes.num_layers * sizes.hidden_size * (attention + 3 * sizes.intermediate_size)


def pass_flops(sizes: ModelFacts, *, tokens: int, scored: int, pairs: int) -> float:
    """Of one forward pass over `tokens`, with logits of the `scored` ones and `pairs` of a query with a key that it
    sees. A multiplication with its addition is two."""
    head = sizes.hidden_size * sizes.vocabulary_size
    attention = 4 * sizes.num_layers * sizes.num_attention_heads * sizes.head_size
    return 2.0 * (trunk_weights(sizes) * tokens + head * scored) + attention * pairs


def key_bytes(sizes: ModelFacts, width: int = 2) -> int:
    """Keys and values of one token."""
    return 2 * sizes.num_layers * sizes.num_key_value_heads * sizes.head_size * width
