"""What each command may not import: a command that looks at files answers in a second, because it leaves alone what
only training needs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from burnish.checkpointing.run import RunDirectory
from burnish.config.loading import load_run_file
from burnish.models.characters import character_tokenizer
from burnish.observability.control import RunEnding, write_ending

from .conftest import NUMBERS

RUN = """\
output: sweep
model: {path: model, from_scratch: true}
data: {train: train.jsonl}
rewards: exact
steps: 4
rollout: {prompts_per_step: 2, group_size: 3, max_response_tokens: 8}
"""
SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 16}
HEAVY = {"torch._dynamo", "torch.distributed.tensor", "sympy", "datasets", "pandas", "pyarrow"}
LIGHT = {"torch", "transformers", *HEAVY}
COMPUTING = {*HEAVY, "transformers.models", "burnish.models.loading", "burnish.forward.batch", "burnish.api.inputs"}
FORBIDDEN = {
    "--help": {*LIGHT, "pydantic", "numpy", "yaml", "burnish.config.schema"},
    "algorithms": {*LIGHT, "numpy", "yaml"},
    "algorithms cispo": {"transformers", *HEAVY, "yaml"},
    "check --list": LIGHT,
    "check run.yaml": LIGHT,
    "report run": {*LIGHT, "numpy"},
    "table run": {*LIGHT, "numpy", "matplotlib"},
    "sweep run.yaml seed=0,1": LIGHT,
    "plan run.yaml": COMPUTING,  # torch knows how many threads and GPUs a run has, and transformers the tokenizer
    "plan run.yaml --on 8xH100-80GB": COMPUTING,
    "plan run.yaml --simulate --numbers numbers.yaml --devices 1": LIGHT,
}
"""Command -> modules."""
PROGRAM = "import sys; from burnish.cli import main; assert main() == 0; print(*sys.modules, file=sys.stderr)"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run.yaml").write_text(RUN)
    (tmp_path / "numbers.yaml").write_text(NUMBERS)
    rows = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(8)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "llama", **SIZES}))
    tokenizer = character_tokenizer("0123456789+=", eos="<eos>", pad="<pad>", context_length=64)
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "run").mkdir()
    for seed in (0, 1):  # finished runs of a sweep
        run = load_run_file(tmp_path / "run.yaml", (f"seed={seed}", f"output=sweep/seed={seed}")).config
        RunDirectory(tmp_path / run.output).begin(run)
        write_ending(tmp_path / run.output, RunEnding(4, "all steps are made"))
    row = {"step": 1, "reward/mean": 0.5, "eval/accuracy": 0.5}
    (tmp_path / "run" / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "run" / "config.yaml").write_text(RUN)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(("command", "forbidden"), FORBIDDEN.items(), ids=FORBIDDEN)
def test_what_a_command_does_not_import(command: str, forbidden: set[str], folder: Path) -> None:
    words = [sys.executable, "-c", PROGRAM, *command.split()]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)
    assert forbidden.intersection(done.stderr.split()) == set()


WATCHING = """
import sys
from burnish.board.answers import Board, Query
from burnish.board.runs import Runs
from burnish.board.server import application
board = Board(Runs.below(["run"]))
application(board)
assert board.overview(Query({}))["runs"][0]["step"] == 1
print(*sys.modules)
"""


@pytest.mark.slow
def test_the_board_imports_nothing_that_trains(folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WATCHING], cwd=folder, capture_output=True, text=True, check=True)
    assert {*LIGHT, "numpy"}.intersection(done.stdout.split()) == set()
