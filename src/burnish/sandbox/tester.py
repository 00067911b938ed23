"""The process that holds the tests and what they expect. It asks the candidate by messages, and decides.

A text is one test for each `assert` in it, however often that is reached, and one for each function and method of
tests. What the whole text makes of a candidate is what it would make of it natively: it passes if nothing fails.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import json
import math
import os
import sys
import types
import unittest
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from burnish.sandbox.wire import ClosedError, Link, NotPlainError, TooLargeError, decode, encode

_ENDING = (StopIteration, StopAsyncIteration, GeneratorExit)
"""Exceptions that would end a loop of the tests in peace, so that the rest of it is not tested."""
_RECORD, _FAIL, _ERROR = "burnish_record_", "burnish_fail_", "burnish_error_"
_DETAIL = 300
_SHOWN = 100


class CandidateError(Exception):
    """The code raised an exception of a class that the tests do not know, or returned a value that cannot cross."""


class BrokenTestsError(Exception):
    """Tests that cannot run, whatever the code does."""


class TestReport:
    """Lines to whoever reads the verdict: how many tests there are, each that has been decided, and the end."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def line(self, **content: Any) -> None:
        os.write(self._descriptor, json.dumps(content).encode() + b"\n")

    def test(self, passed: bool, detail: str = "") -> None:
        self.line(passed=bool(passed), **({} if passed else {"detail": detail[:_DETAIL]}))


def judge(tests: Mapping[str, Any], link: Link, report: TestReport) -> None:
    """Run the tests against the candidate at the other end."""
    candidate = Candidate(link)
    unittest.main = lambda *arguments, **named: None  # type: ignore[assignment, misc]  # their methods run anyway
    try:
        run = _cases(tests, candidate, report) if "cases" in tests else _texts(tests, candidate, report)
    except BrokenTestsError as error:
        return report.line(broken=str(error))
    try:
        first = link.receive()
        if first != {"loaded": True}:
            said = first.get("not_loaded") if isinstance(first, dict) else None
            return report.line(not_loaded=said[:_DETAIL] if isinstance(said, str) else "it says nothing of use")
        run()
        report.line(end=True)
    except ClosedError:
        report.line(ended="the code's process has ended")
    except BrokenTestsError as error:
        report.line(broken=str(error))
    except BaseException as error:  # noqa: BLE001  boundary: whatever the code's values do to the tests, they fail
        report.line(ended=_said(error))


