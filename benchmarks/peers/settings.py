"""How a peer is run: what a user of it could choose without changing the work. Plain data; standard library only."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

AS_IT_COMES, BOUNDED, KEPT = "as it comes", "bounded", "kept"
ALLOCATORS: dict[str, dict[str, str]] = {
    AS_IT_COMES: {},
    BOUNDED: {"MALLOC_TRIM_THRESHOLD_": str(512 << 20), "MALLOC_MMAP_MAX_": "0"},
    KEPT: {"MALLOC_TRIM_THRESHOLD_": str(1 << 36), "MALLOC_MMAP_THRESHOLD_": str(1 << 36), "MALLOC_MMAP_MAX_": "0"},
}
"""Environments of glibc's allocator. `bounded` are the thresholds that Burnish sets for itself on a CPU when the
environment has none (`burnish.machine.memory`); with `kept` a process gives no freed memory back."""

COMPILER = "${CC:-gcc}"
"""Of kernels, as a shell would write it: pages say this wherever they are made."""
SWITCHED_OFF: dict[str, dict[str, str]] = {
    "avx512": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "CC": f"{COMPILER} -march=x86-64-v3",
    },
}
"""Capabilities of the processor that can be switched off, each with the environment that does: PyTorch, oneDNN, MKL
and the compiler of Burnish's kernels. The same for every peer."""


@dataclass(frozen=True)
class TrlSettings:
    """What `run_trl.py` sets beyond the work itself.

    rows: of a micro-batch. matmul: PyTorch's precision of float32 products. vllm: colocated vLLM samples.
    response_head: TRL's head scores the responses only, as it does where there is Triton (a patch, for an estimate).
    plain: everything that does not belong to the work is left at TRL's defaults.
    """

    rows: int
    matmul: str = "highest"
    allocator: str = AS_IT_COMES
    checkpointing: bool = False
    vllm: bool = False
    response_head: bool = False
    plain: bool = False

    def words(self) -> str:
        parts = [f"{self.rows} rows", self.matmul, f"allocator {self.allocator}"]
        parts += ["checkpointing"] if self.checkpointing else []
        parts += ["vLLM"] if self.vllm else []
        return ", ".join(parts)


Space = Mapping[str, tuple[Any, ...]]
"""Names of fields of TrlSettings, and the values that are tried, numbers in their order."""


def search_space(step_rows: int, *, precision: str, fast_is_accurate: bool, rows: tuple[int, ...]) -> Space:
    """Micro-batches of which a whole number makes a step; the faster float32 only where it is as accurate."""
    fast = precision == "float32" and fast_is_accurate
    return {
        "rows": tuple(n for n in rows if step_rows % n == 0),
        "matmul": ("highest", "medium") if fast else ("highest",),
        "allocator": tuple(ALLOCATORS),
        "checkpointing": (False, True),
    }


def low_memory(space: Space) -> TrlSettings:
    """The fewest rows, with gradient checkpointing, which is TRL's default, and the allocator that Burnish chooses."""
    return TrlSettings(rows=space["rows"][0], allocator=BOUNDED, checkpointing=True)


def as_written(step_rows: int) -> TrlSettings:
    """TRL with the arguments that the work needs and nothing else: 8 rows and gradient checkpointing."""
    return TrlSettings(rows=min(8, step_rows), checkpointing=True, plain=True)


def environment(allocator: str, switched_off: tuple[str, ...]) -> dict[str, str]:
    """Variables of a peer's process."""
    found = dict(ALLOCATORS[allocator])
    for name in switched_off:
        found |= SWITCHED_OFF[name]
    if "CC" in found:
        found["CC"] = found["CC"].replace(COMPILER, os.environ.get("CC") or "gcc")
    return found


def replaced(settings: TrlSettings, **fields: Any) -> TrlSettings:
    return dataclasses.replace(settings, **fields)
