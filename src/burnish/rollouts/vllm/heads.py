"""Attention heads of a size that vLLM's CPU build can compute, by zeros that change nothing.

Its attention on processors knows head sizes from 32 up, and the smallest models have smaller ones. A head of D
dimensions computes the same with more of them, when
  - the rows of the new dimensions are 0 in the query, key and value projections, and so are the columns that read
    them in the output projection;
  - queries are multiplied by sqrt(D' / D), since scores are divided by sqrt(D') instead of sqrt(D);
  - rotary embeddings (https://arxiv.org/abs/2104.09864) keep their angles: dimension i turns together with i + D / 2 by
    base^(-2 i / D), so the second half of a head moves to D' / 2, and the base becomes base^(D' / D).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from burnish.errors import RolloutError

LARGEST_BASE = 1e30
"""Of a rotation whose angles float32 can still compute."""

_ARCHITECTURES = ("llama",)
"""Model types with nothing between projections and rotation (no norm over a head's dimensions), and whose code in vLLM
goes by `head_dim` (that of qwen2 does not)."""


@dataclass(frozen=True, slots=True)
class HeadPadding:
    """From heads of `size` dimensions to heads of `padded`."""

    size: int
    padded: int

    def config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The model's config.json with wider heads."""
        rotation = {**config["rope_parameters"], "rope_theta": self.base(config)}
        return {**config, "head_dim": self.padded, "rope_parameters": rotation}

    def base(self, config: Mapping[str, Any]) -> float:
        """The base of the rotation that keeps its angles."""
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
        """(heads * size, ...) to (heads * padded, ...): each half of a head at the beginning of the wider half."""
        halves = tensor.reshape(-1, self.size // 2, *tensor.shape[1:])
        wide = torch.zeros(len(halves), self.padded // 2, *tensor.shape[1:], dtype=tensor.dtype, device=tensor.device)
        wide[:, : self.size // 2] = halves
        return wide.reshape(-1, *tensor.shape[1:])


def choose_padding(config: Mapping[str, Any], head_sizes: Sequence[int] | None) -> HeadPadding | None:
    """The padding that this model needs where only these head sizes can be computed (None: any). RolloutError when
    there is none that leaves the model the same."""
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
            f"vLLM's CPU build computes attention for heads of {', '.join(map(str, head_sizes))} dimensions; those of "
            f"this {config['model_type']} model have {size}",
            remedy="use rollout.engine: local, which has no such limit, or vLLM on a GPU",
        )
    return wider


def _head_size(config: Mapping[str, Any]) -> int | None:
    """None where config.json calls it by names of its own."""
    if config.get("head_dim"):
        return int(config["head_dim"])
    if "hidden_size" in config and "num_attention_heads" in config:
        return int(config["hidden_size"] // config["num_attention_heads"])
    return None
