"""Number type, precision and threads of PyTorch's products within a block, and the sizes that suit oneDNN.

oneDNN compiles code for every shape of a product, in about as long as the product of a narrow layer takes, and keeps
the last 1,024 of these, two thirds of a megabyte each. Micro-batches have ever new lengths, so without rounding a run
compiles all the time, and its memory grows with every length (docs/speed.md, "Rounded lengths").
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache

import torch
from torch import Tensor

from burnish.types import PreTrainedModel

_LARGEST_STEP = 64
WITHOUT_FLOAT64 = ("mps",)
"""Devices that do not compute in float64: Apple's GPUs."""


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Set PyTorch's precision of float32 products inside the block."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def num_threads(count: int) -> Iterator[None]:
    """Set the number of threads that PyTorch computes with inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def usual_float32() -> Iterator[None]:
    """Inside, float32 products are the usual ones again. For attention on a CPU: its many small products, each of a new
    shape, take four times as long through oneDNN."""
    if torch.get_float32_matmul_precision() == "highest":
        yield
        return
    with matmul_precision("highest"):
        yield


def countable(tensor: Tensor) -> Tensor:
    """The tensor where float64 is: in host memory, with its gradient, if its device has none."""
    return tensor.cpu() if tensor.device.type in WITHOUT_FLOAT64 else tensor


@contextmanager
def without_autocast() -> Iterator[None]:
    """Switch the caller's `torch.autocast` off inside. Kernels take no other dtype than the model's, and sampling and
    training have to compute in the same one."""
    with ExitStack() as stack:
        gpus = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        for device in ("cpu", *(name for name, is_there in gpus.items() if is_there)):
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


@cache
def gives_float32_sums(device_type: str, dtype: torch.dtype) -> bool:
    """Return whether products of this type can return, and add to, their float32 sums, instead of rounding these to
    the type of the factors (`out_dtype` of `torch.mm` and `torch.addmm`). On a CPU they cannot."""
    if dtype not in (torch.bfloat16, torch.float16):
        return False
    factor = torch.ones(16, 16, device=device_type, dtype=dtype)
    try:
        sums = torch.mm(factor, factor, out_dtype=torch.float32)
        torch.addmm(sums, factor, factor, out_dtype=torch.float32, out=sums)
    except (RuntimeError, TypeError):  # no such kernel; PyTorch 2.11 has one but for `meta`
        return False
    return True


def rounds_up(model: PreTrainedModel) -> bool:
    """Return whether ordinary float32 products of this model go through oneDNN (`burnish.forward.matmul_choice`)."""
    return model.device.type == "cpu" and torch.get_float32_matmul_precision() == "medium"


def rounded_up(size: int) -> int:
    """The next multiple of 64; below 512, of the power of two that is an eighth of the size or less."""
    step = _step(size)
    return -(-size // step) * step


def rounded_down(size: int) -> int:
    """The largest size up to this one that stays as it is when it is rounded up."""
    return size - size % _step(size)


def _step(size: int) -> int:
    return min(_LARGEST_STEP, 1 << max(0, size.bit_length() - 4))
