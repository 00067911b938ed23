"""What commands do to their process: they show their own progress alone and leave imports out of garbage collections.
A program that uses the library keeps its bars and its collector."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest
from runs import BuildRl, BuildSft, run_file
from transformers.utils import logging

import burnish
from burnish.config.schema_data import ModelConfig
from burnish.models.loading import load_model

MAIN = """
import gc, sys
from burnish.cli import main
code = main(sys.argv[1:])
print("left out", gc.get_freeze_count())
sys.exit(code)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rl", "sft"])
def test_a_command_shows_no_bars_for_weights_and_leaves_imports_out_of_collections(
    kind: str, tiny_run: BuildRl, tiny_sft: BuildSft
) -> None:
    """A process of its own; without silence its standard error would show bars for the weights that it writes."""
    words = [kind, run_file({"rl": tiny_run, "sft": tiny_sft}[kind]("steps=1"))]
    done = subprocess.run([sys.executable, "-c", MAIN, *words], capture_output=True, text=True, check=True)
    for sign in ("Loading weights", "Writing model shards", "it/s", "%|"):
        assert sign not in done.stdout + done.stderr
    assert "finished at step 1" in done.stdout
    assert int(done.stdout.split()[-1]) > 100_000


@pytest.mark.slow
def test_the_library_leaves_the_collector_alone(tiny_run: BuildRl, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    before = gc.isenabled(), gc.get_threshold()
    burnish.train(tiny_run("steps=1").model_dump(mode="json"), quiet=True)
    assert (gc.isenabled(), gc.get_threshold()) == before
    assert frozen == []


def test_loading_a_model_changes_no_setting_of_the_process(tiny_model: Path) -> None:
    logging.enable_progress_bar()
    load_model(ModelConfig(path=str(tiny_model), device="cpu"))
    assert logging.is_progress_bar_enabled()
