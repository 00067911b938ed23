"""The weaker grade: tests in the process of the candidate, for servers that can only run a program.

The program consists of the files that judge everywhere else too, and of `in_process.py`, which lets them meet. It gets
the job through standard input, together with a nonce that nobody can know before, and writes the nonce with what it has
found as the last thing it does. A candidate that looks for the nonce, or replaces what compares, gets away with it:
that is why the grade is named everywhere.
"""

from __future__ import annotations

import inspect
import json
import secrets
from dataclasses import replace
from typing import Any

from burnish.sandbox import candidate, in_process, tester, wire
from burnish.sandbox.job import AssertTests, FunctionTests, Output, Status, Verdict
from burnish.sandbox.messages import plain_job
from burnish.sandbox.sandbox import clean, verdict_of_lines

_OLDEST = (3, 10)
"""Python on the server: the files that are sent use `match`."""
_START = """\
import json, sys, types
asked = json.loads(sys.stdin.read())
if sys.version_info < OLDEST:
    broken = "the server has Python {}.{}, and they need {}.{}".format(*sys.version_info[:2], *OLDEST)
    print("\\n" + asked["nonce"], json.dumps([{"broken": broken}]))
    sys.exit()
for name, source in SOURCES.items():
    sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), sys.modules[name].__dict__)
sys.modules["burnish.sandbox.in_process"].main(asked["nonce"], asked["job"])
"""
_KINDS = {"passed": bool, "detail": str, "total": int, "broken": str, "not_loaded": str, "ended": str, "end": bool}
"""What a line of the tester may say."""
_LAST = {"not_loaded", "ended", "end"}


def question(job: FunctionTests | AssertTests) -> tuple[str, str, str]:
    """The program, its standard input, and the nonce in it. SandboxError for values that are not plain."""
    nonce = secrets.token_hex(16)
    return script(), json.dumps({"nonce": nonce, "job": plain_job(job)}), nonce


def script() -> str:
    """The text of the program."""
    sources = {module.__name__: inspect.getsource(module) for module in (wire, candidate, tester, in_process)}
    return f"SOURCES = {sources!r}\nOLDEST = {_OLDEST!r}\n{_START}"


def verdict(output: Output, nonce: str) -> Verdict:
    """Read the output of the program as a verdict of grade `shared`. SandboxError if the tests could not decide."""
    _, found, rest = output.stdout.rpartition(f"\n{nonce} ")
    if not output.timed_out and (not found or output.code != 0):
        said = clean(output.stderr.strip().rpartition("\n")[2])
        status: Status = "out_of_memory" if said.startswith("MemoryError") else "ended"
        return Verdict(status, 0, 1, output.seconds, said or "the process has ended before its tests", "shared")
    try:
        lines = [] if output.timed_out else _lines(rest.partition("\n")[0])
    except (ValueError, RecursionError):  # the candidate has found the nonce, and no more
        return Verdict("ended", 0, 1, output.seconds, "it wrote its own verdict", "shared")
    ended = {"timed_out": output.timed_out, "seconds": output.seconds, "code": output.code}
    return replace(verdict_of_lines(lines, ended, as_they_come=False), grade="shared")


def _lines(text: str) -> list[dict[str, Any]]:
    """The tester's lines. ValueError for what it does not write."""
    lines = json.loads(text)
    if not isinstance(lines, list) or not lines or not all(isinstance(line, dict) for line in lines):
        raise ValueError("no lines")
    if any(type(value) is not _KINDS.get(name) for line in lines for name, value in line.items()):
        raise ValueError("a line says something else")
    if "broken" not in lines[-1] and not ("total" in lines[0] and _LAST & lines[-1].keys()):
        raise ValueError("lines that begin or end in another way")
    return lines
