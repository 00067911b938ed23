"""Builds a C source of this folder with the machine's own compiler, once, and loads it.

The result lies in the user's cache folder under a name that holds everything it depends on: sources, options, compiler
and processor. The threads are those of PyTorch: the library is linked against no OpenMP of its own, but finds the one
that PyTorch has brought into the process, or is not loaded at all.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from burnish.errors import KernelError

ELEMENTS = {torch.float32: 0, torch.bfloat16: 1}
"""Types of states and weights that there is code for, and what BFLOAT16 is then."""
_COMPILERS = ("gcc", "cc")
"""Tried in this order where `CC` names none: what is called cc may be clang, whose OpenMP PyTorch does not have."""
_SECONDS = 120
_HERE = Path(__file__).parent


def load_library(source: str, dtype: torch.dtype) -> ctypes.CDLL:
    """The functions of `source` (a file of this folder) for elements of this type.

    Raises KernelError where they cannot be had: another system than Linux, no C compiler, or none that works.
    """
    if sys.platform != "linux":
        raise KernelError(f"kernels are built on Linux only, and this is {platform.system()}")
    if dtype not in ELEMENTS:
        raise KernelError(f"there are no kernels for {dtype}")
    compilers = find_compilers()
    for compiler in compilers:
        try:
            return _loaded(compiler, _HERE / source, dtype)
        except KernelError:
            if compiler == compilers[-1]:
                raise
    raise AssertionError("find_compilers finds one or raises")


def find_compilers() -> list[list[str]]:
    """The command in `CC`, or those of gcc and cc that are there. Raises KernelError when there is none."""
    named = os.environ.get("CC", "")
    try:
        words = shlex.split(named)
    except ValueError as error:
        raise KernelError(f"CC is {named!r}, which is no command: {error}") from error
    found = [command for command in ([words] if words else [[name] for name in _COMPILERS]) if shutil.which(command[0])]
    if not found:
        what = f"CC names {words[0]!r}, which is not there" if words else "there is no C compiler (gcc or cc)"
        raise KernelError(what, remedy="install one, such as the package gcc")
    return found


def cache_folder() -> Path | None:
    """Where built libraries stay: `burnish/kernels` in XDG_CACHE_HOME, else in ~/.cache; None without a home."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    cache = named if named.is_absolute() else Path(os.path.expanduser("~/.cache"))
    return cache / "burnish" / "kernels" if cache.is_absolute() else None


def _loaded(compiler: list[str], source: Path, dtype: torch.dtype) -> ctypes.CDLL:
    options = ["-O3", "-std=gnu11", "-fPIC", "-fopenmp", _this_processor(), f"-DBFLOAT16={ELEMENTS[dtype]}"]
    texts = [path.read_bytes() for path in (source, *sorted(_HERE.glob("*.h")))]
    identity = [shlex.join([*compiler, *options]).encode(), _version(compiler), _processor(), *texts]
    name = hashlib.sha256(b"\0".join(identity)).hexdigest()[:32] + ".so"
    problem: OSError | None = None
    cache = cache_folder()
    if cache is not None and _is_own(cache):
        path = cache / name
        try:
            return ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL)
        except OSError:  # not there, or broken: built anew
            pass
        try:
            _build(compiler, options, source, path)
            return ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL)
        except OSError as error:
            problem = error
    try:  # a library that has been loaded needs its file no more
        with tempfile.TemporaryDirectory(prefix="burnish-kernels-", ignore_cleanup_errors=True) as folder:
            _build(compiler, options, source, Path(folder) / name)
            return ctypes.CDLL(str(Path(folder) / name), mode=ctypes.RTLD_LOCAL)
    except OSError as error:
        problem = error
    raise KernelError(f"the kernels that {compiler[0]} built cannot be loaded: {problem}") from problem


def _is_own(folder: Path) -> bool:
    """Whether libraries can be kept there: the user's alone to write, and on a disk whose files may run."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        about, disk = folder.stat(), os.statvfs(folder)
    except OSError:
        return False
    is_private = about.st_uid == os.getuid() and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return is_private and not disk.f_flag & os.ST_NOEXEC


def _build(compiler: list[str], options: list[str], source: Path, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as workplace:
        compiled, linked = Path(workplace) / "object.o", Path(workplace) / path.name
        _run([*compiler, *options, "-c", str(source), "-o", str(compiled)])
        _run([*compiler, "-shared", str(compiled), "-o", str(linked), "-lm"])
        linked.replace(path)  # at once, for processes that build the same


def _run(command: list[str]) -> bytes:
    try:
        return subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS).stdout
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").strip().splitlines() or [str(error)]
        said = next((line for line in lines if "error" in line), lines[0])
        raise KernelError(f"{shlex.join(command)} failed: {said}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelError(f"{shlex.join(command)} failed: {error}") from error


def _this_processor() -> str:
    return "-march=native" if platform.machine() == "x86_64" else "-mcpu=native"


def _version(compiler: list[str]) -> bytes:
    return _run([*compiler, "--version"])


def _processor() -> bytes:
    """What /proc/cpuinfo says of the first processor but for what changes, such as its clock."""
    try:
        first = Path("/proc/cpuinfo").read_bytes().split(b"\n\n")[0].splitlines()
    except OSError as error:
        raise KernelError(f"which processor this is cannot be read: {error}") from error
    kept = (b"model name", b"flags", b"features", b"cpu implementer", b"cpu part")
    return b"\n".join(line for line in first if line.lower().startswith(kept))
