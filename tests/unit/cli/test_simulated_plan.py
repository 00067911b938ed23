"""`burnish plan --simulate` from numbers, its chart, and what it refuses."""

from pathlib import Path

import pytest

from .conftest import NUMBERS, Run

RUN = "model: m\ndata: {train: t.jsonl}\nrewards: exact\nsteps: 40\nrollout: {prompts_per_step: 4, group_size: 4}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "run.yaml").write_text(RUN)
    (tmp_path / "numbers.yaml").write_text(NUMBERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path


def test_simulates_from_numbers(folder: Path, run: Run) -> None:
    words = ["--simulate", "--numbers", "numbers.yaml", "--devices", "4,1", "--price", "2", "--mtbf", "500"]
    text = run("plan", "run.yaml", *words, "--steps", "3600", "--html", "out/plan.html")
    for part in ("10 ms + rows x 1 ms", "0.1 s + 4 s / devices", "1 all", "4 all", "3,600 steps", "goodput", "cost"):
        assert part in text
    assert "staleness on 4 devices, in steps: 100% by 1" in text
    assert "knee: beyond" in text
    page = (folder / "out" / "plan.html").read_text()
    assert page.count("<svg") == 3  # one device cannot be split


def test_numbers_of_the_run_itself_are_found(run: Run) -> None:
    assert "nothing says what these are: lengths, decoding, update" in run("plan", "run.yaml", "--simulate", code=2)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--devices", "8"], "--devices has no effect without --simulate"),
        (["--from", "x", "--mtbf", "1"], "--mtbf, --from has no effect without --simulate"),
        (["--simulate", "--json"], "--json has no effect with --simulate"),
        (["--simulate", "--devices", "8,many"], "'many' is not a number of devices"),
        (["--simulate", "--devices", "0"], "'0' is not a number of devices"),
        (["--simulate", "--from", "nowhere"], "nowhere has no step"),
        (["--simulate", "--numbers", "nowhere.yaml"], "nowhere.yaml does not exist"),
        (["--simulate", "--numbers", "numbers.yaml", "--mtbf", "0"], "mtbf_hours is 0"),
    ],
)
def test_what_is_refused(words: list[str], part: str, run: Run) -> None:
    assert part in run("plan", "run.yaml", *words, code=2)
