"""The process that holds the tests and what they expect. It asks the candidate by messages, and decides.

Each test is reported as it ends, so that a deadline loses only those that were not reached.
"""

from __future__ import annotations

import ast
import builtins
import json
import math
import os
import sys
import unittest
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from burnish.sandbox.wire import ClosedError, NotPlainError, Pipe, decode, encode

_ENDING = (StopIteration, StopAsyncIteration, GeneratorExit)
"""Exceptions that would end a loop of the tests in peace, so that the rest of it is not tested."""
_RECORD, _FAIL = "__burnish_record", "__burnish_fail"


class CandidateError(Exception):
    """The code raised something that the tests cannot know, or returned what is no plain value."""


class BrokenTestsError(Exception):
    """Tests that cannot run whatever the code does."""


class Report:
    """Lines to whoever reads the verdict."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.count = 0

    def line(self, **content: Any) -> None:
        os.write(self._descriptor, json.dumps(content).encode() + b"\n")

    def test(self, passed: bool, detail: str = "") -> None:
        self.count += 1
        self.line(passed=bool(passed), **({} if passed else {"detail": detail[:500]}))


def judge(tests: Mapping[str, Any], pipe: Pipe, report: Report) -> None:
    """Run the tests against the candidate at the other end of the pipe."""
    try:
        first = pipe.receive()
        if first != {"loaded": True}:
            return report.line(not_loaded=str(first.get("not_loaded") if isinstance(first, dict) else first))
        candidate = Candidate(pipe)
        if "cases" in tests:
            _cases(tests, candidate, report)
        else:
            _texts(tests, candidate, report)
        report.line(end=True)
    except BrokenTestsError as error:
        report.line(broken=str(error))
    except (ClosedError, NotPlainError) as error:
        report.line(ended="the code's process has ended" if isinstance(error, ClosedError) else str(error))


class Candidate:
    """Asks the code, and hands its objects to the tests."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self.calls = 0

    def call(self, question: dict[str, Any], arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """The plain value that a call returned. What it changed in its arguments is changed here as well."""
        sent = [self._encoded(argument) for argument in arguments]
        by_name = {name: self._encoded(argument) for name, argument in named.items()}
        answer = self.ask({**question, "arguments": sent, "named": by_name})
        for index, content in answer.get("changed", {}).items():
            _become(arguments[int(index)], self._decoded(content))
        return self._decoded(answer["value"])

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        self.calls += 1
        self._pipe.send(question)
        answer = self._pipe.receive()
        if not isinstance(answer, dict):
            raise NotPlainError("an answer that no candidate of ours gives")
        if "raised" in answer:
            raise _raised(*answer["raised"])
        return answer

    def value(self, question: dict[str, Any]) -> Any:
        return self._decoded(self.ask(question)["value"])

    def encoded(self, value: object) -> Any:
        return self._encoded(value)

    def _encoded(self, value: object) -> Any:
        return encode(value, _handle_of)

    def _decoded(self, content: Any) -> Any:
        return decode(content, lambda number: Remote(self, int(number)))


class Function:
    """A name of the code, as the tests call it."""

    def __init__(self, candidate: Candidate, name: str) -> None:
        self._candidate = candidate
        self._name = name

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._candidate.call({"ask": "call", "of": self._name}, arguments, named)


class Remote:
    """An object of the code that is no plain value, such as an instance of a class of its own, or a generator. Equal
    to nothing but itself."""

    def __init__(self, candidate: Candidate, number: int) -> None:
        self.__dict__["_candidate"] = candidate
        self.__dict__["_number"] = number

    def _ask(self, kind: str, **more: Any) -> Any:
        return self._candidate.value({"ask": kind, "handle": self._number, **more})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        answer = self._candidate.ask({"ask": "get", "handle": self._number, "name": name})
        if "method" in answer:
            question = {"ask": "method", "handle": self._number, "name": name}
            return lambda *arguments, **named: self._candidate.call(question, arguments, named)
        return decode(answer["value"], lambda number: Remote(self._candidate, int(number)))

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._candidate.call({"ask": "call", "handle": self._number}, arguments, named)

    def __iter__(self) -> Iterator[Any]:
        iterator = self._ask("iter")
        return iterator if isinstance(iterator, Remote) else iter(iterator)

    def __next__(self) -> Any:
        answer = self._candidate.ask({"ask": "next", "handle": self._number})
        if "end" in answer:
            raise StopIteration
        return decode(answer["value"], lambda number: Remote(self._candidate, int(number)))

    def __len__(self) -> int:
        return int(self._ask("len"))

    def __bool__(self) -> bool:
        return bool(self._ask("bool"))

    def __getitem__(self, key: object) -> Any:
        return self._ask("item", key=self._candidate.encoded(key))

    def __str__(self) -> str:
        return str(self._ask("str"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remote) and self._number == other._number

    def __hash__(self) -> int:
        return hash(self._number)


def equal(expected: Any, found: Any, tolerance: float) -> bool:
    """Whether a plain value is the expected one: numbers of any type by value, floats within the tolerance, tuples and
    lists alike because JSON has one of them. True is not 1."""
    if isinstance(expected, bool) or isinstance(found, bool):
        return type(expected) is type(found) and expected == found
    if isinstance(expected, float) or isinstance(found, float):
        if not (isinstance(expected, (int, float)) and isinstance(found, (int, float))):
            return False
        if math.isnan(expected) or math.isnan(found):
            return math.isnan(expected) and math.isnan(found)
        return expected == found or math.isclose(expected, found, rel_tol=tolerance, abs_tol=tolerance)
    if isinstance(expected, (list, tuple)) and isinstance(found, (list, tuple)):
        same_length = len(expected) == len(found)
        return same_length and all(equal(a, b, tolerance) for a, b in zip(expected, found, strict=True))
    if isinstance(expected, dict) and isinstance(found, dict):
        return expected.keys() == found.keys() and all(equal(expected[key], found[key], tolerance) for key in expected)
    return bool(expected == found)


def _cases(tests: Mapping[str, Any], candidate: Candidate, report: Report) -> None:
    report.line(total=len(tests["cases"]))
    function = Function(candidate, tests["entry"])
    for case in tests["cases"]:
        arguments, expected = decode(case["arguments"]), decode(case["expected"])
        try:
            found = function(*arguments, **decode(case["named"]))
        except (ClosedError, NotPlainError):
            raise
        except Exception as error:  # noqa: BLE001  boundary: any that the code raised
            report.test(False, f"{tests['entry']}{_shown(arguments)}: {_said(error)}")
            continue
        detail = f"{tests['entry']}{_shown(arguments)} returned {found!r:.100}, not {expected!r:.100}"
        report.test(equal(expected, found, tests["tolerance"]), detail)


def _texts(tests: Mapping[str, Any], candidate: Candidate, report: Report) -> None:
    for text in tests["texts"]:
        _Text(text, tests["prelude"], tests["entry"], candidate, report).run()


class _Text:
    """One text of tests: its statements, and the functions and classes with tests that they define."""

    def __init__(self, text: str, prelude: str, entry: str | None, candidate: Candidate, report: Report) -> None:
        self._entry = entry
        self._candidate = candidate
        self._report = report
        self._before = report.count
        self._names: dict[str, Any] = {"__name__": "tests"}
        try:
            self._tree = _Counting().visit(ast.parse(text))
            exec(compile(prelude, "prelude", "exec", dont_inherit=True), self._names)
        except Exception as error:
            raise BrokenTestsError(_said(error)) from error
        free = {node.id for node in ast.walk(self._tree) if isinstance(node, ast.Name)}
        unknown = {name for name in free if name not in self._names and name not in vars(builtins)}
        modules = {name: sys.modules[name] for name in unknown & _as_modules(self._tree) if name in sys.modules}
        functions = (unknown - modules.keys()) | ({entry} if entry else set())
        self._names |= {**modules, **{name: Function(candidate, name) for name in functions}}
        self._names[_RECORD], self._names[_FAIL] = self._record, self._fail

    def run(self) -> None:
        known, calls = set(self._names), self._candidate.calls
        ast.fix_missing_locations(self._tree)
        whole = self._guarded("the tests", lambda: exec(compile(self._tree, "tests.py", "exec"), self._names))
        defined = {name: value for name, value in self._names.items() if name not in known or name == "check"}
        for name, value in defined.items():
            if name == "check" and callable(value) and not isinstance(value, Function):
                whole &= self._guarded(name, partial(value, self._names[self._entry or "candidate"]))
            elif name.startswith("test") and callable(value) and not isinstance(value, type):
                whole &= self._guarded(name, value)
            elif isinstance(value, type) and issubclass(value, unittest.TestCase):
                self._cases_of(value)
        if whole and self._report.count == self._before and self._candidate.calls > calls:
            self._report.test(True)  # it asserts nothing, but would have raised

    def _cases_of(self, kind: type[unittest.TestCase]) -> None:
        for case in unittest.TestLoader().loadTestsFromTestCase(kind):
            result = unittest.TestResult()
            case.run(result)
            for _, text in result.errors + result.failures:
                self._report.test(False, text.strip().splitlines()[-1])
            if result.wasSuccessful() and not result.skipped:
                self._report.test(True)

    def _guarded(self, what: str, run: Callable[[], object]) -> bool:
        try:
            run()
        except (ClosedError, NotPlainError):
            raise
        except Exception as error:  # noqa: BLE001  boundary: the tests' own code, with whatever the candidate returned
            self._report.test(False, f"{what}: {_said(error)}")
            return False
        return True

    def _record(self, value: object, text: str) -> None:
        self._report.test(bool(value), f"not so: {text}")

    def _fail(self, error: Exception, text: str) -> None:
        if isinstance(error, (ClosedError, NotPlainError)):
            raise error
        self._report.test(False, f"{text}: {_said(error)}")


def _as_modules(tree: ast.AST) -> set[str]:
    """Names that are used as a module of the standard library is. Texts may rely on the imports of the code."""
    nodes = [node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return {node.id for node in nodes if isinstance(node, ast.Name)} & sys.stdlib_module_names


class _Counting(ast.NodeTransformer):
    """Makes every assertion report instead of raise, so that those after a failed one count too. `assert True` and
    `assert False` stay: the first tests nothing, and the second is there for what should have raised."""

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        if isinstance(node.test, ast.Constant):
            return node
        text = ast.Constant(ast.unparse(node.test)[:200])
        record = ast.Expr(ast.Call(ast.Name(_RECORD, ast.Load()), [node.test, text], []))
        fail = ast.Expr(ast.Call(ast.Name(_FAIL, ast.Load()), [ast.Name("__burnish_error", ast.Load()), text], []))
        handler = ast.ExceptHandler(ast.Name("Exception", ast.Load()), "__burnish_error", [fail])
        return ast.copy_location(ast.Try([record], [handler], [], []), node)


def _raised(name: object, said: object) -> Exception:
    kind = vars(builtins).get(str(name))
    if not (isinstance(kind, type) and issubclass(kind, Exception)) or issubclass(kind, _ENDING):
        return CandidateError(str(said))
    try:
        return kind(str(said))
    except TypeError:  # UnicodeDecodeError and others want more
        return CandidateError(str(said))


def _handle_of(value: object) -> Any:
    if isinstance(value, Remote):
        return {"handle": value._number}
    raise CandidateError(f"the tests give the code a value of type {type(value).__name__!r}, which is not plain")


def _become(argument: Any, value: Any) -> None:
    """Change an argument as the code has changed its copy."""
    if type(argument) is not type(value):
        return
    if isinstance(argument, (dict, set)):
        argument.clear()
        argument.update(value)
    elif isinstance(argument, (list, bytearray)):
        argument[:] = value
    else:
        argument.clear()
        argument.extend(value)


def _shown(arguments: list[Any]) -> str:
    text = ", ".join(map(repr, arguments))
    return f"({text if len(text) <= 100 else text[:100] + ' ...'})"


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]
