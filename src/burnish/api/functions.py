"""Functions as rewards: which of them any process can import, and for the others a text that changes when they do."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from burnish.outside.plugins import INSTALLED

_LONGEST_VALUE = 1000
_MOST_FUNCTIONS = 100


def importable_name(call: Callable[..., Any]) -> str | None:
    """`package.module:name` of a function or class that a new interpreter can import by this name. None for any other:
    closures, lambdas, instances, and whatever the program's own script or notebook defines."""
    if not (isinstance(call, FunctionType) or inspect.isclass(call)):
        return None
    module, name = call.__module__, call.__qualname__
    if module == "__main__" or not name.isidentifier():
        return None
    loaded = sys.modules.get(module)
    if loaded is None or vars(loaded).get(name) is not call or not _is_found(module, loaded):
        return None
    return f"{module}:{name}"


def _is_found(name: str, module: ModuleType) -> bool:
    """Return whether importing the name from `sys.path` leads to the file of the loaded module."""
    file_of_module = vars(module).get("__file__")  # modules that are part of the interpreter have none
    if file_of_module is None:
        return False
    parts = name.split(".")
    for entry in sys.path:
        place = Path(entry or ".").joinpath(*parts)
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.is_file():
                return file.resolve() == Path(file_of_module).resolve()
    return False


def text_of(call: Callable[..., Any]) -> str:
    """Write as text what a function computes: its source (for a lambda its bytecode, because its source line may have
    other things in it), and the plain values and functions that it reads from outside. Equal functions have equal
    texts.

    For other objects that it reads, only the class is in the text, so a change inside them is not noticed.
    """
    return "\n\n".join(_texts(call)) + "\n"


def _texts(call: Callable[..., Any]) -> Iterator[str]:
    name = str(getattr(call, "__qualname__", type(call).__qualname__))
    waiting: list[tuple[str, object]] = [(name, call)]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_FUNCTIONS:
        name, value = waiting.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        function, bound = _unwrapped(value)
        outside = bound | (_read_from_outside(function) if function is not None else {})
        lines = [f"# {name}", _source(function) if function is not None else f"# {type(value).__qualname__}"]
        for key, found in sorted(outside.items()):
            if _is_code(found):
                waiting.append((key, found))
            else:
                lines.append(f"{key} = {_value_text(found)}")
        yield "\n".join(lines)


def _unwrapped(call: object) -> tuple[FunctionType | None, dict[str, object]]:
    """The function that is finally run, and what is bound to it: arguments of a partial, attributes of an object."""
    match call:
        case FunctionType():
            return call, {}
        case MethodType():
            function, _ = _unwrapped(call.__func__)
            return function, _attributes(call.__self__)
        case functools.partial():
            function, bound = _unwrapped(call.func)
            given = {f"argument {i}": value for i, value in enumerate(call.args)}
            return function, bound | given | call.keywords
        case type():
            return _unwrapped(call.__call__)[0], {}
    own = inspect.getattr_static(type(call), "__call__", None)
    return (own if isinstance(own, FunctionType) else None), _attributes(call)


def _attributes(value: object) -> dict[str, object]:
    return {f"self.{name}": item for name, item in getattr(value, "__dict__", {}).items()}


def _read_from_outside(function: FunctionType) -> dict[str, object]:
    """Values of the enclosing functions, defaults, and the globals that its code names, except modules."""
    found: dict[str, object] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # has no value yet
            continue
    for name in _names(function.__code__):
        if name in function.__globals__ and not isinstance(function.__globals__[name], ModuleType):
            found.setdefault(name, function.__globals__[name])
    found |= {f"default {i}": value for i, value in enumerate(function.__defaults__ or ())}
    found |= {f"default {name}": value for name, value in (function.__kwdefaults__ or {}).items()}
    return {name: value for name, value in found.items() if value is not function}


def _names(code: CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _is_code(value: object) -> bool:
    """Return whether a value is a user's function, whose text becomes part of the text of the function that calls
    it."""
    function, _ = _unwrapped(value) if callable(value) and not inspect.isclass(value) else (None, {})
    return function is not None and not function.__code__.co_filename.startswith(INSTALLED)


def _source(function: FunctionType) -> str:
    if function.__name__ != "<lambda>":
        try:
            return textwrap.dedent(inspect.getsource(function)).strip()
        except (OSError, TypeError):  # entered in something that keeps no source
            pass
    return "# bytecode " + hashlib.sha256(_code_text(function.__code__).encode()).hexdigest()


def _code_text(code: CodeType) -> str:
    """Write the bytecode as text, independent of where it is: without file, line, or its own name."""
    constants = [_code_text(c) if isinstance(c, CodeType) else _value_text(c) for c in code.co_consts]
    return repr((code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars, code.co_argcount, constants))


def _value_text(value: object) -> str:
    text = _plain_text(value)
    if text is None:
        return f"a {type(value).__module__}.{type(value).__qualname__}, whose content is not compared"
    return text if len(text) <= _LONGEST_VALUE else "sha256 " + hashlib.sha256(text.encode()).hexdigest()


def _plain_text(value: object) -> str | None:
    """The value as text that is the same in every process; None if it does not consist of plain values."""
    if value is None or value is Ellipsis or isinstance(value, (bool, int, float, complex, str, bytes, Path)):
        return repr(value)
    if isinstance(value, Mapping):
        parts = [_plain_text(part) for item in value.items() for part in item]
    elif isinstance(value, (list, tuple)):
        parts = [_plain_text(part) for part in value]
    elif isinstance(value, (set, frozenset)):
        parts = sorted((_plain_text(part) for part in value), key=str)
    else:
        return None
    if None in parts:
        return None
    return f"{type(value).__name__}({', '.join(part for part in parts if part is not None)})"
