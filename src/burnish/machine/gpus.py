"""GPUs that this process sees, and their division between processes that it starts."""

from __future__ import annotations

import os


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
