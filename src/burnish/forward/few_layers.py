"""A model temporarily cut to its first layers, for timings and trials."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from burnish.forward.kernel_layers import FAMILIES, FasterLayer
from burnish.types import PreTrainedModel

_KNOWN_CODE = ("torch", "transformers", "peft", "burnish")
"""Packages whose layers do the same wherever they are, if nothing in them differs but their number and weights."""
_FEWEST = 2
"""Layers of a trial, so that one reads what another has written."""
_PLACES = ("layer_idx", "target_name", "_gradient_checkpointing_func")
"""Attributes that tell a layer, or an adapter in it, its position; the last one is bound to its layer
(`burnish.forward.recomputing`)."""


@contextmanager
def few_layers(model: Any, count: int) -> Iterator[None]:
    """Inside, `model` computes with its first `count` layers only, the same modules; afterwards with all of them."""
    trunk = model.base_model
    layers = trunk.layers
    trunk.layers = layers[:count]
    try:
        yield
    finally:
        trunk.layers = layers


def num_weights(module: nn.Module) -> int:
    """Numbers in all weights of a module."""
    return sum(weight.numel() for weight in module.parameters())


def telling_layers(model: PreTrainedModel) -> AbstractContextManager[None]:
    """Inside, `model` computes with only as many of its first layers as a trial of its code needs; afterwards with all.

    For models of FAMILIES these are the first two, and as many more as it takes to have a layer of each kind. Layers
    are of one kind if they differ in nothing but their number and their weights' values. Other models, and models with
    code from elsewhere, keep all layers, because their computation may depend on their position.
    """
    return few_layers(model, _num_telling(model)) if _has_known_code(model) else nullcontext()


def _num_telling(model: PreTrainedModel) -> int:
    layers = model.base_model.layers
    found: set[Hashable] = set()
    last_new = 0
    for number, layer in enumerate(layers, start=1):
        kind = _kind(layer)
        if kind not in found:
            found.add(kind)
            last_new = number
    return min(max(_FEWEST, last_new), len(layers))


def _has_known_code(model: PreTrainedModel) -> bool:
    """Return whether the model is one of FAMILIES and its trunk and layers are classes of known packages."""
    trunk = model.base_model
    layers = getattr(trunk, "layers", None)  # a foreign trunk may call them anything
    if model.config.model_type not in FAMILIES or not isinstance(layers, nn.ModuleList) or not len(layers):
        return False
    own = {part.own_class if isinstance(part, FasterLayer) else type(part) for part in layers.modules()}
    classes = {type(trunk)} | own
    return all(known.__module__.partition(".")[0] in _KNOWN_CODE for known in classes)


def _kind(layer: nn.Module) -> Hashable:
    """Equal for two layers only if they are built alike: modules, shapes, settings; no hooks."""
    return tuple((name, type(module), _settings(module)) for name, module in layer.named_modules())


def _settings(module: nn.Module) -> Hashable:
    tensors = {**module._parameters, **module._buffers}
    shapes = tuple(
        (name, None if tensor is None else (tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad))
        for name, tensor in tensors.items()
    )
    seen = ("_parameters", "_buffers", "_modules")
    return shapes, _compared({name: value for name, value in vars(module).items() if name not in seen})


def _compared(value: Any) -> Hashable:
    """Plain values and containers by content, everything else by identity."""
    if value is None or isinstance(value, (bool, int, float, str, torch.dtype, torch.device)):
        return value
    if isinstance(value, dict):
        items = ((key, inner) for key, inner in value.items() if key not in _PLACES)
        return "dict", tuple((_compared(key), _compared(inner)) for key, inner in items)
    if isinstance(value, (list, tuple)):
        return "list", tuple(_compared(inner) for inner in value)
    return id(value) if not isinstance(value, set) or value else "empty set"
