"""Trainers and rollout workers as actors of Ray: the same requests, the same numbers, whoever is lost."""

import io
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from watching import children, wait_for

ray = pytest.importorskip("ray", reason="Ray is not installed (pip install 'burnish[ray]')")
from runs import BuildRl, BuildSft, Run, after_step, lines_of, num_rows, rows_of, run_file, trace, trained

import burnish
from burnish.config.schema_cluster import ClusterConfig
from burnish.distributed import nodes, ray_workers
from burnish.distributed.launching import Crew, Launcher, ProcessSpec, start_all
from burnish.distributed.peers import Peer, RoleLostError, TracebackElsewhereError
from burnish.distributed.ray_workers import RayProcess, RaySite, StoredWeights
from burnish.errors import ConfigError, DivergenceError, RolloutError

STORE_BYTES = 100 << 20
AddNodes = Callable[..., list[Any]]

ROLES = """
import contextlib, os, pathlib, time
import torch
from burnish.errors import DivergenceError
from burnish.models.weights import Weights


class Role:
    version = 3

    def echo(self, value):
        return value

    def raises(self):
        raise DivergenceError("loss is nan", remedy="lower it")

    def sleeps(self):
        time.sleep(600)

    def threads(self):
        return torch.get_num_threads()

    def gpus(self):
        return os.environ["CUDA_VISIBLE_DEVICES"]

    def publish(self):
        tensors = [("a", torch.arange(6.0)), ("b", torch.ones(2, 2, dtype=torch.bfloat16))]
        return Weights(self.version, lambda: iter(tensors))

    def sync(self, weights):
        self.taken = {name: tensor.clone() for name, tensor in weights.tensors()}
        self.version = weights.version

    def read(self):
        return self.taken


class Large(Role):
    def publish(self):
        return Weights(self.version, lambda: iter([("a", torch.zeros(1_000_000))]))


@contextlib.contextmanager
def roles(left):
    yield {"policy": Role(), "engine": Role(), "large": Large()}
    pathlib.Path(left).write_text("left")
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster with one node of four CPUs, which this process has joined. Tests add further nodes."""
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_worker_niceness", "0")  # or the other tests leave its processes no time
    node = {"num_cpus": 4, "include_dashboard": False, "object_store_memory": STORE_BYTES}
    started = Cluster(initialize_head=True, connect=False, head_node_args=node)
    ray.init(address=started.address, log_to_driver=False, logging_level="ERROR")
    yield started
    ray.shutdown()
    started.shutdown()


@pytest.fixture
def add_nodes(cluster: Any) -> Iterator[AddNodes]:
    """Adds nodes for one test: `add_nodes(count, num_cpus)`. The first node of the cluster has four CPUs."""
    there: list[Any] = []

    def add(count: int, num_cpus: int, num_gpus: int = 0) -> list[Any]:
        node = {"num_cpus": num_cpus, "num_gpus": num_gpus, "object_store_memory": STORE_BYTES}
        there.extend(cluster.add_node(**node) for _ in range(count))
        return there[-count:]

    yield add
    for node in there:
        if node in cluster.list_all_nodes():
            cluster.remove_node(node)


@pytest.fixture
def lose_node(cluster: Any, gone: Callable[..., bool], monkeypatch: pytest.MonkeyPatch) -> AddNodes:
    """Takes the node of a process of the next run away after a step, and gives the list that it is then in."""

    def ready(there: list[Any], name: str, after: int) -> list[Any]:
        launchers, pids, removed = list[Any](), dict[str, int](), list[Any]()
        start = ray_workers.RayLauncher.start

        def noting(launcher: Any, seat: ProcessSpec) -> Any:
            launchers.append(launcher)
            process = start(launcher, seat)
            pids[seat.name] = process.pid
            return process

        def lose() -> None:
            removed.append(node_of(launchers[0], name, there))
            pid = pids[name]
            cluster.remove_node(removed[0], allow_graceful=False)
            wait_for(lambda: gone(pid, 0.1))  # a process outlives its node by a moment

        monkeypatch.setattr(ray_workers.RayLauncher, "start", noting)
        after_step(monkeypatch, after, lose)
        return removed

    return ready


