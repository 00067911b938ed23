"""Checks of a model's weights and sizes, made before anything is computed from them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from burnish.errors import ModelError
from burnish.outside.reading import reading

GENERATION_FILE = "generation_config.json"
_OPTIONAL = "fix it, or remove it (it is optional)"
_LARGEST = {
    "hidden_size": 1_000_000,
    "n_embd": 1_000_000,
    "intermediate_size": 10_000_000,
    "num_hidden_layers": 10_000,
    "n_layer": 10_000,
    "num_attention_heads": 100_000,
    "n_head": 100_000,
    "vocab_size": 100_000_000,
    "max_position_embeddings": 1 << 40,
    "n_positions": 1 << 40,
}
"""Far beyond any existing model. With larger values, building the model takes hours or all of the memory."""


def check_finite(model: nn.Module, path: str) -> None:
    """Raise ModelError that names the first parameter with a NaN or an infinity in it. One pass over the weights."""
    for name, parameter in model.named_parameters():
        if parameter.numel() == 0:
            continue
        low, high = torch.aminmax(parameter.detach())
        if not bool(torch.isfinite(low) & torch.isfinite(high)):
            found = "NaN" if bool(torch.isnan(low)) else "infinity"
            raise ModelError(
                f"the weights of model {path!r} hold {found}: first in {name}",
                remedy="use an earlier checkpoint; the training that wrote this one had diverged",
            )


def refuse_mismatched(mismatched: list[tuple[str, torch.Size, torch.Size]], path: str) -> None:
    """Raise ModelError that names the first tensor whose shape in the files is not the one that config.json implies.

    mismatched: (name, shape in the files, shape of the model), as transformers reports them.
    """
    if mismatched:
        name, found, wanted = min(mismatched)[:3]
        raise ModelError(
            f"model {path!r}: {name} has shape {list(found)} in the files, but config.json makes it {list(wanted)} "
            f"(shapes differ for {len(mismatched)} tensors)",
            remedy="the weights belong to another config.json; use matching files",
        )


def check_declared_sizes(raw_config: Mapping[str, Any], path: str) -> None:
    """Raise ModelError if config.json gives a size that is not a whole number above 0 or exceeds any model's."""
    for words in _sections(raw_config):
        for name, largest in _LARGEST.items():
            value = words.get(name)
            if value is None:
                continue
            sizes = value if name == "intermediate_size" and isinstance(value, list) else [value]  # one for each layer
            if not sizes or any(type(size) is not int or not 0 < size <= largest for size in sizes):
                raise ModelError(
                    f"config.json of model {path!r}: {name} is {value!r:.60}",
                    remedy=f"it must be a whole number from 1 to {largest:,}; use the model's own config.json",
                )


def check_quantization(raw_config: Mapping[str, Any], path: str) -> None:
    """Raise ModelError for weights in few bits of a kind that transformers does not know: it would load them as if they
    were ordinary ones."""
    for words in _sections(raw_config):
        found = words.get("quantization_config")
        if found is None:
            continue
        from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

        kind = found.get("quant_method") if isinstance(found, dict) else found
        old = isinstance(found, dict) and kind is None and ("load_in_4bit" in found or "load_in_8bit" in found)
        if not old and str(kind) not in AUTO_QUANTIZATION_CONFIG_MAPPING:
            raise ModelError(
                f"config.json of model {path!r}: its weights are quantized by {kind!r:.60}, which is not known here",
                remedy="use the model's weights before quantization (model.quantization can round them)",
            )


def _sections(raw_config: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The config itself, and the one of the language model in it."""
    nested = raw_config.get("text_config")
    return (raw_config, nested) if isinstance(nested, dict) else (raw_config,)


def read_generation_config(source: str) -> dict[str, Any]:
    """The contents of a local folder's generation_config.json, or {} without one. ModelError if it is damaged."""
    file = Path(source) / GENERATION_FILE
    if not file.exists():
        return {}
    with reading(f"{file}: reading it", ModelError, remedy=_OPTIONAL):
        content = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ModelError(f"{file} is not a JSON object", remedy=_OPTIONAL)
    for name in sorted(_SAMPLING_NUMBERS & set(content)):
        _check_sampling_number(content[name], name, file)
    return content


_SAMPLING_NUMBERS = set(
    [
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "typical_p",
        "epsilon_cutoff",
        "eta_cutoff",
        "repetition_penalty",
        "max_length",
        "max_new_tokens",
        "min_length",
        "min_new_tokens",
        "num_beams",
        "length_penalty",
    ]
)
_SIGNED = ("length_penalty", "top_k")
"""Some files use a top_k of -1 for none."""


def _check_sampling_number(value: Any, name: str, file: Path) -> None:
    """Raise ModelError if a sampling setting is set and is not a valid number. The run file decides how responses are
    sampled, but these values are saved again with the model, and the next program to read them would fail."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is not None and not (is_number and math.isfinite(value) and (value >= 0 or name in _SIGNED)):
        raise ModelError(f"{file}: {name} is {value!r:.60}, not a number of at least 0", remedy=_OPTIONAL)


def checked_token_ids(value: Any, where: str) -> list[int]:
    """The ids that a configuration file gives: none, one or a list. ModelError for anything that is not a token id."""
    if value is None:
        return []
    ids = list(value) if isinstance(value, (list, tuple)) else [value]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            raise ModelError(
                f"{where}: eos_token_id is {value!r:.60}", remedy="it must be a token id (0, 1, 2 ...) or a list of ids"
            )
    return ids


def check_token_ids(ids: tuple[int, ...], num_embeddings: int, what: str) -> None:
    """Raise ModelError for an id without an embedding in the model. `what` begins the message (`rollout.x is`)."""
    beyond = [token for token in ids if token >= num_embeddings]
    if beyond:
        raise ModelError(
            f"{what} {beyond[0]}, which is beyond the model's vocabulary of {num_embeddings:,}",
            remedy="use an id of this model's own tokenizer",
        )
