"""Rows that reasoning-gym makes, from a process in which the same settings always make the same rows."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator

from burnish.config import names
from burnish.config.schema_data import DataSource
from burnish.data.files import RawRow
from burnish.errors import DataError

SILENCE_SECONDS = 300.0
"""How long the process may take for its start, and for each row. The slowest tasks take about a second."""


def puzzle_rows(source: DataSource) -> Iterator[RawRow]:
    """The rows of a source with `reasoning_gym`, up to its limit: question, answer, metadata, domain, and in the column
    `reasoning_gym` the task and its parameters."""
    count = source.size if source.limit is None else min(source.size, source.limit)
    asked = {"tasks": source.reasoning_gym, "size": source.size, "seed": source.seed, "count": count}
    for number, line in enumerate(_lines(json.dumps(asked))):
        row = json.loads(line)
        if "error" in row:
            raise DataError(row["error"], remedy=row["remedy"])
        task = row.pop("task")
        made_by = {"task": task, "parameters": row.pop("parameters")}
        yield f"{source.path}, row {number} ({task})", {**row, "domain": task, names.PUZZLES: made_by}


def _lines(asked: str) -> Iterator[bytes]:
    """What the process writes, line by line. DataError if it dies or falls silent."""
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(
        [sys.executable, "-m", "burnish.data.puzzles"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(asked.encode())
        process.stdin.close()
        rest = b""
        while part := _part(process.stdout.fileno()):
            *lines, rest = (rest + part).split(b"\n")
            yield from lines
        if process.wait(SILENCE_SECONDS):
            raise DataError(
                f"the process that makes the rows of reasoning_gym has ended with status {process.returncode}",
                remedy="what it printed says why",
            )
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _part(descriptor: int) -> bytes:
    began = time.monotonic()
    if not select.select([descriptor], [], [], SILENCE_SECONDS)[0]:
        raise DataError(
            f"reasoning_gym has made no row for {time.monotonic() - began:.0f} seconds",
            remedy="choose easier parameters, or remove the task that takes so long",
        )
    return os.read(descriptor, 1 << 20)
