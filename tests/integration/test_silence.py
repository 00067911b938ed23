"""Commands show their own progress and nobody else's; a program that uses the library keeps its bars."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers.utils import logging

from burnish.config.schema import RunConfig
from burnish.config.schema_data import ModelConfig
from burnish.models.loading import load_model


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rl", "sft"])
def test_no_bars_for_weights(
    kind: str, tiny_run: Callable[..., Any], tiny_sft: Callable[..., Any], run_file: Callable[[RunConfig], str]
) -> None:
    """A process of its own; without silence its standard error would show bars for the weights that it writes."""
    build = {"rl": tiny_run, "sft": tiny_sft}[kind]
    words = [kind, run_file(build("steps=1"))]
    code = "import sys; from burnish.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    for sign in ("Loading weights", "Writing model shards", "it/s", "%|"):
        assert sign not in done.stdout + done.stderr
    assert "finished at step 1" in done.stdout


def test_loading_a_model_changes_no_setting_of_the_process(tiny_model: Path) -> None:
    logging.enable_progress_bar()
    load_model(ModelConfig(path=str(tiny_model), device="cpu"))
    assert logging.is_progress_bar_enabled()
