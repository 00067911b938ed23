"""Activations recomputed in the backward pass (gradient checkpointing) while the model stays in evaluation mode.

`transformers` checkpoints the layers whose `training` flag is set. In train mode, models also drop layers, add noise to
the inputs of routers and drop activations wherever a function reads that flag, so that scores in an update would differ
from the scores of the pass before. Here the flag of the checkpointed layers is set only while they decide whether to be
checkpointed. Inside them, as everywhere else, it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from burnish.errors import ModelError
from burnish.forward.versions import enable_checkpointing
from burnish.types import PreTrainedModel


def allow_recomputing(model: PreTrainedModel) -> None:
    """Prepare the model for `recomputing`. ModelError for models that have no layers to checkpoint."""
    remedy = "set model.gradient_checkpointing: false"
    if not model.supports_gradient_checkpointing:
        raise ModelError(f"{type(model).__name__} cannot checkpoint gradients", remedy=remedy)
    enable_checkpointing(model)
    layers = list(_checkpointed(model))
    if not layers:
        raise ModelError(f"{type(model).__name__} has no layers that checkpoint gradients one by one", remedy=remedy)
    for layer in layers:
        layer._gradient_checkpointing_func = partial(_recomputed, layer)


def recomputing(model: nn.Module, *, on: bool) -> AbstractContextManager[None]:
    """Let layers prepared by `allow_recomputing` recompute their activations inside, if `on`."""
    return _recomputing(model) if on else nullcontext()


@contextmanager
def _recomputing(model: nn.Module) -> Iterator[None]:
    layers = list(_checkpointed(model))
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False


def _recomputed(layer: nn.Module, forward: Callable[..., Any], *given: object) -> Any:
    """Called by a layer in place of its own forward pass."""

    def quietly(*given: object) -> Any:
        before, layer.training = layer.training, False
        try:
            return forward(*given)
        finally:
            layer.training = before

    # Nothing in a layer is random, so there is no generator whose state would have to be the same again.
    return checkpoint(quietly, *given, use_reentrant=False, preserve_rng_state=False)


def _checkpointed(model: nn.Module) -> Iterator[Any]:
    from transformers.modeling_layers import GradientCheckpointingLayer

    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer) and module.gradient_checkpointing:
            yield module
