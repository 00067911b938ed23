"""Commands that train, when torchrun has started them several times."""

from __future__ import annotations

from burnish.errors import ConfigError


def served_as_rank(*, fresh: bool) -> bool:
    """Whether this process is one that only serves: that of a trainer or rollout worker, which has done so when this
    returns. It opens nothing of the run by itself; the process with rank 0 tells it what to hold.

    ConfigError for `--fresh` where torchrun may start the command again, because it would begin anew each time.
    """
    from burnish.config.torchrun import TorchrunRank

    here = TorchrunRank.here()
    if here is None:
        return False
    if here.rank == 0:
        if fresh and here.max_restarts:
            raise ConfigError(
                f"--fresh with torchrun --max-restarts {here.max_restarts} would start over at every restart",
                remedy="move the earlier run's folder away, or set `output` to another one",
            )
        return False
    from burnish.distributed.rank_server import serve_rank

    serve_rank(here)
    return True
