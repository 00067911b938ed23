"""The processor's matrix rates, and whether the faster float32 product is as accurate as the usual one here."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

SHAPES = ((2048, 2048, 2048), (4096, 512, 1408), (4096, 512, 4096))  # square; a layer and a vocabulary chunk of `mid`
AS_ACCURATE = 2.0
"""The faster product may have up to this many times the root-mean-square error of the usual one."""


def main() -> None:
    task = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    torch.set_num_threads(task["threads"])
    result = {"macs_per_second": {}, "rms_error": {}}
    for name, precision, dtype in (
        ("float32", "highest", torch.float32),
        ("float32_fast", "medium", torch.float32),
        ("bfloat16", "highest", torch.bfloat16),
    ):
        torch.set_float32_matmul_precision(precision)
        result["macs_per_second"][name] = max(rate(shape, dtype) for shape in SHAPES)
        result["rms_error"][name] = rms_error(dtype)
    errors = result["rms_error"]
    result["fast_is_accurate"] = errors["float32_fast"] <= AS_ACCURATE * errors["float32"]
    Path(sys.argv[2]).write_text(json.dumps(result), encoding="utf-8")


def rate(shape: tuple[int, int, int], dtype: torch.dtype) -> float:
    """Multiply-adds per second of the fastest of seven products."""
    rows, inner, columns = shape
    left, right = torch.randn(rows, inner).to(dtype), torch.randn(columns, inner).to(dtype)
    out = torch.empty(rows, columns, dtype=dtype)
    fastest = min(seconds(lambda: torch.mm(left, right.T, out=out)) for _ in range(7))
    return rows * inner * columns / fastest


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def rms_error(dtype: torch.dtype) -> float:
    """Of a product of normal numbers against float64, over the root mean square of the result."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(512, 512, generator=generator) for _ in range(2))
    exact = left.double() @ right.double()
    error = (left.to(dtype) @ right.to(dtype)).double() - exact
    return float(error.square().mean().sqrt() / exact.square().mean().sqrt())


if __name__ == "__main__":
    main()
