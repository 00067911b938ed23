"""Tests of a row with a programming task, in the layouts of common data sets.

Recognised by their columns: HumanEval (`test`, `entry_point`, `prompt`), MBPP (`test_list`, `test_setup_code` or
`test_imports`), APPS and TACO (`input_output`), LiveCodeBench (`public_test_cases`, `private_test_cases`, `metadata`),
ROLL (`test_cases`), and JSON in the answer with `inputs` and `outputs`, as verl has it.
"""

from __future__ import annotations

import ast
import builtins
import json
import re
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burnish.rewards.builtins.reading_rows import NoScoreError, parsed
from burnish.sandbox.job import AssertTests, Case, FunctionTests, ProgramTests

_IMPORTS = """from typing import *
from collections import *
from functools import *
from itertools import *
from heapq import *
from bisect import *
import bisect, collections, functools, heapq, itertools, math, operator, random, re, string, sys
"""
"""Imports that sites with such tasks put in front of a solution, so that solutions written for them rely on it."""
Job = FunctionTests | AssertTests | ProgramTests


_EQUAL_TO_ALL = """class Equal(int):
    __eq__ = lambda self, other: True
    __hash__ = int.__hash__
"""
_DO_NOTHING = {
    **{f"returns {value}": ("", f"return {value}") for value in ("None", "True", "0", "''", "[]", "{}")},
    "returns NaN": ("", "return float('nan')"),
    "returns its argument": ("", "return arguments[0] if arguments else None"),
    "empties its arguments": ("", "[getattr(argument, 'clear', int)() for argument in arguments]"),
    "ends the program": ("import os\n", "os._exit(0)"),
    "returns what is equal to everything": (_EQUAL_TO_ALL, "return Equal()"),
}


@dataclass(frozen=True, slots=True)
class CodeTask:
    """make: the job that tests a program. entry: name that the tests call, if it is known. beginning: code that a
    response may continue. header: code that any program may use, such as imports."""

    make: Callable[[str], Job]
    entry: str | None = None
    beginning: str | None = None
    header: str = ""

    def is_defined_in(self, code: str) -> bool:
        """Return whether the code defines what the tests call; True if its name is not known."""
        if self.entry is None:
            return True
        name, tree = self.entry.rpartition(".")[2], _parsed(code)
        if tree is not None:
            return name in _definitions(tree)
        return re.search(rf"^[ \t]*def[ \t]+{re.escape(name)}\b", code, re.MULTILINE) is not None


def trivial_programs(task: CodeTask) -> dict[str, str]:
    """Programs that solve no task, by what they do. Tests are weak if one of them passes."""
    found = {"is empty": ""}
    job = task.make("")
    called = _called_names(job.texts) if isinstance(job, AssertTests) else set()
    names = {task.entry} if task.entry else called
    for what, (before, body) in _DO_NOTHING.items() if names else ():
        found[what] = before + _defining(names, body)
    helpers = called - names
    if helpers:
        found[f"defines {', '.join(sorted(helpers))}, which the tests use"] = _defining(helpers, "return True") + (
            _defining(names, "return None")
        )
    return found


def _defining(names: Collection[str], body: str) -> str:
    """Functions of these names, all with this body."""
    return "".join(f"def {name.rpartition('.')[2]}(*arguments, **named): {body}\n" for name in sorted(names))


def _called_names(texts: Sequence[str]) -> set[str]:
    """Names that texts call and do not bind, builtins aside."""
    trees = map(_parsed, texts)
    nodes = [node for tree in trees if tree is not None for node in ast.walk(tree)]
    called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    bound = {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    return called - bound - set(vars(builtins))


_COLUMNS = ("test", "test_list", "input_output", "public_test_cases", "private_test_cases", "test_cases")


def task_of_row(columns: Mapping[str, Any], answer: Any) -> CodeTask | None:
    """The task of a row; None if it has no tests. NoScoreError for tests that cannot be read."""
    if isinstance(columns.get("test"), str) and columns.get("entry_point"):
        return _human_eval(columns)
    if columns.get("test_list"):
        return _mbpp(columns)
    if columns.get("input_output"):
        return _inputs_and_outputs(parsed(columns["input_output"], "input_output"))
    if columns.get("public_test_cases") or columns.get("private_test_cases"):
        return _live_code_bench(columns)
    if columns.get("test_cases"):
        return _listed(parsed(columns["test_cases"], "test_cases"), "test_cases")
    held = json_or(None, answer)
    if isinstance(held, dict) and "inputs" in held:
        return _inputs_and_outputs(held)
    if isinstance(held, list) and held and isinstance(held[0], dict):
        return _listed(held, "answer")
    for name in _COLUMNS:
        if columns.get(name) in ("", [], {}):
            raise NoScoreError(f"column {name!r} is empty: it tests nothing")
    return None


def _human_eval(columns: Mapping[str, Any]) -> CodeTask:
    entry, text = str(columns["entry_point"]), columns["test"]
    beginning = columns.get("prompt")
    beginning = beginning if isinstance(beginning, str) and _parsed(beginning) is not None else ""

    def job(code: str) -> Job:
        return AssertTests(code, (text,), prelude=beginning, entry=entry)

    return CodeTask(job, entry, beginning or None, _before(entry, beginning))


def _mbpp(columns: Mapping[str, Any]) -> CodeTask:
    challenge = columns.get("challenge_test_list") or []
    texts = _texts(columns["test_list"], "test_list") + _texts(challenge, "challenge_test_list")
    imports = _texts(columns.get("test_imports") or [], "test_imports")
    prelude = "\n".join([*imports, str(columns.get("test_setup_code") or "")])
    entry = _called(texts, columns.get("code"))
    header = f"{prelude}\n" if prelude.strip() else ""
    names = sorted(_called_names(texts[:1]))
    wanted = entry or (names[0] if len(names) == 1 else None)
    return CodeTask(lambda code: AssertTests(code, texts, prelude=prelude, entry=entry), wanted, header=header)


def _called(texts: Sequence[str], solution: Any) -> str | None:
    """Name of the solution's function that the tests call. It may also be the name of a builtin, such as `sum`."""
    try:
        defined = {node.name for node in ast.parse(solution or "").body if isinstance(node, ast.FunctionDef)}
        called = [node.id for text in texts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)]
    except (SyntaxError, ValueError, TypeError):
        return None
    return next((name for name in called if name in defined), None)


