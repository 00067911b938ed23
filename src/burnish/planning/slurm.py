"""A batch script for Slurm that starts a run on as many nodes as its processes need, and again until it is done.

Slurm signals the script some minutes before the job's time ends. It then asks the run to stop, which finishes its step
and saves, and puts the job back into the queue, where the run goes on from its newest checkpoint.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from burnish.config.schema import RlConfig
from burnish.errors import ConfigError
from burnish.planning.memory import Trained
from burnish.words import suggestion

_COUNTS = ("nodes", "gpus-per-node", "cpus-per-task", "signal")
_TEXTS = ("account", "partition", "qos", "time", "mem", "constraint", "reservation", "exclude", "nodelist", "licenses",
          "job-name", "mail-type", "mail-user", "comment")  # fmt: skip
OPTIONS = (*_COUNTS, *_TEXTS)
"""Options of sbatch that may be given; `signal` in seconds before the end."""
_TIME = re.compile(r"\d+(:\d{1,2}){0,2}|\d+-\d+(:\d{1,2}){0,2}|UNLIMITED")
_VALUE = re.compile(r"[\w.:,/@%+*&|()\[\]=-]+")
_GPUS_OF_A_NODE = 8
_CPUS_OF_A_PROCESS = 8
_CPUS_OF_A_LOOP = 2
_SIGNAL_SECONDS = 300
_KILL_SECONDS = 60
"""Before the end, for what does not stop when it is asked."""


@dataclass(frozen=True, slots=True)
class _Nodes:
    """What the job asks for: nodes, and of each the processes with a model, GPUs and CPUs."""

    count: int
    processes: int
    gpus: int
    cpus: int


def batch_script(config: Trained, command: Sequence[str], folder: Path, options: Mapping[str, str]) -> str:
    """The script. command: what starts the run, Python first. folder: where it works. options: from `read_options`.

    Raises ConfigError if the run's processes cannot be spread over nodes as asked."""
    launcher = _launcher(config, options)
    nodes = _nodes(config, options, launcher)
    seconds = int(options.get("signal", _SIGNAL_SECONDS))
    head = {
        "job-name": "burnish",
        **{name: value for name, value in options.items() if name in _TEXTS},
        "nodes": nodes.count,
        "ntasks-per-node": 1,
        **({"gpus-per-node": nodes.gpus} if nodes.gpus else {}),
        "cpus-per-task": nodes.cpus,
        "chdir": shlex.quote(str(folder)),
        "output": "%x-%j.out",
        "open-mode": "append",
        "requeue": None,
        "signal": f"B:USR1@{seconds}",
    }
    lines = [f"#SBATCH --{name}" + ("" if value is None else f"={value}") for name, value in head.items()]
    words = {
        "python": shlex.quote(command[0]),
        "run": shlex.join(command[1:]),
        "processes": str(nodes.processes),
        "gpus": str(nodes.gpus),
        "kill_after": str(seconds - _KILL_SECONDS),
    }
    parts = [_BEGIN, *{"python": [_ALONE], "torchrun": [_FIRST, _TORCHRUN], "ray": [_FIRST, _RAY]}[launcher], _END]
    return "\n".join(["#!/bin/bash", *lines, *(Template(part).substitute(words) for part in parts)])


def read_options(given: Iterable[str]) -> dict[str, str]:
    """Options from `key=value`. Raises ConfigError for others than `OPTIONS`, and values that Slurm would misread."""
    options: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        name = name.removeprefix("--")
        if name not in OPTIONS:
            raise ConfigError(f"--sbatch={text}: no option is called {name!r}", remedy=suggestion(name, OPTIONS))
        if not equals or name in options:
            why = "is given twice" if equals else "has no value"
            raise ConfigError(f"--sbatch={text}: {name} {why}", remedy=f"write --sbatch={name}=VALUE once")
        if name in _COUNTS and not (value.isascii() and value.isdecimal() and int(value) > 0):
            raise ConfigError(f"--sbatch={text}: {value!r} is no number", remedy="write a whole number above 0")
        if not _VALUE.fullmatch(value):
            raise ConfigError(f"--sbatch={text}: {value!r} is no value for Slurm", remedy="write it without spaces")
        if name == "time" and not _TIME.fullmatch(value):
            raise ConfigError(f"--sbatch={text}: {value!r} is no time", remedy="write HH:MM:SS or DAYS-HH:MM:SS")
        options[name] = value
    if int(options.get("signal", _SIGNAL_SECONDS)) <= _KILL_SECONDS:
        remedy = f"write more than the {_KILL_SECONDS} seconds that are left for the queue"
        raise ConfigError(f"--sbatch=signal={options['signal']}: too late to save", remedy=remedy)
    return options


def _launcher(config: Trained, options: Mapping[str, str]) -> str:
    """`python` where the command starts all processes itself, else `torchrun` or `ray`."""
    backend = config.cluster.backend
    if backend in ("torchrun", "ray"):
        return backend
    each, room = _gpus_of_processes(config), int(options.get("gpus-per-node", _GPUS_OF_A_NODE))
    if int(options.get("nodes", 1)) == 1 and sum(each) <= room:
        return "python"
    if backend != "auto":
        raise ConfigError(
            f"cluster.backend is {backend}, for one machine, but the run is to have more than one node of {room} GPUs "
            f"({sum(each)} GPUs, --sbatch nodes and gpus-per-node)",
            remedy="set cluster.backend to torchrun or ray, or give one node enough GPUs",
        )
    return "torchrun" if max(each) <= 1 else "ray"


