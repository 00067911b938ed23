"""Freed memory is kept where glibc can be told so, and the user has not told it something else."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from burnish.forward.allocator import keep_freed_memory

GLIBC = platform.libc_ver()[0] == "glibc"
FAULTS = """
import resource, sys, torch
from burnish.forward.allocator import keep_freed_memory
assert keep_freed_memory("cpu") or sys.argv[1] != "kept"
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(30):
    torch.empty(20 << 20, dtype=torch.uint8).fill_(1)
before = faults()
for _ in range(10):
    torch.empty(20 << 20, dtype=torch.uint8).fill_(1)
print(faults() - before)
"""


def page_faults(word: str, **environment: str) -> int:
    """While 20 MiB are taken and freed ten times, in a process of its own."""
    done = subprocess.run([sys.executable, "-c", FAULTS, word], env=environment, capture_output=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not GLIBC, reason="another C library")
def test_freed_memory_is_not_asked_for_again() -> None:
    assert page_faults("given back", MALLOC_MMAP_THRESHOLD_="1048576") > 5 * page_faults("kept") + 50


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"])
def test_settings_of_the_user_stand(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "65536")
    assert not keep_freed_memory("cpu")


def test_other_devices_and_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not keep_freed_memory("cuda")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert not keep_freed_memory("cpu")


RETURNED = """
import torch
from pathlib import Path
from burnish.forward.allocator import keep_freed_memory, return_freed_memory
def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith("RssAnon"))
keep_freed_memory("cpu")
tensors = [torch.ones(5 << 20) for _ in range(10)]
last = torch.ones(100)
del tensors
before = resident()
return_freed_memory()
print(before - resident())
"""


@pytest.mark.skipif(not GLIBC, reason="another C library")
def test_freed_memory_can_be_given_back() -> None:
    """Ten times 20 MiB, which the process would have kept."""
    done = subprocess.run([sys.executable, "-c", RETURNED], capture_output=True, check=True)
    assert int(done.stdout) > 150
