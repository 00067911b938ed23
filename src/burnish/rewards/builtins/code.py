"""Run the model's programs against the tests of their rows, in the sandbox."""

from __future__ import annotations

import re
from dataclasses import replace
from textwrap import dedent, indent
from typing import Annotated, Any, Literal

from burnish.config.secrets import key_in
from burnish.errors import ConfigError, SandboxError
from burnish.rewards.builtins.code_tests import CodeTask, is_program, task_of_row
from burnish.rewards.builtins.reading_rows import NoScoreError, after_thoughts, blocks_in, check_word, fenced_blocks
from burnish.sandbox.confinement import TIERS
from burnish.sandbox.job import AssertTests, FunctionTests, Grade, Limits, ProgramTests, Runner
from burnish.sandbox.trial import opened
from burnish.types import Score

_PYTHON = ("python", "py", "python3")
_FUTURE = re.compile(r"^from __future__ import [^\n]*\n?", re.MULTILINE)


class Code:
    """1 if the program of the response passes all tests of its row, else 0; `score: fraction` gives the share that it
    passes. None (missing) for a row without tests.

    seconds: for all tests of a response together. It must be less than two thirds of the reward's `timeout_seconds`:
    a program that never ends has failed, and a reward that never ends has no score. tier: `auto` is the strongest tier
    of the sandbox that confines programs here and withstands its attacks; see `burnish sandbox`. url: of a server that
    runs the programs instead, with the token in the environment variable `token_variable`. grade: `shared` lets a
    server that only runs programs test functions in the candidate's process; the part `shared` of a score says whether
    it did.
    """

    def __init__(
        self,
        score: Annotated[
            Literal["all", "fraction"], "all (default), or fraction: the share of the tests that it passes"
        ] = "all",
        tier: Annotated[
            str, "of the sandbox: auto (default), namespaces, landlock, or process, which confines nothing"
        ] = "auto",
        seconds: Annotated[
            float, "for all tests of a response together; less than two thirds of timeout_seconds"
        ] = 6.0,
        memory_mb: Annotated[int, "memory of a program, beyond Python's own"] = 512,
        url: Annotated[str | None, "of a server that runs the programs instead of this machine (default none)"] = None,
        token_variable: Annotated[
            str | None, "environment variable that holds the server's token (default none)"
        ] = None,
        grade: Annotated[
            Grade, "split (default), or shared: a server that only runs programs may test in the candidate's process"
        ] = "split",
    ) -> None:
        check_word("code", "tier", tier, ("auto", *TIERS))
        if seconds <= 0 or memory_mb <= 0:
            raise ConfigError("options seconds and memory_mb of reward 'code' must be positive")
        self._fraction = score == "fraction"
        self._names_grade = grade == "shared"
        limits = Limits(seconds=seconds, processor_seconds=seconds, memory_mb=memory_mb)
        self._sandbox = _open(tier, url, token_variable, grade, limits)

    def __call__(self, response: str, answer: Any = None, **columns: Any) -> float | Score | None:
        task = task_of_row(columns, answer)
        if task is None:
            return None
        try:
            verdict = self._sandbox.run(self._job(task, program(response, task)))
        except SandboxError as error:
            raise NoScoreError(str(error)) from error  # only this response fails: the run counts it and goes on
        value = verdict.fraction if self._fraction else float(verdict.status == "passed")
        return Score(value, {"shared": float(verdict.grade == "shared")}) if self._names_grade else value

    def _job(self, task: CodeTask, code: str) -> FunctionTests | AssertTests | ProgramTests:
        job = task.make(code)
        return job if self._fraction or not isinstance(job, ProgramTests) else replace(job, until_failure=True)


def _open(tier: str, url: str | None, token_variable: str | None, grade: Grade, limits: Limits) -> Runner:
    """The sandbox of this machine, or the one at `url`."""
    if url is None:
        if token_variable is not None or grade != "split":
            raise ConfigError(
                "options token_variable and grade of reward 'code' are for a sandbox on another machine",
                remedy="set url (sandbox.url in a run file), or remove them",
            )
        return opened(tier, limits=limits)
    if tier != "auto":
        raise ConfigError(f"option tier of reward 'code' is {tier!r}, but programs run at {url}", remedy="remove tier")
    also = "; and name it under `environment` of the reward if the reward has the option itself"
    token = key_in(token_variable, "option token_variable of reward 'code'", also)
    from burnish.sandbox.remote import RemoteSandbox  # imported here because most runs never need its HTTP library

    return RemoteSandbox(url, token, grade=grade, limits=limits)


def program(response: str, task: CodeTask) -> str:
    """Extract the program of a response, after its thoughts: its last block marked as Python, or not marked, that
    defines what the tests call, else its last block marked as Python, else the last one not marked, else the whole
    response. Without a name to call, the first of these does not apply. Code that does not define it continues the
    row's beginning of a program: as it is written or, if that does not compile, indented as the body of the last
    function there."""
    text = after_thoughts(response)
    blocks = blocks_in(text, _PYTHON)
    named = blocks if task.entry is None else [block for mark, block in fenced_blocks(text) if mark in (*_PYTHON, "")]
    defining = [block for block in named if task.is_defined_in(dedent(block))]
    written = (defining or blocks or [text])[-1]
    code = dedent(written) if blocks else written
    if task.beginning is None or task.is_defined_in(code):
        return joined(task.header, code)
    ways = [task.beginning + written, task.beginning + indent(dedent(written), " " * 4)]
    return next((way for way in ways if is_program(way)), ways[0])


def joined(header: str, code: str) -> str:
    """Put the header above the code, but below the code's `from __future__` imports, which have to come first."""
    if not header:
        return code
    return "".join(_FUTURE.findall(code)) + header + _FUTURE.sub("", code)
