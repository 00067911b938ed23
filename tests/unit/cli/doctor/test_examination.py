"""Each problem on a machine that has it and nothing else, and what is never shown."""

import getpass
import importlib
import os
import platform
import shutil
import socket
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from burnish.cli.doctor import examination
from burnish.cli.doctor.examination import NEEDED, OPTIONAL, THREADS, TURN_OFF, Report, examine, hidden, of_sandbox
from burnish.errors import KernelError, SandboxError
from burnish.forward import verdicts
from burnish.forward.race import RaceResult
from burnish.forward.verdicts import own_cache
from burnish.kernels import build
from burnish.machine import processor
from burnish.machine.resources import ContainerLimits
from burnish.sandbox import trial

REPOSITORY = Path(__file__).resolve().parents[4]
GIB = 1 << 30
OTHER_EXTRAS = {"dev", "site", "notebook", "test"}


def see_gpus(patch: pytest.MonkeyPatch, *major: int, cuda: str = "12.8") -> None:
    """A PyTorch for CUDA, which sees a GPU for each of these capabilities."""
    patch.setattr(torch.version, "cuda", cuda)
    patch.setattr(torch.cuda, "is_available", lambda: bool(major))
    patch.setattr(torch.cuda, "device_count", lambda: len(major))
    about = [SimpleNamespace(name=f"GPU of {number}", major=number, minor=0) for number in major]
    patch.setattr(torch.cuda, "get_device_properties", about.__getitem__)
    patch.setattr(torch.cuda, "mem_get_info", lambda index: (79 * GIB, 80 * GIB))


def fail_to_import(patch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        if name == "torch":
            raise OSError("libcudart.so.12: cannot open\nshared object file")

    patch.setattr(importlib, "import_module", fail)


def refuse_to_compile(patch: pytest.MonkeyPatch) -> None:
    error = KernelError("there is no C compiler", remedy="install one")
    patch.setattr(build, "find_compilers", Mock(side_effect=error))


def refuse_gpus(patch: pytest.MonkeyPatch) -> None:
    see_gpus(patch, cuda="13.0")
    patch.setattr(torch.cuda, "is_available", Mock(side_effect=RuntimeError("driver too old")))


def install(patch: pytest.MonkeyPatch, driver: str) -> None:
    said = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}  Tue Mar  5 22:23:56 UTC 2024"
    file = Path(os.environ["HOME"]) / "driver"
    file.write_text(f"{said}\nGCC version: 12.3\n")
    patch.setattr(examination.of_gpus, "__defaults__", (file,))


def spare(patch: pytest.MonkeyPatch, *, disk: int = 50 * GIB, shared: int = 8 * GIB) -> None:
    def usage(path: Path) -> SimpleNamespace:
        return SimpleNamespace(total=shared if path == examination.SHARED_MEMORY else 90 * GIB, free=disk)

    patch.setattr(shutil, "disk_usage", usage)


def open_to_others(patch: pytest.MonkeyPatch) -> None:
    folder = Path(os.environ["XDG_CACHE_HOME"])
    folder.mkdir()
    folder.chmod(0o777)


