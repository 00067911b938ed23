"""Shared fixtures: where the optional real data lies, and quiet, deterministic torch."""

from __future__ import annotations

import os

# Before torch is imported, here and in every process that a test starts: models of a few thousand parameters are
# fastest on one thread, and tests run side by side.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from pathlib import Path

import pytest
from hypothesis import settings

# The same examples on every run and machine: a test that fails can be run again and fails again.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.load_profile("steady")

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Folder with `data/` and `models/` of real material; tests that need it skip when it is absent."""
    folder = Path(os.environ.get("BURNISH_DATA", REPOSITORY.parent / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip(f"no real data at {folder} (set BURNISH_DATA)")
    return folder


@pytest.fixture(scope="session")
def stories_model(shared_dir: Path) -> Path:
    """The small real pre-trained model, where it is at hand."""
    folder = shared_dir / "models" / "stories260k"
    if not folder.is_dir():
        pytest.skip(f"no model at {folder}")
    return folder
