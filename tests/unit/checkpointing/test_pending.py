"""What was still to be done about a step reads back, and an odd file is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from burnish.checkpointing.store import PENDING_FILE, Pending, read_pending, write_pending
from burnish.errors import CheckpointError


def test_it_reads_back(tmp_path: Path) -> None:
    assert read_pending(tmp_path) is None
    write_pending(tmp_path, Pending({"reward/mean": 0.1}, normalised=True))
    assert read_pending(tmp_path) == Pending({"reward/mean": 0.1}, normalised=True)


@pytest.mark.parametrize(
    "text",
    [
        "null",
        "[]",
        "{}",
        '{"row": 1, "normalised": false}',
        f'{{"row": {{"a": {"9" * 400}}}, "normalised": false}}',
        "[" * 100_000,
        "",
        "\x00",
    ],
)
def test_an_odd_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / PENDING_FILE).write_text(text)
    with pytest.raises(CheckpointError, match=r"pending\.json"):
        read_pending(tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / PENDING_FILE)
    with pytest.raises(CheckpointError, match="is a pipe, not a file"):
        read_pending(tmp_path)
