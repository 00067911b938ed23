"""How a model is decoded here: the ways that give its own logits are timed beside each other, and the fastest is taken.

Two questions, one after the other: whether products are faster with packed weights, and which decoder is the fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from burnish.errors import KernelError, RolloutError
from burnish.models.fast_paths import FastPaths, failure, shape_of
from burnish.models.few_layers import few_layers, num_weights
from burnish.models.kernel_layers import has_known_layers
from burnish.models.race import Way
from burnish.rollouts.decoders import Decoder, MakeDecoder
from burnish.rollouts.fused import FusedDecoder, can_decode, decodes_alike
from burnish.rollouts.kernel_decoder import KernelDecoder
from burnish.rollouts.packed_weights import can_pack, joined_product
from burnish.rollouts.prefill import Prefiller
from burnish.types import UseKernels

PRODUCTS, PACKED, ORDINARY = "decoding products", "packed weights", "ordinary weights"
DECODING, KERNELS, FUSED, OWN = "decoding", "C kernels", "fused PyTorch", "the model's own pass"
_ROWS = (8, 64)
"""Rows of the products that are timed: a step begins with many and ends with few."""
_PROMPTS, _SAMPLES, _PROMPT_TOKENS = 4, 8, 128
"""Of the step that is timed."""


def choose_decoder(model: Any, own: MakeDecoder, kernels: UseKernels, paths: FastPaths) -> MakeDecoder:
    """The fastest decoder that gives the model's own logits; `own` is the one that goes through the model. The model is
    in evaluation mode. Raises RolloutError where kernels are required and there are none."""
    if not can_decode(model):
        if kernels == "required":
            raise no_kernels()
        return own
    packed = _packs(model, paths)
    makers: dict[str, MakeDecoder] = {}
    for name, make in _candidates(model, packed, kernels):
        if _decodes(model, name, make, kernels, paths):
            makers[name] = make
            if not paths.compares:
                break
    if kernels == "required" and KERNELS not in makers:
        raise no_kernels()
    makers[OWN] = own
    steps = {name: _Step(model, make) for name, make in makers.items()}
    ways = [Way(name, step) for name, step in steps.items()]
    way = paths.choose(DECODING, shape_of(model), ways, required=KERNELS if kernels == "required" else None)
    return makers[way]


def no_kernels() -> RolloutError:
    return RolloutError(
        "model.kernels is required, but there are none that decode this model as it decodes itself",
        remedy="set model.kernels: auto",
    )


def _candidates(model: Any, packed: bool, kernels: UseKernels) -> Iterator[tuple[str, MakeDecoder]]:
    """The fastest hoped for first."""
    if kernels != "off" and has_known_layers(model):
        yield KERNELS, partial(KernelDecoder, packed=packed)
    yield FUSED, partial(FusedDecoder, packed=packed)


def _decodes(model: Any, name: str, make: MakeDecoder, kernels: UseKernels, paths: FastPaths) -> bool:
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
def _packs(model: Any, paths: FastPaths) -> bool:
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


def _product_of(model: Any, *, packed: bool) -> Callable[[], None]:
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
    """One decoding step of some rows, with the first layers only and the whole head; made when it first runs."""

    def __init__(self, model: Any, make: MakeDecoder) -> None:
        self._model, self._make = model, make
        self._layers = _num_layers(model)
        self._decoder: Decoder | None = None
        self._positions = torch.empty(0, dtype=torch.int64)

    @torch.no_grad()
    def __call__(self) -> None:
        with few_layers(self._model, self._layers):
            if self._decoder is None:
                self._decoder = self._begun()
            self._decoder.logits(torch.zeros_like(self._positions), self._positions)

    def _begun(self) -> Decoder:
        length = min(_PROMPT_TOKENS, self._model.config.max_position_embeddings // 2)
        vocabulary = self._model.get_input_embeddings().weight.shape[0]
        generator = torch.Generator().manual_seed(0)
        texts = torch.randint(0, vocabulary, (_PROMPTS, max(2, length)), generator=generator).tolist()
        prompts = [tuple(text) for text in texts for _ in range(_SAMPLES)]
        decoder = self._make(self._model, len(prompts))
        for chunk in Prefiller(self._model, pad_token_id=0).prefill(prompts, keep=None):
            decoder.join([len(prompts[row]) for row in chunk.rows], chunk.prompts, chunk.sources)
        self._positions = torch.full((len(prompts),), max(2, length) - 1)
        return decoder


def _num_layers(model: Any) -> int:
    """Two, or as many as have the weights of the head, which would drown their difference."""
    layer, head = (num_weights(part) for part in _parts(model))
    return max(2, min(len(model.base_model.layers), -(-head // layer)))


def _parts(model: Any) -> tuple[nn.Module, nn.Module]:
    return model.base_model.layers[0], model.get_output_embeddings()
