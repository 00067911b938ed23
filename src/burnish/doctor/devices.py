"""GPUs that PyTorch sees, and what it is built for."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import torch

from burnish.doctor.facts import Gpu, Gpus
from burnish.doctor.privacy import hidden

DRIVER = Path("/proc/driver/nvidia/version")
"""Where NVIDIA's kernel module says its version."""
_VERSION = re.compile(r"\b(\d+\.\d+(?:\.\d+)*)\b")


def find_gpus(driver: Path = DRIVER, cuda: ModuleType = torch.cuda) -> Gpus:
    """Whatever a driver that does not fit raises is a fact too, `failure`."""
    found: tuple[Gpu, ...] = ()
    failure = None
    try:
        if cuda.is_available():
            found = tuple(_each(cuda))
    except Exception as error:  # noqa: BLE001 boundary: drivers
        failure = hidden(f"{type(error).__name__}: {error}")[:300]
    return Gpus(build(), driver_version(driver), found, failure, "CUDA_VISIBLE_DEVICES" in os.environ)


def build() -> str:
    """What this PyTorch is built for."""
    if torch.version.cuda:
        return f"CUDA {torch.version.cuda}"
    return f"ROCm {torch.version.hip}" if torch.version.hip else "CPU"


def driver_version(file: Path) -> str | None:
    """None without NVIDIA's driver, "unknown" if its file has no version."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    first = _VERSION.search(text.partition("\n")[0])
    return "unknown" if first is None else first[1]


def _each(cuda: ModuleType) -> Iterator[Gpu]:
    for index in range(cuda.device_count()):
        about = cuda.get_device_properties(index)
        free, total = cuda.mem_get_info(index)
        has_bfloat16 = about.major >= 8  # since Ampere; before, PyTorch emulates it
        yield Gpu(about.name, f"{about.major}.{about.minor}", total, free, has_bfloat16)
