"""GPUs by a PyTorch that says it sees some: there is none where these tests run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from burnish.doctor import devices
from burnish.doctor.devices import driver_version, find_gpus
from burnish.doctor.facts import Gpu

GIB = 1 << 30
SAID = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version:  12.3.0\n"
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder@X)  Sun Jul 27\n"
)


def cuda(*gpus: tuple[str, int, int]) -> Any:
    """What stands for `torch.cuda`, with these GPUs: name, major and minor of the capability."""
    about = [SimpleNamespace(name=name, major=major, minor=minor) for name, major, minor in gpus]
    return SimpleNamespace(
        is_available=lambda: bool(gpus),
        device_count=lambda: len(gpus),
        get_device_properties=about.__getitem__,
        mem_get_info=lambda index: (10 * GIB, 80 * GIB),
    )


def test_gpus_are_named_with_what_matters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "version").write_text(SAID)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    found = find_gpus(tmp_path / "version", cuda(("NVIDIA H100", 9, 0), ("Tesla V100", 7, 0)))
    assert (found.build, found.driver, found.failure, found.hidden) == ("CUDA 12.8", "550.54.15", None, True)
    assert found.found == (
        Gpu("NVIDIA H100", "9.0", 80 * GIB, 10 * GIB, True),
        Gpu("Tesla V100", "7.0", 80 * GIB, 10 * GIB, False),
    )


def test_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.version, "cuda", None)
    found = find_gpus(tmp_path / "none", cuda())
    assert (found.build, found.driver, found.found, found.hidden) == ("CPU", None, (), False)


def test_a_driver_that_fails_is_told(tmp_path: Path) -> None:
    def fail() -> bool:
        raise RuntimeError("The NVIDIA driver on your system\nis too old")

    found = find_gpus(tmp_path / "none", SimpleNamespace(is_available=fail))  # type: ignore[arg-type]
    assert found.failure == "RuntimeError: The NVIDIA driver on your system is too old"


@pytest.mark.parametrize(("text", "version"), [(SAID, "550.54.15"), (OPEN, "580.65.06"), ("", "unknown")])
def test_the_version_of_the_driver(tmp_path: Path, text: str, version: str) -> None:
    (tmp_path / "version").write_text(text)
    assert driver_version(tmp_path / "version") == version


def test_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert devices.build() == "ROCm 6.4"
    monkeypatch.setattr(torch.version, "hip", None)
    assert devices.build() == "CPU"
