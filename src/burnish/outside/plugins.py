"""Plugins: modules, files and classes that a run file names, and messages that say where they failed."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import math
import signal
import sys
import sysconfig
import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from burnish.errors import BurnishError, ConfigError, did_you_mean
from burnish.outside.shortage import is_out_of_memory

FIX_IT = "fix it (--debug shows the whole traceback)"

INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
"""Folders of installed code."""
_MOST_SHOWN = 8
_OWN = str(Path(__file__).parents[1])


def describe_failure(error: BaseException) -> str:
    """Describe an error and the line that raised it: `NameError: name 'x' is not defined (/home/me/my_parts.py:3)`.

    The line is the innermost one in a file that is neither installed nor part of Burnish. If the traceback has none,
    it is the innermost line of all.
    """
    if isinstance(error, SyntaxError):
        place = f"{error.filename}:{error.lineno}"
        source = f": {error.text.strip()}" if error.text else ""
        return f"{type(error).__name__}: {error.msg} ({place}){source}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    theirs = [frame for frame in frames if not frame.filename.startswith((_OWN, *INSTALLED))]
    place = "".join(f" ({frame.filename}:{frame.lineno})" for frame in (theirs or frames)[-1:])
    return f"{type(error).__name__}: {error}{place}"


def describe_exit(status: int) -> str:
    """`exit status 3` or `killed by SIGSEGV`."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def installed_version(package: str) -> str | None:
    """Return the version of an installed package; None if there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def import_named(module_name: str, wanted: str) -> ModuleType:
    """The module. Raises ConfigError, beginning with `wanted`, if it does not exist or fails to import."""
    try:
        return importlib.import_module(module_name)
    except (BurnishError, KeyboardInterrupt):
        raise
    except BaseException as error:  # boundary: a plugin may raise anything
        absent = isinstance(error, ModuleNotFoundError) and error.name in (module_name, module_name.partition(".")[0])
        raise ConfigError(
            f"{wanted}, but cannot import module {module_name!r}: {error if absent else describe_failure(error)}",
            remedy="check the spelling, and that it can be imported where the run starts" if absent else FIX_IT,
        ) from error


def import_place(place: str, wanted: str) -> ModuleType:
    """The module that `package.module` or `path/to/file.py` names.

    A path is relative to the current folder, and the file may import other files in its folder. Like a module, a file
    is run only once per process. Raises ConfigError, beginning with `wanted`, if it does not exist or fails to import.
    """
    if not place.endswith(".py"):
        if ":" in place:  # importing `file.py:name` would run file.py, and only then find that it is not a package
            raise ConfigError(
                f"{wanted}, but {place!r} is neither a module nor a file",
                remedy="write path/to/file.py:name or package.module:name, with one colon before the name",
            )
        return import_named(place, wanted)
    path = Path(place).expanduser()
    if not path.is_file():
        raise ConfigError(f"{wanted}, but there is no file {place!r}", remedy=f"the path is relative to {Path.cwd()}")
    path = path.resolve()
    # The checksum of the whole path keeps two files of the same name apart.
    name = f"burnish_file_{path.stem}_{zlib.crc32(str(path).encode()):08x}"
    return sys.modules[name] if name in sys.modules else _run_file(path, name, wanted)


def _run_file(path: Path, name: str, wanted: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{wanted}, but {path} cannot be imported", remedy="name a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs, because dataclasses look up their module here
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # at the end, so that no file next to it hides an installed package
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # boundary: a plugin may raise anything, and a half-run module must not stay
        del sys.modules[name]
        if isinstance(error, (BurnishError, KeyboardInterrupt)):
            raise
        raise ConfigError(f"{wanted}, but its file fails: {describe_failure(error)}", remedy=FIX_IT) from error
    return module


def find_member(place: str, name: str, wanted: str) -> Any:
    """The member of a module or file. Raises ConfigError, beginning with `wanted`, if it has none of this name."""
    members = vars(import_place(place, wanted))
    if name not in members:
        own = [key for key, value in members.items() if callable(value) and not key.startswith("_")]
        has = f"it has {', '.join(own[:_MOST_SHOWN])}" if own else "it has no function and no class"
        raise ConfigError(f"{wanted}, but {place} has no {name}", remedy=did_you_mean(name, own, has))
    return members[name]


def find_callable(name: str, kind: str, wanted: str, *, others: str, remedy: str) -> Callable[..., Any]:
    """The function or class that `package.module:name` or `file.py:name` names. Raises ConfigError, beginning with
    `wanted`. kind: `function` or `class`; others: what else a name may be; remedy: for one that cannot be called."""
    place, _, member = name.rpartition(":")
    if not place or not member:
        form = {"function": "function", "class": "Class"}[kind]
        ways = f"use path/to/file.py:{form}, package.module:{form}, or {others}"
        raise ConfigError(f"{wanted}, which names no {kind}", remedy=ways)
    found = find_member(place, member, wanted)
    if not callable(found):
        raise ConfigError(f"{wanted}, which is a {type(found).__name__}", remedy=remedy)
    return found


def find_class(name: str, *, field: str, methods: Sequence[str], protocol: str) -> type:
    """The class that `package.module:Class` or `file.py:Class` names. It must have all `methods` of the protocol.

    `field` is the field of the run file that names it. Raises ConfigError that says which part is missing.
    """
    module_name, _, class_name = name.rpartition(":")
    found = find_member(module_name, class_name, f"{field} is {name!r}")
    if not inspect.isclass(found):
        raise ConfigError(
            f"{field} is {name!r}, which is a {type(found).__name__}", remedy=f"name a class that implements {protocol}"
        )
    missing = [method for method in methods if method not in dir(found)]
    if missing:
        raise ConfigError(
            f"{field} is {name!r}, which has no method {' and no '.join(missing)}", remedy=f"implement {protocol}"
        )
    return found


def is_outside(name: str) -> bool:
    """Return whether a name in the run file refers to a plugin (`package.module:name`, `path/to/file.py:name`)."""
    return ":" in name


_IN_WORDS = {str: "text", int: "a whole number", float: "a finite number", bool: "true or false", NoneType: "null"}


def why_not(kind: Any, value: object) -> str:
    """Say what to write instead of a value of another type; empty for a value of this type. The check is strict: text
    is not a number, and true is not 1. kind: a class, a union, `Literal`, or a sequence of one type."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        reasons = [why_not(one, value) for one in inner]
        return ", or ".join(reasons) if all(reasons) else ""
    if origin is Literal:
        return "" if value in inner else f"one of {', '.join(map(str, inner))}"
    if origin in (Sequence, tuple):
        fits = isinstance(value, (list, tuple)) and not any(why_not(inner[0], item) for item in value)
        return "" if fits else f"a list of: {_IN_WORDS.get(inner[0], inner[0])}"
    if kind is float:
        fits = isinstance(value, (int, float)) and math.isfinite(value)
    else:
        fits = kind is Any or isinstance(value, origin or kind)
    return "" if fits and (not isinstance(value, bool) or kind in (bool, Any)) else _IN_WORDS.get(kind, str(kind))


@contextmanager
def calling_outside(what: str, kind: type[BurnishError]) -> Iterator[None]:
    """Turn whatever a plugin raises into an error of type `kind`, which begins with `what` and names the line.

    Running out of memory is not the plugin's fault and passes unchanged.
    """
    try:
        yield
    except (BurnishError, KeyboardInterrupt):
        raise
    except BaseException as error:  # boundary: a plugin may raise anything
        if is_out_of_memory(error):
            raise
        raise kind(f"{what} failed: {describe_failure(error)}", remedy=FIX_IT) from error


def construct(found: Any, name: str, first: Any, arguments: Mapping[str, Any], *, field: str, first_name: str) -> Any:
    """`found(first, **arguments)`. Raises ConfigError if the constructor does not accept them."""
    try:
        inspect.signature(found).bind(first, **arguments)
    except TypeError as error:
        raise ConfigError(
            f"{field} is {name!r}, whose constructor does not fit: {error}",
            remedy=f"it must take ({first_name}, *, {', '.join(arguments)})",
        ) from error
    return found(first, **arguments)
