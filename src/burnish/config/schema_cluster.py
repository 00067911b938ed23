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
"""A role whose state can be offloaded while it is idle; `critic` is its weights and its optimizer, `rollout_engine`
vLLM with its weights and its key-value cache."""
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
"""An amount of something that Ray gives out: a part of one, or several whole ones."""


class TrainersConfig(Section):
    """Processes that share the work, and the backend that starts them.

    A run's numbers depend on `lanes` and `threads`, not on the number of processes.
    """

    not_here: ClassVar[Mapping[str, str]] = {
        "rollout_workers": _NOTHING_SAMPLES,
        "own_process": _ONE_MODEL,
    }

    trainers: Processes = 1
    """Processes that train. Each works on a part of every minibatch; gradients are added in an order that `lanes`
    fixes. A single trainer is the command's own process, except with Ray, or with `own_process` and no rollout
    workers."""
    sharding: Literal["auto", "whole", "optimizer", "full"] = "auto"
    """State that each trainer keeps between steps. `whole`: the whole model, gradients and optimizer. `optimizer`: the
    whole model, and a slice of the summed gradients, of Adam's moments and of float32 masters; the same numbers.
    `full`: a slice of everything (FSDP2), with the same numbers up to rounding; `burnish rl` needs rollout workers for
    it (docs/cluster.md). `auto`: `optimizer` if this machine lacks the memory for `whole`, else `whole`."""
    backend: Literal["auto", "inline", "processes", "ray", "torchrun"] = "auto"
    """`inline`: everything in one process. `processes`: processes on this machine. `ray`: actors of the Ray cluster at
    `RAY_ADDRESS`, or of one that is started here. `torchrun`: the processes that torchrun has started, on one or
    several nodes. `auto`: if more than one process is asked for, `torchrun` if that has started the command, `ray`
    where `RAY_ADDRESS` is set, else `processes`."""
    lanes: Processes | None = None
    """Parts of a step that are summed one by one; a multiple of `trainers`. Runs with equal `lanes` and `threads` have
    equal bits on 1, 2, ... processes. `null`: as many as `trainers`."""
    threads: Threads | None = None
    """Threads of PyTorch in each process. The last bits of sums depend on it. `null`: an equal share of this machine's
    cores (of rank 0's, under torchrun); with Ray, as many as `cpus_per_worker`."""
    cpus_per_worker: Resource | None = None
    """CPUs that Ray sets aside for each process. `null`: as many as `threads`, or 1 if that is not
    set either."""
    gpus_per_worker: Resource | None = None
    """GPUs that Ray sets aside for each process, which then sees no others. `null`: 1 in a cluster with GPUs, unless
    `model.device` is `cpu`."""
    offload: Annotated[tuple[Offloaded, ...], BeforeValidator(as_list)] = ()
    """State to offload between the phases of a step that need it: `optimizer` (moments and float32 masters),
    `reference`, `teacher`, `critic`, `reward_model`, `rollout_engine` (one that sleeps: vLLM on the GPU that trains).
    State on a GPU goes to pinned host memory, state on a CPU to a file in the run's folder. A run's numbers do not
    change; each phase waits for its state (docs/cluster.md)."""
    restarts: NonNegativeInt = 3
    """How often lost trainers are started again, from the newest checkpoint. Not under torchrun, which has
    `--max-restarts`."""
    stall_seconds: Seconds = 600.0
    """A process that has done nothing for this long when asked to (no token, no layer of a model, no other trainer at
    work) is killed, with its stacks in RUN/stacks. (One without a sign of life is killed after 12 seconds.)"""

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
        """Models with a process of their own."""
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
    """Models that get a process of their own: `reference`, `teacher` (all of them together) and `critic`, which are in
    every trainer otherwise, and `reward_model`, all `model:PATH` rewards together, which are in the command's process
    otherwise. They work while others do, with the same numbers."""
    lanes: Processes | None = None
    """Parts of a step that are summed, and sampled, one by one; a multiple of `trainers`. Runs with equal `lanes` and
    `threads` have equal bits on 1, 2, ... processes. `null`: the smallest multiple of `trainers` that gives every
    rollout worker something to do."""
    restarts: NonNegativeInt = 3
    """How often lost trainers are started again from the newest checkpoint, and how often in an hour a lost rollout
    worker, or the process of the reward models, is. Not under torchrun, which has `--max-restarts`."""

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