class Candidate:
    """Asks the code, and hands its objects to the tests."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.calls = 0

    def call(self, question: dict[str, Any], arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """The plain value that a call returned. What it changed in its arguments is changed here as well."""
        sent = [self.encoded(argument) for argument in arguments]
        by_name = {name: self.encoded(argument) for name, argument in named.items()}
        answer = self.ask({**question, "arguments": sent, "named": by_name})
        for index, content in answer.get("changed", {}).items():
            _become(arguments[int(index)], self.decoded(content))
        return self.decoded(answer["value"])

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        self.calls += 1
        self._link.send(question)
        answer = self._link.receive()
        if not isinstance(answer, dict):
            raise NotPlainError("an answer that no candidate of ours gives")
        if "raised" in answer:
            raise _raised(*answer["raised"])
        return answer

    def encoded(self, value: object) -> Any:
        return encode(value, _handle_of)

    def decoded(self, content: Any) -> Any:
        return decode(content, lambda number: Remote(self, int(number)))


class Function:
    """A name of the code, or a method of an object of it, as the tests call it."""

    def __init__(self, candidate: Candidate, **question: Any) -> None:
        self._candidate = candidate
        self._question = question

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._candidate.call(self._question, arguments, named)


class Remote:
    """An object of the code that is not a plain value, such as an instance of its own class, or a generator. Equal to
    nothing but itself."""

    def __init__(self, candidate: Candidate, number: int) -> None:
        self.__dict__["_candidate"] = candidate
        self.__dict__["_number"] = number

    def _ask(self, kind: str, **more: Any) -> Any:
        return self._candidate.decoded(self._candidate.ask({"ask": kind, "handle": self._number, **more})["value"])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        answer = self._candidate.ask({"ask": "get", "handle": self._number, "name": name})
        if "method" in answer:
            return Function(self._candidate, ask="method", handle=self._number, name=name)
        return self._candidate.decoded(answer["value"])

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._candidate.call({"ask": "call", "handle": self._number}, arguments, named)

    def __iter__(self) -> Iterator[Any]:
        iterator = self._ask("iter")
        return iterator if isinstance(iterator, Remote) else iter(iterator)

    def __next__(self) -> Any:
        answer = self._candidate.ask({"ask": "next", "handle": self._number})
        if "end" in answer:
            raise StopIteration
        return self._candidate.decoded(answer["value"])

    def __len__(self) -> int:
        return int(self._ask("len"))

    def __bool__(self) -> bool:
        return bool(self._ask("bool"))

    def __getitem__(self, key: object) -> Any:
        return self._ask("item", key=self._candidate.encoded(key))

    def __contains__(self, item: object) -> bool:
        return any(found == item for found in self)  # compared here

    def __str__(self) -> str:
        return str(self._ask("str"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remote) and self._number == other._number

    def __hash__(self) -> int:
        return hash(self._number)


def equal(expected: Any, found: Any, tolerance: float) -> bool:
    """Return whether a plain value is the expected one: integers exactly, also as a float; where a float is expected,
    within the tolerance; tuples and lists alike, because JSON has one of them. True is not 1."""
    if isinstance(expected, bool) or isinstance(found, bool):
        return type(expected) is type(found) and expected == found
    if isinstance(expected, float) and isinstance(found, (int, float)):
        if math.isnan(expected) or (isinstance(found, float) and math.isnan(found)):
            return math.isnan(expected) and isinstance(found, float) and math.isnan(found)
        try:
            return expected == found or math.isclose(expected, found, rel_tol=tolerance, abs_tol=tolerance)
        except OverflowError:  # an integer beyond all floats
            return False
    if isinstance(expected, (list, tuple)) and isinstance(found, (list, tuple)):
        same_length = len(expected) == len(found)
        return same_length and all(equal(a, b, tolerance) for a, b in zip(expected, found, strict=True))
    if isinstance(expected, dict) and isinstance(found, dict):
        return expected.keys() == found.keys() and all(equal(expected[key], found[key], tolerance) for key in expected)
    try:
        return bool(expected == found)
    except (ArithmeticError, TypeError):  # a decimal that signals
        return False


def _cases(tests: Mapping[str, Any], candidate: Candidate, report: TestReport) -> Callable[[], None]:
    cases = tests["cases"]
    function = Function(candidate, ask="call", of=tests["entry"])
    report.line(total=len(cases))

    def run() -> None:
        for case in cases:
            arguments, expected = decode(case["arguments"]), _forms(decode(case["expected"]), case["wrapped"])
            asked = f"{tests['entry']}({', '.join(map(_shown, arguments))})"[: 2 * _SHOWN]
            try:
                found = function(*arguments, **decode(case["named"]))
            except ClosedError:
                raise
            except TooLargeError as error:  # which does not depend on the code
                raise BrokenTestsError(f"the arguments of a case: {error}") from error
            except Exception as error:  # noqa: BLE001  boundary: any that the code raised
                report.test(False, f"{asked}: {_said(error)}")
                continue
            passed = any(equal(form, found, tests["tolerance"]) for form in expected)
            report.test(passed, "" if passed else f"{asked} returned {_shown(found)}, not {_shown(expected[0])}")

    return run


def _forms(expected: Any, wrapped: bool) -> list[Any]:
    """Return every value that counts as the expected one, itself first."""
    return [expected, *(expected if wrapped and type(expected) is list and len(expected) == 1 else [])]


def _texts(tests: Mapping[str, Any], candidate: Candidate, report: TestReport) -> Callable[[], None]:
    texts = [_Text(text, tests["prelude"], tests["entry"], candidate) for text in tests["texts"]]
    report.line(total=sum(text.count for text in texts))

    def run() -> None:
        for text in texts:
            for passed, detail in text.run():
                report.test(passed, detail)

    return run


class _Text:
    """One text of tests: its statements, and the functions and classes with tests that they define.

    count: of its assertions, or 1 if it has none.
    """

    def __init__(self, text: str, prelude: str, entry: str | None, candidate: Candidate) -> None:
        self._entry = entry
        self._candidate = candidate
        self._outcomes: dict[int, str] = {}
        """For each assertion that was reached, why it failed; "" if it never did."""
        self._names: dict[str, Any] = {"__name__": "tests"}
        counting = _Counting()
        try:
            tree = ast.parse(text)
            bound = _bound(tree)
            self._tree = ast.fix_missing_locations(counting.visit(tree))
            exec(compile(prelude, "prelude", "exec", dont_inherit=True), self._names)
        except Exception as error:
            raise BrokenTestsError(_said(error)) from error
        self._asserts = counting.texts
        self.count = max(len(self._asserts), 1)
        free = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - bound - {_RECORD, _FAIL, _ERROR}
        unknown = {name for name in free if name not in self._names and name not in vars(builtins)}
        modules = {name: found for name in unknown & _as_modules(tree) if (found := _module(name))}
        functions = (unknown - modules.keys()) | ({entry} if entry else set())
        self._names |= {**modules, **{name: Function(candidate, ask="call", of=name) for name in functions}}
        self._names |= {_RECORD: self._record, _FAIL: self._fail}
        sys.modules["solution"] = _Solution(candidate)

    def run(self) -> Iterator[tuple[bool, str]]:
        """Yield for each test whether it passed, and why not."""
        before, calls = set(self._names), self._candidate.calls
        whole = self._guarded("the tests", lambda: exec(compile(self._tree, "tests.py", "exec"), self._names))
        others = [whole] if whole else []
        for name, value in list(self._names.items()):
            if name not in before and not name.startswith("_"):
                others += self._others(name, value)
        if self._candidate.calls == calls:
            raise BrokenTestsError("the tests do not ask the code for anything")
        failed = [detail for detail in others if detail]
        for number, text in enumerate(self._asserts):
            if number in self._outcomes:
                yield not self._outcomes[number], self._outcomes[number]
            elif failed:
                yield False, f"not reached: {text}"
        yield from ((False, detail) for detail in failed)
        if not failed and not self._outcomes:  # what asserts nothing would have raised
            yield not self._asserts, "no assertion was reached"

    def _others(self, name: str, value: Any) -> list[str]:
        """Why functions and classes of tests that the text has defined fail."""
        if name == "check" and callable(value) and self._entry:
            return [self._guarded(name, partial(value, self._names[self._entry]))]
        if name.startswith("test") and inspect.isfunction(value):
            return [self._guarded(name, _plain(value))]
        if isinstance(value, type) and issubclass(value, unittest.TestCase):
            return _failures_of(value)
        if isinstance(value, type) and name.startswith("Test"):
            methods = [method for method in vars(value) if method.startswith("test")]
            return [self._guarded(method, _plain(getattr(value(), method))) for method in methods]
        return []

    def _guarded(self, what: str, run: Callable[[], object]) -> str:
        """Why it fails; "" if it does not."""
        try:
            run()
        except (ClosedError, BrokenTestsError):
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001  boundary: the tests' own code, with whatever the candidate returned
            return f"{what}: {_said(error)}"
        return ""

    def _record(self, value: object, number: int) -> None:
        passed = bool(value)
        self._outcomes[number] = self._outcomes.get(number) or ("" if passed else f"not so: {self._asserts[number]}")

    def _fail(self, error: Exception, number: int) -> None:
        if isinstance(error, BrokenTestsError):
            raise error
        self._outcomes[number] = f"{self._asserts[number]}: {_said(error)}"


class _Counting(ast.NodeTransformer):
    """Makes every assertion report instead of raise, so that those after a failed one count too. `assert True` and
    `assert False` stay: the first tests nothing, and the second is there for what should have raised."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        if isinstance(node.test, ast.Constant):
            return node
        number = ast.Constant(len(self.texts))
        self.texts.append(ast.unparse(node.test)[: 2 * _SHOWN])
        record = ast.Expr(ast.Call(ast.Name(_RECORD, ast.Load()), [node.test, number], []))
        fail = ast.Expr(ast.Call(ast.Name(_FAIL, ast.Load()), [ast.Name(_ERROR, ast.Load()), number], []))
        handler = ast.ExceptHandler(ast.Name("Exception", ast.Load()), _ERROR, [fail])
        return ast.copy_location(ast.Try([record], [handler], [], []), node)


