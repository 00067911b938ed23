"""`burnish doctor`: its text, its JSON, its exit status, and what it never shows."""

import getpass
import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from burnish.cli import main
from burnish.cli.doctor import examination

from .conftest import Run


@pytest.fixture(autouse=True)
def quick_parts(own_timings: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No attacks, and kept timings of this test alone."""
    monkeypatch.setattr(examination, "of_sandbox", lambda: [("sandbox", "not attacked")])
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def model(save_tiny_llama: Callable[..., Path]) -> Path:
    return save_tiny_llama("0123456789")


def test_a_quick_report_is_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--quick"]) == 0
    text = capsys.readouterr().out
    titles = [line for line in text.splitlines() if line and not line.startswith(" ")]
    assert titles == ["versions", "machine", "paths of a run", "problems"]
    assert "not tried" in text
    assert "\x1b" not in text
    assert max(len(line) for line in text.splitlines()) <= 116


def test_the_whole_report_about_a_run_file_as_json(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.yaml").write_text(
        f"output: runs/x\nmodel: {{path: {model}, device: cpu}}\ndata: {{train: t.jsonl}}\nrewards: exact\nsteps: 1\n"
        "rollout: {max_prompt_tokens: 8, max_response_tokens: 8}\n"
    )
    assert main(["doctor", "run.yaml", "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["paths"]["model"].startswith(model.name)
    assert set(found) == {"format", "versions", "machine", "paths", "problems"}
    assert found["format"] == 2
    assert set(found["paths"]) >= {"training passes", "decoding"}
    assert all(set(problem) == {"name", "weight", "what", "remedy"} for problem in found["problems"])
    assert "Loading weights" not in captured.err
    assert not (tmp_path / "runs").exists()


def test_a_model_folder_and_the_folder_of_a_run(model: Path, tmp_path: Path, run: Run) -> None:
    assert f"{model.name} (float32)" in run("doctor", str(model))
    (tmp_path / "run").mkdir()
    assert "neither a model's folder nor a run's" in run("doctor", "run", code=2)
    run("doctor", "nowhere.yaml", code=2)
    run("doctor", str(model), "--quick", code=2)


@pytest.mark.slow
def test_nothing_private_is_shown(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A home folder that is in the way of everything, secrets in the environment, and a model that fails with paths."""
    home = tmp_path / "home" / "wilhelmina"
    (home / "models").mkdir(parents=True)
    (home / "models" / "config.json").write_text("{")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HF_TOKEN", "hf_very_secret")
    monkeypatch.setenv("CC", str(home / "no-such-compiler"))
    monkeypatch.setattr(getpass, "getuser", lambda: "wilhelmina")
    monkeypatch.setattr(socket, "gethostname", lambda: "node17.cluster.internal")
    monkeypatch.chdir(home)
    for words in (["--json"], []):
        assert main(["doctor", str(home / "models"), *words]) == 0
        text = capsys.readouterr().out
        assert "~/models" in text
        for secret in ("wilhelmina", "hf_very_secret", "node17", str(tmp_path / "home")):
            assert secret not in text


def test_the_exit_status_is_1_only_where_nothing_can_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(examination, "_import_failure", {"torch": "OSError: no libcudart"}.get)
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "fatal: torch cannot be imported: OSError: no libcudart" in text
    assert "threads" not in text
