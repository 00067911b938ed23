"""How fast this processor multiplies and reads memory, measured with the operations that training is made of."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch

from burnish.doctor.facts import Rates
from burnish.forward.float32 import medium_is_accurate
from burnish.forward.matmul_precision import matmul_precision

KINDS: dict[str, tuple[str, torch.dtype]] = {
    "float32": ("highest", torch.float32),
    "float32_fast": ("medium", torch.float32),
    "bfloat16": ("highest", torch.bfloat16),
}
"""Kind of product -> PyTorch's precision of float32 products, and the type of the factors."""
_SHAPE = (2048, 2048, 2048)
"""Rows, inner size and columns: large enough for the best rate of most processors."""
_REPEATS, _BUDGET_SECONDS = 5, 1.0
_MEMORY_BYTES = 512 << 20
"""More than caches hold; the tenth part of what is there, if that is less."""
_START = [sys.executable, "-c", "pass"]


def measure_rates(available_bytes: int | None) -> Rates:
    """Takes three to ten seconds, with the threads of this process."""
    rows, inner, columns = _SHAPE
    products = {}
    for kind, (precision, dtype) in KINDS.items():
        try:
            with matmul_precision(precision):
                seconds = product_seconds(_SHAPE, dtype, repeats=_REPEATS, budget=_BUDGET_SECONDS)
        except RuntimeError:  # this build of PyTorch, or this processor, has no such product
            continue
        products[kind] = rows * inner * columns / statistics.median(seconds)
    return Rates(
        threads=torch.get_num_threads(),
        products=products,
        medium_is_accurate="float32_fast" in products and medium_is_accurate(),
        memory_read=_memory_read(available_bytes),
        process_start=statistics.median(_timed(_start_process, 3)),
    )


@torch.no_grad()
def product_seconds(
    shape: tuple[int, int, int], dtype: torch.dtype, *, repeats: int, budget: float = float("inf")
) -> list[float]:
    """Seconds of each product of (rows, inner) and (columns, inner) transposed, at least one. The first, which compiles
    and allocates, is left out. No more begin after `budget` seconds."""
    rows, inner, columns = shape
    left, right = torch.randn(rows, inner).to(dtype), torch.randn(columns, inner).to(dtype)
    out = torch.empty(rows, columns, dtype=dtype)
    return _timed(lambda: torch.mm(left, right.T, out=out), repeats, budget)


def _memory_read(available_bytes: int | None) -> float:
    """Bytes per second of adding up numbers that no cache holds."""
    size = _MEMORY_BYTES if available_bytes is None else min(_MEMORY_BYTES, available_bytes // 10)
    numbers = torch.ones(max(1, size // 4))
    return numbers.numel() * 4 / statistics.median(_timed(numbers.sum, _REPEATS))


def _start_process() -> None:
    subprocess.run(_START, check=True, stdin=subprocess.DEVNULL)


def _timed(work: Callable[[], object], repeats: int, budget: float = float("inf")) -> list[float]:
    """Seconds of each run after the first."""
    began = time.perf_counter()
    work()
    found: list[float] = []
    while not found or (len(found) < repeats and time.perf_counter() - began < budget):
        started = time.perf_counter()
        work()
        found.append(max(1e-9, time.perf_counter() - started))
    return found
