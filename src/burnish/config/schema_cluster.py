"""The section of a run file that says how many processes share the work."""

from __future__ import annotations

from typing import Literal

from burnish.config.section import Count, NonNegativeInt, PositiveInt, Seconds, Section


class ClusterConfig(Section):
    """How many processes share the work. The numbers of a run follow from `lanes` and `threads`, not from how many
    processes there are."""

    trainers: Count = 1
    """Processes that train. Each has the whole model and works on a part of every minibatch; gradients are added in an
    order that `lanes` fixes. 1 trains in the process of the command."""
    rollout_workers: NonNegativeInt = 0
    """Processes that only sample, each with its own engine and copy of the weights. 0: the trainers sample."""
    backend: Literal["auto", "inline", "processes"] = "auto"
    """`inline`: everything in one process. `processes`: processes on this machine. `auto`: `processes` if more than one
    is asked for."""
    lanes: PositiveInt | None = None
    """Parts of a step that are summed, and sampled, one by one; a multiple of `trainers`. Runs with equal lanes have
    equal bits on 1, 2, ... processes. `null`: the smallest multiple of `trainers` that gives every rollout worker
    something to do."""
    threads: PositiveInt | None = None
    """Threads of PyTorch in each process. `null`: the processor's cores, shared equally. The last bits of sums
    depend on it."""
    restarts: NonNegativeInt = 3
    """How often in an hour a lost rollout worker is started again."""
    stall_seconds: Seconds = 600.0
    """A process that has done nothing for this long when asked to is killed, with its stacks in RUN/stacks. (One that
    gives no sign of life at all is killed after 12 seconds.)"""

    @property
    def uses_processes(self) -> bool:
        """Whether anything of the run is outside the process of the command."""
        return self.backend == "processes" or self.trainers > 1 or self.rollout_workers > 0

    @property
    def num_lanes(self) -> int:
        """The `lanes` to use."""
        if self.lanes is not None:
            return self.lanes
        return self.trainers * max(1, -(-self.rollout_workers // self.trainers))
