"""Resources of this process: the device that a setting names, GPUs and their division between processes that it starts,
processors, and memory.

Containers (Docker, Kubernetes, Slurm) limit processors and memory by control groups. PyTorch does not look at them: it
starts as many threads as the machine has cores, and memory past the limit ends the process without a message.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from burnish.errors import ModelError

if TYPE_CHECKING:
    import torch


def resolve_device(name: str, field: str = "model.device") -> torch.device:
    """`auto` is the first CUDA GPU if there is one, else the CPU. ModelError, which names the setting (`field`), for a
    device that does not exist."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    remedy = "use auto, cpu, cuda, cuda:N or mps"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ModelError(f"{field} {name!r} is not a device", remedy=remedy) from error
    if device.type not in ("cpu", "cuda", "mps") or (device.type != "cuda" and device.index is not None):
        raise ModelError(f"{field} is {name!r}, which Burnish does not support", remedy=remedy)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ModelError(f"{field} is 'mps', but torch sees no GPU of Apple's", remedy=f"set {field} to auto or cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ModelError(
            f"{field} is {name!r}, but torch sees {torch.cuda.device_count()} CUDA devices",
            remedy=f"set {field} to auto or cpu, or install a CUDA build of torch",
        )
    return device


def visible_gpus() -> int:
    """Return the number of GPUs that this process may use."""
    import torch

    return torch.cuda.device_count()


def gpu_number(index: int) -> str:
    """Return the name of one of the GPUs that this process sees; an empty text if it sees fewer."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return str(index) if seen is None else "".join(seen.split(",")[index : index + 1])


def gpu_shares(jobs: int, gpus: int) -> list[str | None]:
    """Return CUDA_VISIBLE_DEVICES for each of `jobs` processes: equal shares of the GPUs, or None for all processes if
    there are fewer GPUs."""
    each = gpus // jobs
    if not each:
        return [None] * jobs
    return [",".join(map(gpu_number, range(job * each, (job + 1) * each))) for job in range(jobs)]


_MOUNT = "sys/fs/cgroup"
_UNLIMITED = 1 << 60
"""The first version of control groups says "no limit" with a number near the largest."""


@dataclass(frozen=True, slots=True)
class ContainerLimits:
    """The lowest limits of the groups that this process is in, None for no limit. processors: seconds of processor time
    that it gets per second."""

    processors: float | None = None
    memory_bytes: int | None = None


def container_limits(root: Path = Path("/")) -> ContainerLimits:
    """Read the limits of both versions of control groups. `root`: root of the file system."""
    memory: list[int] = []
    processors: list[float] = []
    for group in _groups(root):
        memory += _memory(group)
        processors += _processors(group)
    return ContainerLimits(min(processors, default=None), min(memory, default=None))


def allowed_cores(limits: ContainerLimits | None = None) -> int:
    """Count the cores that this process may keep busy: at most its affinity mask and its groups' limit."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    limit = (container_limits() if limits is None else limits).processors
    return cores if limit is None else max(1, min(cores, math.ceil(limit)))


def free_memory(root: Path = Path("/")) -> int | None:
    """Bytes of memory still available within the limits of this process; None if the kernel reports none."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", _text(root / "proc/meminfo"), re.MULTILINE)
    free = [int(found[1]) << 10] if found else []
    for group in _groups(root):
        used = re.search(r"^(?:anon|total_rss) (\d+)$", _text(group / "memory.stat"), re.MULTILINE)
        free += [limit - int(used[1] if used else 0) for limit in _memory(group)]
    return min(free, default=None)


def _groups(root: Path) -> Iterator[Path]:
    """Yield the folders of this process's groups and of their parents. In a container the path that the kernel names
    may be a path of the host, of which only the top is visible."""
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines():
            controllers, _, path = line.partition(":")[2].partition(":")
            inner = PurePosixPath(path.lstrip("/") or ".")
            for name in {controllers, *controllers.split(",")}:
                yield from (root / _MOUNT / name / part for part in (inner, *inner.parents))


def _memory(group: Path) -> Iterator[int]:
    for name in ("memory.max", "memory.limit_in_bytes"):
        text = _text(group / name)
        if text.isdigit() and int(text) < _UNLIMITED:  # "max" is no limit
            yield int(text)


def _processors(group: Path) -> Iterator[float]:
    words = _text(group / "cpu.max").split()
    older = [_text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")]
    for quota, period in (pair for pair in (words, older) if len(pair) == 2):
        if quota.isdigit() and period.isdigit() and int(quota) > 0 and int(period) > 0:  # -1 and "max" are no limits
            yield int(quota) / int(period)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
