"""Llama-like layers whose passes over packed rows use kernels in C (`burnish.kernels`), on a CPU.

Between its matrix products a layer has some twenty operations forwards and more backwards, each of which reads and
writes all states. Here there are six calls each way: two norms with the sums around them, two rotations, attention and
one gate. Parameters, hooks of the linear layers, adapters and gradient checkpointing remain the model's own. Outputs of
norms and gate are not kept for the backward pass but computed again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from burnish.forward.merged_attention import MergedAttention
from burnish.kernels.attention import attention_kernels
from burnish.kernels.build import ELEMENTS
from burnish.kernels.training import TrainKernels, train_kernels
from burnish.types import PreTrainedModel

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""`model_type`s whose layers are usually built like this; a trial tells whether a given model's are."""


def has_known_layers(model: PreTrainedModel) -> bool:
    """Return whether the model is one of FAMILIES by name, has the usual gate, and a dtype and device with kernels."""
    weight = model.get_input_embeddings().weight
    known = model.config.model_type in FAMILIES and model.config.hidden_act in ("silu", "swish")
    return bool(known and weight.device.type == "cpu" and weight.dtype in ELEMENTS)


def set_layer_kernels(model: PreTrainedModel) -> None:
    """Let the layers of a `has_known_layers` model, and of its copies, use the kernels for packed rows.

    Raises KernelError if the kernels cannot be built.
    """
    train_kernels(model.dtype)
    attention_kernels(model.dtype)
    for layer in model.base_model.layers:
        if not isinstance(layer, KernelLayer):
            own: type = type(layer)
            layer.__class__ = _with_kernels(own)


def uses_layer_kernels(model: nn.Module) -> bool:
    """Return whether `set_layer_kernels` is in force."""
    return any(isinstance(module, KernelLayer) for module in model.modules())


@cache
def _with_kernels(layer_class: type) -> type:
    """A subclass, so that what `transformers` does around every layer's `forward` (checkpointing) happens here, too. It
    has its parent's name, because layers are recognised by name."""
    return type(layer_class.__name__, (KernelLayer, layer_class), {"own_class": layer_class})


class FasterLayer:
    """Placed before a layer's own class in the order of inheritance."""

    own_class: type


def own_layers(model: nn.Module, *, instead_of: type[FasterLayer] = FasterLayer) -> None:
    """Restore the layers' own forward pass."""
    for layer in model.modules():
        if isinstance(layer, instead_of):
            layer.__class__ = type(layer).own_class


class KernelLayer(FasterLayer):
    """A layer with kernels in C."""

    def forward(self, hidden_states: Tensor, *given: object, **others: Any) -> Tensor:
        """The layer's own pass, except for rows packed for a CPU."""
        packed = others.get("packed")
        if isinstance(packed, MergedAttention):
            return _packed_forward(self, hidden_states[0], packed, others["position_embeddings"])
        own: Tensor = super().forward(hidden_states, *given, **others)  # type: ignore[misc]
        return own


def _packed_forward(layer: Any, states_SX: Tensor, packed: MergedAttention, rotation: tuple[Tensor, Tensor]) -> Tensor:
    attention, mlp = layer.self_attn, layer.mlp
    kernels = train_kernels(states_SX.dtype)
    cosine_SD, sine_SD = (part[0].float().contiguous() for part in rotation)
    # Checkpointed layers keep none of these tensors, and have to see whatever is kept.
    remade = _kept if layer.gradient_checkpointing else remade_in_backward
    norm = layer.input_layernorm
    states_SX, normed_SX = kernels.normalise(states_SX, None, norm.weight, norm.variance_epsilon)
    heads = (len(states_SX), -1, attention.head_dim)
    # Normalised and gated states are large, and cheap to make again: the graph keeps none of them.
    with remade(normed_SX, partial(kernels.normalised, states_SX.detach(), norm.weight, norm.variance_epsilon)):
        query_SHD, key_SKD = attention.q_proj(normed_SX).view(heads), attention.k_proj(normed_SX).view(heads)
        value_SKD = attention.v_proj(normed_SX).view(heads)
    if attention.config.model_type == "qwen3":  # which normalises queries and keys; the other families do not
        query_SHD = _normed(kernels, query_SHD, attention.q_norm)
        key_SKD = _normed(kernels, key_SKD, attention.k_norm)
    query_SHD, key_SKD = (kernels.rotate(each, cosine_SD, sine_SD) for each in (query_SHD, key_SKD))
    attend = attention_kernels(states_SX.dtype).attend
    seen_SHD = attend(query_SHD, key_SKD, value_SKD, packed.kernel_groups, attention.scaling)
    norm = layer.post_attention_layernorm
    states_SX, normed_SX = kernels.normalise(
        states_SX, attention.o_proj(seen_SHD.flatten(1)), norm.weight, norm.variance_epsilon
    )
    with remade(normed_SX, partial(kernels.normalised, states_SX.detach(), norm.weight, norm.variance_epsilon)):
        gate_SI, up_SI = mlp.gate_proj(normed_SX), mlp.up_proj(normed_SX)
    gated_SI = kernels.gate(gate_SI, up_SI)
    with remade(gated_SI, partial(kernels.gated, gate_SI.detach(), up_SI.detach())):
        down_SX: Tensor = mlp.down_proj(gated_SI)
    return states_SX[None] + down_SX[None]  # not a view of the sum: hooks on a layer's output would be lost with one


def _kept(*_: object) -> AbstractContextManager[object]:
    """Do nothing, in place of `remade_in_backward`."""
    return nullcontext()


def _normed(kernels: TrainKernels, states_SHD: Tensor, norm: Any) -> Tensor:
    return kernels.normalise(states_SHD, None, norm.weight, norm.variance_epsilon)[1]


def remade_in_backward(tensor: Tensor, make: Callable[[], Tensor]) -> AbstractContextManager[object]:
    """Keep `tensor` out of what operations inside save for backward: the first to need it calls `make`, whose result
    the others share. It must have the same bits. For passes without gradient nothing changes.

    Not inside checkpointed layers, which must see all that is kept.
    """
    return torch.autograd.graph.saved_tensors_hooks(_Remade(_identity(tensor), make).keep, _given)


def _given(kept: Tensor | _Remade) -> Tensor:
    return kept.given() if isinstance(kept, _Remade) else kept


def _identity(tensor: Tensor) -> tuple[object, ...]:
    """Identify the numbers: equal for all tensor objects that share them, while one of them exists."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


class _Remade:
    """A tensor made when first asked for, and freed when all operations that would have kept it have had it. The graph
    keeps this object, which must not keep the tensor: it knows it by its `_identity`."""

    def __init__(self, which: tuple[object, ...], make: Callable[[], Tensor]) -> None:
        self._which = which
        self._make = make
        self._made: Tensor | None = None
        self._keepers = self._waiting = 0

    def keep(self, saved: Tensor) -> Tensor | _Remade:
        if _identity(saved) != self._which:
            return saved
        self._keepers += 1
        return self

    def given(self) -> Tensor:
        made = self._made
        if made is None:
            made, self._waiting = self._make(), self._keepers
        self._waiting -= 1
        self._made = made if self._waiting else None
        return made
