"""The device that is measured. A rehearsal has a CPU in its place, with stand-ins for what only CUDA can tell."""

from __future__ import annotations

import gc
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity

PEAKS = {
    "H200": (989e12, 4.8e12),
    "H100 PCIe": (756e12, 2.0e12),
    "H100 NVL": (835e12, 3.9e12),
    "H100": (989e12, 3.35e12),
    "A100": (312e12, 2.0e12),
    "L40S": (362e12, 0.864e12),
    "A10": (125e12, 0.6e12),
    "RTX 4090": (165e12, 1.008e12),
}
"""Dense bfloat16 FLOP/s and bytes of memory per second by what the device's name contains, as NVIDIA states them."""
REHEARSED = (1e12, 1e11)
"""In place of those of a CPU, which nobody measures here."""


def driver_says(*fields: str) -> str:
    """Of the first GPU; nothing where nvidia-smi is missing."""
    query = ["nvidia-smi", "--id=0", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


class Device:
    """`torch.cuda` as the measurements use it, on the first GPU."""

    name = "cuda"

    def title(self) -> str:
        """Asked of the driver: PyTorch would take memory of the device to say so."""
        return driver_says("name", "memory.total", "compute_cap") or torch.cuda.get_device_name(0)

    def driver(self) -> str:
        return driver_says("driver_version") or "unknown"

    def peaks(self) -> tuple[float, float] | None:
        """FLOP/s and bytes per second; None for a device that the table lacks."""
        return next((peaks for name, peaks in PEAKS.items() if name in torch.cuda.get_device_name(0)), None)

    def count(self) -> int:
        return torch.cuda.device_count()

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def forget_peak(self) -> None:
        """Give back what is free, and count the peak from now on."""
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats()

    def allocated_peak(self) -> int:
        return torch.cuda.max_memory_allocated()

    def reserved_peak(self) -> int:
        return torch.cuda.max_memory_reserved()

    @contextmanager
    def refusing_waits(self) -> Iterator[None]:
        """Inside, whatever makes the host wait for the device raises RuntimeError."""
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")

    def activities(self) -> list[ProfilerActivity]:
        return [ProfilerActivity.CPU, ProfilerActivity.CUDA]

    def own_microseconds(self, event: Any) -> float:
        """Of an entry of the profiler's table: what its kernel took on the device; 0 for what is no kernel."""
        is_kernel = event.device_type == DeviceType.CUDA and not event.is_user_annotation
        return float(event.self_device_time_total) if is_kernel else 0.0

    def seconds(self, work: Callable[[], object]) -> float:
        """By the clock, until the device has done it."""
        self.synchronize()
        started = time.perf_counter()
        work()
        self.synchronize()
        return time.perf_counter() - started


class RehearsalDevice(Device):
    """A CPU that answers as a GPU does."""

    name = "cpu"

    def title(self) -> str:
        return "a CPU (rehearsal)"

    def driver(self) -> str:
        return "none"

    def peaks(self) -> tuple[float, float] | None:
        return REHEARSED

    def count(self) -> int:
        return 1

    def synchronize(self) -> None:
        pass

    def forget_peak(self) -> None:
        gc.collect()

    def reset_peak(self) -> None:
        pass

    def allocated_peak(self) -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def reserved_peak(self) -> int:
        return self.allocated_peak()

    @contextmanager
    def refusing_waits(self) -> Iterator[None]:
        yield

    def activities(self) -> list[ProfilerActivity]:
        return [ProfilerActivity.CPU]

    def own_microseconds(self, event: Any) -> float:
        return float(event.self_cpu_time_total)