def _expected(output: Any) -> Any:
    return list(_first_whole(output)) if isinstance(output, list) else _whole_keys(output)


def _first_whole(values: Sequence[Any]) -> tuple[Any, ...]:
    return (*map(_whole_keys, values[:1]), *values[1:])


def _whole_keys(value: Any) -> Any:
    """Turn the keys of a dictionary, which JSON made texts, back into whole numbers. APPS does so for the first
    argument, the result, and the first element of a result."""
    try:
        return {int(key): one for key, one in value.items()} if isinstance(value, dict) else value
    except ValueError:
        return value


def _inputs_and_outputs(held: Any) -> CodeTask:
    """Read tests of APPS, TACO and verl: with a function's name, inputs are its arguments, else standard input."""
    if not isinstance(held, dict):
        raise NoScoreError("tests with inputs and outputs must be an object with these two names")
    if held.get("assert_case"):
        texts = _texts(held["assert_case"], "assert_case")
        return CodeTask(lambda code: AssertTests(code, texts))
    inputs, outputs, name = held.get("inputs"), held.get("outputs"), held.get("fn_name")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise NoScoreError("tests need as many outputs as inputs, both as lists")
    if name:
        cases = tuple(
            Case(_first_whole(given if isinstance(given, list) else [given]), _expected(output), wrapped=True)
            for given, output in zip(inputs, outputs, strict=True)
        )
        return CodeTask(lambda code: FunctionTests(code, name, cases), name, header=_IMPORTS)
    pairs = tuple((_text(given), _text(output)) for given, output in zip(inputs, outputs, strict=True))
    return CodeTask(lambda code: ProgramTests(code, pairs))


def _live_code_bench(columns: Mapping[str, Any]) -> CodeTask:
    rows: list[Any] = []
    for name in ("public_test_cases", "private_test_cases"):
        if columns.get(name):
            rows += _objects(parsed(columns[name], name), name)
    metadata = parsed(columns.get("metadata") or "{}", "metadata")
    entry = metadata.get("func_name") if isinstance(metadata, dict) else None
    if entry and any(row.get("testtype") == "functional" for row in rows):
        texts = [(str(row.get("input", "")).split("\n"), str(row.get("output", ""))) for row in rows]
        cases = tuple(Case(tuple(json_or(line, line) for line in lines), json_or(text, text)) for lines, text in texts)
        return CodeTask(lambda code: FunctionTests(code, entry, cases), entry, header=_IMPORTS)
    return _listed(rows, "public_test_cases")


def _listed(rows: Any, column: str) -> CodeTask:
    """Read a list of objects, each an assertion or an input with its output."""
    rows = _objects(rows, column)
    texts = tuple(str(row["assert_code"]) for row in rows if row.get("assert_code"))
    if texts:
        return CodeTask(lambda code: AssertTests(code, texts))
    pairs = []
    for row in rows:
        given = next((row[name] for name in ("stdin", "input") if name in row), None)
        expected = next((row[name] for name in ("expected_stdout", "expected_output", "output") if name in row), None)
        if given is None or expected is None:
            raise NoScoreError(
                f"{column}: an object has {', '.join(row)}, but neither assert_code nor input and output"
            )
        pairs.append((_text(given), _text(expected)))
    return CodeTask(lambda code: ProgramTests(code, tuple(pairs)))


def _objects(rows: Any, column: str) -> list[dict[str, Any]]:
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise NoScoreError(f"{column} must be a list of objects")
    return rows


def _texts(value: Any, column: str) -> tuple[str, ...]:
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, (list, tuple)) or not all(isinstance(text, str) for text in value):
        raise NoScoreError(f"{column} must be a text or a list of texts")
    return tuple(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def json_or(default: Any, value: Any) -> Any:
    """The value of a column, read if it is JSON as text; the default for any other text."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return default


def is_program(text: str) -> bool:
    """Return whether Python compiles it, which also refuses code that only parses, such as a `return` at top level."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, "<response>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _definitions(tree: ast.Module) -> set[str]:
    """Names that a program binds at top level, or in a class `Solution`; functions without a body do not count."""
    found: set[str] = set()
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name, body=body) | ast.AsyncFunctionDef(name=name, body=body):
                if not all(isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) for one in body):
                    found.add(name)
            case ast.ClassDef(name=name, body=body):
                found.add(name)
                if name == "Solution":
                    found |= _definitions(ast.Module(body, []))
            case ast.Assign(targets=targets):
                found |= {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                found |= {alias.asname or alias.name for alias in names}
    return found


def _before(entry: str, beginning: str) -> str:
    """The lines before the definition of the requested function."""
    found = re.search(rf"^def[ \t]+{re.escape(entry)}\b", beginning, re.MULTILINE)
    return beginning[: found.start()] if found else ""
