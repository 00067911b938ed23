"""Memory that a process keeps after it has freed it, on a CPU under Linux.

By default glibc hands freed memory back to the system by thresholds that follow what a process happened to free before.
To get it again costs a page fault for every 4 KiB, often more than the arithmetic that is then done in it: the same
step took 6 to 15 % longer in some runs than in others. With thresholds that stand still it did not, and the peak of
the process (1.7 GB, 56 million parameters) was the same, since what is kept is what the next operation asks for.
"""

from __future__ import annotations

import ctypes
import os
import platform

KEPT_BYTES = 256 << 20
"""Freed memory at the end of the heap goes back to the system from here on."""
MAPPED_BYTES = 32 << 20
"""Single allocations from here on are never kept; glibc takes no larger number."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt(3)
_OWN_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


def keep_freed_memory(device_type: str) -> bool:
    """Fix this process's thresholds for models on a CPU; whether it did. Settings that the user has made in the
    environment stand, and other C libraries have no such thresholds."""
    if device_type != "cpu" or platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in _OWN_SETTINGS):
        return False
    library = ctypes.CDLL(None)
    return bool(library.mallopt(_MMAP_THRESHOLD, MAPPED_BYTES)) and bool(library.mallopt(_TRIM_THRESHOLD, KEPT_BYTES))
