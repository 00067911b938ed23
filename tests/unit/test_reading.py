"""The boundary to the user's files, and programs in processes of their own."""

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from burnish.cli import main
from burnish.data.text_documents import split_documents
from burnish.errors import BurnishError, ConfigError, DataError
from burnish.models.chat_templates import check_template
from burnish.outside.reading import file_problem, read_at_most, reading
from burnish.outside.user_processes import call_in_own_process


@pytest.fixture
def fail_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Exception], str]:
    """What a command says when this goes wrong in reading its run file."""

    def fail(error: Exception) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        monkeypatch.setattr("burnish.config.loading._validated", Mock(side_effect=error))
        (tmp_path / "run.yaml").write_text("model: a\n")
        assert main(["rl", "run.yaml"]) == 2
        return capsys.readouterr().err

    return fail


@pytest.mark.parametrize(
    "error", [MemoryError(), RecursionError("deep"), OverflowError("big"), UnicodeError("x"), KeyError("k"), OSError(5)]
)
def test_whatever_goes_wrong_names_the_file_and_keeps_its_cause(error: Exception) -> None:
    said = r"a\.jsonl: reading it: " + type(error).__name__
    with pytest.raises(DataError, match=said) as caught, reading("a.jsonl: reading it"):
        raise error
    assert caught.value.unexpected is isinstance(error, (MemoryError, OverflowError, KeyError))
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    "error",
    [
        PermissionError(13, "no"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
        json.JSONDecodeError("odd", "{", 1),
        RecursionError("deep"),
    ],
)
def test_what_files_are_known_to_do_leaves_no_traceback(
    error: Exception, fail_to_read: Callable[[Exception], str], tmp_path: Path
) -> None:
    assert f"reading the run file: {type(error).__name__}" in fail_to_read(error)
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


def test_errors_of_our_own_pass_as_they_are() -> None:
    with pytest.raises(ConfigError) as caught, reading("a.jsonl"):
        raise ConfigError("said already")
    assert not caught.value.unexpected


def test_what_is_no_regular_file_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    said = {
        "file": None,
        ".": "is a folder, not a file",
        "pipe": "is a pipe, not a file",
        "loop": "is a link that points back to itself",
        "dangling": "is a broken link",
        "nowhere": "does not exist",
        "a" * 300: "has a name that is too long for a file",
        "a\0b": "has a NUL character in its name",
        "file/x": "does not exist: part of its path is a file, not a folder",
    }
    assert {name: file_problem(tmp_path / name) for name in said} == said
    assert file_problem(Path("/dev/null")) == "is a device, not a file"


def test_reading_stops_soon_after_the_limit() -> None:
    stream = io.BytesIO(bytes(5 << 20))
    assert read_at_most(stream, 10) == bytes(1 << 20)
    assert read_at_most(io.BytesIO(b"abc"), 3) == b"abc"


def test_an_unforeseen_error_keeps_its_traceback_in_a_file(
    fail_to_read: Callable[[Exception], str], tmp_path: Path
) -> None:
    said = fail_to_read(ZeroDivisionError("nobody thought of it"))
    assert "run.yaml: reading the run file: ZeroDivisionError: nobody thought of it" in said
    kept = next(tmp_path.glob("burnish-traceback-*.txt"))
    assert str(kept) in said
    assert "Traceback (most recent call last)" in kept.read_text()


def test_control_characters_of_a_file_do_not_reach_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["rl", "a\x1b[2Jb\udcff.yaml"]) == 2
    said = capsys.readouterr().err
    assert "a\\x1b[2Jb\\udcff.yaml does not exist" in said
    assert "\x1b[2J" not in said


@pytest.mark.slow
def test_a_call_in_a_process_of_its_own_ends_with_its_time_and_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "programs.py").write_text(
        "def add(first, second): return first + second\n"
        "def spin():\n    while True: pass\n"
        "def fill(): return len('x' * (1 << 33))\n"
        "def fail(): raise KeyError('nothing')\n"
        "def killed():\n    import os\n    os.kill(os.getpid(), 9)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert call_in_own_process("programs:add", {"first": 2, "second": 3}, seconds=10) == 5
    with pytest.raises(TimeoutError):
        call_in_own_process("programs:spin", {}, seconds=1)
    with pytest.raises(MemoryError):
        call_in_own_process("programs:fill", {}, seconds=10, max_bytes=1 << 30)
    with pytest.raises(RuntimeError, match="KeyError: 'nothing'"):
        call_in_own_process("programs:fail", {}, seconds=10)
    with pytest.raises(BurnishError, match=r"killed by signal 9 \(Killed\)"):
        call_in_own_process("programs:killed", {}, seconds=10)


def test_a_killed_trial_of_a_template_is_not_one_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("burnish.outside.user_processes.run_program", Mock(return_value=Mock(returncode=-9)))
    with pytest.raises(BurnishError, match="the template could not be tried: its process was killed by signal 9"):
        check_template("{{ messages }} of a killed trial", (), "the template", must_parse=False)
    with pytest.raises(BurnishError, match=r"a\.txt could not be tried: its process was killed by signal 9"):
        list(split_documents("a\n\nb", "\n\n", "a.txt"))