def _nodes(config: Trained, options: Mapping[str, str], launcher: str) -> _Nodes:
    """Nodes for all processes. torchrun starts equally many on each; with Ray one process may have several GPUs."""
    each = _gpus_of_processes(config)
    room = int(options.get("gpus-per-node", min(sum(each), _GPUS_OF_A_NODE)))
    least = 1 if not room else _packed(each, room)
    count = int(options.get("nodes", least))
    if launcher == "torchrun" and "nodes" not in options:
        count = next(number for number in range(least, len(each) + 1) if len(each) % number == 0)
    uneven = launcher == "torchrun" and len(each) % count
    if count < least or uneven or max(each) > room:
        asked = f"{len(each)} processes with a model, {sum(each)} GPUs"
        why = "torchrun starts equally many on each" if uneven else f"they need {least} nodes or more"
        why = f"one process has {max(each)}" if max(each) > room else why
        raise ConfigError(
            f"the run has {asked}, which do not fit on {count} node{'s' * (count > 1)} of {room} GPUs: {why}",
            remedy="change --sbatch nodes or gpus-per-node, or cluster.trainers and cluster.rollout_workers",
        )
    processes = -(-len(each) // count)
    gpus = room if "gpus-per-node" in options or launcher != "torchrun" else min(room, processes)
    of_process = config.cluster.cpus_per_worker or config.cluster.threads or _CPUS_OF_A_PROCESS
    of_loop = _CPUS_OF_A_LOOP + (config.scoring.workers if isinstance(config, RlConfig) else 0)
    cpus = int(options.get("cpus-per-task", max(1, round(processes * of_process)) + of_loop))
    return _Nodes(count, processes, gpus, cpus)


def _gpus_of_processes(config: Trained) -> list[int]:
    """The GPUs of each process with a model, which a cluster is taken to have unless the run is for CPUs."""
    cluster = config.cluster
    one = 0 if config.model.device == "cpu" else max(1, round(cluster.gpus_per_worker or 1))
    if not isinstance(config, RlConfig):
        return [one] * cluster.num_processes
    engines = config.cluster.rollout_workers
    of_engine = max(one, config.rollout.gpus_per_engine) if one else 0
    return [of_engine] * engines + [one] * (cluster.num_processes - engines)


def _packed(each: Sequence[int], room: int) -> int:
    """Nodes of so many GPUs that take all processes, the largest first."""
    free: list[int] = []
    for need in sorted(each, reverse=True):
        place = next((number for number, left in enumerate(free) if left >= need), None)
        if place is None:
            free.append(room - need)
        else:
            free[place] -= need
    return len(free)


_BEGIN = """
# Written by `burnish plan --slurm`. The same job goes on from the newest checkpoint whenever it starts again.
set -u
python=$python
export SRUN_CPUS_PER_TASK=$$SLURM_CPUS_PER_TASK
# Before the job's time is over, the run is asked to finish its step and save. Then the job is queued again.
requeue='' run=''
stop() {
    requeue=yes
    [ -z "$$run" ] || kill -TERM "$$run"
}
trap stop USR1
trap 'kill $$(jobs -p) 2>/dev/null' EXIT
"""

_FIRST = """\
first=$$(scontrol show hostnames "$$SLURM_JOB_NODELIST" | head -n 1)
port=$$((20000 + SLURM_JOB_ID % 20000))
"""

_ALONE = """\
srun --kill-on-bad-exit=1 "$$python" $run &
run=$$!
"""

_TORCHRUN = """\
srun --kill-on-bad-exit=1 "$$python" -m torch.distributed.run --nnodes "$$SLURM_NNODES" --nproc-per-node $processes \\
    --max-restarts 3 --rdzv-backend c10d --rdzv-id "$$SLURM_JOB_ID.$${SLURM_RESTART_COUNT:-0}" \\
    --rdzv-endpoint "$$first:$$port" $run &
run=$$!
"""

_RAY = """\
# Every process of the job has the token from its environment; nobody else may use the cluster.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')
export RAY_ADDRESS=$$first:$$port
ray=$$(dirname "$$python")/ray
on_first=(srun --overlap --nodes=1 --ntasks=1 --nodelist="$$first")
"$${on_first[@]}" "$$ray" start --head --port="$$port" --num-cpus="$$SLURM_CPUS_PER_TASK" --num-gpus=$gpus --block &
joined='import ray, sys; ray.init(log_to_driver=False); sys.exit(len(ray.nodes()) < int(sys.argv[1]))'
await_nodes() {
    for _ in {1..60}; do
        "$${on_first[@]}" "$$python" -c "$$joined" "$$1" 2>/dev/null && return
        sleep 5
    done
    echo "no Ray cluster of $$1 nodes at $$RAY_ADDRESS within five minutes" >&2
    exit 1
}
await_nodes 1
if [ "$$SLURM_NNODES" -gt 1 ]; then
    srun --overlap --nodes=$$((SLURM_NNODES - 1)) --ntasks=$$((SLURM_NNODES - 1)) --exclude="$$first" \\
        "$$ray" start --address="$$RAY_ADDRESS" --num-cpus="$$SLURM_CPUS_PER_TASK" --num-gpus=$gpus --block &
    await_nodes "$$SLURM_NNODES"
fi
"$${on_first[@]}" "$$python" $run &
run=$$!
"""

_END = """\
[ -z "$$requeue" ] || stop
wait "$$run"
status=$$?
if [ -n "$$requeue" ]; then  # the signal has ended `wait`
    end=$$((SECONDS + $kill_after))
    while kill -0 "$$run" 2>/dev/null && [ "$$SECONDS" -lt "$$end" ]; do sleep 1; done
    scontrol requeue "$$SLURM_JOB_ID"
    exit
fi
exit "$$status"
"""
