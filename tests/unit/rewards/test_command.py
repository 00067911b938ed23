"""The reward `command`: what a program gets, what its end means, and what is left of it."""

import os
import sys
import textwrap
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from watching import runs, wait_for

from burnish.errors import ConfigError
from burnish.rewards.builtins.command import Command
from burnish.rewards.builtins.reading_rows import NoScoreError

Make = Callable[..., Command]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes the reward with a program in Python, and the arguments after it."""

    def made(code: str, *arguments: str, **options: Any) -> Command:
        program = tmp_path / "checker.py"
        program.write_text(textwrap.dedent(code))
        return Command([sys.executable, "-S", str(program), *arguments], **{"seconds": 60.0, **options})

    return made


def test_the_response_is_standard_input(make) -> None:
    reward = make("import sys; sys.exit(sys.stdin.buffer.read() != 'ja \u2603\\0'.encode())")
    assert reward("ja \u2603\0") == 1.0
    assert reward("nein") == 0.0


def test_or_it_is_in_a_file(make) -> None:
    code = """
        import sys
        path, = sys.argv[1:]
        assert sys.stdin.read() == ""
        assert path.endswith("response.lean")
        sys.exit(open(path).read() != "theorem")
    """
    assert make(code, "{file}", suffix=".lean")("theorem") == 1.0
    assert make(code, "{file}", suffix=".lean")("{here}") == 0.0


def test_the_row_is_a_file_of_json(make) -> None:
    code = """
        import json, sys
        row = json.load(open(sys.argv[1][len("--row="):]))
        assert row == {"response": "r", "answer": [7], "prompt": "p", "columns": {"level": 3}}, row
    """
    assert make(code, "--row={row}")("r", answer=[7], prompt="p", level=3) == 1.0
    with pytest.raises(NoScoreError, match="a column cannot be written as JSON"):
        make(code, "--row={row}")("r", day=date(2026, 1, 1))


def test_a_response_is_never_an_argument(make) -> None:
    code = "import sys; sys.exit(sys.argv[1:] != ['$(id)', '*'])"
    assert make(code, "$(id)", "*")("$(id) {file} {row}") == 1.0
    with pytest.raises(ConfigError, match=r"has \{response\} in '\{response\}'(?s:.*)never becomes an argument"):
        make(code, "{response}")


@pytest.mark.slow
def test_a_status_is_a_verdict_or_an_error(make) -> None:
    reward = make("import sys; sys.exit(int(sys.stdin.read()))", wrong=[1, 3])
    assert [reward(text) for text in ("0", "1", "3")] == [1.0, 0.0, 0.0]
    with pytest.raises(NoScoreError, match="ended with status 2, which is not a verdict"):
        reward("2")
    with pytest.raises(NoScoreError, match="ended by signal 9"):
        make("import os; os.kill(os.getpid(), 9)")("x")
    with pytest.raises(NoScoreError, match=r"status 2, which is not a verdict: .*No such file"):
        Command([sys.executable, "/nowhere/checker.py"], seconds=60.0)("x")


@pytest.mark.slow
def test_the_last_line_is_the_score(make) -> None:
    reward = make("import sys; text = sys.stdin.read(); print('so'); print(text); print()", score="stdout")
    assert [reward(text) for text in ("0.25", " 1 ", "-2")] == [0.25, 1.0, -2.0]
    for text in ("much", "nan", "1.5", "inf", ""):
        with pytest.raises(NoScoreError, match=r"number|at most 1"):
            reward(text)
    with pytest.raises(NoScoreError, match="status 1, which is not a verdict"):
        make("print(1); raise SystemExit(1)", score="stdout")("x")


def test_a_program_that_is_too_slow_is_ended(make) -> None:
    code = "import time; time.sleep(600)"
    with pytest.raises(NoScoreError, match=r"did not end within 0\.2 seconds"):
        make(code, seconds=0.2)("x")
    assert make(code, seconds=0.2, too_slow="wrong")("x") == 0.0


def test_its_process_group_and_its_folder_are_gone_afterwards(make, tmp_path: Path) -> None:
    code = f"""
        import os, pathlib, subprocess, sys
        child = subprocess.Popen([sys.executable, "-Sc", "import time; time.sleep(600)"])
        pathlib.Path("mine").write_text("x")
        assert os.environ["TMPDIR"] == os.getcwd()
        pathlib.Path({str(tmp_path / "left")!r}).write_text(f"{{child.pid}} {{os.getcwd()}}")
    """
    assert make(code)("x") == 1.0
    pid, folder = (tmp_path / "left").read_text().split()
    assert not os.path.exists(folder)
    wait_for(lambda: not runs(int(pid)))


def test_memory_and_output_are_limited(make) -> None:
    large = "try:\n    bytearray(2 << 30)\nexcept MemoryError:\n    raise SystemExit(1)"
    assert make(large, memory_mb=1024)("x") == 0.0
    with pytest.raises(NoScoreError, match="wrote more than output_mb allows"):
        make("import sys; sys.stdout.write('x' * (3 << 20)); sys.stdout.flush()", output_mb=1)("x")


def test_it_can_run_in_a_folder_that_stays(make, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    reward = make("open('kept', 'w').close()", folder=str(tmp_path / "project"))
    assert reward("x") == 1.0
    assert (tmp_path / "project" / "kept").exists()


def test_relative_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checker.py").write_text("import sys; sys.exit(0)")
    with pytest.raises(ConfigError, match=r"'checker.py' of reward 'command' is a file here(?s:.*)\{here\}/checker.py"):
        Command([sys.executable, "checker.py"])
    assert Command([sys.executable, "-S", "{here}/checker.py"], seconds=60.0)("x") == 1.0
    (tmp_path / "check.sh").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "check.sh").chmod(0o755)
    assert Command(["./check.sh"], seconds=60.0)("x") == 0.0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"argv": "lean file"}, "option argv of reward 'command' is 'lean file'"),
        ({"argv": []}, "option argv of reward 'command' is"),
        ({"argv": ["no-such-program"]}, "the program 'no-such-program' of reward 'command' was not found on PATH"),
        ({"argv": ["true"], "wrong": [0]}, "option wrong of reward 'command' is"),
        ({"argv": ["true"], "score": "stdout", "wrong": [1]}, "with score: stdout no status is a verdict"),
        ({"argv": ["true"], "seconds": 0}, "option seconds of reward 'command' is 0"),
        ({"argv": ["true"], "folder": "/nowhere"}, "the folder of reward 'command' does not exist"),
        ({"argv": ["true"], "suffix": "/x"}, "option suffix of reward 'command' is '/x'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Command(**options)
