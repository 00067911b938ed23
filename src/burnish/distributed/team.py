"""The processes that train one model together: small exchanges, and sums of gradients in the order of the lanes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from burnish.forward.lanes import Gradients, Span, lanes_of, own_nodes, tree_sum

PIECE_NUMBERS = 1 << 24
"""Numbers of each gradient that travel in one exchange: 64 MiB, so that buffers stay small next to a gradient."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the processes of a team find each other: one file on a disk that all of them see, or the address of the
    first one. `seconds`: how long any of them waits for the others, at the start and in every exchange."""

    rank: int
    size: int
    place: str
    seconds: float

    @staticmethod
    def at_file(rank: int, size: int, file: Path, *, seconds: float) -> Meeting:
        return Meeting(rank, size, f"file://{file.absolute()}", seconds)


class ProcessTeam:
    """`forward.lanes.Team` over torch.distributed: gloo for host memory, NCCL for GPUs."""

    def __init__(self, rank: int, size: int, lanes: int) -> None:
        self.rank = rank
        self.size = size
        self._lanes = lanes

    def exchange(self, own: object) -> list[Any]:
        """See `Team`."""
        everyones: list[Any] = [None] * self.size
        dist.all_gather_object(everyones, own)
        return everyones

    def add_up(self, nodes: Mapping[Span, Gradients], present: Sequence[bool], like: Sequence[Tensor]) -> Gradients:
        """See `Team`. Each process adds up a slice of every gradient, and then hands it to the others."""
        there = [tensor for tensor, has in zip(like, present, strict=True) if has]
        flat = {
            node: _flat([g for g, has in zip(gradients, present, strict=True) if has], there)
            for node, gradients in nodes.items()
        }
        total = torch.empty(sum(tensor.numel() for tensor in there), device=like[0].device)
        for start in range(0, total.numel(), PIECE_NUMBERS):
            piece = slice(start, min(start + PIECE_NUMBERS, total.numel()))
            own = self._own_slice({node: numbers[piece] for node, numbers in flat.items()})
            self._gather(own, total[piece])
        summed = iter(total.split([tensor.numel() for tensor in there]))
        return [next(summed).view(tensor.shape) if has else None for tensor, has in zip(like, present, strict=True)]

    def _own_slice(self, nodes: Mapping[Span, Tensor]) -> Tensor:
        """The sum of all lanes in this process' slice of a piece of the gradient."""
        numbers = next(iter(nodes.values()))
        width = -(-numbers.numel() // self.size)
        mine = torch.stack([_padded(node, width * self.size) for node in nodes.values()])
        sent = mine.view(len(nodes), self.size, width).transpose(0, 1).contiguous()  # slice by slice, node by node
        spans = [own_nodes((0, self._lanes), lanes_of(rank, self.size, self._lanes)) for rank in range(self.size)]
        received = numbers.new_empty(sum(map(len, spans)), width)
        dist.all_to_all_single(
            received.view(-1),
            sent.view(-1),
            output_split_sizes=[len(own) * width for own in spans],
            input_split_sizes=[len(nodes) * width] * self.size,
        )
        parts = dict(zip((span for own in spans for span in own), received, strict=True))
        return tree_sum((0, self._lanes), parts.get, torch.Tensor.add_)

    def _gather(self, own: Tensor, into: Tensor) -> None:
        """The slices of all processes, put together."""
        slices = own.new_empty(self.size * own.numel())
        dist.all_gather_into_tensor(slices, own)
        into.copy_(slices[: into.numel()])


@contextmanager
def joined(meeting: Meeting, *, lanes: int, on_gpu: bool) -> Iterator[ProcessTeam]:
    """This process as a member of the team, which has met when the body begins."""
    if meeting.place.startswith("file:"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a host name that leads nowhere must not stop one machine
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        init_method=meeting.place,
        rank=meeting.rank,
        world_size=meeting.size,
        timeout=timedelta(seconds=meeting.seconds),
    )
    try:
        yield ProcessTeam(meeting.rank, meeting.size, lanes)
    finally:
        dist.destroy_process_group()


def _flat(gradients: Sequence[Tensor | None], like: Sequence[Tensor]) -> Tensor:
    """One row of numbers. An absent gradient is -0.0, which added to anything leaves its bits as they are (as 0.0 does
    not with -0.0)."""
    return torch.cat(
        [
            torch.full((tensor.numel(),), -0.0, device=tensor.device) if gradient is None else gradient.reshape(-1)
            for gradient, tensor in zip(gradients, like, strict=True)
        ]
    )


def _padded(numbers: Tensor, length: int) -> Tensor:
    return torch.nn.functional.pad(numbers, (0, length - numbers.numel()))
