"""The `cluster` section of a run file; see `burnish.config.schema`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from burnish.config.section import NonNegativeInt, Processes, Seconds, Section, Threads, as_list

_NOTHING_SAMPLES = "only `burnish rl` samples while it trains"
_ONE_MODEL = "only `burnish rl` has a reference, a critic or rewards"

Offloaded = Literal["optimizer", "reference", "teacher", "critic", "reward_model", "rollout_engine"]
"""A role whose state can be offloaded while it is idle. `critic` includes its weights and optimizer, `rollout_engine`
vLLM's weights and key-value cache."""
Backend = Literal["inline", "processes", "ray", "torchrun"]
OwnProcess = Annotated[tuple[Literal["reference", "teacher", "critic", "reward_model"], ...], BeforeValidator(as_list)]


def under_torchrun() -> bool:
    """Return whether torchrun has started this process."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"))


def _divisible(amount: float) -> float:
    if amount > 1 and amount % 1:
        raise ValueError("above 1 it has to be a whole number")
    return amount


Resource = Annotated[float, Field(ge=0.0), AfterValidator(_divisible)]
"""An amount of a Ray resource: a fraction of one, or a whole number."""


class TrainersConfig(Section):
    """Processes that share the work, and the backend that starts them.

    A run's numbers depend on `lanes` and `threads`, not on the number of processes.
    """

    not_here: ClassVar[Mapping[str, str]] = {"rollout_workers": _NOTHING_SAMPLES, "own_process": _ONE_MODEL}

    trainers: Processes = 1
    """Processes that train. Each takes part of every minibatch, and gradients are summed in an order fixed by `lanes`.
    A single trainer runs in the command's own process, except with Ray, or with `own_process` and no rollout
    workers."""
    sharding: Literal["auto", "whole", "optimizer", "full"] = "auto"
    """State that each trainer keeps between steps. `whole`: the whole model, gradients and optimizer. `optimizer`: the
    whole model, but only a slice of the summed gradients, Adam's moments and the float32 masters; the numbers are the
    same. `full`: a slice of everything (FSDP2); the numbers are the same up to rounding, and `burnish rl` needs rollout
    workers (docs/cluster.md). `auto`: `optimizer` if this machine lacks the memory for `whole`, else `whole`."""
    backend: Literal["auto", "inline", "processes", "ray", "torchrun"] = "auto"
    """`inline`: everything in one process. `processes`: processes on this machine. `ray`: actors on the Ray cluster at
    `RAY_ADDRESS`, or on one started here. `torchrun`: the processes that torchrun started, on one or more nodes.
    `auto`: `inline` for a single process; otherwise `torchrun` if it started the command, `ray` if `RAY_ADDRESS` is
    set, else `processes`."""
    lanes: Processes | None = None
    """Parts of a step that are summed one by one; a multiple of `trainers`. Runs with the same `lanes` and `threads`
    are bitwise identical on any number of processes. `null`: as many as `trainers`."""
    threads: Threads | None = None
    """PyTorch threads in each process. They affect the last bits of sums. `null`: an equal share of this machine's
    cores (under torchrun, of rank 0's machine); with Ray, as many as `cpus_per_worker`."""
    cpus_per_worker: Resource | None = None
    """CPUs that Ray reserves for each process. `null`: as many as `threads`, or 1 if `threads` is not set."""
    gpus_per_worker: Resource | None = None
    """GPUs that Ray reserves for each process, which sees no others. `null`: 1 in a cluster with GPUs, unless
    `model.device` is `cpu`."""
    offload: Annotated[tuple[Offloaded, ...], BeforeValidator(as_list)] = ()
    """State to offload while no phase of the step needs it: `optimizer` (moments and float32 masters), `reference`,
    `teacher`, `critic`, `reward_model`, `rollout_engine` (vLLM on the training GPU, which is put to sleep). State on a
    GPU goes to pinned host memory, state on a CPU to a file in the run's folder. The numbers do not change, but each
    phase waits for its state (docs/cluster.md)."""
    restarts: NonNegativeInt = 3
    """Number of times to restart lost trainers, from the newest checkpoint. Not under torchrun, which has
    `--max-restarts`."""
    stall_seconds: Seconds = 600.0
    """Kill a process that has made no progress on its work for this long (no token, no layer of a model, no other
    trainer at work), and write its stacks to RUN/stacks. A process without any sign of life is killed after 12
    seconds."""

    @property
    def num_processes(self) -> int:
        """Number of processes with a model. The command's own counts if it is the only trainer."""
        return self.trainers + self.num_workers + len(self.own_models)

    @property
    def num_workers(self) -> int:
        """Processes that only sample."""
        return 0

    @property
    def own_models(self) -> tuple[str, ...]:
        """Models that run in a separate process."""
        return ()

    @property
    def uses_processes(self) -> bool:
        """True if any part of the run is outside the process of the command."""
        return self.runs_on != "inline"

    @property
    def runs_on(self) -> Backend:
        """The `backend` to use."""
        if self.backend != "auto":
            return self.backend
        if self.num_processes == 1:
            return "inline"
        if under_torchrun():
            return "torchrun"
        return "ray" if os.environ.get("RAY_ADDRESS") else "processes"

    @property
    def joins_cluster(self) -> bool:
        """True if the processes join an existing Ray cluster, and so may be on other machines."""
        return self.runs_on == "ray" and "RAY_ADDRESS" in os.environ

    @property
    def trains_here(self) -> bool:
        """True if the command's own process is the only trainer. With Ray even a single trainer is an actor."""
        alone = self.runs_on != "ray" and self.trainers == 1 and self.num_workers > 0
        return alone or not self.uses_processes

    @property
    def num_lanes(self) -> int:
        """The `lanes` to use."""
        if self.lanes is not None:
            return self.lanes
        return self.trainers * max(1, -(-self.num_workers // self.trainers))


class ClusterConfig(TrainersConfig):
    """Processes that share the work, and the backend that starts them.

    A run's numbers depend on `lanes` and `threads`, not on the number of processes.
    """

    not_here: ClassVar[Mapping[str, str]] = {}

    rollout_workers: Annotated[int, Field(ge=0, le=4_096)] = 0
    """Processes that only sample, each with its own engine and copy of the weights. 0: the trainers sample."""
    own_process: OwnProcess = ()
    """Models that run in a separate process: `reference`, `teacher` (one process for all teachers) and `critic`,
    otherwise in every trainer, and `reward_model` (one process for all `model:PATH` rewards), otherwise in the
    command's process. They run in parallel with the rest, and the numbers do not change."""
    lanes: Processes | None = None
    """Parts of a step that are sampled and summed one by one; a multiple of `trainers`. Runs with the same `lanes` and
    `threads` are bitwise identical on any number of processes. `null`: the smallest multiple of `trainers` that gives
    every rollout worker something to do."""
    restarts: NonNegativeInt = 3
    """Number of times to restart lost trainers from the newest checkpoint, and number of times per hour to restart a
    lost rollout worker or the process of the reward models. Not under torchrun, which has `--max-restarts`."""

    @property
    def num_workers(self) -> int:
        return self.rollout_workers

    @property
    def own_models(self) -> tuple[str, ...]:
        return self.own_process

    @property
    def own_names(self) -> tuple[str, ...]:
        """Names of the processes of `own_process`, in its order."""
        return tuple(model.replace("_", " ") for model in self.own_process)