class _Solution(types.ModuleType):
    """The module that `from solution import name` imports from."""

    def __init__(self, candidate: Candidate) -> None:
        super().__init__("solution")
        self._candidate = candidate

    def __getattr__(self, name: str) -> Function:
        if name.startswith("__"):
            raise AttributeError(name)
        return Function(self._candidate, ask="call", of=name)


def _bound(tree: ast.AST) -> set[str]:
    """Names that a text gives something to by itself."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.alias(name=name, asname=other):
                found.add((other or name).partition(".")[0])
            case ast.ExceptHandler(name=str(name)):
                found.add(name)
    return found


def _as_modules(tree: ast.AST) -> set[str]:
    """Names that are used as a module of the standard library is. Texts may rely on the imports of the code."""
    nodes = [node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return {node.id for node in nodes if isinstance(node, ast.Name)} & sys.stdlib_module_names


def _module(name: str) -> types.ModuleType | None:
    """Import a module of the standard library; None if this Python has been installed without it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _plain(function: Callable[..., object]) -> Callable[[], object]:
    """A function of tests that can simply be called."""
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise BrokenTestsError(f"{function.__name__} is a coroutine or a generator, which nothing runs")
    if any(one.default is one.empty for one in inspect.signature(function).parameters.values()):
        raise BrokenTestsError(f"{function.__name__} has parameters, which nothing gives")
    return function


