"""Float32 matrix products on a CPU through oneDNN, where they are as accurate as the usual ones.

On some processors the usual library reaches half of what oneDNN does for the same numbers; PyTorch takes oneDNN once
it is allowed a lower precision ("medium"). What that permission means depends on the processor: on most nothing is
lost, on those with bfloat16 matrix units the product really is one of bfloat16. So it is measured, and given only
where nothing is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

AS_ACCURATE = 2.0
"""The other product may have up to this many times the root-mean-square error of the usual one (bfloat16:
thousands)."""
WIDTH = 512
"""Hidden size from which on it pays: oneDNN compiles a kernel for each new shape, which small products do not earn."""


@contextmanager
def fast_float32(model: PreTrainedModel, *, plain: bool = False) -> Iterator[bool]:
    """Inside, float32 products may take oneDNN; yields whether they do. Never with `plain`, for other dtypes and
    small models, or beside a GPU (whose products the same permission would make inexact). Numbers change by rounding
    only, and which product is taken depends on processor and model alone, so that runs can be repeated bit for
    bit."""
    embedding = model.get_input_embeddings().weight
    fits = embedding.dtype == torch.float32 and embedding.shape[1] >= WIDTH and not torch.cuda.is_available()
    if plain or not fits or not medium_is_accurate():
        yield False
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield True
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def usual_float32() -> Iterator[None]:
    """Inside, float32 products are the usual ones again. For attention on a CPU, whose many small products of ever new
    shapes are four times as slow through oneDNN."""
    before = torch.get_float32_matmul_precision()
    if before == "highest":
        yield
        return
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def medium_is_accurate() -> bool:
    """Whether a product of normal numbers at "medium" is as near to the float64 one as at "highest"."""
    return rms_error("medium") <= AS_ACCURATE * rms_error("highest")


@torch.no_grad()
def rms_error(precision: str) -> float:
    """Root-mean-square error of a float32 product at this precision, over the root mean square of the result."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(512, 512, generator=generator) for _ in range(2))
    exact = left.double() @ right.double()
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        error = (left @ right).double() - exact
    finally:
        torch.set_float32_matmul_precision(before)
    return float(error.square().mean().sqrt() / exact.square().mean().sqrt())
