"""Programs that come with a user's files (chat templates, regular expressions) may never end, or take all the memory.

They are tried in a process of their own, which ends when its time or its memory does.
"""

from __future__ import annotations

import importlib
import json
import resource
import subprocess
import sys
from typing import Any

_PROGRAM = "import sys; sys.path[:] = {path!r}; from burnish.trial import serve; serve()"
_SLOWER_THAN_ITS_WORK = 6
"""Seconds on the clock for one of arithmetic: the machine may be busy with other things."""


def call_in_own_process(function: str, request: dict[str, Any], *, seconds: int, max_bytes: int | None = None) -> Any:
    """`module:function` called with the request; both it and the result are plain JSON values.

    seconds: of arithmetic. max_bytes: of memory, all of the process's own included. Raises TimeoutError and MemoryError
    past them, and RuntimeError with the last line that a failing process wrote.
    """
    limits = {"function": function, "seconds": seconds, "max_bytes": max_bytes}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM.format(path=sys.path)],
            input=json.dumps({**limits, "request": request}).encode(),
            capture_output=True,
            timeout=seconds * _SLOWER_THAN_ITS_WORK,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TimeoutError from error
    if done.returncode < 0:  # the system ended it at the limit of its arithmetic
        raise TimeoutError
    said = done.stderr.decode("utf-8", "backslashreplace").strip().rpartition("\n")[2]
    if said.startswith("MemoryError"):
        raise MemoryError
    if done.returncode:
        raise RuntimeError(said or f"exit status {done.returncode}")
    return json.loads(done.stdout)


def serve() -> None:
    """What the process does: take one request from standard input, answer on standard output."""
    asked = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_CPU, (asked["seconds"], asked["seconds"] + 1))
    if asked["max_bytes"] is not None:
        resource.setrlimit(resource.RLIMIT_AS, (asked["max_bytes"], asked["max_bytes"]))
    module, _, name = asked["function"].partition(":")
    answer = vars(importlib.import_module(module))[name](**asked["request"])
    json.dump(answer, sys.stdout)