class _Result(unittest.TestResult):
    """Also knows when tests cannot run, by the class of the error: its text may be the code's."""

    broken: BrokenTestsError | None = None

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        if isinstance(err[1], BrokenTestsError):
            self.broken = err[1]
        super().addError(test, err)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None and isinstance(err[1], BrokenTestsError):
            self.broken = err[1]
        super().addSubTest(test, subtest, err)


def _failures_of(kind: type[unittest.TestCase]) -> list[str]:
    """Why methods of a test case fail."""
    result = _Result()
    unittest.TestLoader().loadTestsFromTestCase(kind).run(result)
    if result.broken is not None:
        raise result.broken
    texts = [text.strip().splitlines()[-1] for _, text in result.errors + result.failures]
    return [
        f"{kind.__name__}: {text}" for text in [*texts, *("should have failed" for _ in result.unexpectedSuccesses)]
    ]


def _raised(name: object, said: object) -> Exception:
    kind = vars(builtins).get(str(name))
    if not (isinstance(kind, type) and issubclass(kind, Exception)) or issubclass(kind, _ENDING):
        return CandidateError(f"{name}: {said}"[:_DETAIL])
    try:
        return kind(said)
    except TypeError:  # UnicodeDecodeError and others want more
        return CandidateError(f"{name}: {said}"[:_DETAIL])


def _handle_of(value: object) -> Any:
    if isinstance(value, Remote):
        return {"handle": value._number}
    if isinstance(value, Function):
        raise CandidateError("a function of the code cannot be given back to it")
    raise BrokenTestsError(f"the tests give the code a value of type {type(value).__name__!r}, which is not plain")


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


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  boundary: an integer with too many digits, or a value of the code
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."


def _said(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:_DETAIL]
    except Exception:  # noqa: BLE001  boundary: as above
        return type(error).__name__
