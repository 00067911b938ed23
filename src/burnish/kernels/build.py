"""Builds a C source of this folder with the machine's own compiler, once, and loads it.

The result lies in the user's cache folder under a name that holds everything it depends on: source, options, compiler
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
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from burnish.errors import KernelError

ELEMENTS = {torch.float32: 0, torch.bfloat16: 1}
"""Types of states and weights that there is code for, and what BFLOAT16 is then."""
_SECONDS = 120
_HERE = Path(__file__).parent


def load_library(source: str, dtype: torch.dtype) -> ctypes.CDLL:
    """The functions of `source` (a file of this folder) for elements of this type.

    Raises KernelError where they cannot be had: another system than Linux, no C compiler, or one that fails.
    """
    if sys.platform != "linux":
        raise KernelError(f"kernels are built on Linux only, and this is {platform.system()}")
    if dtype not in ELEMENTS:
        raise KernelError(f"there are no kernels for {dtype}")
    compiler = find_compiler()
    options = ["-O3", "-std=gnu11", "-fPIC", "-fopenmp", _this_processor(), f"-DBFLOAT16={ELEMENTS[dtype]}"]
    text = (_HERE / source).read_bytes()
    headers = [header.read_bytes() for header in sorted(_HERE.glob("*.h"))]
    identity = [" ".join(options).encode(), _version(compiler), _processor(), text, *headers]
    name = hashlib.sha256(b"\0".join(identity)).hexdigest()[:32] + ".so"
    for folder in (cache_folder(), None):
        try:
            return ctypes.CDLL(str(_built(compiler, options, _HERE / source, folder, name)), mode=ctypes.RTLD_LOCAL)
        except OSError as error:
            # A home that cannot be written or runs no code: once more in a temporary folder.
            problem = error
    raise KernelError(f"the kernels that {compiler[0]} built cannot be loaded: {problem}") from problem


def find_compiler() -> list[str]:
    """The command in `CC`, or the first of cc, gcc and clang. Raises KernelError when there is none."""
    named = shlex.split(os.environ.get("CC", ""))
    for command in [named] if named else [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(command[0]):
            return command
    what = f"CC names {named[0]!r}, which is not there" if named else "there is no C compiler (cc, gcc or clang)"
    raise KernelError(what, remedy="install one, such as the package gcc")


def cache_folder() -> Path:
    """Where built libraries stay: `burnish/kernels` in XDG_CACHE_HOME, else in ~/.cache."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "burnish" / "kernels"


def _built(compiler: list[str], options: list[str], source: Path, folder: Path | None, name: str) -> Path:
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="burnish-kernels-"))
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / name
    if path.exists():
        return path
    with tempfile.TemporaryDirectory(dir=folder) as workplace:
        compiled, linked = Path(workplace) / "object.o", Path(workplace) / name
        _run([*compiler, *options, "-c", str(source), "-o", str(compiled)])
        _run([*compiler, "-shared", str(compiled), "-o", str(linked), "-lm"])
        linked.replace(path)  # at once, for processes that build the same
    return path


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip().splitlines()
        raise KernelError(f"{shlex.join(command)} failed: {said[0] if said else error}") from error
    except subprocess.TimeoutExpired as error:
        raise KernelError(f"{shlex.join(command)} took longer than {_SECONDS} s") from error


def _this_processor() -> str:
    return "-march=native" if platform.machine() == "x86_64" else "-mcpu=native"


def _version(compiler: list[str]) -> bytes:
    try:
        return subprocess.run([*compiler, "--version"], check=True, capture_output=True, timeout=_SECONDS).stdout
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise KernelError(f"{compiler[0]} --version failed: {error}") from error


def _processor() -> bytes:
    """What /proc/cpuinfo says of the first processor but for what changes, such as its clock."""
    first = Path("/proc/cpuinfo").read_bytes().split(b"\n\n")[0].splitlines()
    kept = (b"model name", b"flags", b"features", b"cpu implementer", b"cpu part")
    return b"\n".join(line for line in first if line.lower().startswith(kept))
