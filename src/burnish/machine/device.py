"""The device that a setting names, the GPUs that this process sees, and their division between processes that it
starts."""

from __future__ import annotations

import os
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
