"""Each problem on a machine that has it and nothing else, and its remedy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from burnish.container import Limits
from burnish.doctor.facts import Extra, Facts, Gpu, Gpus, Sandbox, Storage
from burnish.doctor.problems import find_problems

GIB = 1 << 30
H100 = Gpu("NVIDIA H100", "9.0", 80 * GIB, 79 * GIB, True)
V100 = Gpu("Tesla V100", "7.0", 16 * GIB, 16 * GIB, False)

CASES: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "torch is missing": (
        {"versions": {"packages": {"torch": None}, "broken": {"torch": "ModuleNotFoundError"}}},
        "fatal no-torch",
        "torch is not installed",
        "pip install torch",
    ),
    "torch does not load": (
        {"versions": {"broken": {"torch": "OSError: libcudart.so.12: cannot open shared object file"}}},
        "fatal broken-torch",
        "cannot be imported: OSError: libcudart",
        "take the build for this machine",
    ),
    "an unknown capability": (
        {
            "processor": {
                "fault": "BURNISH_WITHOUT names 'avx3': use some of onednn",
                "settings": {"BURNISH_WITHOUT": "avx3"},
            }
        },
        "problem setting",
        "names 'avx3'",
        "every run is refused",
    ),
    "capabilities are turned off": (
        {
            "processor": {
                "settings": {"ATEN_CPU_CAPABILITY": "default", "BURNISH_TIMING": "off", "OMP_NUM_THREADS": "8"}
            }
        },
        "note turned-off",
        "ATEN_CPU_CAPABILITY=default, BURNISH_TIMING=off",
        "unset ATEN_CPU_CAPABILITY, BURNISH_TIMING",
    ),
    "more threads than the container pays for": (
        {"processor": {"cores": 64, "allowed_cores": 2, "threads": 32}},
        "problem too-many-threads",
        "32 threads (PyTorch's own choice), but this process may keep 2 of 64 cores busy",
        "set OMP_NUM_THREADS=2",
    ),
    "few threads by a variable": (
        {"processor": {"threads": 1, "threads_because": "OMP_NUM_THREADS is 1"}},
        "note few-threads",
        "1 of 8 cores (OMP_NUM_THREADS is 1)",
        "unset it",
    ),
    "little memory in a large machine": (
        {"system": {"limits": Limits(memory_bytes=GIB)}},
        "problem little-memory",
        "1.00 GiB of memory",
        "raise the container's limit",
    ),
    "no compiler": (
        {"kernels": {"compiler": None, "problem": "there is no C compiler (gcc or cc)", "remedy": "install one"}},
        "problem no-kernels",
        "there is no C compiler",
        "install one",
    ),
    "a cache that others may write": (
        {"kernels": {"cache_problem": "others may change it"}},
        "problem cache",
        "~/.cache/burnish cannot be used (others may change it)",
        "without write permission for others",
    ),
    "no home": ({"kernels": {"cache": None}}, "note no-cache", "there is no home folder", "XDG_CACHE_HOME"),
    "a build for CUDA without a driver": (
        {"gpus": Gpus("CUDA 12.8", None)},
        "problem no-gpu",
        "built for CUDA 12.8 and sees no GPU",
        "docker run --gpus all",
    ),
    "a build for CUDA with GPUs that are hidden": (
        {"gpus": Gpus("CUDA 12.8", "550.54", hidden=True)},
        "problem no-gpu",
        "sees no GPU",
        "look at CUDA_VISIBLE_DEVICES",
    ),
    "a driver that is too old": (
        {"gpus": Gpus("CUDA 13.0", "470.82", failure="RuntimeError: driver too old")},
        "problem gpu",
        "driver too old",
        "newer than 470.82",
    ),
    "a GPU and a build for CPUs": (
        {"gpus": Gpus("CPU", "550.54")},
        "problem unused-gpu",
        "built for CPUs",
        "install the build for CUDA",
    ),
    "an old GPU": (
        {"gpus": Gpus("CUDA 12.8", "550.54", (V100,))},
        "note gpu-without-bfloat16",
        "Tesla V100",
        "model.dtype: float32",
    ),
    "bfloat16 is emulated": (
        {"rates": {"products": {"float32": 4e11, "bfloat16": 1e11}}},
        "note slow-bfloat16",
        "0.25 of the rate",
        "leave model.dtype at float32",
    ),
    "the model does not load": (
        {"paths": {"model": "mine (float32)", "not_tried": "no weights", "failed": True}},
        "problem model",
        "mine (float32) cannot be tried: no weights",
        "burnish plan",
    ),
    "nothing confines": (
        {"sandbox": Sandbox(None, {"namespaces": "refused", "landlock": "refused"}, True)},
        "note sandbox",
        "no tier of the sandbox confines",
        "Linux 6.2",
    ),
    "a full disk": (
        {"storage": (Storage("folder of runs", "ext4", 100 * GIB, GIB),)},
        "problem full-disk",
        "folder of runs: 1.00 GiB are free",
        "make room",
    ),
    "tiny shared memory with Ray": (
        {"storage": (Storage("shared memory", "tmpfs", 64 << 20, 64 << 20),)},
        "problem shared-memory",
        "/dev/shm has 64.0 MiB, which is too little for Ray;",
        "--shm-size",
    ),
}


def test_a_healthy_machine_has_none(machine: Callable[..., Facts]) -> None:
    assert find_problems(machine()) == ()
    assert find_problems(machine(gpus=Gpus("CUDA 12.8", "550.54", (H100, H100)))) == ()


@pytest.mark.parametrize("case", CASES)
def test_a_problem_is_found_alone_and_has_a_remedy(case: str, machine: Callable[..., Facts]) -> None:
    parts, name, what, remedy = CASES[case]
    (problem,) = find_problems(machine(**parts))
    assert f"{problem.weight} {problem.name}" == name
    assert what in problem.what
    assert remedy in problem.remedy


def test_shared_memory_matters_to_what_uses_it(machine: Callable[..., Facts]) -> None:
    tiny = (Storage("shared memory", "tmpfs", 64 << 20, 64 << 20),)
    alone = {"extras": (Extra("ray", {"ray": None}, ""), Extra("vllm", {"vllm": None}, ""))}
    assert find_problems(machine(storage=tiny, versions=alone)) == ()
    (several,) = find_problems(machine(storage=tiny, versions=alone, gpus=Gpus("CUDA 12.8", "550", (H100, H100))))
    assert "several GPUs (NCCL)" in several.what


def test_no_kernels_are_missed_elsewhere_than_on_linux(machine: Callable[..., Facts]) -> None:
    facts = machine(
        system={"name": "Darwin 24.1.0 arm64"}, kernels={"problem": "kernels are only built on Linux", "built": False}
    )
    assert find_problems(facts) == ()


def test_a_processors_bfloat16_matters_without_a_gpu_only(machine: Callable[..., Facts]) -> None:
    slow = {"products": {"float32": 4e11, "bfloat16": 1e11}}
    assert find_problems(machine(rates=slow, gpus=Gpus("CUDA 12.8", "550.54", (H100,)))) == ()


def test_the_gravest_come_first(machine: Callable[..., Facts]) -> None:
    facts = machine(
        processor={"threads": 1, "threads_because": "OMP_NUM_THREADS is 1"},
        kernels={"cache_problem": "others may change it"},
        versions={"packages": {"torch": None}},
    )
    assert [problem.weight for problem in find_problems(facts)] == ["fatal", "problem", "note"]


def test_what_was_left_out_is_no_problem(machine: Callable[..., Facts]) -> None:
    assert find_problems(replace(machine(), kernels=None, rates=None, paths=None, gpus=None)) == ()
