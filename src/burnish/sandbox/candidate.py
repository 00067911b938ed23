"""The process that holds the code of a model. It has the ends of a pipe to the tests, and nothing else.

Whatever is here may be changed by the code that it runs. Nothing that is decided here counts: what leaves this process
are plain values, and the other end checks that.
"""

from __future__ import annotations

import atexit
import io
import os
import sys
import threading
import traceback
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from burnish.sandbox.wire import ClosedError, Link, NotPlainError, decode, encode

_MUTABLE = (list, dict, set, bytearray, deque)


def serve(source: str, pipe: Link) -> None:
    """Load the code and answer what the tests ask of it, until they have no more questions."""
    answers, said = load(source, "solution")
    pipe.send(said)
    while answers is not None:
        try:
            question = pipe.receive()
        except ClosedError:
            return
        try:
            answer = answers.to(question)
            pipe.send(answer)
        except BaseException as error:  # noqa: BLE001  boundary: whatever the code does
            pipe.send(raised(error))


def load(source: str, name: str) -> tuple[Answers | None, dict[str, Any]]:
    """Run the code as a module of this name. Returns what answers for it (None if it raised), and the message to the
    tests."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    try:
        exec(compile(source, f"{name}.py", "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:  # noqa: BLE001  boundary: whatever the code does
        return None, {"not_loaded": f"{type(error).__name__}: {_text_of(error)}"}
    return Answers(vars(module)), {"loaded": True}


def raised(error: BaseException) -> dict[str, Any]:
    """The answer to a question that made the code raise: the class, or the nearest one above it that the tests know."""
    known = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")
    return {"raised": [known, _text_of(error)]}


def run(source: str) -> int:
    """Run a program to its end; its exit status."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    status = 0
    try:
        exec(compile(source, "program.py", "exec", dont_inherit=True), module.__dict__)
    except SystemExit as error:
        status = _status(error.code)
    except BaseException:  # noqa: BLE001  boundary: whatever the code does
        traceback.print_exc(limit=-8)
        status = 1
    for end in (threading._shutdown, atexit._run_exitfuncs, *_flushes()):  # type: ignore[attr-defined]
        try:
            end()
        except BaseException:  # noqa: BLE001  boundary: as above
            status = status or 1
    return status


def _flushes() -> Iterator[Callable[[], object]]:
    """Yield the flush methods of the present standard output and error, if there still are, and of the first ones."""
    first: tuple[Any, ...] = (sys.__stdout__, sys.__stderr__)
    for stream in {id(one): one for one in (sys.stdout, sys.stderr, *first)}.values():
        if isinstance(stream, io.IOBase) and not stream.closed:
            yield stream.flush


def _status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    sys.stderr.write(f"{code}\n")  # as Python does
    return 1


def use_descriptors() -> None:
    """Let `input` and `print` use descriptors 0, 1 and 2, which are files of this candidate."""
    reads = open(0, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115  they stay open
    writes = open(1, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    complains = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stdin = sys.__stdin__ = reads  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = writes  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = complains  # type: ignore[misc]
    sys.argv = ["program.py"]


def read_all(descriptor: int) -> bytes:
    """The whole file behind a descriptor, from its beginning."""
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, size, 0)


class Answers:
    """Answers to the questions of the tests: calls of names of the code, and of objects that these returned."""

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names
        self._objects: list[object] = []

    def to(self, question: dict[str, Any]) -> dict[str, Any]:
        target = self._target(question)
        kind = question["ask"]
        if kind == "call":
            return self._call(target, question["arguments"], question["named"])
        if kind == "get":
            value = getattr(target, question["name"])
            return {"method": True} if callable(value) else {"value": self._encoded(value)}
        if kind == "method":
            return self._call(getattr(target, question["name"]), question["arguments"], question["named"])
        operations: dict[str, Callable[[Any], object]] = {
            "next": lambda one: next(one, _END),
            "iter": iter,
            "len": len,
            "bool": bool,
            "str": str,
            "item": lambda one: one[decode(question["key"], self._object)],
        }
        value = operations[kind](target)
        return {"end": True} if value is _END else {"value": self._encoded(value)}

    def _target(self, question: dict[str, Any]) -> Any:
        if "handle" in question:
            return self._objects[question["handle"]]
        name = question["of"]
        first, _, rest = name.partition(".")
        if first in self._names:
            found = self._names[first]
            return getattr(found(), rest) if rest else found
        solution = self._names.get("Solution")  # as LeetCode wants it
        if isinstance(solution, type) and hasattr(solution, first):
            return getattr(solution(), first)
        raise NameError(f"the code does not define {name!r}")

    def _call(self, function: Callable[..., object], arguments: list[Any], named: dict[str, Any]) -> dict[str, Any]:
        given = [decode(argument, self._object) for argument in arguments]
        by_name = {name: decode(argument, self._object) for name, argument in named.items()}
        value = self._encoded(function(*given, **by_name))
        changed = {}
        for index, (argument, before) in enumerate(zip(given, arguments, strict=True)):
            if type(argument) in _MUTABLE and (after := self._encoded(argument)) != before:
                changed[str(index)] = after
        return {"value": value, "changed": changed}

    def _object(self, number: Any) -> object:
        return self._objects[number]

    def _encoded(self, value: object) -> Any:
        return encode(value, self._instead)

    def _instead(self, value: object) -> Any:
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, (numpy.generic, numpy.ndarray)):  # they have plain values
            return self._encoded(value.tolist())
        if isinstance(value, (int, float, str, bytes, list, tuple, dict, set, frozenset)):
            raise NotPlainError(f"an object of its own class {type(value).__name__!r}, instead of a plain value")
        self._objects.append(value)
        return {"handle": len(self._objects) - 1}


_END = object()


def _text_of(error: BaseException) -> str:
    try:
        return str(error)[:500]
    except BaseException:  # noqa: BLE001  boundary: its own text may raise
        return ""
