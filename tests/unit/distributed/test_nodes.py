"""What a cluster's machines are checked for, a line each."""

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from burnish.cli import main
from burnish.distributed.nodes import Expected, check_address, check_room, marked, problems_here, versions_here
from burnish.errors import ConfigError


@pytest.fixture
def expected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Expected:
    monkeypatch.chdir(os.curdir)  # and back again
    monkeypatch.setattr(sys, "path", sys.path[:])
    return Expected(versions=versions_here(), folder=str(tmp_path), paths=[], plugins=[], marked=None)


def test_nothing_is_wrong_here(expected: Expected, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def loss(): ...\n")
    (tmp_path / "more").mkdir()
    expected["plugins"] = ["mine.py:loss"]
    expected["paths"] = [str(tmp_path / "more"), str(tmp_path / "nowhere")]
    with marked(tmp_path) as text:
        expected["marked"] = (str(tmp_path), text)
        assert problems_here(expected) == []
    assert Path.cwd() == tmp_path
    assert sys.path[-2:] == [str(tmp_path / "more"), str(tmp_path)]  # the last one is the file's own


def test_everything_is_wrong_here(expected: Expected, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import no_such_module\n")
    expected["versions"] = {**expected["versions"], "torch": "1.0"}
    expected["plugins"] = [f"{tmp_path}/broken.py:loss", "nowhere.py:loss", "no_such_package.module:loss"]
    expected["marked"] = (str(tmp_path), "another text")
    expected["folder"] = str(tmp_path / "nowhere")
    with marked(tmp_path):
        lines = problems_here(expected)
    beginnings = [
        f"torch is {versions_here()['torch']}, and 1.0 where the run was started",
        f"the folder in which the run was started, {tmp_path}/nowhere, does not exist there",
        f"the run file names '{tmp_path}/broken.py:loss', but its file fails: ModuleNotFoundError",
        "the run file names 'nowhere.py:loss', but there is no file",
        "the run file names 'no_such_package.module:loss', but cannot import module",
        f"the run's folder {tmp_path} cannot be seen",
    ]
    for line, beginning in zip(lines, beginnings, strict=True):
        assert line.startswith(beginning)


def test_without_a_folder_of_the_run_s_it_stays_where_ray_has_put_it(expected: Expected) -> None:
    before = Path.cwd()
    expected["folder"] = None
    assert problems_here(expected) == []
    assert Path.cwd() == before


def test_room_is_counted_by_node() -> None:
    each, nodes = {"CPU": 2.0, "GPU": 1.0}, [{"CPU": 4.0, "GPU": 8.0}, {"CPU": 8.0, "GPU": 1.0}]
    check_room([(3, each)], nodes)
    told = r"4 processes with 2 CPU and 1 GPU .* room for 3: 12 CPU and 9 GPU on 2 nodes(?s:.*)cpus_per_worker"
    with pytest.raises(ConfigError, match=told):
        check_room([(4, each)], nodes)
    check_room([(10, {"CPU": 0.1, "GPU": 0.0})], [{"CPU": 1.0}])
    check_room([(1000, {"CPU": 0.0, "GPU": 0.0})], [{}])


def test_room_is_counted_for_processes_that_need_more_than_others() -> None:
    """Two trainers with a GPU, and engines with four each, which only whole nodes can take."""
    one, four = {"CPU": 1.0, "GPU": 1.0}, {"CPU": 1.0, "GPU": 4.0}
    nodes = [{"CPU": 16.0, "GPU": 8.0}, {"CPU": 16.0, "GPU": 6.0}]
    check_room([(2, one), (3, four)], nodes)
    with pytest.raises(ConfigError, match=r"4 processes with 1 CPU and 4 GPU each, .* room for 3"):
        check_room([(1, one), (4, four)], nodes)
    with pytest.raises(ConfigError, match=r"3 processes with 1 CPU and 1 GPU each, .* for 2: 29 CPU and 2 GPU left"):
        check_room([(3, one), (3, four)], nodes)


def test_an_address_at_which_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_address(f"127.0.0.1:{port}")
    told = f"no Ray cluster answers at RAY_ADDRESS=127.0.0.1:{port}: Connection refused"
    with pytest.raises(ConfigError, match=told):
        check_address(f"127.0.0.1:{port}")
    with pytest.raises(ConfigError, match="RAY_ADDRESS is ray://somewhere:10001, an address for programs outside"):
        check_address("ray://somewhere:10001")
    check_address("auto")


@pytest.mark.parametrize(("runtime_env", "is_told"), [(None, True), ({"working_dir": "gcs://_ray_pkg_1.zip"}, False)])
def test_a_job_without_a_folder_is_told_where_it_is(
    runtime_env: Any, is_told: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Before anything else: it is why there is no run file."""
    job = {"metadata": {"job_submission_id": "raysubmit_1"}, "runtime_env": runtime_env}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps(job))
    assert main(["rl", "no-such-file.yaml"]) == 2
    told = f"submitted without --working-dir: relative paths begin in {Path.cwd()} on"
    assert [told in line for line in capfd.readouterr().out.splitlines()] == [True] * is_told
