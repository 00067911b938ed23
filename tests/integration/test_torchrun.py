"""Runs on the processes that torchrun has started: the numbers of one process, and a clear end when one is lost."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from runs import BuildRl, BuildSft, num_rows, run_file, trace, trained
from watching import children, runs, wait_for

from burnish.config.schema import RlConfig
from burnish.config.schema_data import ModelConfig
from burnish.models.reward_model import Readout, new_reward_model

pytestmark = pytest.mark.slow

SECONDS = 400.0
"""For whatever is waited for; the machine may be busy."""

LOSS = """
import os, pathlib, signal
from burnish.algorithms.policy_losses.clipped import ppo_clip

HERE = pathlib.Path(__file__).parent


def loss(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT):
    saved = (HERE / "ranks/checkpoints/step-000002").exists()  # so this is step 3
    if saved and os.environ.get("RANK") == "1" and not (HERE / "killed").exists():
        (HERE / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return ppo_clip(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT)
"""


class Launched:
    """A torchrun with its processes, and what they say."""

    def __init__(self, log: Path, *words: str) -> None:
        self.log = log
        with log.open("w") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", *words],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env={**os.environ, "COLUMNS": "200"},
                cwd=log.parent,
            )

    @property
    def said(self) -> str:
        return self.log.read_text()

    def wait(self) -> int:
        return self.process.wait(timeout=SECONDS)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.05)

    def rank(self, number: int) -> int:
        """The id of the process with this rank."""
        pid = self.process.pid
        started = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        (found,) = [pid for pid in started if f"RANK={number}" in environment(pid)]
        return found

    def end(self) -> None:
        started = [self.process.pid, *children(self.process.pid)]
        for pid in started:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()


def environment(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/environ").read_text().split("\0")
    except OSError:
        return []


@pytest.fixture
def torchrun(tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    """Starts `burnish` as so many processes; whatever is left at the end is killed."""
    begun: list[Launched] = []

    def start(count: int, *words: str, restarts: int = 0) -> Launched:
        how = ("--standalone", "--nproc-per-node", str(count), "--max-restarts", str(restarts))
        begun.append(Launched(tmp_path / f"torchrun-{len(begun)}.log", *how, "-m", "burnish", *words))
        return begun[-1]

    yield start
    for launched in begun:
        launched.end()


@pytest.fixture
def grpo(tiny_run: BuildRl, tmp_path: Path) -> Callable[..., RlConfig]:
    def build(name: str, *overrides: str, steps: int = 4, **cluster: Any) -> RlConfig:
        return tiny_run(
            f"output={tmp_path}/{name}",
            *overrides,
            steps=steps,
            checkpoint={"every_steps": 2},
            algorithm={"preset": "grpo", "kl_in": "loss", "kl_coef": 0.05},
            optimization={"minibatches": 2, "epochs": 2, "learning_rate": 1e-3},
            cluster={"lanes": 4, "threads": 1, **cluster},
        )

    return build


def finished(launched: Launched) -> str:
    """What it has said, once it has ended well."""
    assert launched.wait() == 0, launched.said
    return " ".join(launched.said.split())


@pytest.fixture
def of_one(grpo: Callable[..., RlConfig]) -> Callable[..., Any]:
    """The trace of the same run in one process."""

    return lambda *overrides: trace(trained(grpo("inline", *overrides)))


@pytest.mark.matrix
def test_two_trainers_and_a_rollout_worker_change_no_bit(torchrun: Any, grpo: Any, of_one: Any) -> None:
    config = grpo("ranks", trainers=2, rollout_workers=1)
    said = finished(torchrun(3, "rl", run_file(config)))
    assert said.count("finished at step 4") == 1  # only one of the three speaks
    assert trace(Path(config.output)) == of_one()


@pytest.mark.matrix
def test_reward_models_on_a_rank_of_their_own_change_no_bit(
    torchrun: Any, grpo: Any, of_one: Any, tiny_model: Path, tmp_path: Path
) -> None:
    new_reward_model(ModelConfig(path=str(tiny_model), device="cpu"), Readout(), seed=1).save(tmp_path / "rm")
    learned = f"rewards=model:{tmp_path}/rm"
    config = grpo("ranks", learned, own_process=["reward_model"])
    finished(torchrun(2, "rl", run_file(config)))
    assert trace(Path(config.output)) == of_one(learned)


@pytest.mark.matrix
def test_ranks_of_two_nodes_change_no_bit(grpo: Any, of_one: Any, tmp_path: Path) -> None:
    """Two of them on one machine, whose processes share no memory with those of the other. The second one has a trainer
    and a rollout worker."""
    config = grpo("nodes", trainers=2, rollout_workers=2)
    file = run_file(config)
    meeting = tmp_path / "meeting"  # a file, because a port could be taken by somebody else before torchrun takes it
    where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", str(meeting), "--rdzv-conf", "store_type=file")
    words = ("--nnodes", "2", "--nproc-per-node", "2", *where, "--rdzv-id", "test", "-m", "burnish", "rl", file)
    nodes = [Launched(tmp_path / f"node-{number}.log", *words) for number in range(2)]
    try:
        assert [node.wait() for node in nodes] == [0, 0], [node.said for node in nodes]
    finally:
        for node in nodes:
            node.end()
    assert trace(Path(config.output)) == of_one()


@pytest.mark.matrix
def test_sft_with_two_trainers_changes_no_bit(torchrun: Any, tiny_sft: BuildSft, tmp_path: Path) -> None:
    common = ("steps=4", "cluster.lanes=2", "cluster.threads=1")
    config = tiny_sft(f"output={tmp_path}/ranks", *common, "cluster.trainers=2", "cluster.sharding=optimizer")
    finished(torchrun(2, "sft", run_file(config)))
    assert trace(tmp_path / "ranks") == trace(trained(tiny_sft(f"output={tmp_path}/inline", *common)))


def test_a_killed_rank_and_a_restart_change_no_bit(torchrun: Any, grpo: Any, of_one: Any, tmp_path: Path) -> None:
    """The second trainer kills itself in the third step. Then all processes start again, once."""
    (tmp_path / "mine.py").write_text(LOSS)
    own = f"algorithm.loss={tmp_path}/mine.py:loss"
    config = grpo("ranks", own, trainers=2)
    said = finished(torchrun(2, "rl", run_file(config), restarts=1))
    assert (tmp_path / "killed").exists()
    assert "rank 1 (trainer 1) on" in said
    assert f"resuming {config.output} after step 2" in said
    assert trace(Path(config.output)) == of_one(own)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_rank_is_named_and_nothing_is_left(torchrun: Any, grpo: Any, lost: int) -> None:
    """Without rank 0, the controller, nobody is left who could name it."""
    config = grpo("ranks", steps=10_000, rollout_workers=1)
    launched = torchrun(2, "rl", run_file(config))
    launched.wait_for(lambda: num_rows(Path(config.output)) > 2)
    started = children(launched.process.pid)
    assert len(started) >= 3  # and reward workers
    os.kill(launched.rank(lost), signal.SIGKILL)
    assert launched.wait() != 0
    wait_for(lambda: not any(map(runs, started)))
    assert lost == 0 or "rank 1 (rollout worker 0) on" in " ".join(launched.said.split())


def test_another_number_of_processes_is_refused(torchrun: Any, grpo: Any) -> None:
    config = grpo("ranks", trainers=2, rollout_workers=1)
    launched = torchrun(2, "rl", run_file(config))
    assert launched.wait() != 0
    said = " ".join(launched.said.split())
    assert "torchrun has started 2 processes, but this run needs 3" in said
    assert "--nproc-per-node 3" in said
    assert not Path(config.output).exists()
