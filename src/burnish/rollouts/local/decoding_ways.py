"""How a model is decoded here: the ways that give its own logits are timed beside each other, and the fastest is taken.

Two questions, one after the other: whether products are faster with packed weights, and which decoder is the fastest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from burnish.errors import KernelError, RolloutError
from burnish.forward.fast_paths import FastPaths, failure, shape_of
from burnish.forward.few_layers import few_layers, num_weights
from burnish.forward.kernel_layers import has_known_layers
from burnish.forward.race import Way
from burnish.rollouts.local.decoders import Decoder, MakeDecoder
from burnish.rollouts.local.fused import FusedDecoder, can_decode, decodes_alike
from burnish.rollouts.local.kernel_decoder import KernelDecoder
from burnish.rollouts.local.packed_weights import can_pack, joined_product
from burnish.rollouts.local.prefill import PrefilledRows, Prefiller
from burnish.types import UseKernels

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PRODUCTS, PACKED, ORDINARY = "decoding products", "packed weights", "ordinary weights"
DECODING, KERNELS, FUSED, OWN = "decoding", "C kernels", "fused PyTorch", "the model's own pass"
_ROWS = (8, 64)
"""Rows of the products that are timed: a step begins with many and ends with few."""
_PROMPTS, _SAMPLES, _PROMPT_TOKENS = 2, 16, 128
"""Of the step that is timed."""


def choose_decoder(model: PreTrainedModel, own: MakeDecoder, kernels: UseKernels, paths: FastPaths) -> MakeDecoder:
    """The fastest decoder that gives the model's own logits; `own` is the one that goes through the model. The model is
    in evaluation mode. Raises RolloutError where kernels are required and there are none."""
    if not can_decode(model):
        if kernels == "required":
            raise no_kernels()
        return own
    makers = {**_candidates(model, _packs(model, paths), kernels), OWN: own}
    required = KERNELS if kernels == "required" else None
    step = _Step(model)
    while True:  # a decoder that computes otherwise is left out, until one is found that does not
        ways = [Way(name, step.of(make)) for name, make in makers.items()]
        name = paths.choose(DECODING, shape_of(model), ways, required=required)
        if name == OWN or _decodes(model, name, makers[name], kernels, paths):
            return makers[name]
        if required is not None:
            raise no_kernels()
        del makers[name]


def no_kernels() -> RolloutError:
    return RolloutError(
        "model.kernels is required, but there are none that decode this model as it decodes itself",
        remedy="set model.kernels: auto",
    )


def _candidates(model: PreTrainedModel, packed: bool, kernels: UseKernels) -> dict[str, MakeDecoder]:
    """The fastest hoped for first."""
    fused: dict[str, MakeDecoder] = {FUSED: partial(FusedDecoder, packed=packed)}
    if kernels == "off" or not has_known_layers(model):
        if kernels == "required":
            raise no_kernels()
        return fused
    return {KERNELS: partial(KernelDecoder, packed=packed), **fused}


def _decodes(model: PreTrainedModel, name: str, make: MakeDecoder, kernels: UseKernels, paths: FastPaths) -> bool:
    """Whether this decoder gives the model's logits; `paths.notes` says so where the trial itself failed."""
    try:
        return decodes_alike(model, make)
    except KernelError:  # why there are none, loading tells
        if kernels == "required":
            raise
    except Exception as error:  # noqa: BLE001 boundary: a trial of a model built otherwise may end in anything
        paths.notes.append(f"{DECODING} without {name}: {failure(error)}")
    return False


@torch.no_grad()
def _packs(model: PreTrainedModel, paths: FastPaths) -> bool:
    """Whether products of decoding have packed weights, tried and timed on the first layer's."""
    weight = model.get_input_embeddings().weight
    products = {ORDINARY: _product_of(model, packed=False)}
    if can_pack(weight.device, weight.dtype):
        try:
            packed = _product_of(model, packed=True)
            packed()
            products = {PACKED: packed, **products}
        except Exception as error:  # noqa: BLE001 boundary: what oneDNN raises on a processor it does not know
            paths.notes.append(f"{DECODING} without {PACKED}: {failure(error)}")
    ways = [Way(name, run) for name, run in products.items()]
    return paths.choose(PRODUCTS, shape_of(model), ways) == PACKED


def _product_of(model: PreTrainedModel, *, packed: bool) -> Callable[[], None]:
    """Gate and up projection of the first layer, for all numbers of rows that count."""
    mlp = model.base_model.layers[0].mlp
    product = joined_product(mlp.gate_proj, mlp.up_proj, packed=packed)
    width = model.config.hidden_size
    inputs = [torch.ones(rows, width, dtype=model.get_input_embeddings().weight.dtype) for rows in _ROWS]

    def run() -> None:
        for inputs_RX in inputs:
            product(inputs_RX)

    return run


class _Step:
    """A decoding step of some rows, with the first layers only and the whole head."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._layers = _num_layers(model)
        length = max(2, min(_PROMPT_TOKENS, model.config.max_position_embeddings // 2))
        vocabulary = model.get_input_embeddings().weight.shape[0]
        texts = torch.randint(0, vocabulary, (_PROMPTS, length), generator=torch.Generator().manual_seed(0)).tolist()
        self._prompts = [tuple(text) for text in texts for _ in range(_SAMPLES)]
        self._positions = torch.full((len(self._prompts),), length - 1)

    def of(self, make: MakeDecoder) -> Callable[[], None]:
        """The step with this decoder, which is made when it first runs."""
        made: list[Decoder] = []

        @torch.no_grad()
        def run() -> None:
            with few_layers(self._model, self._layers):
                if not made:
                    made.append(self._begun(make))
                made[0].logits(torch.zeros_like(self._positions), self._positions)

        return run

    def _begun(self, make: MakeDecoder) -> Decoder:
        decoder = make(self._model, len(self._prompts))
        for chunk in self._prefilled:
            decoder.join([len(self._prompts[row]) for row in chunk.rows], chunk.prompts, chunk.sources)
        return decoder

    @cached_property
    def _prefilled(self) -> list[PrefilledRows]:
        return list(Prefiller(self._model, pad_token_id=0).prefill(self._prompts, keep=None))


def _num_layers(model: PreTrainedModel) -> int:
    """Two, or as many as have the weights of the head, which would drown their difference."""
    layer, head = (num_weights(part) for part in _parts(model))
    return max(2, min(len(model.base_model.layers), -(-head // layer)))


def _parts(model: PreTrainedModel) -> tuple[nn.Module, nn.Module]:
    return model.base_model.layers[0], model.get_output_embeddings()
