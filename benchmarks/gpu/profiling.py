"""Where the time of a piece of work goes: by kernel, and by what the host waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from device import Device
from torch.profiler import profile

WAITS = ("Synchronize", "cudaMemcpy", "cudaMalloc", "cudaFree", "cudaHostAlloc", "aten::item", "_local_scalar_dense")
"""In names of calls in which the host waits, for the device or for memory."""
KEPT = 20


def profiled(device: Device, work: Callable[[], object]) -> dict[str, Any]:
    """seconds: of the work under the profiler. busy_share: of it in which kernels ran (above 1 where they overlap).
    kernels, waits: [name, seconds, calls], the dearest first."""
    device.synchronize()
    with profile(activities=device.activities()) as recorded:
        seconds = device.seconds(work)
    table = recorded.key_averages()
    kernels = [[event.key, device.own_microseconds(event) / 1e6, event.count] for event in table]
    waits = [[e.key, e.self_cpu_time_total / 1e6, e.count] for e in table if any(word in e.key for word in WAITS)]
    return {
        "seconds": seconds,
        "busy_share": sum(took for _, took, _ in kernels) / seconds,
        "kernels": dearest(kernels),
        "waits": dearest(waits),
    }


def dearest(entries: list[list[Any]]) -> list[list[Any]]:
    ordered = sorted(entries, key=lambda entry: -entry[1])
    return [[name[:120], round(took, 6), count] for name, took, count in ordered[:KEPT] if took > 0]


def three_largest(found: dict[str, Any]) -> str:
    """The largest costs in words: kernels, and the time in which none ran."""
    costs = [(name, took) for name, took, _ in found["kernels"]]
    costs.append(("no kernel (the host is behind)", max(0.0, 1 - found["busy_share"]) * found["seconds"]))
    largest = sorted(costs, key=lambda cost: -cost[1])[:3]
    return "; ".join(f"{100 * took / found['seconds']:.0f} % {name[:60]}" for name, took in largest)
