"""Calls in a separate process with a limit on time and memory.

For programs that come with a user's files (chat templates, regular expressions), which may never end or may use up all
memory.
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
"""Wall-clock seconds allowed per second of CPU time, because the machine may be busy with other work."""


def call_in_own_process(function: str, request: dict[str, Any], *, seconds: int, max_bytes: int | None = None) -> Any:
    """Call `module:function` with `request` as keyword arguments. Request and result are plain JSON values.

    seconds: limit on CPU time. max_bytes: limit on address space, including what Python itself uses. Raises
    TimeoutError or MemoryError past these limits, and RuntimeError with the last line that a failing process wrote.
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
    if done.returncode < 0:  # the system killed it at the limit on CPU time
        raise TimeoutError
    last_line = done.stderr.decode("utf-8", "backslashreplace").strip().rpartition("\n")[2]
    if last_line.startswith("MemoryError"):
        raise MemoryError
    if done.returncode:
        raise RuntimeError(last_line or f"exit status {done.returncode}")
    return json.loads(done.stdout)


def serve() -> None:
    """What the separate process runs: one request from standard input, its answer to standard output."""
    asked = json.load(sys.stdin)
    # At the soft limit the system sends SIGXCPU, which ends Python; the hard one kills whatever survived that.
    resource.setrlimit(resource.RLIMIT_CPU, (asked["seconds"], asked["seconds"] + 1))
    if asked["max_bytes"] is not None:
        resource.setrlimit(resource.RLIMIT_AS, (asked["max_bytes"], asked["max_bytes"]))
    module, _, name = asked["function"].partition(":")
    answer = vars(importlib.import_module(module))[name](**asked["request"])
    json.dump(answer, sys.stdout)