@pytest.fixture(autouse=True)
def start_hangs_no_test(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A process that hangs in its start is lost, and the run starts again, before the test's own time is over. Where it
    hung is told among the warnings."""
    monkeypatch.setattr(ray_workers, "START_SECONDS", 400.0)
    yield
    for stacks in tmp_path.glob("*/stacks/*.txt"):
        warnings.warn(f"{stacks.stem} was lost here:\n{stacks.read_text()}", stacklevel=1)


def node_of(launcher: Any, name: str, there: list[Any]) -> Any:
    """Where a process runs that has the places of its node to itself."""
    node_id = ray_workers.Place.now(*launcher.places[name]).node
    return next(node for node in there if node.node_id == node_id)


@pytest.fixture(scope="module")
def module(make_module: Callable[[str, str], Any]) -> Any:
    return make_module("ray_roles_of_test", ROLES)


def crew_of(folder: Path, trainers: int, workers: int, **fields: Any) -> Crew:
    return Crew(
        tuple(f"trainer {i}" for i in range(trainers)),
        (),
        tuple(f"rollout worker {i}" for i in range(workers)),
        ClusterConfig(backend="ray", threads=1, **fields),
        False,
        folder,
        folder,
    )


def started(launcher: Launcher, module: Any, left: Path, *names: str) -> list[Peer]:
    return start_all(launcher, [ProcessSpec(name, module.roles, (str(left),)) for name in names])


@pytest.mark.slow
def test_an_actor_answers_as_a_process_does(module: Any, tmp_path: Path, gone: Callable[..., bool]) -> None:
    """In a cluster of this machine, which is started for it and ended after it."""
    left = tmp_path / "left"
    crew = crew_of(tmp_path, 1, 1, cpus_per_worker=0.5)
    with RaySite() as site, site.reserved(crew) as launcher, ExitStack() as stack:
        trainer, worker = (
            stack.enter_context(peer) for peer in started(launcher, module, left, "trainer 0", "rollout worker 0")
        )
        policy, engine = trainer.role("policy", seconds=60), worker.role("engine", seconds=60)
        assert policy.ask("echo", {"a": (1, "b")}) == {"a": (1, "b")}
        assert policy.ask("threads") == 1
        with pytest.raises(DivergenceError, match="loss is nan") as raised:
            policy.ask("raises")
        assert isinstance(raised.value.__cause__, TracebackElsewhereError)

        shared = policy.share(3)  # written once, read by whoever wants it
        engine.load(shared)
        assert engine.ask("read")["a"].tolist() == [0, 1, 2, 3, 4, 5]
        assert dict(shared())["b"].tolist() == [[1, 1], [1, 1]]
        damaged = ray.get(shared.reference).copy()  # type: ignore[attr-defined]
        damaged[3] ^= 1
        with pytest.raises(RolloutError, match="version 3 arrived incomplete or damaged"):
            engine.load(StoredWeights(shared.layout, ray.put(damaged)))
        with pytest.raises(RolloutError, match=r"arrived with 20 bytes instead of \d+"):
            engine.load(StoredWeights(shared.layout, ray.put(damaged[:20])))

        with pytest.raises(RoleLostError, match=r"sleeps: process 'rollout worker 0' did not answer within 0.5 sec"):
            worker.role("engine", seconds=0.5).ask("sleeps")
        assert "in sleeps" in (tmp_path / "rollout-worker-0.txt").read_text()
        assert gone(worker.pid)  # type: ignore[attr-defined]
        os.kill(trainer.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        with pytest.raises(RoleLostError, match=r"policy.version: process 'trainer 0' on node .* ended \(Worker unexp"):
            policy.ask("version")

        (again,) = started(launcher, module, left, "rollout worker 0")
        again.close()
        assert left.read_text() == "left"
        assert gone(again.pid)  # type: ignore[attr-defined]
    assert not ray.is_initialized()


@pytest.mark.slow
def test_rollout_workers_see_as_many_gpus_as_their_engine_needs(
    add_nodes: AddNodes, module: Any, tmp_path: Path
) -> None:
    add_nodes(1, 4, 5)
    crew = replace(crew_of(tmp_path, 1, 2), on_gpu=True, worker_gpus=2)
    names = (*crew.trainers, *crew.workers)
    with RaySite() as site, site.reserved(crew) as launcher, ExitStack() as stack:
        peers = [stack.enter_context(peer) for peer in started(launcher, module, tmp_path / "left", *names)]
        seen = [peer.role("engine", seconds=60).ask("gpus").split(",") for peer in peers]
    assert [len(gpus) for gpus in seen] == [1, 2, 2]
    assert len({gpu for gpus in seen for gpu in gpus}) == 5


@pytest.mark.matrix
def test_a_stopped_actor_is_found_and_ended(
    cluster: Any, module: Any, tmp_path: Path, gone: Callable[..., bool]
) -> None:
    with RaySite() as site, site.reserved(crew_of(tmp_path, 0, 1)) as launcher:
        (worker,) = started(launcher, module, tmp_path / "left", "rollout worker 0")
        os.kill(worker.pid, signal.SIGSTOP)  # type: ignore[attr-defined]
        with pytest.raises(RoleLostError, match="has given no sign of life for 12 seconds and was killed"):
            worker.role("engine", seconds=600).ask("sleeps")
        assert gone(worker.pid)  # type: ignore[attr-defined]


@pytest.mark.matrix
def test_an_actor_that_is_stopped_while_it_imports_is_found(
    cluster: Any, module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = RayProcess._answer

    def stopping(self: RayProcess, call: Any, **limits: Any) -> Any:
        if self._pulse is not None:  # it has been told to import
            os.kill(self.pid, signal.SIGSTOP)
        return answer(self, call, **limits)

    monkeypatch.setattr(RayProcess, "_answer", stopping)
    found = pytest.raises(RoleLostError, match=r"start: .*has given no sign of life for 12 seconds and was killed")
    with RaySite() as site, site.reserved(crew_of(tmp_path, 0, 1)) as launcher, found:
        started(launcher, module, tmp_path / "left", "rollout worker 0")


@pytest.mark.slow
def test_what_is_lacking_is_said_before_the_start(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(crew: Crew, match: str) -> None:
        with pytest.raises(ConfigError, match=match), RaySite().reserved(crew):
            pass

    too_many = crew_of(tmp_path, 2, 1, cpus_per_worker=2)
    refused(too_many, r"3 processes with 2 CPU and 0 GPU each, but .* room for 2: 4 CPU and 0 GPU on 1 node")
    monkeypatch.setattr(ray_workers, "PLACE_SECONDS", 2.0)
    no_place = r"no place for 2 processes \(trainer 0, trainer 1\) within 2 seconds: 2 CPU .* 1 CPU and 0 GPU are"
    with RaySite().reserved(crew_of(tmp_path, 0, 1, cpus_per_worker=3)):
        refused(crew_of(tmp_path, 2, 0, cpus_per_worker=2), no_place)
    crew = Crew(("trainer 0",), (), (), ClusterConfig(backend="ray"), False, tmp_path, tmp_path, ("no/such.py:loss",))
    versions = nodes.versions_here()
    monkeypatch.setattr(nodes, "versions_here", lambda: {**versions, "torch": "1.0"})
    refused(crew, rf"(?s)not all nodes.*: torch is {versions['torch']}.*, and 1.0 where.*node \S+: .*no/such.py")


def test_why_a_cluster_cannot_be_joined_is_said_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "Version mismatch: The cluster was started with:\n    Ray: 2.50.0\n    Python: 3.12.1\nThis process on node"
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    error = RuntimeError(f"{said} 10.0.0.1 was started with:\n    Ray: 2.60.0")
    monkeypatch.setattr(ray, "init", Mock(side_effect=error))
    with pytest.raises(ConfigError, match=r"Ray: 2.50.0 Python: 3.12.1 This .* was started with: Ray: 2.60.0"):
        RaySite()._connect()


def test_what_ray_hears_of_lost_nodes_stays_out_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"lines": ["The node has been marked dead"], "pid": "raylet", "is_err": False, "ip": "x"}
    shown = io.StringIO()
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    for name in ("init", "shutdown"):
        monkeypatch.setattr(ray, name, lambda **_: None)
    with RaySite() as site:
        site._connect()
        ray._private.worker.print_worker_logs(said, shown)
    assert shown.getvalue() == ""


MOVING = {"minibatches": 2, "learning_rate": 1e-3}
CASES: dict[str, dict[str, Any]] = {
    "grpo": {
        "algorithm": {"preset": "grpo", "kl_in": "loss", "kl_coef": 0.05},
        "optimization": {**MOVING, "epochs": 2},
    },
    "ppo": {
        "algorithm": {"preset": "ppo", "kl_in": "reward", "kl_coef": 0.05},
        "critic": {"kind": "separate", "learning_rate": 1e-3, "warmup_steps": 1},
        "optimization": MOVING,
    },
}


@pytest.fixture
def run(cluster: Any, tiny_run: BuildRl, tmp_path: Path) -> Run:
    """Trains in `tmp_path/NAME` with four lanes and returns the folder."""

    def train(
        name: str, case: str = "grpo", *, steps: int = 4, ahead: int = 0, partial: bool = False, **fields: Any
    ) -> Path:
        config = tiny_run(
            f"output={tmp_path}/{name}",
            f"max_staleness={ahead}",
            steps=steps,
            partial=partial,
            checkpoint={"every_steps": 2},
            cluster={"lanes": 4, "threads": 1, **fields},
            **CASES[case],
        )
        return trained(config)

    return train


def lost_workers(found: Any) -> float:
    """How many were lost, which is the one number that may differ and is taken out."""
    return sum(row.pop("rollout/lost_workers", 0) for row in found.metrics)


@pytest.mark.slow
@pytest.mark.matrix_cases("grpo-1-0", "ppo-2-0")
@pytest.mark.parametrize(("case", "trainers", "workers"), [("grpo", 1, 0), ("grpo", 2, 2), ("ppo", 2, 0)])
def test_ray_changes_no_bit(case: str, trainers: int, workers: int, run: Run) -> None:
    found = trace(run("ray", case, backend="ray", trainers=trainers, rollout_workers=workers))
    assert found == trace(run("inline", case))


@pytest.mark.matrix
def test_sft_on_ray_changes_no_bit(cluster: Any, tiny_sft: BuildSft, tmp_path: Path) -> None:
    def learn(name: str, *words: str) -> Any:
        words = (f"output={tmp_path}/{name}", "steps=4", "cluster.lanes=2", "cluster.threads=1", *words)
        return trace(trained(tiny_sft(*words)))

    assert learn("ray", "cluster.backend=ray", "cluster.trainers=2", "cluster.sharding=optimizer") == learn("inline")


@pytest.mark.slow
def test_sampling_ahead_on_ray_changes_no_bit(run: Run) -> None:
    found = trace(run("ray", ahead=1, backend="ray", trainers=1, rollout_workers=2))
    assert found == trace(run("inline", ahead=1))


@pytest.mark.slow
def test_the_runs_of_a_sweep_share_a_cluster(
    cluster: Any, tiny_run: BuildRl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two commands train on it at the same time, each as if it were alone."""
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    fields = tiny_run(f"output={tmp_path}/swept", cluster={"backend": "ray", "threads": 1})
    runs = burnish.sweep(fields, {"seed": [0, 1]}, jobs=2, quiet=True)
    assert [(run.state, run.error) for run in runs] == [("finished", "")] * 2
    alone = trained(tiny_run(f"output={tmp_path}/alone", "seed=1", cluster={"backend": "inline", "threads": 1}))
    assert trace(runs[1].folder) == trace(alone)


@pytest.mark.slow
def test_a_killed_rollout_worker_changes_nothing(run: Run, killed_while_sampling: list[int]) -> None:
    found, expected = trace(run("killed", backend="ray", rollout_workers=2)), trace(run("inline"))
    assert killed_while_sampling
    assert lost_workers(found) == 1
    assert found == expected


@pytest.mark.matrix
def test_sampling_that_depends_on_timing_loses_no_prompt_with_a_worker_on_ray(
    run: Run, killed_while_sampling: list[int]
) -> None:
    """One of two workers is killed. Every prompt of the data is trained on once, within the bound of staleness."""
    folder = run("timed", ahead=1, partial=True, backend="ray", rollout_workers=2)
    assert killed_while_sampling
    steps = trained_prompts(folder)
    assert [len(prompts) for prompts in steps] == [4] * 4
    assert set().union(*steps) == set().union(*trained_prompts(run("inline")))
    assert len(set().union(*steps)) == 16
    rows = rows_of(folder)
    assert sum(row.get("rollout/lost_workers", 0) for row in rows) == 1
    assert all(0 <= row["rollout/staleness"] <= 1 for row in rows if row["step"] > 0)
    assert all("rollout/renewed_fraction" in row for row in rows if row["step"] > 0)


def trained_prompts(folder: Path) -> list[set[str]]:
    """Of each step."""
    files = sorted((folder / "rollouts").glob("step-*.jsonl"))
    return [{line["prompt_id"] for line in lines_of(file)} for file in files]


@pytest.mark.slow
def test_trainers_of_two_nodes_one_of_which_is_lost(
    cluster: Any, add_nodes: AddNodes, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each node has room for one trainer. The second node goes in step 4, and a third one takes its place."""
    (second,) = add_nodes(1, 4)
    third: list[Any] = []

    def replace_second() -> None:
        third.extend(add_nodes(1, 4))
        cluster.remove_node(second, allow_graceful=False)

    after_step(monkeypatch, 3, replace_second)
    found = trace(run("two-nodes", steps=6, backend="ray", trainers=2, cpus_per_worker=3))
    assert third
    assert found == trace(run("inline", steps=6))


@pytest.mark.matrix
def test_a_lost_node_leaves_a_smaller_pool(
    add_nodes: AddNodes, lose_node: AddNodes, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trainer and two rollout workers on three nodes. One node with a worker is lost, and nothing takes its place."""
    monkeypatch.setattr(ray_workers, "PLACE_SECONDS", 10.0)
    lost = lose_node(add_nodes(2, 4), "rollout worker 0", after=2)
    found = trace(run("smaller", backend="ray", rollout_workers=2, cpus_per_worker=3))
    assert lost
    assert lost_workers(found) == 1
    assert found == trace(run("inline"))


@pytest.mark.slow
@pytest.mark.matrix_cases("trainer 0-*")
@pytest.mark.parametrize(("lost", "spare"), [("trainer 0", 1), ("rollout worker 0", 1), ("trainer 0", 0)])
def test_a_run_goes_on_without_any_node_while_there_are_places(
    lost: str, spare: int, add_nodes: AddNodes, lose_node: AddNodes, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer and a rollout worker have a node each, one of which goes in the middle of a run that samples ahead."""
    lose_node(add_nodes(2 + spare, 5), lost, after=3)
    monkeypatch.setattr(ray_workers, "PLACE_SECONDS", 60.0 if spare else 2.0)
    settings = {"backend": "ray", "rollout_workers": 1, "cpus_per_worker": 5}
    if spare == 0:
        with pytest.raises(ConfigError, match=r"no place for 1 process \((trainer|rollout worker) 0\)"):
            run("any", steps=6, ahead=1, **settings)
        return
    found = trace(run("any", steps=6, ahead=1, **settings))
    assert lost_workers(found) == (lost != "trainer 0")
    assert found == trace(run("inline", ahead=1, steps=6))


@pytest.mark.slow
@pytest.mark.parametrize("whole_node", [pytest.param(False, marks=pytest.mark.matrix), True])
def test_a_trainer_lost_between_two_requests_is_named_and_not_who_reads_its_weights(
    whole_node: bool, cluster: Any, add_nodes: AddNodes, module: Any, tmp_path: Path
) -> None:
    """It has answered that its weights are written, and they go with its node, or it ends before it hands them over."""
    there = add_nodes(2, 5)
    crew = crew_of(tmp_path, 1, 1, cpus_per_worker=5)
    with RaySite() as site, site.reserved(crew) as launcher, ExitStack() as stack:
        peers = started(launcher, module, tmp_path / "left", "trainer 0", "rollout worker 0")
        trainer, worker = (stack.enter_context(peer) for peer in peers)
        shared = trainer.role("large", seconds=60).share(3)
        if whole_node:
            cluster.remove_node(node_of(launcher, "trainer 0", there), allow_graceful=False)
        else:
            os.kill(trainer.pid, signal.SIGKILL)  # type: ignore[attr-defined]
            shared.reference = trainer._actor.published.remote()  # type: ignore[attr-defined]
        engine = worker.role("engine", seconds=60)
        with pytest.raises(RoleLostError, match=r"process 'trainer 0' .*(ended|lost)") as raised:
            engine.load(shared)
        assert raised.value.process == "trainer 0"
        assert engine.ask("echo", 3) == 3
        with pytest.raises(RoleLostError, match="process 'trainer 0'"):
            dict(shared())


@pytest.mark.slow
def test_a_killed_controller_leaves_nothing(tiny_run: BuildRl, tmp_path: Path, gone: Callable[..., bool]) -> None:
    """A cluster that the command has started itself ends with it, actors and all."""
    config = tiny_run(steps=10_000, cluster={"backend": "ray", "rollout_workers": 1, "cpus_per_worker": 0.5})
    command = [sys.executable, "-m", "burnish", "rl", run_file(config)]
    controller = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path)
    wait_for(lambda: num_rows(Path(config.output)) > 0 or controller.poll() is not None, 180.0)
    assert controller.poll() is None
    descendants = children(controller.pid)
    assert len(descendants) > 4
    names = {pid: Path(f"/proc/{pid}/cmdline").read_text().replace(chr(0), " ")[:80] for pid in descendants}
    controller.kill()
    controller.wait()
    assert {pid: name for pid, name in names.items() if not gone(pid, 120.0)} == {}  # Ray's agents take half a minute
