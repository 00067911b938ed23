"""The weaker grade: tests in the process of the candidate, for servers that can only run a program.

`script` is the program. It gets the job through standard input, together with a nonce that nobody can know before, and
writes the nonce with what it has found as the last thing it does. A candidate that looks for the nonce, replaces what
compares, or returns objects that are equal to everything gets away with it: that is why the grade is named everywhere.
"""

from __future__ import annotations

import ast
import inspect
import json
import secrets
from typing import Any

from burnish.errors import SandboxError
from burnish.sandbox import wire
from burnish.sandbox.job import AssertTests, FunctionTests, Output, Status, Verdict
from burnish.sandbox.messages import plain_job
from burnish.sandbox.sandbox import clean, no_tests
from burnish.sandbox.tester import equal
from burnish.sandbox.wire import decode


def question(job: FunctionTests | AssertTests) -> tuple[str, str, str]:
    """The program, its standard input, and the nonce in it. SandboxError for tests that test nothing."""
    _check(job)
    nonce = secrets.token_hex(16)
    return script(), json.dumps({"nonce": nonce, "job": plain_job(job)}), nonce


def script() -> str:
    """The text of the program: the values' code, what compares, and `_judge_here`."""
    parts = [inspect.getsource(wire), "import math", inspect.getsource(equal), inspect.getsource(_judge_here)]
    return "\n\n".join([*parts, "_judge_here()\n"])


def verdict(output: Output, job: FunctionTests | AssertTests, nonce: str) -> Verdict:
    """What came out of the program, as a verdict of grade `shared`."""
    total = len(job.cases) if isinstance(job, FunctionTests) else len(job.texts)
    if output.timed_out:
        detail = f"stopped after {output.seconds:.1f} s"
        return Verdict("timed_out", 0, total, output.seconds, detail, "shared")
    _, found, rest = output.stdout.rpartition(f"\n{nonce} ")
    said = clean(output.stderr.strip().rpartition("\n")[2])
    if not found or output.code != 0:
        status: Status = "out_of_memory" if said.startswith("MemoryError") else "ended"
        return Verdict(status, 0, total, output.seconds, said or "the process has ended before its tests", "shared")
    try:
        status, passed, detail = json.loads(rest.partition("\n")[0])
        if status not in ("passed", "failed", "not_loaded") or type(passed) is not int or not 0 <= passed <= total:
            raise ValueError("not what the script writes")
    except (ValueError, TypeError):  # the candidate has found the nonce, and no more
        return Verdict("ended", 0, total, output.seconds, "it wrote a verdict of its own", "shared")
    if status == "passed" and passed < total:
        status = "failed"
    return Verdict(status, passed, total, output.seconds, clean(str(detail)), "shared")


def _check(job: FunctionTests | AssertTests) -> None:
    """SandboxError unless every part of the tests can fail."""
    if isinstance(job, FunctionTests):
        if not job.cases:
            raise no_tests()
        return
    for text in job.texts:
        try:
            nodes = list(ast.walk(ast.parse(text)))
        except SyntaxError as error:
            raise SandboxError(
                f"the tests cannot be read: {error}", remedy="mend them, or leave the row out"
            ) from error
        if not any(isinstance(node, ast.Assert) for node in nodes) and "unittest" not in text:
            raise no_tests()
    if not job.texts:
        raise no_tests()


def _judge_here() -> None:
    """Runs where the candidate does, without Burnish: `decode` and `equal` are above it in the script."""
    import json
    import os
    import sys
    import unittest

    write, leave, dumps = os.write, os._exit, json.dumps
    asked = json.loads(sys.stdin.read())
    job, nonce = asked["job"], asked["nonce"]
    names: dict[str, Any] = {"__name__": "solution"}

    def ended(status: str, passed: int, detail: object) -> None:
        sys.stdout.flush()
        write(1, f"\n{nonce} {dumps([status, passed, str(detail)[:200]])}\n".encode())
        leave(0)

    def case(number: int) -> None:
        entry, given = names, job["cases"][number]
        owner, _, method = job["entry"].rpartition(".")
        function = getattr(entry[owner](), method) if owner else entry[method]
        found = function(*decode(given["arguments"]), **decode(given["named"]))
        expected = decode(given["expected"])
        forms = [expected, *(expected if given["wrapped"] and type(expected) is list and len(expected) == 1 else [])]
        assert any(equal(form, found, job["tolerance"]) for form in forms), f"{job['entry']} returned {found!r}"

    def text(number: int) -> None:
        own = dict(names)
        exec(compile(job["texts"][number], "tests.py", "exec", dont_inherit=True), own)
        if job["entry"] and callable(own.get("check")):
            own["check"](own[job["entry"]])
        for name, value in list(own.items()):
            if name in names:
                continue
            if name.startswith("test") and callable(value):
                value()
            elif isinstance(value, type) and issubclass(value, unittest.TestCase):
                result = unittest.TestResult()
                unittest.TestLoader().loadTestsFromTestCase(value).run(result)
                assert result.testsRun > 0 == len(result.errors) + len(result.failures), f"{name}: {result}"

    try:
        exec(compile(job.get("prelude", ""), "prelude.py", "exec", dont_inherit=True), names)
        exec(compile(job["code"], "solution.py", "exec", dont_inherit=True), names)
    except BaseException as error:  # noqa: BLE001  boundary: whatever the code does
        ended("not_loaded", 0, f"{type(error).__name__}: {error}")
    passed, why = 0, ""
    test, total = (case, len(job["cases"])) if job["kind"] == "functions" else (text, len(job["texts"]))
    for number in range(total):
        try:
            test(number)
            passed += 1
        except BaseException as error:  # noqa: BLE001  boundary: whatever the code does
            why = why or f"{type(error).__name__}: {error}"
    ended("passed" if passed == total else "failed", passed, why)
