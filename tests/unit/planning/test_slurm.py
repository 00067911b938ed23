"""The batch script for Slurm: what it asks for, and what it runs, with stand-ins for `srun` and `scontrol`."""

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from watching import wait_for

from burnish.cli import main
from burnish.config.loading import load_run_data
from burnish.config.schema import RlConfig
from burnish.errors import ConfigError
from burnish.planning.slurm import batch_script, read_options

RUN = ["/env/bin/python", "-m", "burnish", "rl", "my run.yaml", "seed=1"]
SRUN = """#!/bin/bash
ray="RAY_ADDRESS=${RAY_ADDRESS-} RAY_AUTH_MODE=${RAY_AUTH_MODE-} ${#RAY_AUTH_TOKEN}"
echo "srun $* | $ray cpus=$SRUN_CPUS_PER_TASK" >> "$CALLS"
case "$*" in
*"ray start"*) exec /bin/sleep 20 ;;
*" -c "*) [ "$(grep -c "ray start" "$CALLS")" -ge "${*: -1}" ]; exit ;;
esac
case "$RUN_ENDS" in
asked) trap 'echo saved >> "$CALLS"; exit 0' TERM ;;
never) trap '' TERM ;;
*) exit "$RUN_ENDS" ;;
esac
echo running >> "$CALLS"
for _ in {1..100}; do /bin/sleep 0.05; done
"""
SCONTROL = """#!/bin/bash
if [ "$1" = show ]; then printf 'n1\\nn2\\n'; else echo "scontrol $*" >> "$CALLS"; fi
"""


def rl(**sections: Any) -> RlConfig:
    return load_run_data(
        {"model": "m", "data": {"train": "a"}, "rewards": "math", "algorithm": "grpo", **sections}
    ).config


def script_of(config: RlConfig, *options: str) -> str:
    return batch_script(config, RUN, Path("/shared/work here"), read_options(options))


