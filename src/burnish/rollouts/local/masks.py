"""Masks over the columns of a `RowCache` that a token sees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from burnish.forward.boundaries import layer_kinds

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


class Masks:
    """Masks over the columns of a `RowCache` that each new token sees, in the form that a model takes."""

    def __init__(self, model: PreTrainedModel, attention: str) -> None:
        self._attention = attention
        self._dtype = next(model.parameters()).dtype
        self._sight = AttentionReach.of(model.config)

    def __call__(self, positions_RT: Tensor, width: int) -> Tensor | dict[str, Tensor]:
        """(R, 1, T, width). Once a row exceeds a window, a dictionary by kind of layer for models that have several
        kinds, which is how they take masks."""
        columns, positions = torch.arange(width, device=positions_RT.device), positions_RT[:, :, None]
        seen = columns <= positions
        if self._sight.sees_all(width):
            return self._as_mask(seen)
        by_kind = {kind: self._as_mask(seen & near) for kind, near in self._sight.near(columns, positions)}
        return by_kind if len(by_kind) > 1 else next(iter(by_kind.values()))

    def _as_mask(self, seen_RTW: Tensor) -> Tensor:
        visible = seen_RTW[:, None]
        if self._attention == "sdpa":
            return visible
        lowest = torch.finfo(self._dtype).min
        return torch.zeros(visible.shape, dtype=self._dtype, device=visible.device).masked_fill(~visible, lowest)


@dataclass(frozen=True, slots=True)
class AttentionReach:
    """Reach of attention by kind of layer: the last `window` tokens, or tokens of the same `chunk`. None is no limit.
    This follows the masks of `transformers`; `burnish.rollouts.local.choice` tests whether it holds for a model."""

    kinds: tuple[str, ...]
    window: int | None
    chunk: int | None

    @staticmethod
    def of(config: PreTrainedConfig) -> AttentionReach:
        settings = config.to_dict()
        window = settings.get("sliding_window") if settings.get("use_sliding_window") is not False else None
        kinds = layer_kinds(config) or {"sliding_attention" if window else "full_attention"}
        return AttentionReach(tuple(sorted(kinds)), window, settings.get("attention_chunk_size"))

    def sees_all(self, width: int) -> bool:
        """Return whether every layer sees all of this many columns."""
        limits = {"sliding_attention": self.window, "chunked_attention": self.chunk}
        return all(width <= (limits.get(kind) or width) for kind in self.kinds)

    def near(self, columns_W: Tensor, positions_RT1: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Kind and (R, T, W): the columns that are not too far back for a token at this position."""
        for kind in self.kinds:
            if kind == "sliding_attention" and self.window:
                yield kind, columns_W > positions_RT1 - self.window
            elif kind == "chunked_attention" and self.chunk:
                yield kind, columns_W // self.chunk == positions_RT1 // self.chunk
            else:
                yield kind, torch.ones_like(columns_W, dtype=torch.bool)
