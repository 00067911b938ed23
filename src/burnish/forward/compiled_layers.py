"""Llama-like layers whose passes over packed rows are fused by PyTorch's compiler, on a GPU.

Between its matrix products a layer has some twenty operations forwards and more backwards, each of which reads and
writes all states. Compiled, they become a few. Each layer is compiled by itself, once for all layers of its class and
for every length ("regional compilation"). Attention is left out, because `burnish.forward.attention` has kernels for
it. Sampling and padded rows use the layers' own passes: they come in too many forms.

A compiled layer is compiled again when its code turns out too specialised. `times_compiled` counts the calls of the
compiler; `burnish.forward.probe` refuses layers that need too many.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from burnish.forward.kernel_layers import FAMILIES, FasterLayer
from burnish.forward.quantized_layers import QuantizedLinear
from burnish.machine import processor
from burnish.types import PreTrainedModel

if TYPE_CHECKING:
    from burnish.forward.attention import PackedAttention

Compiler = Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Any]]
DEVICES = ("cuda",)
"""Where layers are compiled. On a CPU the kernels in C do the same, for any length, without waiting for a compiler."""
LEAST_WEIGHTS = 1 << 20
"""Layers with fewer are not worth the minute that compiling takes at each start."""
_made = 0


def may_compile(model: PreTrainedModel) -> bool:
    """Return whether compiling the layers is worth a trial: the model is one of FAMILIES, on a GPU, large enough, not
    quantized, and BURNISH_WITHOUT does not forbid it."""
    if model.config.model_type not in FAMILIES or model.device.type not in DEVICES:
        return False
    layer = model.base_model.layers[0]
    is_large = sum(weight.numel() for weight in layer.parameters()) >= LEAST_WEIGHTS
    is_plain = not any(isinstance(module, QuantizedLinear) for module in layer.modules())
    return is_large and is_plain and processor.allows("compiled_layers")


def set_compiled_layers(model: PreTrainedModel) -> None:
    """Compile the layers of a `may_compile` model for packed rows, in copies of the model as well."""
    for layer in model.base_model.layers:
        if not isinstance(layer, CompiledLayer):
            own: type = type(layer)
            layer.__class__ = _compiled(own, inductor)


def uses_compiled_layers(model: nn.Module) -> bool:
    """Return whether `set_compiled_layers` is in force."""
    return any(isinstance(module, CompiledLayer) for module in model.modules())


def times_compiled() -> int:
    """Count the calls of the compiler for parts of layers in this process."""
    return _made


def inductor(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """Compile with PyTorch's own compiler, without choosing between kernels by timing: they may differ in the order of
    their sums, and a repeated run must give the same numbers."""
    from torch._inductor.compile_fx import compile_fx

    return cast("Callable[..., Any]", compile_fx(graph, inputs, config_patches={"deterministic": True}))


@cache
def _compiled(layer_class: type, compiler: Compiler) -> type:
    """A subclass with its parent's name, as for kernels (`burnish.forward.kernel_layers`). One compiled function serves
    all of its layers."""
    counted = partial(_counted, compiler)
    own = {"own_class": layer_class, "compiled": torch.compile(layer_class.forward, dynamic=True, backend=counted)}  # type: ignore[attr-defined]
    return type(layer_class.__name__, (CompiledLayer, layer_class), own)


def _counted(compiler: Compiler, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    global _made
    _made += 1
    return compiler(graph, inputs)


class CompiledLayer(FasterLayer):
    """A layer with a compiled forward pass."""

    compiled: Callable[..., Tensor]

    def forward(self, *given: object, packed: PackedAttention | None = None, **others: Any) -> Tensor:
        """The layer's own pass, compiled for packed rows."""
        if packed is None:
            own: Tensor = super().forward(*given, **others)  # type: ignore[misc]
            return own
        return type(self).compiled(self, *given, packed=_NotCompiled(packed), **others)


class _NotCompiled:
    """Attention that the compiler does not look into."""

    def __init__(self, packed: PackedAttention) -> None:
        self._packed = packed
        self._attend = _attend_outside()

    def attend(self, query_SHD: Tensor, key_SKD: Tensor, value_SKD: Tensor, scaling: float | None) -> Tensor:
        """Attend as `PackedAttention` says, outside the compiled code."""
        return self._attend(self._packed, query_SHD, key_SKD, value_SKD, scaling)


@cache
def _attend_outside() -> Callable[..., Tensor]:
    def attend(packed: PackedAttention, *given: Any) -> Tensor:
        return packed.attend(*given)

    return torch.compiler.disable(attend)
