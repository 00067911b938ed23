"""Freed memory is kept where glibc can be told so, and the user has not told it something else. Python's search for
garbage rests inside `uncollected`, and is as before afterwards."""

import gc
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from burnish.machine.memory import LARGE_PAGES, LARGE_PAGES_FROM, keep_freed_memory, uncollected, use_large_pages

GLIBC = platform.libc_ver()[0] == "glibc"
FAULTS = """
import resource, sys, torch
size = int(sys.argv[2])
from burnish.machine.memory import keep_freed_memory
assert keep_freed_memory("cpu") or sys.argv[1] != "kept"
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(30):
    torch.empty(size, dtype=torch.uint8).fill_(1)
before = faults()
for _ in range(10):
    torch.empty(size, dtype=torch.uint8).fill_(1)
print(faults() - before)
"""


def page_faults(word: str, size: int, **environment: str) -> int:
    """While so many bytes are taken and freed ten times, in a process of its own."""
    command = [sys.executable, "-c", FAULTS, word, str(size)]
    done = subprocess.run(command, env=environment, capture_output=True, check=True)
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(not GLIBC, reason="another C library")
@pytest.mark.parametrize("size", [20 << 20, 64 << 20], ids=["small", "large"])  # glibc's own largest threshold: 32 MiB
def test_freed_memory_is_not_asked_for_again(size: int) -> None:
    assert page_faults("given back", size, MALLOC_MMAP_THRESHOLD_="1048576") > 5 * page_faults("kept", size) + 50


@pytest.mark.parametrize(
    "name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "GLIBC_TUNABLES"]
)
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
from burnish.machine.memory import keep_freed_memory, return_freed_memory
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


@pytest.mark.slow
@pytest.mark.skipif(not GLIBC, reason="another C library")
def test_freed_memory_can_be_given_back() -> None:
    """Ten times 20 MiB, which the process would have kept."""
    done = subprocess.run([sys.executable, "-c", RETURNED], capture_output=True, check=True)
    assert int(done.stdout) > 150


@pytest.mark.parametrize(
    ("device", "weight_bytes", "wanted"),
    [
        ("cpu", LARGE_PAGES_FROM, True),
        ("cpu", LARGE_PAGES_FROM - 1, False),
        ("cpu", None, True),
        ("cuda", LARGE_PAGES_FROM, False),
    ],
)
def test_large_models_on_a_cpu_get_large_pages(
    device: str, weight_bytes: int | None, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LARGE_PAGES, "")  # so that it is removed afterwards
    monkeypatch.delenv(LARGE_PAGES)
    assert use_large_pages(device, weight_bytes) is wanted
    assert os.environ.get(LARGE_PAGES) == ("1" if wanted else None)


def test_the_users_word_on_large_pages_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LARGE_PAGES, "0")
    assert not use_large_pages("cpu", LARGE_PAGES_FROM)
    assert os.environ[LARGE_PAGES] == "0"


LARGE = """
import burnish.models.loading, torch
from pathlib import Path
from burnish.machine.memory import LARGE_PAGES_FROM, use_large_pages
def megabytes():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith("AnonHugePages"))
assert use_large_pages("cpu", LARGE_PAGES_FROM)
before = megabytes()
tensor = torch.ones(16 << 20)
print(megabytes() - before)
"""
ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.slow
@pytest.mark.skipif(
    not ENABLED.is_file() or "[never]" in ENABLED.read_text(),
    reason="this kernel gives no large pages to those who ask",
)
def test_tensors_get_large_pages_although_models_can_be_loaded_already() -> None:
    """64 MiB: importing what loads models makes no tensor, or the switch would come too late. (Some may be missing,
    because memory is in pieces.)"""
    environment = {name: value for name, value in os.environ.items() if name != LARGE_PAGES}
    done = subprocess.run([sys.executable, "-c", LARGE], env=environment, capture_output=True, check=True)
    assert int(done.stdout) >= 16


@pytest.fixture
def searching() -> Iterator[None]:
    """Garbage is looked for, as in a new process, and afterwards as before."""
    gc.enable()
    yield
    gc.enable()
    gc.unfreeze()


def test_it_rests_inside_and_goes_on_afterwards_whatever_happens(searching: None) -> None:
    with uncollected(), uncollected():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(KeyError), uncollected():
        raise KeyError
    assert gc.isenabled()


def test_who_had_turned_it_off_finds_it_off(searching: None) -> None:
    gc.disable()
    with uncollected():
        pass
    assert not gc.isenabled()


def test_only_what_lasts_is_left_out_of_later_searches(searching: None) -> None:
    before = gc.get_freeze_count()
    with uncollected():
        kept = [[]]
    assert gc.get_freeze_count() == before
    with uncollected(lasting=True):
        kept += [[]]
    assert gc.get_freeze_count() > before
    assert len(kept) == 2
