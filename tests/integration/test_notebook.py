"""The notebooks of the examples from the first to the last cell, and what an interrupt does in one."""

import re
from pathlib import Path
from typing import Any

import pytest
from runs import lines_of

nbformat = pytest.importorskip("nbformat", reason="the extra `notebook` is not installed")
nbclient = pytest.importorskip("nbclient", reason="the extra `notebook` is not installed")
pytest.importorskip("ipykernel", reason="the extra `notebook` is not installed")

EXAMPLES = Path(__file__).parents[2] / "examples"
FIRST_RUN, COMPARISON = EXAMPLES / "first_run.ipynb", EXAMPLES / "compare_algorithms.ipynb"

TRAINING = """
import os, signal, threading, time
import burnish
found = []
def on_step(run, metrics):
    found.append(signal.getsignal(signal.SIGINT))
    if run.step == 2:
        threading.Thread(target=lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        time.sleep(0.5)  # the interrupt comes in the middle of what follows
run = burnish.train(CONFIG, on_step=on_step)
run
"""


def _texts(cell: Any, kind: str) -> str:
    shown = [output for output in cell["outputs"] if output["output_type"] in ("display_data", "execute_result")]
    return "".join("".join(output["data"].get(kind, "")) for output in shown)  # files keep lists of lines


def kept(file: Path) -> Any:
    return nbformat.read(file, as_version=4)


def _executed(notebook: Any, folder: Path) -> Any:
    client = nbclient.NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(folder)}})
    return client.execute()


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def results(cell: Any) -> tuple[list[str], list[str]]:
    """The forms in which a cell shows something, and the words of its value. Numbers depend on the machine, and so does
    what a plan says of memory and time."""
    forms = {form for output in cell["outputs"] for form in output.get("data", {})}
    values = [output["data"]["text/plain"] for output in cell["outputs"] if output["output_type"] == "execute_result"]
    text = "".join("".join(value) for value in values).partition("memory of")[0]
    return sorted(forms), re.sub(r"-?\d+(\.\d+)?(e[-+]?\d+)?", "#", text).split()


@pytest.mark.parametrize("file", [FIRST_RUN, COMPARISON], ids=lambda file: file.stem)
def test_a_notebook_is_kept_with_all_its_outputs(file: Path) -> None:
    cells = code_cells(kept(file))
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert not any(output["output_type"] == "error" for cell in cells for output in cell["outputs"])
    assert str(Path.home()) not in file.read_text(encoding="utf-8")


@pytest.mark.slow
def test_from_nothing_to_a_rising_curve(tmp_path: Path) -> None:
    notebook = _executed(kept(FIRST_RUN), tmp_path)
    rows = lines_of(tmp_path / "first_run/rl/metrics.jsonl")
    accuracy = [row["eval/accuracy"] for row in rows if "eval/accuracy" in row]
    assert accuracy[-1] > accuracy[0] + 0.15
    cells = code_cells(notebook)
    assert list(map(results, cells)) == list(map(results, code_cells(kept(FIRST_RUN))))
    trained = next(cell for cell in cells if "burnish.train(" in cell.source)
    assert "<svg" in _texts(trained, "text/html")
    assert "step 25/25" in _texts(trained, "text/html")  # the live table, replaced in place
    assert any("background:rgba" in _texts(cell, "text/html") for cell in cells)


@pytest.mark.matrix
def test_three_algorithms_are_compared(tmp_path: Path) -> None:
    cells = code_cells(_executed(kept(COMPARISON), tmp_path))
    assert list(map(results, cells)) == list(map(results, code_cells(kept(COMPARISON))))
    assert [line.split()[:2] for line in cells[3]["outputs"][0]["text"].splitlines()[3:6]] == [
        *(["grpo", "3"], ["reinforce_plus_plus", "3"], ["rloo", "3"])
    ]


def test_an_interrupt_finishes_the_step_and_leaves_signals_alone(tiny_run: Any, tmp_path: Path) -> None:
    config = tiny_run("steps=50").model_dump(mode="json", exclude_unset=True)
    told = "print(run.step, run.stopped, len(run.checkpoints), set(found) == {signal.default_int_handler})"
    cells = map(nbformat.v4.new_code_cell, (TRAINING.replace("CONFIG", repr(config)), told))
    executed = _executed(nbformat.v4.new_notebook(cells=list(cells)), tmp_path)
    step, stopped, checkpoints, default = executed.cells[1]["outputs"][0]["text"].split()
    assert int(step) < 50
    assert (stopped, checkpoints, default) == ("True", "1", "True")
