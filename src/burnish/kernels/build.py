"""Build a C source of this folder with the machine's compiler, once, and load it.

The library is kept in the user's cache folder, under a name that depends on everything that affects it: sources,
options, compiler and processor. It uses PyTorch's threads: it is not linked against OpenMP, but uses the library that
PyTorch has loaded into the process. If there is none, loading fails.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import stat
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from burnish.errors import KernelError
from burnish.machine.private_folders import check_owner, private_folder, temporary_folder
from burnish.machine.processor import description
from burnish.outside.plugins import describe_exit
from burnish.outside.supervise import run_program

ELEMENTS = {torch.float32: 0, torch.bfloat16: 1}
"""Supported types of states and weights -> value of the macro BFLOAT16."""
ADDRESS, COUNT = ctypes.c_void_p, ctypes.c_int64
"""Types of arguments: for tensors and for sizes."""
_COMPILERS = ("gcc", "cc")
"""Tried in this order if `CC` is not set. cc may be clang, whose OpenMP differs from PyTorch's, so gcc comes first."""
SOURCES = ("decode.c", "products.c", "train.c", "attend.c", "quantized.c")
"""Sources that are built, each as its own library."""
_SECONDS = 120
_SECONDS_FOR_VERSION = 30
_HERE = Path(__file__).parent
_OBJECT, _LIBRARY = "object.o", "library.so"
_hanging: dict[str, str] = {}
"""Compilers that did not finish in time -> message. This process does not try them again."""


class Kernels:
    """The functions of a source of this folder, for elements of `dtype`. Subclasses say which ones."""

    SOURCE: ClassVar[str]
    TYPES: ClassVar[Mapping[str, Sequence[Any]]]
    """Types of the arguments of each function."""

    def __init__(self, dtype: torch.dtype) -> None:
        """Load the functions. KernelError if they cannot be built."""
        self.dtype, self.library = dtype, load_library(self.SOURCE, dtype)
        self._functions = {name: self.library[name] for name in self.TYPES}
        for name, function in self._functions.items():
            function.argtypes, function.restype = self.TYPES[name], None

    def call(self, name: str, *arguments: object) -> None:
        """Call a function. Tensors are passed by address, from which the C code reads as if they were contiguous."""
        self._functions[name](*[a.data_ptr() if isinstance(a, Tensor) else a for a in arguments])

    def check(self, *tensors: Tensor) -> None:
        """Raise ValueError for a dtype or device that the C code, which only gets addresses, would misread."""
        if any(tensor.dtype != self.dtype or tensor.device.type != "cpu" for tensor in tensors):
            raise ValueError(f"these kernels are for {self.dtype} on a CPU")


def load_library(source: str, dtype: torch.dtype) -> ctypes.CDLL:
    """Load the functions of `source` (a file in this folder), for elements of this type.

    Raises KernelError, and nothing else, if they are not available: not on Linux, no C compiler, or none that works.
    """
    try:
        return _from_any_compiler(source, dtype)
    except KernelError:
        raise
    except Exception as error:  # boundary: PyTorch can do the same, so no error here may end a run
        raise KernelError(f"the kernels cannot be built: {type(error).__name__}: {error}") from error


def find_compilers() -> list[list[str]]:
    """Find compilers: the command in `CC`, else gcc and cc where installed. Raises KernelError if there is none."""
    named = os.environ.get("CC", "")
    try:
        words = shlex.split(named)
    except ValueError as error:
        raise KernelError(f"CC is {named!r}, which is not a command: {error}") from error
    found = [command for command in ([words] if words else [[name] for name in _COMPILERS]) if shutil.which(command[0])]
    if not found:
        what = f"CC names {words[0]!r}, which does not exist" if words else "there is no C compiler (gcc or cc)"
        raise KernelError(what, remedy="install one, such as the package gcc")
    return found


def compiler_version(compiler: list[str]) -> bytes:
    """Output of the compiler's `--version`. Raises KernelError if that fails."""
    return _run([*compiler, "--version"])


