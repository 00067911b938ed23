"""Tests in the process of the candidate. This file runs there, without Burnish: `shared.py` sends it together with
`wire.py`, `candidate.py` and `tester.py`, so what counts as passed is the same as where the two are apart.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from burnish.sandbox.candidate import Answers, load, raised
from burnish.sandbox.tester import TestReport, judge

_FRAMES = 100
"""More than the tests have below a call of the candidate, whose own recursion may be as deep as elsewhere."""


def main(nonce: str, job: Mapping[str, Any]) -> None:
    """Judge a job of `plain_job`, write the nonce with what was found as the last thing, and end this process."""
    write, leave = os.write, os._exit  # what a candidate puts in their place by accident is not called
    sys.setrecursionlimit(sys.getrecursionlimit() + _FRAMES)
    lines = _Lines()
    judge(job, _Here(job["code"]), lines)
    data = f"\n{nonce} {json.dumps(lines.content)}\n".encode()
    while data:
        data = data[write(1, data) :]
    leave(0)


class _Lines(TestReport):
    """Keeps the tester's lines, but only the first reason for a failure, since servers cut what a program writes."""

    def __init__(self) -> None:
        self.content: list[dict[str, Any]] = []

    def line(self, **content: Any) -> None:
        if any("detail" in one for one in self.content):
            content.pop("detail", None)
        self.content.append(content)


class _Here:
    """Answers for the candidate when it is asked. The code is loaded at the first `receive`, as its first message."""

    def __init__(self, code: str) -> None:
        self._code = code
        self._answers: Answers | None = None
        self._answer: dict[str, Any] | None = None

    def send(self, message: dict[str, Any]) -> None:
        assert self._answers is not None, "the tests ask nothing of code that is not loaded"
        try:
            self._answer = self._answers.to(message)
        except BaseException as error:  # noqa: BLE001  boundary: whatever the code does
            self._answer = raised(error)

    def receive(self) -> dict[str, Any]:
        if self._answer is None:
            # Not `solution`: that is the module in which the tests find the candidate's names.
            self._answers, self._answer = load(self._code, "candidate")
        return self._answer
