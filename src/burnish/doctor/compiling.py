"""The C compiler, whether it builds kernels, and where they are kept, with the timings of ways beside them."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from burnish.doctor.facts import Kernels
from burnish.doctor.privacy import hidden
from burnish.errors import KernelError
from burnish.forward.verdicts import own_cache
from burnish.kernels.build import SOURCES, cache_folder, compiler_version, find_compilers, load_library
from burnish.kernels.private_folders import private_folder


def find_kernels(*, builds: bool) -> Kernels:
    """builds: also build and load all of them (half a minute at the first time, then they are kept)."""
    compiler, version, failure = _compiler()
    built = None
    if builds and failure is None:
        try:
            for source in SOURCES:
                load_library(source, torch.float32)
            built = True
        except KernelError as error:
            built, failure = False, error
    cache = _cache()
    return Kernels(
        compiler=compiler,
        version=version,
        built=built,
        problem=None if failure is None else hidden(failure.message),
        remedy=None if failure is None else failure.remedy,
        cache=cache.shown,
        cache_problem=cache.problem,
        libraries=cache.libraries,
        timings=own_cache().count(),
    )


def forget_timings() -> int:
    """Remove all timings that are kept on this machine; returns their number. KernelError if that is not possible."""
    try:
        return own_cache().forget()
    except OSError as error:
        raise KernelError(
            f"the timings in the cache folder cannot be removed: {error.strerror}",
            remedy="remove the folder burnish/paths in ~/.cache (or XDG_CACHE_HOME)",
        ) from error


def _compiler() -> tuple[str | None, str | None, KernelError | None]:
    """The first one's name without its folder, and the first line of what it says of its version."""
    try:
        command = find_compilers()[0]
    except KernelError as error:
        return None, None, error
    name = Path(command[0]).name
    try:
        lines = compiler_version(command).decode(errors="replace").splitlines()
    except KernelError as error:
        return name, None, error
    return name, hidden(lines[0]) if lines else None, None


@dataclass(frozen=True, slots=True)
class _Cache:
    shown: str | None
    problem: str | None
    libraries: int


def _cache() -> _Cache:
    folder = cache_folder()
    if folder is None:
        return _Cache(None, None, 0)
    shown = "burnish in XDG_CACHE_HOME" if os.environ.get("XDG_CACHE_HOME") else "~/.cache/burnish"
    if sys.platform != "linux":  # elsewhere no kernels are built
        return _Cache(shown, None, 0)
    try:
        with private_folder(folder) as opened:
            return _Cache(shown, None, sum(name.endswith(".so") for name in os.listdir(f"/proc/self/fd/{opened}")))
    except OSError as error:
        return _Cache(shown, error.strerror or type(error).__name__, 0)
