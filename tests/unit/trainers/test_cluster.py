"""What happens to a run that has lost a trainer; a trainer that is alone."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from burnish.distributed.peers import RoleLostError
from burnish.distributed.team import Rendezvous
from burnish.forward.lanes import Lanes
from burnish.trainers.cluster import trainer_seat, with_restarts
from burnish.trainers.interrupt import present_watch

QUIET = Console(quiet=True)


def lost() -> RoleLostError:
    return RoleLostError("process 'trainer 1' ended", remedy="start it again")


def settings(restarts: int) -> Any:
    return SimpleNamespace(cluster=SimpleNamespace(restarts=restarts, runs_on="processes"))


def test_it_is_started_again_a_number_of_times() -> None:
    begun: list[int] = []

    def train() -> Any:
        begun.append(len(begun))
        if len(begun) < 3:
            raise lost()
        return "result"

    assert with_restarts(train, settings(2), QUIET) == "result"
    begun.clear()
    with pytest.raises(RoleLostError):
        with_restarts(train, settings(1), QUIET)
    assert len(begun) == 2


def test_not_once_it_has_been_asked_to_stop() -> None:
    begun: list[int] = []

    def train() -> Any:
        begun.append(len(begun))
        present_watch().stop.requested = True
        raise lost()

    with pytest.raises(RoleLostError):
        with_restarts(train, settings(3), QUIET)
    assert len(begun) == 1


def test_a_trainer_that_is_alone_exchanges_nothing(tmp_path: Path) -> None:
    """An exchange with itself would take copies of its gradients, and add them up in another order."""
    seen: list[Lanes] = []

    def open_roles(config: Any, chosen: object, lanes: Lanes) -> Any:
        seen.append(lanes)
        return nullcontext({"ways": SimpleNamespace(record={})})

    config: Any = settings(0)
    config.model, config.output = SimpleNamespace(device="cpu"), str(tmp_path)
    config.cluster.num_lanes, config.cluster.sharding = 3, "optimizer"
    with trainer_seat(open_roles, config, Rendezvous.at_file(0, 1, tmp_path / "meeting", seconds=1)):
        assert seen == [Lanes(3)]
