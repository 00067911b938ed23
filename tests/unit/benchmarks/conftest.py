"""The scripts of `benchmarks`, which import each other by their names."""

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
Script = Callable[[str], ModuleType]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Imports a script by its name."""
    for folder in ("peers", "gpu", ""):
        monkeypatch.syspath_prepend(str(BENCHMARKS / folder))
    return importlib.import_module
