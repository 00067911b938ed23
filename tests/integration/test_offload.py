"""`cluster.offload`: the numbers of a run are those of the same run without it, whatever rests."""

import errno
import json
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import BuildRl, BuildSft, Run, run_file, trace, trained

from burnish.config.schema_data import ModelConfig
from burnish.errors import OffloadError
from burnish.models.resting import Resting, RestingFile
from burnish.models.reward_model import Readout, new_reward_model
from burnish.planning.machines import Machine
from burnish.planning.memory import bytes_in
from burnish.planning.model_facts import read_model_facts
from burnish.planning.processes import seats_of

pytestmark = pytest.mark.slow

ALL = ("optimizer", "reference", "critic", "reward_model")
PPO: dict[str, Any] = {
    "algorithm": {"preset": "ppo", "kl_in": "reward", "kl_coef": 0.05},
    "critic": {"kind": "separate", "learning_rate": 1e-3, "warmup_steps": 1},
    "optimization": {"minibatches": 2, "learning_rate": 1e-3},
    "evaluation": {"every_steps": 2, "at_start": True},
    "checkpoint": {"every_steps": 2},
}


@pytest.fixture(scope="module")
def reward_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reward model that has learned nothing, so it is a random judge."""
    folder = tmp_path_factory.mktemp("offload") / "rm"
    new_reward_model(ModelConfig(path=str(tiny_model), device="cpu"), Readout(), seed=1).save(folder)
    return folder


@pytest.fixture
def run(tiny_run: BuildRl, reward_model: Path, tmp_path: Path) -> Run:
    """Trains with PPO, a reference and a reward model, in `tmp_path/NAME`; returns the folder."""

    def train(name: str, *overrides: str, offload: tuple[str, ...] = (), steps: int = 4, **cluster: Any) -> Path:
        reward = {"name": f"model:{reward_model}", "label": "learned", "options": {"device": "cpu"}}
        config = tiny_run(
            f"output={tmp_path}/{name}",
            *overrides,
            steps=steps,
            rewards=[reward],
            cluster={"lanes": 2, "threads": 1, "offload": offload, **cluster},
            **PPO,
        )
        return trained(config)

    return train


@pytest.fixture
def rested(monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[str, int]]:
    """How many bytes each role of this process had at rest, at most."""
    found: dict[str, int] = {}
    lie_down = Resting._lie_down

    def watched(resting: Resting) -> None:
        lie_down(resting)
        found[resting._role] = max(found.get(resting._role, 0), resting.num_bytes)

    monkeypatch.setattr(Resting, "_lie_down", watched)
    return lambda: found


def test_whatever_rests_the_numbers_are_the_same(run: Run, rested: Callable[[], dict[str, int]]) -> None:
    """Metrics, evaluations, rollouts, weights and optimizers; the second half goes on from a checkpoint."""
    expected = trace(run("awake"))
    assert not rested()
    run("resting", offload=ALL, steps=2)
    assert trace(run("resting", offload=ALL)) == expected
    sizes = rested()
    optimizers = {"policy's optimizer", "critic's optimizer"}
    assert set(sizes) == {*optimizers, "critic", "reference", "reward model of 'learned'"}
    assert sizes["policy's optimizer"] == 2 * sizes["reference"]
    assert sizes["critic's optimizer"] > 2 * sizes["critic"]  # the head does not rest, its moments do
    assert sizes["critic"] < sizes["reward model of 'learned'"]  # which has a head


@pytest.mark.parametrize("write", [9, 16])
def test_a_disk_that_fills_up_ends_the_run_in_order(run: Run, monkeypatch: pytest.MonkeyPatch, write: int) -> None:
    """Whatever was being written, the same command goes on once there is room."""
    writes, keep = count(1), RestingFile.keep

    def fills_up(place: RestingFile, storages: Sequence[torch.UntypedStorage]) -> None:
        if next(writes) == write:
            raise OSError(errno.ENOSPC, "No space left on device")
        keep(place, storages)

    with monkeypatch.context() as patch:
        patch.setattr(RestingFile, "keep", fills_up)
        with pytest.raises(OffloadError, match="cannot rest in a file in"):
            run("full", offload=ALL)
    assert trace(run("full", offload=ALL)) == trace(run("awake"))


@pytest.mark.parametrize(
    "overrides", [("model.dtype=bfloat16",), ("critic.init=reward_model",), ("critic.kind=shared",)], ids=" ".join
)
def test_whatever_rests_in_other_runs(run: Run, overrides: tuple[str, ...]) -> None:
    offload = [role for role in ALL if role != "critic" or "critic.kind=shared" not in overrides]
    assert trace(run("resting", *overrides, offload=tuple(offload))) == trace(run("awake", *overrides))


@pytest.mark.matrix_cases("float32-*", "*-optimizer")
@pytest.mark.parametrize("sharding", ["whole", "optimizer"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_rests_in_trainers(run: Run, sharding: str, dtype: str) -> None:
    words = f"model.dtype={dtype}"
    expected = trace(run("awake", words))
    assert trace(run("resting", words, offload=ALL, trainers=2, sharding=sharding)) == expected
    assert trace(run("sampled", words, offload=ALL, rollout_workers=1, sharding=sharding)) == expected


def test_the_optimizer_of_a_supervised_run_rests(tiny_sft: BuildSft, tmp_path: Path) -> None:
    awake, resting = (
        trace(trained(tiny_sft(f"output={tmp_path}/{len(offload)}", cluster={"offload": offload})))
        for offload in ([], ["optimizer"])
    )
    assert resting == awake


MEASURE = """
import json, sys
from pathlib import Path
from rich.console import Console
from burnish.config.loading import load_run_file
from burnish.machine.memory import return_freed_memory
from burnish.rollouts.local.engine import LocalEngine
from burnish.trainers.cluster import train_rl

found, generate = [], LocalEngine.generate

def measured(engine, *arguments, **named):
    return_freed_memory()  # of the passes: the same with and without offload
    lines = Path("/proc/self/status").read_text().splitlines()
    found.append(next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon")))
    return generate(engine, *arguments, **named)

LocalEngine.generate = measured
train_rl(load_run_file(sys.argv[1], (), "rl").config, console=Console(quiet=True))
print(json.dumps(found))
"""


@pytest.mark.matrix
@pytest.mark.skipif(platform.system() != "Linux", reason="reads /proc")
def test_the_memory_of_sampling_falls_by_what_the_plan_says(
    tiny_run: BuildRl, save_tiny_llama: Callable[..., Path], tmp_path: Path
) -> None:
    """6 million weights: sampling needs neither 50 MB of moments, nor a reference (25), nor a critic (25 + 50)."""
    model = save_tiny_llama("0123456789+=", hidden_size=512, intermediate_size=1408, num_layers=2, num_heads=8)
    measured, planned = [], []
    for offload in ((), ("optimizer", "reference", "critic")):
        cluster = {"offload": offload, "threads": 1}
        output = f"output={tmp_path}/{len(offload)}"
        config = tiny_run(output, model=str(model), steps=3, cluster=cluster, **PPO)
        command = [sys.executable, "-c", MEASURE, run_file(config)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr[-2000:]
        measured.append(json.loads(ended.stdout.splitlines()[-1])[-1])  # both optimizers have moments by then
        machine = Machine(2, 1, 64 << 30)
        planned.append(bytes_in("sampling", seats_of(config, read_model_facts(model), machine)[0].host))
    saved, expected = (before - after for before, after in (measured, planned))
    assert saved == pytest.approx(expected, rel=0.15), f"{measured} bytes measured, {planned} planned"
