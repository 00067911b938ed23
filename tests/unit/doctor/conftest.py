"""Machines made up from facts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from burnish.container import Limits
from burnish.doctor.facts import (
    Chosen,
    Extra,
    Facts,
    Gpus,
    Kernels,
    Paths,
    Processor,
    Rates,
    Sandbox,
    Storage,
    System,
    Versions,
)

GIB = 1 << 30


def healthy() -> Facts:
    """A machine with nothing wrong."""
    return Facts(
        versions=Versions(
            burnish="1.2.3",
            revision="0123456789abcdef+changes",
            python="3.12.1 (CPython)",
            packages={"torch": "2.13.0", "transformers": "5.1.0"},
            extras=(Extra("ray", {"ray": "2.60.0"}, "cluster.backend: ray"), Extra("mcp", {"mcp": None}, "tools")),
        ),
        system=System("Linux 6.8.0 x86_64", "Debian GNU/Linux 12", "glibc 2.36", 64 * GIB, 60 * GIB, Limits()),
        processor=Processor(
            name="Some Processor",
            machine="x86_64",
            cores=8,
            allowed_cores=8,
            capabilities={"avx2": True, "avx512f": True, "amx_bf16": False},
            vectors="AVX512",
            threads=8,
            threads_because="PyTorch's own choice",
        ),
        sandbox=Sandbox("namespaces", {"namespaces": None}, True),
        storage=(
            Storage("shared memory", "tmpfs", 32 * GIB, 32 * GIB),
            Storage("folder of runs", "ext4", 100 * GIB, 50 * GIB),
        ),
        kernels=Kernels("gcc", "gcc (Debian) 12.2.0", True, None, None, "~/.cache/burnish", None, 3, 1),
        rates=Rates(8, {"float32": 4e11, "float32_fast": 5e11, "bfloat16": 1.6e12}, True, 4e10, 0.02),
        paths=Paths(
            "a model (llama, 2 layers of width 512, 7.47 M parameters, float32, cpu)",
            (
                Chosen("float32 products", "medium", "float32 products by medium (1.13x highest)", "before", {}),
                Chosen("decoding", "C kernels", "decoding by C kernels (2.00x the model's own pass)", "now", {}),
            ),
            float32="medium",
            attention="C kernels",
            decoder="C kernels",
        ),
        gpus=Gpus("CPU", None),
    )


@pytest.fixture
def machine() -> Callable[..., Facts]:
    """A healthy machine, but for what is given: `machine(processor={"threads": 64}, gpus=None)`; a dictionary changes
    fields of a part, anything else takes the place of the part."""

    def made(**parts: Any) -> Facts:
        facts = healthy()
        changed = {
            name: replace(getattr(facts, name), **part) if isinstance(part, dict) else part
            for name, part in parts.items()
        }
        return replace(facts, **changed)

    return made
