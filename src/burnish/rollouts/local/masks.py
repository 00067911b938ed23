"""Masks over the columns of a `RowCache` that a token sees."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from burnish.forward.boundaries import layer_kinds

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Masks:
    """Masks over the columns of a `RowCache` that each new token sees, in the form that a model takes.

    By kind of layer, attention reaches the last `window` tokens, tokens of the same `chunk`, or all. This follows the
    masks of `transformers`; `burnish.rollouts.local.choice` tests whether it holds for a model.
    """

    def __init__(self, model: PreTrainedModel, attention: str) -> None:
        self._attention = attention
        self._dtype = next(model.parameters()).dtype
        settings = model.config.to_dict()
        window = settings.get("sliding_window") if settings.get("use_sliding_window") is not False else None
        limits = {"sliding_attention": window, "chunked_attention": settings.get("attention_chunk_size")}
        kinds = layer_kinds(model.config) or {"sliding_attention" if window else "full_attention"}
        self._limits: dict[str, int | None] = {kind: limits.get(kind) or None for kind in sorted(kinds)}

    def __call__(self, positions_RT: Tensor, width: int) -> Tensor | dict[str, Tensor]:
        """(R, 1, T, width). Once a row exceeds a window, a dictionary by kind of layer for models that have several
        kinds, which is how they take masks."""
        columns, positions = torch.arange(width, device=positions_RT.device), positions_RT[:, :, None]
        seen = columns <= positions
        if all(limit is None or width <= limit for limit in self._limits.values()):
            return self._as_mask(seen)
        by_kind = {kind: self._as_mask(seen & near) for kind, near in self._near(columns, positions)}
        return by_kind if len(by_kind) > 1 else next(iter(by_kind.values()))

    def _near(self, columns_W: Tensor, positions_RT1: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Kind and (R, T, W): the columns that are not too far back for a token at this position."""
        for kind, limit in self._limits.items():
            if limit is None:
                yield kind, torch.ones_like(columns_W, dtype=torch.bool)
            elif kind == "sliding_attention":
                yield kind, columns_W > positions_RT1 - limit
            else:
                yield kind, columns_W // limit == positions_RT1 // limit

    def _as_mask(self, seen_RTW: Tensor) -> Tensor:
        visible = seen_RTW[:, None]
        if self._attention == "sdpa":
            return visible
        lowest = torch.finfo(self._dtype).min
        return torch.zeros(visible.shape, dtype=self._dtype, device=visible.device).masked_fill(~visible, lowest)
