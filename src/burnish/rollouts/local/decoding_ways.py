"""Which decoder a model gets: those that give its own logits are timed against each other, and the fastest is used.

There are two questions, in this order: which layout of weights matrix products are fastest with, and which decoder is
fastest.
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
from burnish.forward.quantized_layers import is_quantized
from burnish.forward.race import Way
from burnish.rollouts.local.decoders import Decoder, MakeDecoder
from burnish.rollouts.local.fused import FusedDecoder, can_decode, decodes_alike
from burnish.rollouts.local.kernel_decoder import KernelDecoder
from burnish.rollouts.local.packed_weights import Layout, Product, has_blocks, joined_product
from burnish.rollouts.local.prefill import PrefilledRows, Prefiller
from burnish.types import UseKernels

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PRODUCTS, PACKED, ORDINARY = "decoding products", "packed weights", "ordinary weights"
KERNELS = "C kernels"
LAYOUTS: dict[str, Layout] = {KERNELS: "panels", PACKED: "blocks", ORDINARY: "ordinary"}
"""Ways to multiply, the one expected to be fastest first."""
DECODING, FUSED, OWN = "decoding", "fused PyTorch", "the model's own pass"
_ROWS = (8, 64)
"""Rows of the timed products: a step begins with many and ends with few."""
_COLD_WEIGHTS = 16_000_000
"""Of the timed products, if the model has them: more than caches hold, as in a step, which reads all of a model."""
_PROMPTS, _SAMPLES, _PROMPT_TOKENS = 2, 16, 128
"""Of the timed step."""


def choose_decoder(model: PreTrainedModel, own: MakeDecoder, kernels: UseKernels, paths: FastPaths) -> MakeDecoder:
    """The fastest decoder that gives the model's own logits. `own` is the one that runs the model itself. The model is
    in evaluation mode. Raises RolloutError if kernels are required and none can be used."""
    if not can_decode(model):
        if kernels == "required":
            raise no_kernels()
        return own
    makers = {**_candidates(model, _layout(model, kernels, paths), kernels), OWN: own}
    required = KERNELS if kernels == "required" else None
    step = _Step(model)
    while True:  # drop decoders whose logits differ until one agrees
        ways = [Way(name, step.of(make)) for name, make in makers.items()]
        name = paths.choose(DECODING, shape_of(model), ways, required=required)
        if name == OWN or _decodes(model, name, makers[name], kernels, paths):
            return makers[name]
        if required is not None:
            raise no_kernels()
        del makers[name]


def no_kernels() -> RolloutError:
    return RolloutError(
        "model.kernels is `required`, but no C kernels decode this model with the logits of its own forward pass",
        remedy="set model.kernels: auto",
    )


def _candidates(model: PreTrainedModel, layout: Layout, kernels: UseKernels) -> dict[str, MakeDecoder]:
    """Decoders by name, with the one expected to be fastest first."""
    fused: dict[str, MakeDecoder] = {FUSED: partial(FusedDecoder, layout=layout)}
    if kernels == "off" or not has_known_layers(model):
        if kernels == "required":
            raise no_kernels()
        return fused
    return {KERNELS: partial(KernelDecoder, layout=layout), **fused}


def _decodes(model: PreTrainedModel, name: str, make: MakeDecoder, kernels: UseKernels, paths: FastPaths) -> bool:
    """Whether this decoder gives the model's logits. If the trial itself fails, `paths.notes` says so."""
    try:
        return decodes_alike(model, make)
    except KernelError:  # loading the model has reported why
        if kernels == "required":
            raise
    except Exception as error:  # noqa: BLE001 boundary: a model built differently may raise anything
        paths.notes.append(f"{DECODING} without {name}: {failure(error)}")
    return False


@torch.no_grad()
def _layout(model: PreTrainedModel, kernels: UseKernels, paths: FastPaths) -> Layout:
    """The layout of weights with which products are fastest, tested and timed on some layers."""
    ways = []
    for name in _made_layouts(model, kernels):
        try:
            run = _products_of(model, LAYOUTS[name])
            run()
            ways.append(Way(name, run))
        except KernelError:  # loading the model has reported why
            continue
        except Exception as error:  # noqa: BLE001 boundary: oneDNN may raise anything on a processor it does not know
            paths.notes.append(f"{PRODUCTS} without {name}: {failure(error)}")
    required = KERNELS if kernels == "required" and any(way.name == KERNELS for way in ways) else None
    ways.append(Way(ORDINARY, _products_of(model, LAYOUTS[ORDINARY])))
    return LAYOUTS[paths.choose(PRODUCTS, shape_of(model), ways, required=required)]


def _made_layouts(model: PreTrainedModel, kernels: UseKernels) -> list[str]:
    """Those for which weights are copied, and which this processor and the run file allow."""
    weight = model.get_input_embeddings().weight
    allowed = {KERNELS: kernels != "off", PACKED: has_blocks(weight.device, weight.dtype)}
    return [name for name, may in allowed.items() if may]


def _products_of(model: PreTrainedModel, layout: Layout) -> Callable[[], None]:
    """Gate and up projections of the first layers, or the head if layers have weights in few bits, which no layout
    changes; for each of the numbers of rows."""
    products: list[Product] = []
    weights = 0
    mlps = [layer.mlp for layer in model.base_model.layers]
    if is_quantized(mlps[0].gate_proj, mlps[0].up_proj):
        products, mlps = [joined_product(model.get_output_embeddings(), layout=layout)], []
    for mlp in mlps:
        if weights < _COLD_WEIGHTS:
            products.append(joined_product(mlp.gate_proj, mlp.up_proj, layout=layout))
            weights += num_weights(mlp.gate_proj) + num_weights(mlp.up_proj)
    width = model.config.hidden_size
    inputs = [torch.ones(rows, width, dtype=model.get_input_embeddings().weight.dtype) for rows in _ROWS]

    def run() -> None:
        for inputs_RX in inputs:
            for product in products:
                product(inputs_RX)

    return run


class _Step:
    """A decoding step of some rows, with only the first layers and the full head."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._layers = _num_layers(model)
        length = max(2, min(_PROMPT_TOKENS, model.config.max_position_embeddings // 2))
        vocabulary = model.get_input_embeddings().weight.shape[0]
        texts = torch.randint(0, vocabulary, (_PROMPTS, length), generator=torch.Generator().manual_seed(0)).tolist()
        self._prompts = [tuple(text) for text in texts for _ in range(_SAMPLES)]
        self._positions = torch.full((len(self._prompts),), length - 1)

    def of(self, make: MakeDecoder) -> Callable[[], None]:
        """The step with this decoder, which is made on the first run."""
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
    """Two, or enough to have as many weights as the head, whose time would otherwise hide their differences."""
    layer, head = (num_weights(part) for part in _parts(model))
    return max(2, min(len(model.base_model.layers), -(-head // layer)))


def _parts(model: PreTrainedModel) -> tuple[nn.Module, nn.Module]:
    return model.base_model.layers[0], model.get_output_embeddings()
