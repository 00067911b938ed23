"""Runs in this process: what they say and leave, and one that is interrupted."""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from burnish.config.schema import RlConfig, SftConfig
from burnish.trainers.rl.run import train_rl
from burnish.trainers.sft import train_sft
from burnish.trainers.telemetry.journal import Journal


def train(config: RlConfig | SftConfig, *, accept_changes: bool = False) -> tuple[Path, str]:
    """The folder of the run, and what it said."""
    said = io.StringIO()
    call = train_rl if isinstance(config, RlConfig) else train_sft
    result = call(config, console=Console(file=said, width=200), accept_changes=accept_changes)
    return result.folder, " ".join(said.getvalue().split())


def rows_of(folder: Path | str) -> list[dict[str, float]]:
    return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]


@contextmanager
def ctrl_c_in_step(number: int) -> Iterator[None]:
    """The run gets it before it writes the row of this step."""
    write = Journal.write

    def interrupted(journal: Journal, step: int, row: dict[str, float]) -> None:
        if step == number:
            os.kill(os.getpid(), signal.SIGINT)
        write(journal, step, row)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "write", interrupted)
        yield
