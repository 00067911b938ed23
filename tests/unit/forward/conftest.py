"""A GPU for tests on a machine without one: PyTorch's `meta` device, on which nothing can be waited for.

Tensors there have shapes and no numbers, so whatever needs a number on the host (`.item()`, `bool()`, `.tolist()`,
`nonzero`, boolean masks, copies back) fails by itself. `PretendGpu` refuses what a GPU would do and should not: copies
that wait for it, and sums whose order differs from run to run.
"""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

_ADDS_IN_ANY_ORDER = (
    "aten::index_add",
    "aten::scatter_add",
    "aten::scatter_reduce",
    "aten::index_reduce",
    "aten::embedding_dense_backward",
    "aten::cumsum_backward",
    "torch_attn::_varlen_attn_backward",
    "aten::_flash_attention_backward",
    "aten::_efficient_attention_backward",
)
"""Operations that add with atomics on a GPU unless deterministic algorithms are asked for."""
_WAITS = (
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::masked_select",
    "aten::_unique",
    "aten::unique",
    "aten::equal",
)


class PretendGpu(TorchDispatchMode):
    """Inside, `meta` is the GPU. `seen` has the names of all operations."""

    class Waited(AssertionError):
        """The host waited for the device."""

    class NotDeterministic(AssertionError):
        """A sum whose order is not fixed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        named = named or {}
        name = function._schema.name
        self.seen.add(name)
        if name.removesuffix("_").startswith(_WAITS):
            raise PretendGpu.Waited(name)
        if name in ("aten::_to_copy", "aten::copy_"):
            _check_copy(function, given, named)
        if name in ("aten::index", "aten::index_put", "aten::index_put_"):
            _check_index(name, given, named)
        adds = name.startswith(_ADDS_IN_ANY_ORDER) or (
            name.startswith("aten::index_put") and _accumulates(given, named)
        )
        if adds and any(_is_there(value) for value in given) and not torch.are_deterministic_algorithms_enabled():
            raise PretendGpu.NotDeterministic(name)
        return function(*given, **named)


def _check_copy(function: Any, given: Any, named: Any) -> None:
    if function._schema.name == "aten::copy_":
        target, source = given[:2]
        waits = not (given[2] if len(given) > 2 else named.get("non_blocking", False))
        moves = _is_there(source) != _is_there(target) and source.dim() > 0
    else:
        source, device = given[0], named.get("device")
        waits = not named.get("non_blocking", False)
        moves = device is not None and (torch.device(device).type == "meta") != _is_there(source)
    if moves and (waits or _is_there(source)):
        raise PretendGpu.Waited(f"{function._schema.name}: a copy that waits, of shape {tuple(source.shape)}")


def _check_index(name: str, given: Any, named: Any) -> None:
    if not _is_there(given[0]):
        return
    for index in given[1]:
        if index is None:
            continue
        if index.dtype in (torch.bool, torch.uint8):
            raise PretendGpu.Waited(f"{name} by a mask")
        if not _is_there(index):
            raise PretendGpu.Waited(f"{name} by an index on the host")


def _accumulates(given: Any, named: Any) -> bool:
    return bool(given[3] if len(given) > 3 else named.get("accumulate", False))


def _is_there(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "meta"


@pytest.fixture
def gpu() -> PretendGpu:
    """To be entered."""
    return PretendGpu()
