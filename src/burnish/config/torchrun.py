"""The rank of this process among the processes that `torchrun` has started, from its environment variables."""

from __future__ import annotations

import os
from dataclasses import dataclass

from burnish.config.schema_cluster import TrainersConfig, under_torchrun
from burnish.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TorchrunRank:
    """`rank` of `size` processes, `local_rank` of `local_size` on this node, which is node `node`.

    address, port: of the store through which the processes meet. agent_holds_store: torchrun hosts it; otherwise the
    process with rank 0 does. max_restarts: how often torchrun starts all of them again.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    node: int
    address: str
    port: int
    agent_holds_store: bool
    max_restarts: int

    @staticmethod
    def here() -> TorchrunRank | None:
        """The rank of this process; None if torchrun has not started it. ConfigError if a variable is missing."""
        if not under_torchrun():
            return None
        return TorchrunRank(
            rank=_number("RANK"),
            size=_number("WORLD_SIZE"),
            local_rank=_number("LOCAL_RANK"),
            local_size=_number("LOCAL_WORLD_SIZE"),
            node=_number("GROUP_RANK"),
            address=_variable("MASTER_ADDR"),
            port=_number("MASTER_PORT"),
            agent_holds_store=os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            max_restarts=int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")),
        )

    @property
    def on_one_machine(self) -> bool:
        """True if all processes are on this machine."""
        return self.local_size == self.size


def _number(name: str) -> int:
    text = _variable(name)
    if not text.isdecimal():
        raise _not_as_given(f"{name} is {text!r}, which is no number")
    return int(text)


def _variable(name: str) -> str:
    if name not in os.environ:
        raise _not_as_given(f"{name} is not set")
    return os.environ[name]


def _not_as_given(what: str) -> ConfigError:
    return ConfigError(
        f"environment variable {what}, though TORCHELASTIC_RUN_ID says that torchrun has started this process",
        remedy="leave torchrun's variables as they are, or unset TORCHELASTIC_RUN_ID if this process is not torchrun's",
    )


def check_world(cluster: TrainersConfig, here: TorchrunRank | None) -> None:
    """Raise ConfigError unless torchrun has started as many processes as the run needs, and this is the first."""
    if here is None:
        if cluster.runs_on == "torchrun":
            raise ConfigError(
                "cluster.backend is torchrun, but torchrun has not started this process",
                remedy=f"start the run with: torchrun --nproc-per-node {cluster.num_processes} -m burnish ...",
            )
        return
    needed = cluster.num_processes if cluster.runs_on == "torchrun" else 1
    if here.size != needed:
        asked = f"backend {cluster.runs_on}, {cluster.num_processes} processes with a model"
        raise ConfigError(
            f"torchrun has started {here.size} process{'es' * (here.size > 1)}, but this run needs {needed} ({asked})",
            remedy=f"give torchrun {needed} (--nproc-per-node {needed} on one node), or change cluster.trainers, "
            "cluster.rollout_workers and cluster.own_process"
            + (", or set cluster.backend to processes" if here.size == 1 else ""),
        )
    if here.rank:
        raise ConfigError(
            f"this is the process with rank {here.rank}, and only that with rank 0 leads a run",
            remedy="under torchrun start runs with the command: torchrun ... -m burnish rl FILE",
        )
