"""One decoding step of all rows: who computes the logits after each row's newest token."""

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
    """Holds keys and values of the rows being decoded (R of them, numbered from 0)."""

    def join(self, prompt_lengths: Sequence[int], prompts: PrefilledPrompts | None, sources: Sequence[int]) -> None:
        """Rows enter behind those that are there. Row i has a prompt of `prompt_lengths[i]` tokens; all of them but the
        last are cached in prompt `sources[i]` (`prompts` is None for prompts of one token)."""
        ...

    def logits(self, tokens_R: Tensor, positions_R: Tensor) -> Tensor:
        """(R, vocabulary) after each row's newest token, which stands at this position of its text."""
        ...

    def move(self, sources: Tensor, targets: Tensor, num_rows: int) -> None:
        """Rows `sources` take the places of rows `targets`; only the first `num_rows` stay."""
        ...


MakeDecoder = Callable[["PreTrainedModel", int], Decoder]
"""Takes the model and a number of places."""


class ModelDecoder:
    """Decoder on any `transformers` causal language model that keeps keys and values."""

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
        """(rows, 1, 1, width): what each row sees of its own columns. By kind of layer, as models take it that have
        several kinds, once some row knows of a window."""
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
    """How far back layers look, by kind: the last `window` tokens, or those of their own `chunk`; None is everything.
    As `transformers` makes its masks; `burnish.rollouts.local.choice` tries whether a model's are so."""

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
        """Whether the layers' sight ends nowhere within so many columns."""
        limits = {"sliding_attention": self.window, "chunked_attention": self.chunk}
        return all(width <= (limits.get(kind) or width) for kind in self.kinds)

    def near(self, columns_W: Tensor, positions_R1: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Kind and (R, W): columns that are not too far back for a token at this position."""
        for kind in self.kinds:
            if kind == "sliding_attention" and self.window:
                yield kind, columns_W > positions_R1 - self.window
            elif kind == "chunked_attention" and self.chunk:
                yield kind, columns_W // self.chunk == positions_R1 // self.chunk
            else:
                yield kind, torch.ones_like(columns_W, dtype=torch.bool)
