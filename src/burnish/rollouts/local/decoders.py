"""Decoders: they compute the logits after each row's newest token, for all rows at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from burnish.forward.boundaries import layer_kinds
from burnish.forward.row_rules import quiet_outputs
from burnish.rollouts.local.cache import PrefilledPrompts, RowCache

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


class Decoder(Protocol):
    """Holds keys and values of the R rows being decoded, numbered from 0."""

    def join(self, prompt_lengths: Sequence[int], prompts: PrefilledPrompts | None, sources: Sequence[int]) -> None:
        """Add rows after the existing ones. Row i has a prompt of `prompt_lengths[i]` tokens, all of which except the
        last are cached in prompt `sources[i]` (`prompts` is None for prompts of one token)."""
        ...

    def logits(self, tokens_R: Tensor, positions_R: Tensor) -> Tensor:
        """(R, vocabulary) after each row's newest token, which is at this position in its sequence."""
        ...

    def move(self, sources: Tensor, targets: Tensor, num_rows: int) -> None:
        """Move rows `sources` to the places of rows `targets`, and keep only the first `num_rows`."""
        ...


MakeDecoder = Callable[["PreTrainedModel", int], Decoder]
"""Takes the model and the number of places for rows."""


class ModelDecoder:
    """Decoder for any `transformers` causal language model that caches keys and values."""

    def __init__(self, model: PreTrainedModel, places: int, attention: str) -> None:
        self._model = model
        self._attention = attention
        self._dtype = next(model.parameters()).dtype
        self._sight = Sight.of(model.config)
        self._cache = RowCache(places)

    def join(self, prompt_lengths: Sequence[int], prompts: PrefilledPrompts | None, sources: Sequence[int]) -> None:
        self._cache.append(len(prompt_lengths), prompts, sources)

    def logits(self, tokens_R: Tensor, positions_R: Tensor) -> Tensor:
        width = int(positions_R.max()) + 1
        self._cache.begin(positions_R, width)
        outputs = self._model(
            input_ids=tokens_R[:, None],
            position_ids=positions_R[:, None],
            attention_mask=self._masks(positions_R, width),
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
            **quiet_outputs(self._model),
        )
        logits_RV: Tensor = outputs.logits[:, -1]
        return logits_RV

    def move(self, sources: Tensor, targets: Tensor, num_rows: int) -> None:
        self._cache.move(sources, targets, num_rows)

    def _masks(self, positions_R: Tensor, width: int) -> Tensor | dict[str, Tensor]:
        """(rows, 1, 1, width): which of its own columns each row sees. Once a row exceeds a window, a dictionary by
        kind of layer for models that have several kinds, which is how they take masks."""
        columns = torch.arange(width, device=positions_R.device)
        seen = columns <= positions_R[:, None]
        if self._sight.sees_all(width):
            return self._as_mask(seen)
        by_kind = {kind: self._as_mask(seen & near) for kind, near in self._sight.near(columns, positions_R[:, None])}
        return by_kind if len(by_kind) > 1 else next(iter(by_kind.values()))

    def _as_mask(self, seen: Tensor) -> Tensor:
        visible = seen[:, None, None, :]
        if self._attention == "sdpa":
            return visible
        lowest = torch.finfo(self._dtype).min
        return torch.zeros(visible.shape, dtype=self._dtype, device=visible.device).masked_fill(~visible, lowest)


@dataclass(frozen=True, slots=True)
class Sight:
    """How far back layers look, by kind: the last `window` tokens, or those in the same `chunk`. None is everything.
    This follows the masks of `transformers`; `burnish.rollouts.local.choice` tests whether it is true of a model."""

    kinds: tuple[str, ...]
    window: int | None
    chunk: int | None

    @staticmethod
    def of(config: PreTrainedConfig) -> Sight:
        settings = config.to_dict()
        window = settings.get("sliding_window") if settings.get("use_sliding_window") is not False else None
        kinds = layer_kinds(config) or {"sliding_attention" if window else "full_attention"}
        return Sight(tuple(sorted(kinds)), window, settings.get("attention_chunk_size"))

    def sees_all(self, width: int) -> bool:
        """Whether every layer sees all of this many columns."""
        limits = {"sliding_attention": self.window, "chunked_attention": self.chunk}
        return all(width <= (limits.get(kind) or width) for kind in self.kinds)

    def near(self, columns_W: Tensor, positions_R1: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Kind and (R, W): the columns that are not too far back for a token at this position."""
        for kind in self.kinds:
            if kind == "sliding_attention" and self.window:
                yield kind, columns_W > positions_R1 - self.window
            elif kind == "chunked_attention" and self.chunk:
                yield kind, columns_W // self.chunk == positions_R1 // self.chunk
            else:
                yield kind, torch.ones_like(columns_W, dtype=torch.bool)
