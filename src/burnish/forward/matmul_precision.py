"""The precision that PyTorch allows itself in float32 products, within a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """PyTorch's precision of float32 products inside."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def usual_float32() -> Iterator[None]:
    """Inside, float32 products are the usual ones again. For attention on a CPU: its many small products, each of a new
    shape, take four times as long through oneDNN."""
    if torch.get_float32_matmul_precision() == "highest":
        yield
        return
    with matmul_precision("highest"):
        yield
