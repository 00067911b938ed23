"""The reward `code` on a real data set, and in a run."""

from __future__ import annotations

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from burnish.errors import SandboxError
from burnish.rewards.builtins.code import program
from burnish.rewards.builtins.code_tests import task_of_row
from burnish.sandbox.job import Limits
from burnish.sandbox.sandbox import Sandbox
from burnish.sandbox.trial import strongest


@pytest.fixture(scope="module")
def sandbox() -> Any:
    try:
        opened = strongest(processes=2, limits=Limits(seconds=60.0, processor_seconds=60.0))
    except SandboxError as error:
        pytest.skip(str(error).splitlines()[0])
    with opened:
        yield opened


@pytest.mark.slow
def test_human_eval_s_own_solutions_pass_and_no_others(shared_dir: Path, sandbox: Sandbox) -> None:
    file = shared_dir / "data/humaneval/HumanEval.jsonl.gz"
    if not file.exists():
        pytest.skip(f"no {file}")
    rows = [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]
    tasks = [task_of_row(row, None) for row in rows]
    assert len(tasks) == 164
    for answer, expected in (
        (None, 164),
        ("    return None\n", 0),
        ("    import os; os._exit(0)\n", 0),
    ):
        jobs = [
            task.make(program(row["canonical_solution"] if answer is None else answer, task))
            for row, task in zip(rows, tasks, strict=True)
            if task is not None
        ]
        with ThreadPoolExecutor(sandbox.processes) as threads:
            verdicts = list(threads.map(sandbox.run, jobs))
        assert sum(verdict.status == "passed" for verdict in verdicts) == expected, answer