@pytest.fixture
def healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A machine with eight cores and nothing wrong, whatever it runs on."""
    for name in (*TURN_OFF, *THREADS, "CUDA_VISIBLE_DEVICES", "CC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(examination, "installed_version", lambda name: "1.0" if name in NEEDED else None)
    monkeypatch.setattr(examination, "allowed_cores", lambda: 8)
    monkeypatch.setattr(examination, "container_limits", lambda: ContainerLimits(memory_bytes=64 * GIB))
    monkeypatch.setattr(examination, "free_memory", lambda: 60 * GIB)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(examination.of_gpus, "__defaults__", (tmp_path / "no driver",))
    monkeypatch.setattr(processor, "multiplies_bfloat16", lambda: True)
    monkeypatch.setattr(build, "find_compilers", lambda: [["gcc"]])
    monkeypatch.setattr(build, "compiler_version", lambda command: b"gcc (Debian) 12.2.0\n")
    spare(monkeypatch)
    own_cache.cache_clear()
    yield monkeypatch
    own_cache.cache_clear()


Change = Callable[[pytest.MonkeyPatch], object]


def returns(owner: object, name: str, value: object) -> Change:
    """Has a function return this."""
    return lambda patch: patch.setattr(owner, name, lambda *_: value)


def variables(**environment: str) -> Change:
    return lambda patch: [patch.setenv(name, value) for name, value in environment.items()]


def both(*changes: Change) -> Change:
    return lambda patch: [change(patch) for change in changes]


def lack_torch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(examination, "installed_version", lambda name: None if name in ("torch", *OPTIONAL) else "1")


few_shared_bytes = partial(spare, shared=64 << 20)
CASES: dict[str, tuple[Change, str]] = {
    "torch is missing": (lack_torch, "fatal no-torch: torch is not installed -> pip install torch"),
    "torch does not load": (
        fail_to_import,
        "fatal broken-torch: cannot be imported: OSError: libcudart.so.12: cannot open shared"
        " -> take this machine's build",
    ),
    "an unknown capability": (
        variables(BURNISH_WITHOUT="avx3"),
        "problem setting: names 'avx3' -> every run is refused",
    ),
    "capabilities are turned off": (
        variables(ATEN_CPU_CAPABILITY="default", BURNISH_TIMING="off"),
        "note turned-off: BURNISH_TIMING=off, ATEN_CPU_CAPABILITY=default -> unset BURNISH_TIMING, ATEN_CPU_CAPABILITY",
    ),
    "more threads than the container pays for": (
        both(returns(torch, "get_num_threads", 32), returns(os, "cpu_count", 64)),
        "problem too-many-threads: 32 threads (PyTorch's own choice), but this process may keep 8 of 64 cores busy"
        " -> set OMP_NUM_THREADS=8",
    ),
    "few threads by a variable": (
        both(returns(torch, "get_num_threads", 1), variables(OMP_NUM_THREADS="1")),
        "note few-threads: 1 of 8 cores (OMP_NUM_THREADS is 1) -> unset OMP_NUM_THREADS",
    ),
    "little memory in a large machine": (
        returns(examination, "container_limits", ContainerLimits(memory_bytes=GIB)),
        "problem little-memory: 1.00 GiB of memory -> raise the container's limit",
    ),
    "no compiler": (refuse_to_compile, "problem no-kernels: there is no C compiler -> install one"),
    "a cache that others may write": (
        open_to_others,
        "problem cache: cannot be used (others may change it) -> not writable for others",
    ),
    "no home": (returns(build, "cache_folder", None), "note no-cache: there is no home folder -> XDG_CACHE_HOME"),
    "a build for CUDA without a driver": (
        see_gpus,
        "problem no-gpu: built for CUDA 12.8 and sees no GPU -> docker run --gpus all",
    ),
    "a build for CUDA with GPUs that are hidden": (
        both(see_gpus, variables(CUDA_VISIBLE_DEVICES="")),
        "problem no-gpu: sees no GPU -> look at CUDA_VISIBLE_DEVICES",
    ),
    "a driver that is too old": (
        both(refuse_gpus, partial(install, driver="470.82")),
        "problem gpu: RuntimeError: driver too old -> newer than 470.82",
    ),
    "a GPU and a build for CPUs": (
        partial(install, driver="550.54.15"),
        "problem unused-gpu: driver 550.54.15 is there, but this PyTorch is built for CPUs"
        " -> install the build for CUDA",
    ),
    "an old GPU": (
        lambda patch: see_gpus(patch, 7),
        "note gpu-without-bfloat16: GPU of 7 has no instructions -> model.dtype: float32",
    ),
    "bfloat16 is emulated": (
        returns(processor, "multiplies_bfloat16", False),
        "note slow-bfloat16: bfloat16 is emulated -> model.dtype: float32",
    ),
    "a full disk": (partial(spare, disk=2 * GIB), "problem full-disk: folder of runs: 2.00 GiB are free -> make room"),
    "tiny shared memory with Ray": (
        both(few_shared_bytes, returns(examination, "installed_version", "1.0")),
        "problem shared-memory: /dev/shm has 64.0 MiB, which is too little for ray, vllm; -> --shm-size",
    ),
    "tiny shared memory with several GPUs": (
        both(few_shared_bytes, lambda patch: see_gpus(patch, 9, 9)),
        "problem shared-memory: several GPUs (NCCL) -> --shm-size",
    ),
}
"""What is changed, and the weight and name of the problem, words about it, and words of its remedy."""


@pytest.mark.parametrize("case", CASES)
def test_a_problem_is_found_alone_and_has_a_remedy(case: str, healthy: pytest.MonkeyPatch) -> None:
    change, expected = CASES[case]
    change(healthy)
    (problem,) = examine(Path.cwd(), quick=True).problems
    name, words = expected.split(": ", 1)
    what, remedy = words.split(" -> ")
    assert f"{problem.weight} {problem.name}" == name
    assert what in problem.what
    assert remedy in problem.remedy


@pytest.mark.parametrize(
    "change",
    [
        both(),
        few_shared_bytes,  # which nothing uses
        both(lambda patch: see_gpus(patch, 9), returns(processor, "multiplies_bfloat16", False)),
        both(returns(platform, "system", "Darwin"), lambda patch: patch.setattr(build, "SOURCES", None)),
    ],
)
def test_a_healthy_machine_has_none(change: Change, healthy: pytest.MonkeyPatch) -> None:
    change(healthy)
    assert examine(Path.cwd(), quick=True).problems == []


def test_no_tier_of_the_sandbox_confines(monkeypatch: pytest.MonkeyPatch) -> None:
    error = SandboxError("no tier confines programs here", remedy="run elsewhere")
    monkeypatch.setattr(trial, "strongest", Mock(side_effect=error))
    report = Report()
    report.add(report.machine, of_sandbox())
    (problem,) = report.problems
    assert (problem.weight, problem.name) == ("note", "sandbox")
    assert problem.what.startswith("no tier confines programs here; the reward code")


def test_the_gravest_come_first(healthy: pytest.MonkeyPatch) -> None:
    healthy.setenv("BURNISH_TIMING", "off")
    spare(healthy, disk=2 * GIB)
    fail_to_import(healthy)
    assert [problem.weight for problem in examine(Path.cwd(), quick=True).problems] == ["fatal", "problem", "note"]


def test_rows_say_what_there_is(healthy: pytest.MonkeyPatch) -> None:
    see_gpus(healthy, 9)
    healthy.setenv("OMP_NUM_THREADS", "8")
    healthy.setenv("ATEN_CPU_CAPABILITY", "x" * 500)
    healthy.setattr(verdicts, "cache_folder", build.cache_folder)
    own_cache().keep({"path": "decoding"}, RaceResult("own", {"own": 1.0}))
    report = examine(Path.cwd(), quick=True, fresh=True)
    assert report.versions["torch"] == "1.0"
    assert report.versions["not installed"] == ", ".join(OPTIONAL)
    assert report.machine["memory"] == "60.00 GiB can be used"
    assert report.machine["threads"].startswith("8 (OMP_NUM_THREADS is 8) on 8 of")
    assert report.machine["environment"] == f"ATEN_CPU_CAPABILITY={'x' * 80}, OMP_NUM_THREADS=8"
    assert report.machine["compiler"] == "gcc (Debian) 12.2.0"
    assert report.machine["GPU 0"] == "GPU of 9, 79.00 GiB of 80.00 GiB free, capability 9.0"
    assert report.machine["timings"] == "1 forgotten (--fresh)"
    assert report.paths == {}


def test_packages_are_those_of_the_project() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = [words for name, words in project["optional-dependencies"].items() if name not in OTHER_EXTRAS]
    assert set(OPTIONAL) == {word.partition(">=")[0] for words in extras for word in words}
    needed = {word.partition(">=")[0] for word in project["dependencies"]}
    assert set(NEEDED) - needed == {"tokenizers"}  # which transformers brings


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cannot read /home/alice/models/mine", "cannot read ~/models/mine"),
        ("'/home/alice' is full", "'~' is full"),
        ("/home/alice2/x and /home/alice.old stay", "/home/alice2/x and /home/alice.old stay"),
        ("/scratch/alice/runs, /mnt/data/alice", "/scratch/USER/runs, /mnt/data/USER"),
        ("malice and /usr/lib/alicelib stay", "malice and /usr/lib/alicelib stay"),
        ("no answer from lab7.example.org or lab7:8080", "no answer from HOST or HOST:8080"),
        ("lab70 stays", "lab70 stays"),
        ("one\n  line\tonly", "one line only"),
    ],
)
def test_names_and_folders_are_hidden(text: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/alice")
    monkeypatch.setattr(getpass, "getuser", lambda: "alice")
    monkeypatch.setattr(socket, "gethostname", lambda: "lab7.example.org")
    assert hidden(text) == shown


def test_short_and_usual_names_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/root")
    monkeypatch.setattr(getpass, "getuser", Mock(side_effect=KeyError("getpwuid(): uid not found: 1234")))
    monkeypatch.setattr(socket, "gethostname", lambda: "vm")
    assert hidden("/root/x on a vm, /mnt/root") == "~/x on a vm, /mnt/root"
    (tmp_path / "disk").mkdir()
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert hidden(f"{tmp_path}/home/a {tmp_path}/disk/b") == "~/a ~/b"
