"""A batch script for Slurm that starts a run on as many nodes as its processes need, and again until it is done.

Slurm signals the script some minutes before the job's time ends. It then asks the run to stop, which finishes its step
and saves, and puts the job back into the queue, where the run goes on from its newest checkpoint.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from burnish.config.schema_run import RunConfig
from burnish.errors import ConfigError, suggestion

_COUNTS = ("nodes", "gpus-per-node", "cpus-per-task", "signal")
_TEXTS = ("account", "partition", "qos", "time", "mem", "constraint", "reservation", "exclude", "job-name", "mail-user")
OPTIONS = (*_COUNTS, *_TEXTS)
"""Options of sbatch that may be given; `signal` in seconds before the end."""
_NUMBER = re.compile(r"[1-9][0-9]*"), "a whole number above 0"
_TIME = re.compile(r"([0-9]+-)?[0-9]+(:[0-9]{1,2}){0,2}|UNLIMITED"), "HH:MM:SS or DAYS-HH:MM:SS"
_WORD = re.compile(r"[\w.:,/@%+*&|()\[\]=-]+"), "a value without spaces"
_GPUS_OF_A_NODE = 8
_CPUS_OF_A_PROCESS = 8
_CPUS_OF_A_LOOP = 2
_SIGNAL_SECONDS, _QUEUE_SECONDS = 300, 60
"""Before the end: when the run is asked to stop, and when the job is queued again if it has not."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """Launcher of the run (`python`: the command alone), number of nodes, and per node the processes with a model and
    the GPUs."""

    launcher: str
    nodes: int
    processes: int
    gpus: int


def batch_script(config: RunConfig, command: Sequence[str], folder: Path, options: Mapping[str, str]) -> str:
    """The script. command: what starts the run, Python first. folder: where it works. options: from `read_options`.

    Raises ConfigError if the run's processes cannot be spread over nodes as asked."""
    layout = _layout(config, options)
    of_process = config.cluster.cpus_per_worker or config.cluster.threads or _CPUS_OF_A_PROCESS
    of_loop = _CPUS_OF_A_LOOP + config.small_processes
    seconds = int(options.get("signal", _SIGNAL_SECONDS))
    head = {
        "job-name": "burnish",
        "cpus-per-task": math.ceil(layout.processes * of_process) + of_loop,
        **options,
        "nodes": layout.nodes,
        "ntasks-per-node": 1,
        "gpus-per-node": layout.gpus or None,
        "chdir": shlex.quote(str(folder)),
        "output": "%x-%j.out",
        "open-mode": "append",
        "signal": f"B:USR1@{seconds}",
    }
    lines = [f"#SBATCH --{name}={value}" for name, value in head.items() if value is not None]
    words = {
        "python": shlex.quote(command[0]),
        "run": shlex.join(command[1:]),
        "processes": layout.processes,
        "gpus": layout.gpus,
        "seconds": max(1, seconds - _QUEUE_SECONDS),
    }
    start = {"python": _ALONE, "torchrun": _FIRST + _TORCHRUN, "ray": _FIRST + _RAY}[layout.launcher]
    return "\n".join(["#!/bin/bash", *lines, "#SBATCH --requeue", Template(_BEGIN + start + _END).substitute(words)])


def read_options(given: Iterable[str]) -> dict[str, str]:
    """Options from `key=value`. Raises ConfigError for others than `OPTIONS`, and values that Slurm would misread."""
    options: dict[str, str] = {}
    for text in given:
        name, _, value = text.removeprefix("--").partition("=")
        pattern, wanted = _NUMBER if name in _COUNTS else _TIME if name == "time" else _WORD
        if name not in OPTIONS:
            raise ConfigError(f"--sbatch={text}: no option is called {name!r}", remedy=suggestion(name, OPTIONS))
        if name in options:
            raise ConfigError(f"--sbatch={text}: {name} is given twice", remedy="keep one of the two")
        if not pattern.fullmatch(value):
            raise ConfigError(f"--sbatch={text}: {name} has to be {wanted}", remedy=f"write --sbatch={name}=VALUE")
        options[name] = value
    return options


def _layout(config: RunConfig, options: Mapping[str, str]) -> _Layout:
    """Nodes with room for all processes. torchrun starts equally many on each; Ray finds places for larger ones."""
    backend, each = config.cluster.backend, _gpus_of_processes(config)
    room = int(options.get("gpus-per-node", min(sum(each), _GPUS_OF_A_NODE)))
    packed = _packed(each, room)
    count = int(options.get("nodes", len(packed)))
    launcher = "python" if count == 1 else "torchrun" if max(each) <= 1 else "ray"
    launcher = backend if backend in ("torchrun", "ray") else launcher
    if launcher == "torchrun" and "nodes" not in options:
        count = next(number for number in range(count, len(each) + 1) if len(each) % number == 0)
    reasons = {
        f"one process has {max(each)}": max(each) > room,
        f"they need {len(packed)} nodes or more": count < len(packed),
        "torchrun starts equally many on each": launcher == "torchrun" and len(each) % count > 0,
        f"cluster.backend is {backend}, for one machine": backend in ("inline", "processes") and count > 1,
    }
    if why := next((reason for reason, holds in reasons.items() if holds), None):
        raise ConfigError(
            f"the run has {len(each)} processes with a model and {sum(each)} GPUs, which do not fit on {count} "
            f"node{'s' * (count > 1)} of {room} GPUs: {why}",
            remedy="change --sbatch nodes or gpus-per-node, or the fields of `cluster`",
        )
    equal = -(-len(each) // count)
    gpus = min(room, equal) if launcher == "torchrun" and "gpus-per-node" not in options else room
    return _Layout(launcher, count, max(packed) if launcher == "ray" and room else equal, gpus)


def _gpus_of_processes(config: RunConfig) -> list[int]:
    """The GPUs of each process with a model, which a cluster is taken to have unless the run is for CPUs."""
    count, engines, of_engine = config.cluster.num_processes, config.cluster.num_workers, config.engine.gpus
    one = 0 if config.model.device == "cpu" else math.ceil(config.cluster.gpus_per_worker or 1)
    return [max(one, of_engine) if one else 0] * engines + [one] * (count - engines)


def _packed(each: Sequence[int], room: int) -> list[int]:
    """The processes of each node of so many GPUs, as few nodes as it takes with the largest processes first."""
    free: list[int] = []
    held: list[int] = []
    for need in sorted(each, reverse=True):
        place = next((number for number, left in enumerate(free) if left >= need), len(free))
        if place == len(free):
            free.append(room)
            held.append(0)
        free[place] -= need
        held[place] += 1
    return held


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
    end=$$((SECONDS + $seconds))
    while kill -0 "$$run" 2>/dev/null && [ "$$SECONDS" -lt "$$end" ]; do sleep 1; done
    scontrol requeue "$$SLURM_JOB_ID"
    exit
fi
exit "$$status"
"""
