"""Decide whether the kernels decode a model: they must give its own logits, and be faster than its own pass.

Before that, find the layout of weights with which matrix products are fastest.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cached_property, partial

import torch
from torch import nn
from transformers import PreTrainedModel

from burnish.errors import KernelError, RolloutError
from burnish.forward.fast_paths import FastPaths, failure, shape_of
from burnish.forward.few_layers import few_layers, num_weights, telling_layers
from burnish.forward.kernel_layers import has_known_layers
from burnish.forward.quantized_layers import is_quantized
from burnish.forward.race import Contender
from burnish.kernels.decoding import decode_kernels
from burnish.rollouts.local.choice import Trial
from burnish.rollouts.local.decoders import Decoder, MakeDecoder
from burnish.rollouts.local.kernel_decoder import KernelDecoder
from burnish.rollouts.local.packed_weights import Layout, Product, has_blocks, joined_product
from burnish.rollouts.local.prefill import PrefilledRows, Prefiller
from burnish.types import UseKernels

PRODUCTS, PACKED, ORDINARY = "decoding products", "packed weights", "ordinary weights"
KERNELS = "C kernels"
LAYOUTS: dict[str, Layout] = {KERNELS: "panels", PACKED: "blocks", ORDINARY: "ordinary"}
"""Ways to multiply, the one expected to be fastest first."""
DECODING, OWN = "decoding", "the model's own pass"
_ROWS = (8, 64)
"""Rows of the timed products: a step begins with many and ends with few."""
_COLD_WEIGHTS = 16_000_000
"""Weights of the timed products, if the model has so many: more than caches hold, as in a step, which reads all."""
_PROMPTS, _SAMPLES, _PROMPT_TOKENS = 2, 16, 128
"""Sizes of the timed step."""


def choose_decoder(model: PreTrainedModel, own: MakeDecoder, kernels: UseKernels, paths: FastPaths) -> MakeDecoder:
    """The kernels, if they give the model's own logits and are faster than `own`, which runs the model itself. The
    model is in evaluation mode. Raises RolloutError if kernels are required and cannot be used."""
    if not can_decode(model):
        if kernels == "required":
            raise no_kernels()
        return own
    shape, only_own = shape_of(model), [Contender(OWN, lambda: None)]
    if kernels == "off" or not _are_built(model, kernels):
        paths.choose(DECODING, shape, only_own)
        return own
    make: MakeDecoder = partial(KernelDecoder, layout=_layout(model, kernels, paths))
    step = TimedStep(model, model.config.max_position_embeddings)
    ways = [Contender(KERNELS, step.of(make)), Contender(OWN, step.of(own))]
    required = KERNELS if kernels == "required" else None
    if paths.choose(DECODING, shape, ways, required=required) == OWN:
        return own
    if _decodes(model, make, paths):
        return make
    if required is not None:
        raise no_kernels()
    paths.choose(DECODING, shape, only_own)
    return own


def no_kernels() -> RolloutError:
    return RolloutError(
        "model.kernels is `required`, but no C kernels decode this model with the logits of its own forward pass",
        remedy="set model.kernels: auto",
    )


def can_decode(model: PreTrainedModel) -> bool:
    """Return whether the model looks as `KernelDecoder` expects. `decodes_alike` then tests it."""
    return isinstance(model, PreTrainedModel) and has_known_layers(model)


def _are_built(model: PreTrainedModel, kernels: UseKernels) -> bool:
    """Return whether the kernels are built. If not, loading the model has reported why."""
    try:
        decode_kernels(model.get_input_embeddings().weight.dtype)
    except KernelError:
        if kernels == "required":
            raise
        return False
    return True


def _decodes(model: PreTrainedModel, make: MakeDecoder, paths: FastPaths) -> bool:
    """Return whether this decoder gives the model's logits. If the trial itself fails, `paths.notes` says so."""
    try:
        return decodes_alike(model, make)
    except Exception as error:  # noqa: BLE001 boundary: a model built differently may raise anything
        paths.notes.append(f"{DECODING} without {KERNELS}: {failure(error)}")
    return False


