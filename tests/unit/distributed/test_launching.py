"""Where processes are started, without Ray unless it is asked for."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console

import burnish
from burnish.config.loading import load_run_data
from burnish.config.schema_cluster import ClusterConfig
from burnish.distributed import peers, server
from burnish.distributed.launching import Crew, LocalLauncher, ThisMachine, start_all
from burnish.distributed.peers import ProcessSpec, RoleLostError
from burnish.errors import ConfigError
from burnish.trainers import cluster
from burnish.trainers.run_folder import recorded_ways


@pytest.mark.slow
def test_ray_is_imported_in_one_file_and_only_when_it_is_asked_for() -> None:
    files = Path(burnish.__file__).parent.rglob("*.py")
    assert [file.name for file in files if re.search(r"^\s*(import|from) ray\b", file.read_text(), re.MULTILINE)] == [
        "ray_workers.py"
    ]
    program = "import sys, burnish.trainers.cluster; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=120).returncode == 0


def test_every_wait_for_ray_has_a_deadline() -> None:
    text = (Path(burnish.__file__).parent / "distributed" / "ray_workers.py").read_text()
    waits = re.findall(r"ray\.(?:get|wait)\(.*", text)
    assert len(waits) > 5
    assert all("timeout=" in wait for wait in waits)


def test_every_wait_of_this_room_has_a_deadline() -> None:
    """Only a server waits for its next request as long as it takes, while it watches its parent."""
    folder = Path(server.__file__).parent
    for file in folder.glob("*.py"):
        if file.name not in ("server.py", "channel.py"):
            assert "seconds=None" not in file.read_text()


def test_ray_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "burnish.distributed.ray_workers", raising=False)
    with pytest.raises(ConfigError, match=r"Ray is not installed(?s:.*)pip install 'burnish\[ray\]'"):
        cluster._ray_site()


@pytest.mark.parametrize(
    ("address", "fields", "runs_on"),
    [
        ("", {}, "inline"),
        ("head:6379", {}, "inline"),
        ("", {"trainers": 2}, "processes"),
        ("head:6379", {"rollout_workers": 1}, "ray"),
        ("head:6379", {"rollout_workers": 1, "backend": "processes"}, "processes"),
        ("", {"backend": "ray"}, "ray"),
    ],
)
def test_where_a_run_is(address: str, fields: dict[str, object], runs_on: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    config = ClusterConfig.model_validate(fields)
    assert config.runs_on == runs_on
    assert config.uses_processes == (runs_on != "inline")
    assert config.trains_here == (runs_on != "ray" and config.trainers == 1)


TRAINERS, WORKERS = ("trainer 0", "trainer 1"), ("rollout worker 0", "rollout worker 1")


def test_a_crew_is_said_in_one_line(tmp_path: Path) -> None:
    crew = Crew(TRAINERS, ("critic",), WORKERS[:1], ClusterConfig(), False, tmp_path, tmp_path)
    assert crew.in_words() == "2 trainers, 1 critic, 1 rollout worker"


@pytest.mark.parametrize(
    ("crew", "on_gpu", "seen"),
    [
        ((TRAINERS, (), WORKERS[:1], 1), True, ["7", "6", "5"]),
        ((TRAINERS, (), WORKERS[:1], 1), False, [None, None, None]),
        (((), ("critic",), WORKERS[:1], 1), True, ["6", "5"]),  # a controller that trains has the first one
        ((TRAINERS, (), WORKERS, 2), True, ["7", "6", "5,4", "3,2"]),
    ],
)
def test_each_process_of_a_machine_with_gpus_sees_its_own(
    crew: Any, on_gpu: bool, seen: list[str | None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 6)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,6,5,4,3,2")
    *names, worker_gpus = crew
    given = Crew(*names, ClusterConfig(threads=5), on_gpu, tmp_path, tmp_path, worker_gpus=worker_gpus)
    with ThisMachine().reserved(given) as launcher:
        assert launcher.threads == 5
        found = [launcher._environment(name) for kind in names for name in kind]
    assert [environment.get("CUDA_VISIBLE_DEVICES") for environment in found] == seen


def waits_for_ever() -> None:
    time.sleep(10_000)


def ends_at_once() -> None:
    os._exit(7)


@pytest.mark.slow
def test_those_that_wait_for_one_that_cannot_be_started_are_ended(tmp_path: Path) -> None:
    """As when a trainer is killed while the others wait to meet it."""
    launcher = LocalLauncher(1, tmp_path)
    seats = [ProcessSpec("trainer 0", waits_for_ever, ()), ProcessSpec("trainer 1", ends_at_once, ())]
    with pytest.raises(RoleLostError, match="process 'trainer 1'") as raised:
        start_all(launcher, seats)
    assert raised.value.process == "trainer 1"
    assert all(seat.given_up.is_set() for seat in seats)


def interrupts() -> None:
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(10_000)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C raises, also where the tests were started in the background, where a shell has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_an_interrupt_while_processes_start_ends_them(interruptible: None, tmp_path: Path) -> None:
    seats = [ProcessSpec("trainer 0", interrupts, ()), ProcessSpec("trainer 1", waits_for_ever, ())]
    with pytest.raises(KeyboardInterrupt):
        start_all(LocalLauncher(1, tmp_path), seats)
    assert all(seat.given_up.is_set() for seat in seats)


class SideBySide(LocalLauncher):
    """Starts nothing before all are to be started. Each process takes what it is told, and a path of its own."""

    def start(self, seat: ProcessSpec) -> Mock:
        ALL_THERE.wait(10)
        told = {} if seat.awaited is None else seat.awaited.result(10)
        TOLD[seat.name] = set(told)
        process = Mock(roles=("ways",))
        process.name = seat.name
        process.role.return_value.ask = {"record": {**told, seat.name: "fast"}, "lines": []}.__getitem__
        return process


ALL_THERE, TOLD = threading.Barrier(5), dict[str, set[str]]()


def test_all_start_side_by_side_and_take_the_paths_of_the_kinds_before_them(tmp_path: Path) -> None:
    sizes = {"trainers": 2, "rollout_workers": 2, "own_process": ["critic"]}
    data = {"model": {"path": "m"}, "data": {"train": "t.jsonl"}, "rewards": {"name": "length"}, "cluster": sizes}
    config = load_run_data({**data, "algorithm": {"preset": "ppo"}, "output": str(tmp_path)}).config
    crew = cluster._crew(config, Console(quiet=True))
    turns = cluster.PathsInTurn(crew, Console(quiet=True))
    others = cluster._seats_of_others(config, crew, turns)
    with cluster.open_team(config, crew, Mock(), SideBySide(1, tmp_path), turns, others) as processes:
        assert list(processes) == [*crew.trainers, "critic", *crew.workers]
    kinds = [{"trainer 0"}, {"trainer 0", "critic"}, {"trainer 0", "critic", "rollout worker 0"}]
    assert [TOLD[name] for name in ("critic", *crew.workers)] == kinds
    assert set(recorded_ways(tmp_path)) == kinds[-1]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "why"), [("SIGKILL", "killed by SIGKILL"), ("SIGSTOP", "no sign of life")])
def test_one_that_is_lost_while_another_kind_starts_is_named(
    number: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = f"threading.Timer(0.5, os.kill, (os.getpid(), signal.{number})).start()"
    text = f"import os, signal, threading\nif os.getpid() != {os.getpid()}:\n    {ends}\ndef roles(): ...\n"
    (tmp_path / "ends_later.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(peers, "SILENT_SECONDS", 4.0)
    worker = ProcessSpec("rollout worker 0", __import__("ends_later").roles, (), awaited=Future())
    with pytest.raises(RoleLostError, match=f"'rollout worker 0' .*{why}"):
        start_all(LocalLauncher(1, tmp_path), [ProcessSpec("trainer 0", waits_for_ever, ()), worker])
