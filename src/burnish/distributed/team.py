"""The processes that train one model together: what they exchange."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from burnish.distributed.network import interface_towards

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Meeting point of the processes of a team: one file on a disk that all of them see, or an address. `seconds`: how
    long any of them waits for the others, at the start and in every exchange."""

    rank: int
    size: int
    place: str
    seconds: float

    @staticmethod
    def at_file(rank: int, size: int, file: Path, *, seconds: float) -> Rendezvous:
        return Rendezvous(rank, size, f"file://{file.absolute()}", seconds)

    @staticmethod
    @contextmanager
    def all_at(host: str, size: int, *, seconds: float) -> Iterator[list[Rendezvous]]:
        """Open the meetings of all members, at a free port of this machine that this process holds while they work.
        host: the address under which they reach this machine."""
        store = dist.TCPStore(  # type: ignore[attr-defined]
            host, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=seconds)
        )
        yield [Rendezvous(rank, size, f"tcp://{host}:{store.port}", seconds) for rank in range(size)]
        del store  # it is held until here

    def store(self) -> Store:
        """Open the store in which the members find each other's addresses. Gloo then talks over the network interface
        that leads there, because a host name that leads nowhere must not stop a team."""
        kind, _, place = self.place.partition("://")
        limit = timedelta(seconds=self.seconds)
        if kind == "file":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            store = dist.FileStore(place, self.size)  # type: ignore[attr-defined]
            store.set_timeout(limit)
            return store
        host, _, port = place.rpartition(":")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface_towards(host))
        return dist.TCPStore(host, int(port), is_master=False, timeout=limit)  # type: ignore[attr-defined]


class ProcessTeam:
    """`forward.team.Team` over torch.distributed: gloo for host memory, NCCL for GPUs."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    def exchange(self, own: object) -> list[Any]:
        """See `Team`."""
        everyones: list[Any] = [None] * self.size
        dist.all_gather_object(everyones, own)
        return everyones

    def swap(self, sent: Sequence[Tensor], lengths: Sequence[int]) -> Sequence[Tensor]:
        """See `Team`."""
        received = sent[0].new_empty(sum(lengths))
        dist.all_to_all_single(received, torch.cat(list(sent)), list(lengths), [vector.numel() for vector in sent])
        return received.split(list(lengths))

    def gather(self, own: Tensor, lengths: Sequence[int]) -> Sequence[Tensor]:
        """See `Team`. Numbers travel as bytes, because not every backend knows every type."""
        width = max(lengths)
        slices = own.new_empty(self.size, width)
        padded = torch.nn.functional.pad(own, (0, width - own.numel()))
        dist.all_gather(list(slices.view(torch.uint8)), padded.view(torch.uint8))
        return [numbers[:length] for numbers, length in zip(slices, lengths, strict=True)]


@contextmanager
def joined(meeting: Rendezvous, *, on_gpu: bool) -> Iterator[ProcessTeam]:
    """Join the team as this process. All members have met when the body begins."""
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        store=meeting.store(),
        rank=meeting.rank,
        world_size=meeting.size,
        timeout=timedelta(seconds=meeting.seconds),
    )
    try:
        yield ProcessTeam(meeting.rank, meeting.size)
    finally:
        dist.destroy_process_group()
