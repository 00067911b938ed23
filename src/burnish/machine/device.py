"""The device that a setting names."""

from __future__ import annotations

import torch

from burnish.errors import ModelError


def resolve_device(name: str, field: str = "model.device") -> torch.device:
    """`auto` is the first CUDA GPU if there is one, else the CPU. ModelError, which names the setting (`field`), for a
    device that does not exist."""
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
