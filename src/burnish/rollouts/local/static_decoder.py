"""A decoder of fixed shapes for GPUs, which draws several tokens of every row before the host looks at them.

Its steps are in `static_steps`. The cache is `shared_rows`, with each prompt once, for models that take packed rows,
and otherwise the cache of `ModelDecoder`, with masks, so that models with windows can use it, too. It reads the model's
own weights: after an update nothing has to be done, as long as their addresses stay the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from burnish.rollouts.local.cache import RowCache
from burnish.rollouts.local.decoders import CachingDecoder, MaskedPass
from burnish.rollouts.local.prefill import Prefiller, attention_kind
from burnish.rollouts.local.shared_rows import SharedRows, flash, fused
from burnish.rollouts.local.static_steps import (
    Capture,
    CudaGraphs,
    Shape,
    SlottedPass,
    StaticSteps,
    bucket,
    power_of_two,
)
from burnish.types import PreTrainedModel

Attention = Literal["flash", "fused", "masked"]
"""FlashAttention's kernel or PyTorch's fused one, with each prompt once; or the model's own, with masks over whole
texts."""
HELD_BYTES = 1 << 30
"""Largest decoder that is held between two calls."""
_COPIES = 8
"""Copies of a step's float32 logits while it draws: a bound for the memory that graphs hold."""


class MaskedRows:
    """Rows of whole texts, as a `SlottedPass`."""

    def __init__(self, model: PreTrainedModel, places: int) -> None:
        self.cache = RowCache(places)
        self._pass = MaskedPass(model, self.cache, attention_kind(model.config))

    def fit(self, slots: int, positions: Sequence[int], steps: int) -> Shape:
        columns = bucket(max(positions) + steps)
        self.cache.reserve(columns)
        return Shape(slots, prompts=0, rows=0, columns=columns, prompt_columns=0)

    def logits(self, shape: Shape, tokens_S: Tensor, positions_S: Tensor) -> Tensor:
        return self._pass.logits(tokens_S, positions_S, shape.columns)

    def tensors(self) -> Iterator[Tensor]:
        return self.cache.tensors()


class StaticDecoder(CachingDecoder):
    """A `Decoder` whose `steps` can also draw tokens. See `StaticSteps` for the arguments."""

    def __init__(
        self, model: PreTrainedModel, places: int, attention: Attention, capture: Capture | None, *, must_capture: bool
    ) -> None:
        rows = _rows(model, places, attention)
        super().__init__(model, rows.cache)
        self.places = places
        self._rows = rows
        self.steps = StaticSteps(model, rows, places, capture, must_capture=must_capture)
        self._make_layers()

    def logits(self, tokens_R: Tensor, positions_R: Tensor) -> Tensor:
        """See `Decoder`."""
        return self.steps.logits(tokens_R, positions_R)

    def clear(self) -> None:
        """Drop all rows."""
        none = torch.empty(0, dtype=torch.int64)
        self.move(none, none, 0)

    @property
    def num_bytes(self) -> int:
        """Approximate memory in bytes, its graphs included."""
        vocabulary = self._model.get_input_embeddings().weight.shape[0]
        return sum(tensor.nbytes for tensor in self._rows.tensors()) + 4 * _COPIES * self.places * vocabulary

    def _make_layers(self) -> None:
        """Add and remove a row of two tokens, so that the cache has the sizes of all layers before the first step."""
        for chunk in Prefiller(self._model, pad_token_id=0).prefill([(0, 0)], keep=None):
            self.join([2], chunk.prompts, chunk.sources)
        self.clear()


class StaticDecoders:
    """Factory of a static decoder, which is reused with its graphs as long as it has enough places.

    Shapes follow from the rows of a call alone, so its numbers do not depend on earlier calls, for which the decoder
    may have grown. At most one decoder is in use. captures: whether it captures its steps as CUDA graphs.
    """

    def __init__(self, attention: Attention, *, captures: bool, must_capture: bool = False) -> None:
        self._attention: Attention = attention
        self._captures = captures
        self._must_capture = must_capture
        self._held: StaticDecoder | None = None

    def __call__(self, model: PreTrainedModel, places: int) -> StaticDecoder:
        """See `MakeDecoder`."""
        places = power_of_two(places)
        if self._held is None or self._held.places < places:
            self._held = None  # before the next one needs the memory
            capture = CudaGraphs(next(model.parameters()).device) if self._captures else None
            self._held = StaticDecoder(model, places, self._attention, capture, must_capture=self._must_capture)
        self._held.clear()
        return self._held

    def let_go(self) -> None:
        """Free a decoder that is too large to be held until the next call."""
        if self._held is not None and self._held.num_bytes > HELD_BYTES:
            self._held = None


def _rows(model: PreTrainedModel, places: int, attention: Attention) -> SlottedPass:
    if attention == "masked":
        return MaskedRows(model, places)
    return SharedRows(model, places, flash if attention == "flash" else fused)