def asked(script: str) -> dict[str, str]:
    lines = [line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., tuple[int, list[str]]]:
    """Runs a script as Slurm does, and signals it once the run is running if that is to end so. Returns its exit status
    and what it called."""

    def run(script: str, ends: str, nodes: int) -> tuple[int, list[str]]:
        assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
        calls = tmp_path / "calls"
        for name, text in {"srun": SRUN, "scontrol": SCONTROL, "sleep": "#!/bin/bash\nexec /bin/sleep 0.05"}.items():
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)
        given = {"SLURM_JOB_ID": "4711", "SLURM_NNODES": str(nodes), "SLURM_JOB_NODELIST": "n[1-2]"}
        own = {"SLURM_CPUS_PER_TASK": "68", "CALLS": str(calls), "RUN_ENDS": ends}
        environment = {**os.environ, **given, **own, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        process = subprocess.Popen(["bash", "-c", script], env=environment, start_new_session=True)
        try:
            if not ends.isdigit():
                wait_for(lambda: calls.is_file() and "running" in calls.read_text().splitlines(), 20)
                process.send_signal(signal.SIGUSR1)  # to the script alone, as with `--signal=B:`
            return process.wait(timeout=20), calls.read_text().splitlines()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    return run


SEVERAL = {"trainers": 8, "rollout_workers": 8}
ON_FOUR = {"engine": "vllm", "vllm": {"options": {"tensor_parallel_size": 4}}}
CPUS = {"model": {"path": "m", "device": "cpu"}}


@pytest.mark.parametrize(
    ("sections", "options", "expected", "starts"),
    [
        ({}, (), (1, 1, 14), "python"),
        ({"cluster": {"trainers": 4, "threads": 6}}, (), (1, 4, 30), "python"),
        (CPUS | {"cluster": {"trainers": 2}}, (), (1, 22), "python"),
        ({"cluster": SEVERAL}, (), (2, 8, 70), "torchrun"),
        ({"cluster": {"trainers": 4, "rollout_workers": 6}}, (), (2, 5, 46), "torchrun"),
        ({"cluster": SEVERAL}, ("gpus-per-node=4", "cpus-per-task=96"), (4, 4, 96), "torchrun"),
        (CPUS | {"cluster": {"trainers": 4, "backend": "torchrun"}}, ("nodes=2",), (2, 22), "torchrun"),
        ({"cluster": {"trainers": 6, "rollout_workers": 2}, "rollout": ON_FOUR}, (), (2, 8, 54), "ray"),
        ({"cluster": SEVERAL | {"backend": "ray", "cpus_per_worker": 2}}, (), (2, 8, 22), "ray"),
        ({"cluster": {"trainers": 3, "rollout_workers": 2}, "rollout": ON_FOUR}, (), (2, 8, 30), "ray"),
    ],
)
def test_nodes_have_room_for_the_processes(
    sections: Mapping[str, Any], options: Sequence[str], expected: tuple[int, ...], starts: str
) -> None:
    config = rl(**sections, scoring={"workers": 4})
    script = script_of(config, *options)
    found = asked(script)
    asks = tuple(int(found[name]) for name in ("nodes", "gpus-per-node", "cpus-per-task") if name in found)
    assert asks == expected
    assert ("torch.distributed.run" in script, "RAY_ADDRESS" in script) == (starts == "torchrun", starts == "ray")


def test_the_job_is_described_as_asked() -> None:
    found = asked(script_of(rl(), "partition=gpu", "--account=us", "time=1-12:00:00", "signal=600", "job-name=mine"))
    words = {"partition": "gpu", "account": "us", "time": "1-12:00:00", "job-name": "mine", "requeue": ""}
    assert found.items() >= words.items()
    assert (found["signal"], found["open-mode"], found["chdir"]) == ("B:USR1@600", "append", "'/shared/work here'")


TORCHRUN = (
    "srun --kill-on-bad-exit=1 /env/bin/python -m torch.distributed.run --nnodes 2 --nproc-per-node 8 --max-restarts 3 "
    "--rdzv-backend c10d --rdzv-id 4711.0 --rdzv-endpoint n1:24711 -m burnish rl my run.yaml seed=1"
)
ON_FIRST = "srun --overlap --nodes=1 --ntasks=1 --nodelist=n1"


@pytest.mark.parametrize(("ends", "status", "after"), [
    ("0", 0, []), ("3", 3, []), ("asked", 0, ["running", "saved", "scontrol requeue 4711"]),
    ("never", 0, ["running", "scontrol requeue 4711"]),
])  # fmt: skip
def test_a_job_is_queued_again_when_its_time_is_over_and_not_otherwise(
    job: Callable[..., tuple[int, list[str]]], ends: str, status: int, after: list[str]
) -> None:
    code, calls = job(script_of(rl(cluster=SEVERAL), "signal=61"), ends, nodes=2)
    assert code == status
    assert calls == [f"{TORCHRUN} | RAY_ADDRESS= RAY_AUTH_MODE= 0 cpus=68", *after]


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_ray_cluster_with_a_token_is_there_before_the_run(
    job: Callable[..., tuple[int, list[str]]], nodes: int
) -> None:
    config = rl(cluster={"trainers": 4 * nodes, "rollout_workers": nodes, "backend": "ray"}, rollout=ON_FOUR)
    code, calls = job(script_of(config), "0", nodes)
    assert code == 0
    assert all(call.endswith("RAY_ADDRESS=n1:24711 RAY_AUTH_MODE=token 64 cpus=68") for call in calls)
    started = [call.partition(" |")[0] for call in calls if " -c " not in call]
    start, has = "/env/bin/ray start", "--num-cpus=68 --num-gpus=8 --block"
    head = f"{ON_FIRST} {start} --head --port=24711 {has}"
    other = f"srun --overlap --nodes=1 --ntasks=1 --exclude=n1 {start} --address=n1:24711 {has}"
    run = f"{ON_FIRST} /env/bin/python -m burnish rl my run.yaml seed=1"
    assert sorted(started[:-1]) == sorted([head, *[other] * (nodes - 1)])
    assert started[-1] == run
    assert sum(" -c " in call for call in calls) >= nodes


@pytest.mark.parametrize(
    ("cluster", "options", "message"),
    [
        ({}, ["partitoin=a"], r"no option is called 'partitoin'\s+-> did you mean 'partition'"),
        ({}, ["partition"], "partition has to be a value without spaces"),
        ({}, ["time=1:00:00", "time=2:00:00"], "time is given twice"),
        ({}, ["time=tomorrow"], "time has to be HH:MM:SS or DAYS-HH:MM:SS"),
        ({}, ["nodes=two"], "nodes has to be a whole number above 0"),
        ({}, ["account=a b"], "account has to be a value without spaces"),
        (SEVERAL, ["nodes=1"], "and 16 GPUs, which do not fit on 1 node of 8 GPUs: they need 2 nodes"),
        (SEVERAL, ["nodes=3"], "torchrun starts equally many on each"),
        (SEVERAL | {"backend": "processes"}, [], "cluster.backend is processes, for one machine"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(cluster: dict[str, Any], options: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        script_of(rl(cluster=cluster), *options)


def test_the_command_prints_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text("{model: m, data: {train: a}, rewards: math, algorithm: grpo}")
    assert main(["plan", "run.yaml", "--slurm"]) == 0
    assert "partition" not in asked(capsys.readouterr().out)
    assert main(["plan", "run.yaml", "--sbatch", "partition=gpu", "cluster.trainers=2"]) == 0
    script = capsys.readouterr().out
    assert asked(script)["partition"] == "gpu"
    assert asked(script)["chdir"] == str(tmp_path)
    assert '"$python" -m burnish rl run.yaml cluster.trainers=2 &' in script
    assert main(["plan", "run.yaml", "--sbatch=queue=gpu"]) == 2
    assert main(["plan", "run.yaml", "--slurm", "--on", "2x24GB"]) == 2
