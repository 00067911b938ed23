"""Pad attention heads with zeros to a size that vLLM's CPU build supports, which changes no result.

Its CPU attention supports head sizes from 32 up, and the smallest models have smaller heads. A head of D dimensions
computes the same with D' > D dimensions if
  - the rows of the new dimensions are 0 in the query, key and value projections, and so are the columns that read
    them in the output projection;
  - queries are multiplied by sqrt(D' / D), since scores are divided by sqrt(D') instead of sqrt(D);
  - rotary embeddings (https://arxiv.org/abs/2104.09864) keep their angles: dimensions i and i + D / 2 rotate together
    by base^(-2 i / D), so the second half of a head moves to D' / 2, and the base becomes base^(D' / D).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from burnish.errors import RolloutError

ConfigJson = dict[str, Any]
"""The contents of a model's config.json."""

LARGEST_BASE = 1e30
"""The largest base of a rotation whose angles float32 can compute."""

_ARCHITECTURES = ("llama",)
"""Model types with nothing between projections and rotation (no norm over a head's dimensions), whose code in vLLM
uses `head_dim` (qwen2's does not)."""


@dataclass(frozen=True, slots=True)
class HeadPadding:
    """From heads of `size` dimensions to heads of `padded`."""

    size: int
    padded: int

    def config(self, config: ConfigJson) -> ConfigJson:
        """The model's config.json with wider heads."""
        rotation = {**config["rope_parameters"], "rope_theta": self.base(config)}
        return {**config, "head_dim": self.padded, "rope_parameters": rotation}

    def base(self, config: ConfigJson) -> float:
        """The rotation base that keeps the angles."""
        return float(config["rope_parameters"]["rope_theta"]) ** (self.padded / self.size)

    def weights(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """The same weights for wider heads."""
        for name, tensor in weights:
            projection = name.rsplit(".", 2)[-2] if name.count(".") > 1 else ""
            if projection in ("q_proj", "k_proj", "v_proj"):
                scale = math.sqrt(self.padded / self.size) if projection == "q_proj" else 1.0
                yield name, self._spread_rows(tensor) * scale
            elif projection == "o_proj" and name.endswith(".weight"):
                yield name, self._spread_rows(tensor.T).T
            else:
                yield name, tensor

    def _spread_rows(self, tensor: Tensor) -> Tensor:
        """(heads * size, ...) to (heads * padded, ...): each half of a head goes to the start of the wider half."""
        halves = tensor.reshape(-1, self.size // 2, *tensor.shape[1:])
        wide = torch.zeros(len(halves), self.padded // 2, *tensor.shape[1:], dtype=tensor.dtype, device=tensor.device)
        wide[:, : self.size // 2] = halves
        return wide.reshape(-1, *tensor.shape[1:])


def choose_padding(config: ConfigJson, head_sizes: Sequence[int] | None) -> HeadPadding | None:
    """The padding that this model needs if only these head sizes are supported (None: any). RolloutError if no padding
    leaves the model's results the same."""
    if head_sizes is None:
        return None
    size = _head_size(config)
    if size is None or size in head_sizes:
        return None
    wider = HeadPadding(size, min((known for known in head_sizes if known > size), default=size))
    plain = (config.get("rope_parameters") or {}).get("rope_type") == "default"
    known = config["model_type"] in _ARCHITECTURES and plain and size % 2 == 0 and wider.padded > size
    if not known or wider.base(config) > LARGEST_BASE:
        raise RolloutError(
            f"vLLM's CPU build supports attention heads of {', '.join(map(str, head_sizes))} dimensions, but those of "
            f"this {config['model_type']} model have {size}",
            remedy="use rollout.engine: local, which has no such limit, or vLLM on a GPU",
        )
    return wider


def _head_size(config: ConfigJson) -> int | None:
    """Size of an attention head; None if config.json uses other names for it."""
    if config.get("head_dim"):
        return int(config["head_dim"])
    if "hidden_size" in config and "num_attention_heads" in config:
        return int(config["hidden_size"] // config["num_attention_heads"])
    return None
