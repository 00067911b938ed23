"""Commands that train leave imports out of garbage collections; a program that uses the library decides itself."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import burnish
from burnish.config.schema import RunConfig

MAIN = """
import gc, sys
from burnish.cli import main
code = main(sys.argv[1:])
print("left out", gc.get_freeze_count())
sys.exit(code)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rl", "sft"])
def test_a_command_leaves_imports_out(
    kind: str, tiny_run: Callable[..., Any], tiny_sft: Callable[..., Any], run_file: Callable[[RunConfig], str]
) -> None:
    config = {"rl": tiny_run, "sft": tiny_sft}[kind]("steps=1")
    done = subprocess.run(
        [sys.executable, "-c", MAIN, kind, run_file(config)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout.split()[-1]) > 100_000


@pytest.mark.slow
def test_the_library_leaves_the_collector_alone(tiny_run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    before = gc.isenabled(), gc.get_threshold()
    burnish.train(tiny_run("steps=1").model_dump(mode="json"), quiet=True)
    assert (gc.isenabled(), gc.get_threshold()) == before
    assert frozen == []
