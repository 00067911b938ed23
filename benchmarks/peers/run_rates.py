"""The processor's matrix rates, and whether the faster float32 product is as accurate as the usual one here."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from burnish.forward.matmul_choice import AS_ACCURATE, rms_error
from burnish.machine.matmul_precision import matmul_precision

KINDS: dict[str, tuple[str, torch.dtype]] = {
    "float32": ("highest", torch.float32),
    "float32_fast": ("medium", torch.float32),
    "bfloat16": ("highest", torch.bfloat16),
}
"""Kind of product -> PyTorch's precision of float32 products, and the type of the factors."""
SHAPES = ((2048, 2048, 2048), (4096, 512, 1408), (4096, 512, 4096))  # square; a layer and a vocabulary chunk of `mid`
QUICK_SHAPES = ((128, 128, 128),)
"""Of a quick run, which measures nothing: a processor that emulates bfloat16 would take a minute for the others."""


def main() -> None:
    task = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    torch.set_num_threads(task["threads"])
    result = {"macs_per_second": {}, "rms_error": {}}
    for name, (precision, dtype) in KINDS.items():
        result["macs_per_second"][name] = best_rate(name, quick=task["quick"])
        result["rms_error"][name] = rms_error(precision, dtype)
    errors = result["rms_error"]
    result["fast_is_accurate"] = errors["float32_fast"] <= AS_ACCURATE * errors["float32"]
    Path(sys.argv[2]).write_text(json.dumps(result), encoding="utf-8")


def best_rate(kind: str, *, quick: bool) -> float:
    """Multiply-adds per second of this kind of product, at the shape that suits it best."""
    precision, dtype = KINDS[kind]
    with matmul_precision(precision):
        return max(rate(shape, dtype) for shape in (QUICK_SHAPES if quick else SHAPES))


def sustained_rate(kind: str, seconds: float) -> float:
    """Multiply-adds per second of products of a layer of `mid`, sustained over so many seconds: on a machine with
    changing clocks, or neighbours, less than its best."""
    precision, dtype = KINDS[kind]
    rows, inner, columns = SHAPES[1]
    with matmul_precision(precision):
        each = product_seconds((rows, inner, columns), dtype, repeats=1_000_000, budget=seconds)
    return len(each) * rows * inner * columns / sum(each)


def rate(shape: tuple[int, int, int], dtype: torch.dtype) -> float:
    """Multiply-adds per second of the fastest of seven products."""
    rows, inner, columns = shape
    return rows * inner * columns / min(product_seconds(shape, dtype, repeats=7))


@torch.no_grad()
def product_seconds(
    shape: tuple[int, int, int], dtype: torch.dtype, *, repeats: int, budget: float = float("inf")
) -> list[float]:
    """Seconds of each product of (rows, inner) and (columns, inner) transposed, at least one. The first, which compiles
    and allocates, is left out. No more begin after `budget` seconds."""
    rows, inner, columns = shape
    left, right = torch.randn(rows, inner).to(dtype), torch.randn(columns, inner).to(dtype)
    out = torch.empty(rows, columns, dtype=dtype)
    return timed(lambda: torch.mm(left, right.T, out=out), repeats, budget)


def timed(work: Callable[[], object], repeats: int, budget: float = float("inf")) -> list[float]:
    """Seconds of each run after the first."""
    began = time.perf_counter()
    work()
    found: list[float] = []
    while not found or (len(found) < repeats and time.perf_counter() - began < budget):
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return found


if __name__ == "__main__":
    main()
