"""Programs of the model against the tests of their row, in the sandbox."""

from __future__ import annotations

import re
from textwrap import dedent
from typing import Any, Literal

from burnish.errors import ConfigError, SandboxError
from burnish.rewards.builtins.code_tests import Task, TestsError, task_of_row
from burnish.sandbox.confinement import TIERS, Tier
from burnish.sandbox.job import Limits
from burnish.sandbox.sandbox import Sandbox
from burnish.sandbox.trial import strongest
from burnish.words import nearest

# The closing fence has the indentation of the opening one, so that one inside a docstring does not end the block.
_FENCE = re.compile(r"^([ \t]*)```[ \t]*([\w+-]*)[^\n]*\n(.*?)(?:^\1```[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
_PYTHON = ("python", "py", "python3")
_FUTURE = re.compile(r"^from __future__ import [^\n]*\n?", re.MULTILINE)
_END = "</think>"
_SCORES = ("all", "fraction")


class Code:
    """1 if the program of the response passes all tests of its row, else 0; `score: fraction` gives the share that it
    passes. None (missing) for a row without tests.

    seconds: for all tests of a response together. It has to be less than the reward's `timeout_seconds`, because a
    program that never ends has failed, and a reward that never ends has no score. tier: `auto` is the strongest tier of
    the sandbox that confines programs here and holds; see `burnish sandbox`.
    """

    def __init__(
        self,
        score: Literal["all", "fraction"] = "all",
        tier: str = "auto",
        seconds: float = 6.0,
        memory_mb: int = 512,
    ) -> None:
        _check_word("score", score, _SCORES)
        _check_word("tier", tier, ("auto", *TIERS))
        if seconds <= 0 or memory_mb <= 0:
            raise ConfigError("options seconds and memory_mb of reward 'code' have to be positive")
        self._fraction = score == "fraction"
        limits = Limits(seconds=seconds, processor_seconds=seconds, memory_mb=memory_mb)
        self._sandbox = strongest(limits=limits) if tier == "auto" else Sandbox(_tier(tier), limits=limits)

    def __call__(self, response: str, answer: Any = None, **columns: Any) -> float | None:
        task = task_of_row(columns, answer)
        if task is None:
            return None
        try:
            verdict = self._sandbox.run(task.job(program(response, task)))
        except SandboxError as error:
            raise TestsError(str(error)) from error  # of this response alone: the run goes on, and counts it
        return verdict.fraction if self._fraction else float(verdict.status == "passed")


def program(response: str, task: Task) -> str:
    """The code that a response means, after its thoughts: its last block marked as Python that defines what the tests
    call, else its last such block, else the same of blocks that are not marked, else the whole response. What does not
    define it continues the row's beginning of a program."""
    found = [(language.lower(), dedent(block)) for _, language, block in _FENCE.findall(response.rpartition(_END)[2])]
    marked = [block for language, block in found if language in _PYTHON]
    blocks = marked or [block for language, block in found if not language]
    defining = [block for block in blocks if task.is_defined_in(block)]
    code = (defining or blocks or [response.rpartition(_END)[2]])[-1]
    if task.beginning is None or task.is_defined_in(code):
        return joined(task.header, code)
    return task.beginning + code


def joined(header: str, code: str) -> str:
    """The code below a header, with its imports from the future above both, where they have to be."""
    if not header:
        return code
    return "".join(_FUTURE.findall(code)) + header + _FUTURE.sub("", code)


def _tier(name: str) -> Tier:
    return next(tier for tier in TIERS if tier == name)


def _check_word(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        near = nearest(value, known)
        hint = f"did you mean {near!r}? " if near else ""
        raise ConfigError(f"option {option} of reward 'code' is {value!r}", remedy=f"{hint}use {', '.join(known)}")
