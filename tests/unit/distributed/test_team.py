"""Sums over several processes: the bits of one process, for any way of sharing the lanes."""

import contextlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from torch import nn

from burnish.distributed import team as teams
from burnish.distributed.fork_server import ForkServer
from burnish.distributed.handles import TeamRole
from burnish.distributed.launching import LocalLauncher, ProcessSpec, start_all
from burnish.distributed.team import Rendezvous
from burnish.forward import team as pieces
from burnish.forward.lanes import Lanes

Gradients = tuple[list[torch.Tensor | None], list[float]]


def accumulate(lanes: Lanes, failing: int | None = None) -> Gradients:
    """Nine parts with gradients of very different sizes; one parameter is reached by a single part, and one by none."""
    generator = torch.Generator().manual_seed(1)
    weights = [nn.Parameter(torch.zeros(size)) for size in (1300, 4, 5)]
    if lanes.slices is None:
        weights[0].grad = torch.full((1300,), 0.1)
    else:
        lanes.slices[weights[0]].grad = torch.full_like(lanes.slices[weights[0]], 0.1)
    parts = [torch.randn(1300, generator=generator) * 10.0 ** (index % 5) for index in range(9)]
    values: list[float] = []
    with lanes.adding(parts, [7, 3, 9, 4, 4, 8, 1, 2, 6], weights, values) as own:
        for part in own:
            if failing is not None and failing == lanes.team.rank:
                raise ValueError("a bug in a loss")
            loss = (weights[0] * part).sum()
            if float(part[0]) == float(parts[2][0]):
                loss = loss + weights[1].sum() * -0.0
            loss.backward()
            values.append(float(part[0]))
    return gradients_of(lanes, weights), values


def gradients_of(lanes: Lanes, weights: list[nn.Parameter]) -> list[torch.Tensor | None]:
    """The whole gradients; where processes have slices, put together."""
    if lanes.slices is None:
        return [weight.grad for weight in weights]
    reached = [weight for weight in weights if lanes.slices[weight].grad is not None]
    whole = [torch.empty(weight.shape) for weight in reached]
    own = [lanes.slices[weight].grad for weight in reached]
    pieces.fill(lanes.team, whole, own, lanes.slices.spans(reached))
    return whole + [None] * (len(weights) - len(reached))


class Member:
    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes

    def accumulate(self, failing: int | None = None) -> Gradients:
        return accumulate(self.lanes, failing)

    def accumulate_slices(self) -> Gradients:
        return accumulate(Lanes(self.lanes.count, self.lanes.team, pieces.Slices(self.lanes.team)))

    def gather_bfloat16(self) -> list[tuple[tuple[int, ...], list[float]]]:
        own = [torch.full((self.lanes.team.rank,), self.lanes.team.rank, dtype=torch.bfloat16)]
        ends = [rank * (rank + 1) // 2 for rank in range(self.lanes.team.size)]
        spans = [[(end - rank, end)] for rank, end in enumerate(ends)]
        return [(tuple(piece), part.tolist()) for piece, part in pieces.gathered(self.lanes.team, own, spans)]

    def map(self) -> list[int]:
        return self.lanes.map(list(range(7)), [1, 2, 3, 4, 5, 6, 7], lambda number: number * 10)


@contextlib.contextmanager
def member(meeting: teams.Rendezvous, lanes: int) -> Iterator[dict[str, Member]]:
    pieces.PIECE_NUMBERS = 500  # so that a gradient travels in several pieces
    with teams.joined(meeting, on_gpu=False) as team:
        yield {"member": Member(Lanes(lanes, team))}


def team_of(size: int, lanes: int, folder: Path, fork_server: ForkServer) -> TeamRole:
    meetings = [Rendezvous.at_file(rank, size, folder / "meeting", seconds=60) for rank in range(size)]
    seats = [ProcessSpec(f"trainer {meeting.rank}", member, (meeting, lanes)) for meeting in meetings]
    started = start_all(LocalLauncher(threads=1, stacks=folder, fork_server=fork_server), seats)
    return TeamRole(started[0], "member", 60, tuple(started[1:]))


@pytest.mark.slow
@pytest.mark.parametrize(("size", "lanes"), [(2, 4), (3, 6)])
def test_the_bits_of_one_process(size: int, lanes: int, tmp_path: Path, fork_server: ForkServer) -> None:
    wanted, values = accumulate(Lanes(lanes))
    team = team_of(size, lanes, tmp_path, fork_server)
    with ExitStack() as stack:
        for process in (team.process, *team.others):
            stack.enter_context(process)
        assert team.process.roles == ("member",)
        for method in ("accumulate", "accumulate_slices"):
            gradients, found = team.ask(method)
            assert found == values
            assert [g is None for g in gradients] == [False, False, True]
            for gradient, want in zip(gradients[:2], wanted[:2], strict=True):
                assert gradient.view(torch.int32).tolist() == want.view(torch.int32).tolist()  # the sign of a zero too
        everyone = [((0, 0, 1), [1.0]), ((0, 1, 3), [2.0, 2.0])]  # the first process has nothing of this tensor
        assert team.ask("gather_bfloat16") == everyone[: size - 1]
        assert team.ask("map") == [0, 10, 20, 30, 40, 50, 60]
        with pytest.raises(ValueError, match="a bug in a loss"):
            team.ask("accumulate", 1)  # the others fail too, because of it: its own error is the one to tell
        assert team.ask("map") == [0, 10, 20, 30, 40, 50, 60]  # an error leaves the team whole
