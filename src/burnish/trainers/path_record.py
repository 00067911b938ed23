"""The fast paths that a run began with, recorded in its folder so that a resume takes the same ones."""

from __future__ import annotations

import json
import os
from pathlib import Path

from burnish.errors import CheckpointError
from burnish.forward.fast_paths import FastPaths
from burnish.observability.atomic import disk_remedy, write_text_atomically
from burnish.reading import UnreadableError, read_json, reason_of

PATHS_FILE = "paths.json"


def recorded_paths(folder: Path) -> FastPaths:
    """Choices bound by those of the run in this folder, if any. Raises CheckpointError for a broken file."""
    return FastPaths(recorded_ways(folder))


def recorded_ways(folder: Path) -> dict[str, str]:
    """The ways of the run in this folder; none where it has recorded none. Raises as `recorded_paths` does."""
    file = folder / PATHS_FILE
    if not os.path.lexists(file):
        return {}
    try:
        content = read_json(file)
        ways: dict[str, str] = content["ways"]
        if not all(isinstance(text, str) for entry in ways.items() for text in entry):
            raise TypeError("its ways are not texts")
    except (UnreadableError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"cannot read {file}, which holds the fast paths of this run: {reason_of(error)}",
            remedy="remove it: the run then chooses again, and its numbers may differ in the last bits",
        ) from error
    return ways


def record_paths(folder: Path, paths: FastPaths) -> None:
    """Write what was chosen. Raises CheckpointError if the folder cannot be written to."""
    text = json.dumps({"ways": paths.record()}, indent=2) + "\n"
    try:
        write_text_atomically(folder / PATHS_FILE, text)
    except OSError as error:
        raise CheckpointError(
            f"cannot write to {folder}: {error.strerror}", remedy=disk_remedy(error, folder)
        ) from error