def decodes_alike(model: PreTrainedModel, make: MakeDecoder) -> bool:
    """Return whether three rows on two prompts, decoded for a few tokens, have the model's own logits. Uses only as
    many layers as it takes to tell (`telling_layers`).

    False if any of their weights is not finite.
    """
    vocabulary = model.get_input_embeddings().weight.shape[0]
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randint(0, vocabulary, (2, 20), generator=generator).tolist()
    continuations = torch.randint(0, vocabulary, (3, 3), generator=generator).tolist()
    texts = [(*prompt, *more) for prompt, more in zip([first, first, second[:4]], continuations, strict=True)]
    with telling_layers(model):
        return Trial.on(model, texts, 4).agrees(make)


@torch.no_grad()
def _layout(model: PreTrainedModel, kernels: UseKernels, paths: FastPaths) -> Layout:
    """The layout of weights with which products are fastest, tested and timed on some layers."""
    weight = model.get_input_embeddings().weight
    ways = []
    for name in (KERNELS, PACKED) if has_blocks(weight.device, weight.dtype) else (KERNELS,):
        try:
            run = _products_of(model, LAYOUTS[name])
            run()
            ways.append(Contender(name, run))
        except KernelError:  # loading the model has reported why
            continue
        except Exception as error:  # noqa: BLE001 boundary: oneDNN may raise anything on a processor it does not know
            paths.notes.append(f"{PRODUCTS} without {name}: {failure(error)}")
    required = KERNELS if kernels == "required" and any(way.name == KERNELS for way in ways) else None
    ways.append(Contender(ORDINARY, _products_of(model, LAYOUTS[ORDINARY])))
    return LAYOUTS[paths.choose(PRODUCTS, shape_of(model), ways, required=required)]


def _products_of(model: PreTrainedModel, layout: Layout) -> Callable[[], None]:
    """Products to time, for each of the numbers of rows: gate and up projections of the first layers, or the head if
    layers are quantized, which no layout changes."""
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


class TimedStep:
    """A decoding step of some rows, with only the first layers and the full head. reach: most tokens of a text."""

    def __init__(self, model: PreTrainedModel, reach: int) -> None:
        self.model = model
        self._layers = _num_layers(model)
        self.length = max(2, min(_PROMPT_TOKENS, reach // 2))
        weight = model.get_input_embeddings().weight
        generator = torch.Generator().manual_seed(0)
        texts = torch.randint(0, weight.shape[0], (_PROMPTS, self.length), generator=generator).tolist()
        self._prompts = [tuple(text) for text in texts for _ in range(_SAMPLES)]
        self.positions = torch.full((len(self._prompts),), self.length - 1, device=weight.device)

    def of(self, make: MakeDecoder) -> Callable[[], None]:
        """The step with this decoder, which is made on the first run."""

        def step(decoder: Decoder) -> None:
            decoder.logits(torch.zeros_like(self.positions), self.positions)

        return self.run(make, step)

    def run(self, make: MakeDecoder, step: Callable[[Decoder], None]) -> Callable[[], None]:
        """Return a function that runs `step` with this decoder and all rows, on the first layers only."""
        made: list[Decoder] = []

        @torch.no_grad()
        def run() -> None:
            with nullcontext() if self._layers is None else few_layers(self.model, self._layers):
                if not made:
                    made.append(self._begun(make))
                step(made[0])

        return run

    def _begun(self, make: MakeDecoder) -> Decoder:
        decoder = make(self.model, len(self._prompts))
        for chunk in self._prefilled:
            decoder.join([len(self._prompts[row]) for row in chunk.rows], chunk.prompts, chunk.sources)
        return decoder

    @cached_property
    def _prefilled(self) -> list[PrefilledRows]:
        return list(Prefiller(self.model, pad_token_id=0).prefill(self._prompts, keep=None))


def _num_layers(model: PreTrainedModel) -> int | None:
    """Number of layers to time: two, or enough to have as many weights as the head, whose time would otherwise hide
    their differences. None for a model without a list of layers, which computes with all of them."""
    layers, head = getattr(model.base_model, "layers", None), model.get_output_embeddings()
    if not isinstance(layers, nn.ModuleList) or head is None:
        return None
    return max(2, min(len(layers), -(-num_weights(head) // num_weights(layers[0]))))
