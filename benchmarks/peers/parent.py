"""Measure in a process of its own: the other side of `child.py`, and of any script TASK.json RESULT.json."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memory import PeakMemory


class ScriptFailed(SystemExit):
    """A script ended with an error, was killed, or ran for longer than it may. `reason` says it in a line."""

    def __init__(self, message: str, reason: str, output: str) -> None:
        super().__init__(f"{message}:\n{output[-3000:]}")
        self.reason = reason[:300]


def run_script(
    script: Path,
    task: Mapping[str, Any],
    *,
    interpreter: str = sys.executable,
    environment: Mapping[str, str],
    timeout: float | None = None,
) -> dict[str, Any]:
    """Run `script` on the task and read its result. `environment` is added to this process's. If the result has
    `peak_bytes`, it becomes that of the script with everything that it started, and `workers_bytes` is that without it.

    Raises ScriptFailed with the end of its output when it fails, or takes more than `timeout` seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        given, found, said = (Path(folder) / name for name in ("task.json", "result.json", "said.txt"))
        given.write_text(json.dumps(task), encoding="utf-8")
        with said.open("wb") as output:
            process = subprocess.Popen(
                [interpreter, str(script), str(given), str(found)],
                env=inherited(interpreter) | {"OMP_NUM_THREADS": str(task["threads"])} | dict(environment),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            with PeakMemory(process.pid) as memory:
                code = _wait(process, timeout)
        if code != 0:
            text = said.read_text(encoding="utf-8", errors="replace")
            reason = _reason(code, timeout, text)
            raise ScriptFailed(f"{script.name} failed ({reason}) on {task}", reason, text)
        result: dict[str, Any] = json.loads(found.read_text(encoding="utf-8"))
    if "peak_bytes" in result:
        result["peak_bytes"] = max(result["peak_bytes"], memory.all_bytes)
        result["workers_bytes"] = memory.workers_bytes
    return result


def _wait(process: subprocess.Popen[bytes], timeout: float | None) -> int | None:
    """Its exit status; None if it was still running after `timeout`. Then, and when this process is interrupted, it is
    killed with all that it started."""
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _reason(code: int | None, timeout: float | None, output: str) -> str:
    if code is None:
        return f"still running after {timeout:.0f} s"
    if code < 0:
        return f"killed by {signal.Signals(-code).name}, as happens without memory"
    return next(reversed(output.strip().splitlines()), f"exit status {code}")


def inherited(interpreter: str) -> dict[str, str]:
    """This process's environment, without settings of the allocator, without its module path for another interpreter,
    and with nothing that talks to the network."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}
    kept.pop("GLIBC_TUNABLES", None)
    if interpreter != sys.executable:
        kept.pop("PYTHONPATH", None)
    return kept | {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
