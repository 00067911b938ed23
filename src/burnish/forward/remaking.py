"""Tensors that the backward pass makes again, because that takes less than keeping them would.

Between its matrix products a layer only norms and gates. Their results are as large as what they are made from, which
is kept as well, and take a hundredth of the time of the products that read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def remade_in_backward(tensor: Tensor, make: Callable[[], Tensor]) -> Iterator[None]:
    """Operations inside do not keep `tensor` for their backward passes: the first of them calls `make`, whose result
    the others share. It must have the same bits. For passes without gradient nothing changes.

    Not inside checkpointed layers, which must see all that is kept.
    """
    remade, which = _Remade(make), _identity(tensor)
    del tensor  # the graph keeps the function below, which must not keep the tensor

    def keep(saved: Tensor) -> Tensor | _Remade:
        return remade.kept_once_more() if _identity(saved) == which else saved

    def give(kept: Tensor | _Remade) -> Tensor:
        return kept.given() if isinstance(kept, _Remade) else kept

    with torch.autograd.graph.saved_tensors_hooks(keep, give):
        yield


def _identity(tensor: Tensor) -> tuple[object, ...]:
    """The same for all tensor objects that are these numbers, while one of them exists."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


class _Remade:
    """Made when it is first asked for, and let go when all who would have kept it have had it."""

    def __init__(self, make: Callable[[], Tensor]) -> None:
        self._make = make
        self._made: Tensor | None = None
        self._keepers = self._waiting = 0

    def kept_once_more(self) -> _Remade:
        self._keepers += 1
        return self

    def given(self) -> Tensor:
        made = self._made
        if made is None:
            made, self._waiting = self._make(), self._keepers
        self._waiting -= 1
        self._made = made if self._waiting else None
        return made