def cache_folder() -> Path | None:
    """Folder of built libraries: `burnish/kernels` in XDG_CACHE_HOME, else in ~/.cache; None without a home."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():
        return named / "burnish" / "kernels"
    cache = Path(os.path.expanduser("~/.cache"))
    has_home = cache.is_absolute() and os.environ.get("HOME") != ""
    return cache / "burnish" / "kernels" if has_home else None


def _from_any_compiler(source: str, dtype: torch.dtype) -> ctypes.CDLL:
    if sys.platform != "linux":
        raise KernelError(f"kernels are only built on Linux, and this is {platform.system()}")
    if dtype not in ELEMENTS:
        raise KernelError(f"there are no kernels for {dtype}")
    compilers = find_compilers()
    for compiler in compilers[:-1]:
        with suppress(KernelError):
            return _build_and_load(compiler, _HERE / source, dtype)
    return _build_and_load(compilers[-1], _HERE / source, dtype)


def _build_and_load(compiler: list[str], source: Path, dtype: torch.dtype) -> ctypes.CDLL:
    options = ["-O3", "-std=gnu11", "-fPIC", "-fopenmp", f"-DBFLOAT16={ELEMENTS[dtype]}", *_target(compiler)]
    texts = [path.read_bytes() for path in (source, *sorted(_HERE.glob("*.h")))]
    processor = "\n".join(description()).encode()
    if not processor:
        raise KernelError("cannot read the type of this processor")
    identity = [os.fsencode(shlex.join([*compiler, *options])), compiler_version(compiler), processor, *texts]
    name = hashlib.sha256(b"\0".join(identity)).hexdigest()[:32] + ".so"
    compile_it = [*compiler, *options, "-c", str(source), "-o", _OBJECT]
    link_it = [*compiler, "-shared", _OBJECT, "-o", _LIBRARY, "-lm"]
    cache = cache_folder()
    if cache is not None:
        with suppress(OSError, KernelError):  # others may write to it, the disk is full, or it is mounted noexec
            return _load_cached(cache, name, [compile_it, link_it])
    temporary = os.open(tempfile.gettempdir(), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with temporary_folder(temporary) as folder:  # the file can be removed once the library is loaded
            return _build(folder, [compile_it, link_it])
    except OSError as error:
        raise KernelError(f"the kernels that {compiler[0]} built cannot be loaded: {error}") from error
    finally:
        os.close(temporary)


def _load_cached(cache: Path, name: str, commands: list[list[str]]) -> ctypes.CDLL:
    """Load the library of this name from the cache. It is built if it is missing or incomplete."""
    with private_folder(cache) as folder:
        with suppress(OSError):
            return _open_library(folder, name)
        with temporary_folder(folder) as place:
            library = _build(place, commands)
            os.replace(_LIBRARY, name, src_dir_fd=place, dst_dir_fd=folder)  # atomic: others may be building it too
            return library


def _build(folder: int, commands: list[list[str]]) -> ctypes.CDLL:
    for command in commands:
        _run(command, folder=folder)
    _seal(folder)
    return _open_library(folder, _LIBRARY)


def _seal(folder: int) -> None:
    """Append the hash of the library, by which `_open_library` recognises a complete file.

    Loading a truncated library does not raise an error but ends the process with a bus error. The loader ignores bytes
    after the end of a library.
    """
    with open(os.open(_LIBRARY, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder), "rb+") as file:
        file.write(hashlib.sha256(file.read()).digest())
        file.flush()
        os.fchmod(file.fileno(), 0o600)
        os.fsync(file.fileno())


def _open_library(folder: int, name: str) -> ctypes.CDLL:
    """Open the library of this name. OSError if it does not exist, is incomplete, or could be changed by others."""
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        about = os.fstat(file)
        check_owner(about)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(f"{name} is not a file")
        content = os.pread(file, about.st_size, 0)
        if hashlib.sha256(content[:-32]).digest() != content[-32:]:
            raise OSError(f"{name} is incomplete")
        # The file stays open: the loader identifies libraries by path, so no other file may get this descriptor.
        library = ctypes.CDLL(f"/proc/self/fd/{file}", mode=ctypes.RTLD_LOCAL)
    except BaseException:
        os.close(file)
        raise
    _check_functions(library)
    return library


def _check_functions(library: ctypes.CDLL) -> None:
    """Raise KernelError for a library that is not ours, or not for this processor."""
    try:
        fits = library["fits_processor"]
    except AttributeError as error:
        raise KernelError("the library that the compiler built lacks the functions of its source") from error
    fits.restype = ctypes.c_int64
    if not fits():
        raise KernelError(
            "the kernels were built for a processor with instructions that this one does not have",
            remedy="remove the options that begin with -m from CC",
        )


def _run(command: list[str], *, folder: int | None = None) -> bytes:
    """Run a command and return its output: it prints a version, or builds in `folder`, with its temporary files."""
    if command[0] in _hanging:
        raise KernelError(_hanging[command[0]])
    program = os.path.abspath(shutil.which(command[0]) or command[0])  # because the command runs in another folder
    more = {} if folder is None else {"TMPDIR": "."}
    seconds = _SECONDS_FOR_VERSION if folder is None else _SECONDS
    try:
        done = run_program(
            [program, *command[1:]],
            seconds=seconds,
            environment=os.environ | {"LC_ALL": "C"} | more,  # errors in English, so that their line can be found
            folder=None if folder is None else f"/proc/self/fd/{folder}",
        )
    except TimeoutError as error:
        _hanging[command[0]] = f"{shlex.join(command)} did not finish within {seconds} seconds"
        raise KernelError(_hanging[command[0]]) from error
    except OSError as error:
        raise KernelError(f"{shlex.join(command)} failed: {error}") from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [describe_exit(done.returncode)]
        reason = next((line for line in lines if "error" in line), lines[0])
        raise KernelError(f"{shlex.join(command)} failed: {reason}")
    return done.stdout


def _target(compiler: list[str]) -> list[str]:
    """Compiler options for the target: this processor, unless options in CC that begin with -m name another."""
    named = [word for word in compiler if word.startswith("-m")]
    if any(word.startswith(("-march=", "-mcpu=")) for word in named):
        return []
    return ["-march=native" if platform.machine() == "x86_64" else "-mcpu=native", *named]
