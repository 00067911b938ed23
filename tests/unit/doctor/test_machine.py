"""Other machines, by what Linux says about them in its files."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from burnish import processor
from burnish.container import Limits
from burnish.doctor import machine
from burnish.doctor.machine import SETTINGS, find_processor, find_storage, find_system, threads_because

X86 = "processor\t: 0\nmodel name\t: Old Xeon\nflags\t\t: fpu avx avx2 fma {more}\n\nprocessor\t: 1\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd sve bf16 svebf16\nCPU implementer\t: 0x41\nCPU part\t: {part}\n"


@pytest.fixture
def describe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str | None, str], None]]:
    """Another processor: what /proc/cpuinfo says (None for no such file), and the machine's kind."""

    def described(text: str | None, kind: str) -> None:
        processor.description.cache_clear()
        file = tmp_path / "cpuinfo"
        if text is not None:
            file.write_text(text)
        monkeypatch.setattr(processor, "_CPU_INFO", file)
        monkeypatch.setattr(platform, "machine", lambda: kind)
        monkeypatch.setattr(platform, "processor", lambda: "")

    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    yield described
    monkeypatch.undo()
    processor.description.cache_clear()


def test_a_processor_without_avx512(describe: Callable[[str | None, str], None]) -> None:
    describe(X86.format(more=""), "x86_64")
    found = find_processor(Limits())
    assert (found.name, found.machine) == ("Old Xeon", "x86_64")
    assert [name for name, has in found.capabilities.items() if has] == ["avx2", "fma"]
    assert not found.capabilities["avx512f"]
    describe(X86.format(more="avx512f avx512_bf16 amx_bf16"), "x86_64")
    capabilities = find_processor(Limits()).capabilities
    assert capabilities["avx512_bf16"]
    assert capabilities["amx_bf16"]


@pytest.mark.parametrize(("part", "name"), [("0xd40", "Arm Neoverse V1"), ("0xfff", "implementer 0x41, part 0xfff")])
def test_an_arm_processor(describe: Callable[[str | None, str], None], part: str, name: str) -> None:
    describe(ARM.format(part=part), "aarch64")
    found = find_processor(Limits())
    assert found.name == name
    assert found.capabilities == {
        "asimd": True,
        "sve": True,
        "sve2": False,
        "i8mm": False,
        "bf16": True,
        "svebf16": True,
    }


def test_a_system_that_does_not_describe_its_processor(describe: Callable[[str | None, str], None]) -> None:
    describe(None, "arm64")
    found = find_processor(Limits())
    assert (found.name, dict(found.capabilities)) == ("unknown", {})


def test_only_some_variables_are_shown(describe: Callable[[str | None, str], None]) -> None:
    describe(None, "x86_64")
    environment = {
        "BURNISH_WITHOUT": "onednn",
        "OMP_NUM_THREADS": "4",
        "ATEN_CPU_CAPABILITY": "x" * 500,
        "CC": "/opt/secret/gcc",
        "HF_TOKEN": "hf_secret",
        "MKL_NUM_THREADS": "",
    }
    settings = find_processor(Limits(), environment).settings
    assert set(settings) == {"BURNISH_WITHOUT", "OMP_NUM_THREADS", "ATEN_CPU_CAPABILITY"}
    assert len(settings["ATEN_CPU_CAPABILITY"]) == 80


def test_a_variable_that_a_run_would_refuse_is_a_fault(
    describe: Callable[[str | None, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    describe(None, "x86_64")
    assert find_processor(Limits()).fault is None
    monkeypatch.setenv("BURNISH_WITHOUT", "avx3")
    fault = find_processor(Limits()).fault
    assert fault is not None
    assert "BURNISH_WITHOUT names 'avx3'" in fault


def test_cores_are_those_that_the_limits_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    found = find_processor(Limits(processors=2.5))
    assert (found.cores, found.allowed_cores) == (64, 3)


def test_why_there_are_this_many_threads() -> None:
    assert threads_because(4, {"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "2"}) == "OMP_NUM_THREADS is 4"
    assert threads_because(2, {"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "2"}) == "MKL_NUM_THREADS is 2"
    assert threads_because(8, {"OMP_NUM_THREADS": "4"}) == threads_because(8, {}) == "PyTorch's own choice"


def test_memory_of_the_machine_and_of_its_container(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal:       65536000 kB\nMemAvailable:    1024000 kB\nHugePages: 0\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("1048576\n")
    found = find_system(tmp_path)
    assert (found.memory_bytes, found.available_bytes) == (65_536_000 * 1024, 1_024_000 * 1024)
    assert found.limits == Limits(None, 1_048_576)
    assert platform.node() not in found.name.split()


def test_a_system_without_these_files_still_has_a_name(tmp_path: Path) -> None:
    found = find_system(tmp_path)
    assert found.name
    assert found.available_bytes is None
    assert found.limits == Limits()


MOUNTS = """22 1 0:21 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:22 / {runs} rw - nfs4 server:/export rw
24 22 0:23 / {runs}/my\\040fast\\040disk rw shared:2 master:1 - xfs /dev/vdb rw
broken line
"""


def test_the_file_system_of_a_folder_is_that_of_the_nearest_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, fast = tmp_path / "runs", tmp_path / "runs" / "my fast disk"
    fast.mkdir(parents=True)
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS.format(runs=runs))
    monkeypatch.setattr(machine, "SHARED_MEMORY", tmp_path / "none")
    kinds = {path: find_storage(path, mounts)[0] for path in (runs, fast, tmp_path)}
    assert [kinds[path].kind for path in (runs, fast, tmp_path)] == ["nfs4", "xfs", "ext4"]
    assert kinds[runs].place == "folder of runs"
    assert kinds[runs].total_bytes >= kinds[runs].free_bytes > 0
    assert find_storage(runs, tmp_path / "no such file")[0].kind is None
