"""Measure in a process of its own: the other side of `child.py`, and of any script TASK.json RESULT.json."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def run_script(
    script: Path, task: Mapping[str, Any], *, interpreter: str = sys.executable, environment: Mapping[str, str]
) -> dict[str, Any]:
    """Run `script` on the task and read its result. `environment` is added to this process's.

    Raises SystemExit with the end of its output when it fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        given, found = Path(folder) / "task.json", Path(folder) / "result.json"
        given.write_text(json.dumps(task), encoding="utf-8")
        done = subprocess.run(
            [interpreter, str(script), str(given), str(found)],
            env=inherited(interpreter) | {"OMP_NUM_THREADS": str(task["threads"])} | dict(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        if done.returncode:
            raise SystemExit(f"{script.name} failed with {done.returncode} on {task}:\n{done.stdout[-3000:]}")
        result: dict[str, Any] = json.loads(found.read_text(encoding="utf-8"))
        return result


def inherited(interpreter: str) -> dict[str, str]:
    """This process's environment, without settings of the allocator, without its module path for another interpreter,
    and with nothing that talks to the network."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}
    if interpreter != sys.executable:
        kept.pop("PYTHONPATH", None)
    return kept | {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
