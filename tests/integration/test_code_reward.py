"""The reward `code` on a real data set, and in a run."""

import gzip
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confining import where_confined

from burnish.rewards.builtins.code import program
from burnish.rewards.builtins.code_tests import task_of_row
from burnish.sandbox.job import Limits
from burnish.sandbox.sandbox import Sandbox
from burnish.sandbox.trial import strongest


@pytest.fixture(scope="module")
def sandbox() -> Any:
    with where_confined():
        opened = strongest(processes=2, limits=Limits(seconds=60.0, processor_seconds=60.0))
    with opened:
        yield opened


@pytest.mark.slow
def test_human_eval_s_own_solutions_pass_and_no_others(at_hand: Callable[[str], Path], sandbox: Sandbox) -> None:
    file = at_hand("data/humaneval/HumanEval.jsonl.gz")
    rows = [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]
    tasks = [task_of_row(row, None) for row in rows]
    assert len(tasks) == 164
    for answer, expected in ((None, 164), ("    return None\n", 0), ("    import os; os._exit(0)\n", 0)):
        jobs = [
            task.make(program(row["canonical_solution"] if answer is None else answer, task))
            for row, task in zip(rows, tasks, strict=True)
            if task is not None
        ]
        with ThreadPoolExecutor(sandbox.processes) as threads:
            verdicts = list(threads.map(sandbox.run, jobs))
        assert sum(verdict.status == "passed" for verdict in verdicts) == expected, answer
