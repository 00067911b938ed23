"""Decide whether a model is decoded in steps of fixed shapes: they must give its own logits, and be faster."""

from __future__ import annotations

from collections.abc import Callable

import torch

from burnish.forward.attention import packs_rows
from burnish.forward.fast_paths import FastPaths, shape_on_device
from burnish.forward.race import Contender
from burnish.machine import processor
from burnish.rollouts.engine import Sampling
from burnish.rollouts.local.choice import Trial
from burnish.rollouts.local.decoders import Decoder, MakeDecoder
from burnish.rollouts.local.kernel_trial import DECODING, OWN, TimedStep
from burnish.rollouts.local.static_decoder import Attention, StaticDecoder, StaticDecoders
from burnish.rollouts.local.static_steps import BLOCK
from burnish.rollouts.noise import uniforms
from burnish.rollouts.sampling import sample
from burnish.types import PreTrainedModel

GRAPHS, STEPS = "CUDA graphs", "fixed shapes"
_DEVICES = ("cuda",)
"""Types of device on which static steps are tried. On a CPU the padding of fixed shapes only costs time
(docs/gpu.md)."""
_CONTINUED = 4
"""Tokens that the trial decodes after each prompt."""


def takes_static(device: torch.device) -> bool:
    """Return whether static decoders are worth a trial on this device."""
    return device.type in _DEVICES and processor.allows("static_decoder")


def choose_static(model: PreTrainedModel, own: MakeDecoder, reach: int, paths: FastPaths) -> MakeDecoder:
    """The fastest of static steps in CUDA graphs, static steps one by one, and `own`, which runs the model itself, for
    texts of up to `reach` tokens. The model is in evaluation mode."""
    attention = choose_attention(model, reach)
    if attention is None:
        paths.choose(DECODING, shape_on_device(model), [Contender(OWN, lambda: None)])
        return own
    captures = {f"{GRAPHS}, {attention}": True, f"{STEPS}, {attention}": False}
    step = TimedStep(model, reach)
    ways = [
        Contender(name, _block(step, StaticDecoders(attention, captures=captured, must_capture=True)))
        for name, captured in captures.items()
    ]
    chosen = paths.choose(DECODING, shape_on_device(model), [*ways, Contender(OWN, _block(step, own))])
    return own if chosen == OWN else StaticDecoders(attention, captures=captures[chosen])


def choose_attention(model: PreTrainedModel, reach: int) -> Attention | None:
    """The first way to attend over a cache of fixed shapes that gives the model's own logits; None if none does."""
    ways: list[Attention] = ["masked"]
    if packs_rows(model):
        ways.insert(0, "fused")
        if model.dtype in (torch.bfloat16, torch.float16) and processor.allows("varlen_attention"):
            ways.insert(0, "flash")
    trial = Trial.of(model, reach, _CONTINUED)
    return next((way for way in ways if trial.passes(StaticDecoders(way, captures=False))), None)


def _block(step: TimedStep, make: MakeDecoder) -> Callable[[], None]:
    """Draw a static decoder's block of tokens for all rows, until they have arrived on the host."""
    sampling = Sampling(BLOCK)
    none = torch.zeros_like(step.positions)
    numbers_5R = torch.stack([none, step.positions, none, none, none + min(BLOCK, step.length)])

    def block(decoder: Decoder) -> None:
        if isinstance(decoder, StaticDecoder):
            decoder.steps.block(numbers_5R, BLOCK, sampling, frozenset(), None)[0].tolist()
            return
        tokens_R, positions_R, keys_R, counts_R, _ = numbers_5R
        for number in range(BLOCK):
            places_R = positions_R + min(number, step.length - 1)
            logits_RV = decoder.logits(tokens_R, places_R)
            tokens_R, _ = sample(logits_RV, uniforms(keys_R, counts_R + number), sampling)
            tokens_R.tolist()

    return step.run(make, block)
