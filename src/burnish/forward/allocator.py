"""Memory that a process keeps after it has freed it, on a CPU under Linux.

By default glibc returns freed memory to the system according to thresholds that depend on what the process freed
before. Getting it back costs a page fault for every 4 KiB, often more than the arithmetic done in it: the same step
took 6 to 15 % longer in some runs than in others. With fixed thresholds it did not, and the peak of the process
(1.7 GB, 56 million parameters) was the same, because the next operation asks for what was kept.
"""

from __future__ import annotations

import ctypes
import os
import platform

KEPT_BYTES = 256 << 20
"""Freed memory at the end of the heap is returned to the system above this size."""
MAPPED_BYTES = 32 << 20
"""Single allocations above this size are never kept; glibc accepts no larger number."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt(3)
_OWN_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


def keep_freed_memory(device_type: str) -> bool:
    """Fix this process's thresholds for models on a CPU; returns whether it did. Settings that the user made in the
    environment are kept. Other C libraries have no such thresholds."""
    if device_type != "cpu" or platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in _OWN_SETTINGS):
        return False
    library = ctypes.CDLL(None)
    return bool(library.mallopt(_MMAP_THRESHOLD, MAPPED_BYTES)) and bool(library.mallopt(_TRIM_THRESHOLD, KEPT_BYTES))


def return_freed_memory() -> None:
    """Return all memory that this process has freed to the system, so that others can have it. Other C libraries do so
    by themselves, or never."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
