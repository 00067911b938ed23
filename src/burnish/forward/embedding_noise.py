"""Noise on the embeddings of the input while training (NEFTune, https://arxiv.org/abs/2310.05914).

The embeddings of a row of L tokens, of d numbers each, get uniform noise in ±alpha / sqrt(L d). It is drawn from the
row's key (`Batch.noise_keys`) alone, on the host: wherever a pass puts the row, and in whichever process, a token gets
the same numbers. Batches without keys, as in evaluation, get none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from burnish.errors import ModelError
from burnish.forward.batch import Batch, upload
from burnish.forward.packing import Packing
from burnish.forward.scoring import ResponsePositions, TrunkRunner
from burnish.types import PreTrainedModel


class NoisyTrunkRunner(TrunkRunner):
    """A runner that adds noise to the embeddings of rows with keys."""

    def __init__(self, model: PreTrainedModel, *, alpha: float, **settled: Any) -> None:
        """settled: further arguments of `TrunkRunner`."""
        super().__init__(model, **settled)
        self._alpha = alpha

    def packed(self, batch: Batch, positions: ResponsePositions, packing: Packing) -> Tensor:
        """See `TrunkRunner.packed`."""
        with self._noise(batch, partial(in_slots, packing)):
            return super().packed(batch, positions, packing)

    def padded(self, batch: Batch, positions: ResponsePositions) -> Tensor:
        """See `TrunkRunner.padded`."""
        with self._noise(batch, partial(pad_sequence, batch_first=True)):
            return super().padded(batch, positions)

    @contextmanager
    def _noise(self, batch: Batch, lay_out: Callable[[list[Tensor]], Tensor]) -> Iterator[None]:
        """Add noise to the embeddings that a pass inside looks up. `lay_out`: from rows (L, H) to the pass's slots.

        Raises ModelError for a model that does not look them up once.
        """
        if batch.noise_keys is None:
            yield
            return
        keys, lengths, seen = batch.noise_keys.tolist(), batch.host.lengths.tolist(), []

        def add(_: nn.Module, __: object, embedded: Tensor) -> Tensor:
            rows = [row_noise(*row, embedded.shape[-1], self._alpha) for row in zip(keys, lengths, strict=True)]
            noise = lay_out(rows).to(embedded.dtype)
            seen.append(noise.shape == embedded.shape)
            return embedded + upload(noise, embedded.device)

        handle = self._model.get_input_embeddings().register_forward_hook(add)
        try:
            yield
        finally:
            handle.remove()
        if seen != [True]:
            raise ModelError(
                f"this {self._model.config.model_type} model does not look up its input once in one embedding, so "
                "noise cannot be added to it",
                remedy="remove neftune_alpha",
            )


def row_noise(key: int, length: int, width: int, alpha: float) -> Tensor:
    """(L, H) float32: the noise of one row, uniform in ±alpha / sqrt(L H)."""
    generator = torch.Generator().manual_seed(key)
    most = alpha / math.sqrt(length * width)
    return torch.empty(length, width).uniform_(-most, most, generator=generator)


def in_slots(packing: Packing, rows: Sequence[Tensor]) -> Tensor:
    """(1, S, H): each row's noise where its tokens are packed, 0 in padding. No two rows share a prompt."""
    noise_SH = rows[0].new_zeros(packing.size, rows[0].shape[1])
    responses = packing.response_spans()
    for (row,), prompt in zip(packing.groups, packing.prompt_spans(), strict=True):
        own, response = rows[row], responses[row]
        length = prompt.stop - prompt.start
        noise_SH[prompt] = own[:length]
        noise_SH[response] = own[length : length + response.stop - response.start]
    return noise_SH[None]
