"""Exchange between the processes that train one model, and the slice of every tensor that each of them keeps.

A slice is made of whole rows of `ROW` numbers, counted from the start of its tensor. The norm of a gradient is computed
from the norms of such rows, so a process can contribute its own rows and the result has the bits of one process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from burnish.errors import ModelError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor
    from typing_extensions import TypeIs

ROW = 256
"""Numbers in a row. Their squares are added in float32: few enough that none is rounded away."""
PIECE_NUMBERS = 1 << 20
"""Numbers that all processes together exchange at a time: 4 MiB in the host's memory, where several threads of gloo's
keep what they have freed, so that buffers stay small next to a gradient."""
PIECE_NUMBERS_ON_GPU = 1 << 22
"""The same on a GPU, where each exchange costs more than its numbers do."""

Span = tuple[int, int]
"""From the first number up to, but not including, the second: lanes, or numbers of a tensor."""

Gradients = list[Tensor | None]
"""The gradient of each parameter, None where a lane has not reached it."""


class Team(Protocol):
    """The processes that train one model together. All of them make the same calls in the same order."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def exchange(self, own: object) -> list[Any]:
        """Give every process a small value; return all values, in order. Waits until each has given one."""

    def swap(self, sent: Sequence[Tensor], lengths: Sequence[int]) -> Sequence[Tensor]:
        """Send every process its own vector; return the vectors that they sent to this one, of these `lengths`."""

    def gather(self, own: Tensor, lengths: Sequence[int]) -> Sequence[Tensor]:
        """The vectors of all processes. `lengths`: theirs."""


class PeerFailedError(Exception):
    """Another process of the team has failed in the same work, so that this one cannot finish it."""


@dataclass(slots=True)
class PeerOutcome:
    """Result of the work of this process and, after the exchange, of every process."""

    own: Any = None
    everyones: list[Any] = field(default_factory=list)


@contextmanager
def telling(team: Team) -> Iterator[PeerOutcome]:
    """Tell the others how the work inside has ended, so that none waits for a sum that never comes."""
    outcome = PeerOutcome()
    try:
        yield outcome
    except Exception as error:  # boundary: whatever ends the work here, the others wait for this exchange
        team.exchange(PeerFailedError(f"trainer {team.rank} failed: {type(error).__name__}: {error}"))
        raise
    outcome.everyones = team.exchange(outcome.own)
    for given in outcome.everyones:
        if isinstance(given, PeerFailedError):
            raise given


def slice_of(numel: int, rank: int, size: int) -> Span:
    """The numbers of a tensor that one of `size` processes keeps. The last process has the end of every tensor."""
    rows = -(-numel // ROW)
    return min(numel, ROW * (rows * rank // size)), min(numel, ROW * (rows * (rank + 1) // size))


def slices_of(numels: Sequence[int], size: int) -> list[list[Span]]:
    """Slices of several tensors that each process keeps: one list for each process."""
    return [[slice_of(numel, rank, size) for numel in numels] for rank in range(size)]


class Piece(NamedTuple):
    """Numbers of one of several tensors."""

    tensor: int
    first: int
    end: int


def pieces(spans: Sequence[Span], width: int) -> Iterator[list[Piece]]:
    """The spans of several tensors, one after the other, `width` numbers at a time (fewer at the end)."""
    taken: list[Piece] = []
    room = width
    for tensor, (first, end) in enumerate(spans):
        while first < end:
            stop = min(end, first + room)
            taken.append(Piece(tensor, first, stop))
            first, room = stop, room - (stop - first)
            if room == 0:
                yield taken
                taken, room = [], width
    if taken:
        yield taken


def _rounds(spans: Sequence[Sequence[Span]], device: torch.device) -> Iterator[tuple[list[Piece], ...]]:
    """Yield the pieces of each process in one exchange after the other, so that all receive about as much at a time."""
    width = max(1, (PIECE_NUMBERS if device.type == "cpu" else PIECE_NUMBERS_ON_GPU) // len(spans))
    return zip_longest(*(pieces(own, width) for own in spans), fillvalue=list[Piece]())


def scattered(
    team: Team, nodes: Mapping[Span, Gradients], like: Sequence[Tensor], spans: Sequence[Sequence[Span]]
) -> Iterator[tuple[list[Piece], dict[Span, Tensor]]]:
    """Send every process its slices of the gradients that this one has.

    nodes: the gradients of this process at its nodes of the tree. like: tensors of their shapes, on their device.
    spans: the nodes of each process. Yields, for one exchange after the other, which pieces of this process' slices it
    was about, and their numbers at all nodes of all processes, (N) each.
    """
    flat = {node: [None if g is None else g.reshape(-1) for g in gradients] for node, gradients in nodes.items()}
    for everyones in _rounds(slices_of([tensor.numel() for tensor in like], team.size), like[0].device):
        sent = [_packed(flat, theirs, like[0].device) for theirs in everyones]
        own = everyones[team.rank]
        width = sum(piece.end - piece.first for piece in own)
        received = team.swap(sent, [len(their_nodes) * width for their_nodes in spans])
        parts: dict[Span, Tensor] = {}
        for their_nodes, numbers in zip(spans, received, strict=True):
            parts.update(zip(their_nodes, numbers.view(len(their_nodes), width), strict=True))
        yield own, parts


def _packed(nodes: Mapping[Span, Gradients], taken: Sequence[Piece], device: torch.device) -> Tensor:
    """Join the pieces `taken` of the gradients of all nodes in one vector. An absent gradient is -0.0, which added to
    anything leaves its bits as they are (0.0 does not: it changes -0.0)."""
    numbers = [torch.empty(0, device=device)]
    for gradients in nodes.values():
        for tensor, first, end in taken:
            given = gradients[tensor]
            numbers.append(torch.full((end - first,), -0.0, device=device) if given is None else given[first:end])
    return torch.cat(numbers)


def gathered(team: Team, own: Sequence[Tensor], spans: Sequence[Sequence[Span]]) -> Iterator[tuple[Piece, Tensor]]:
    """Yield all numbers of tensors of which every process has a slice, piece by piece.

    own: this process' slices, flat. spans: of each process, where its slice of each tensor is. Every process has to go
    through all pieces, because each of them is an exchange.
    """
    for dtype in dict.fromkeys(numbers.dtype for numbers in own):
        alike = [index for index, numbers in enumerate(own) if numbers.dtype is dtype]
        theirs = [[everyones[index] for index in alike] for everyones in spans]
        for everyones in _rounds(theirs, own[0].device):
            mine = [own[alike[0]][:0]]
            for tensor, first, end in everyones[team.rank]:
                start = theirs[team.rank][tensor][0]
                mine.append(own[alike[tensor]][first - start : end - start])
            widths = [sum(piece.end - piece.first for piece in taken) for taken in everyones]
            for taken, numbers in zip(everyones, team.gather(torch.cat(mine), widths), strict=True):
                split = numbers.split([piece.end - piece.first for piece in taken]) if taken else ()
                for piece, part in zip(taken, split, strict=True):
                    yield piece._replace(tensor=alike[piece.tensor]), part


def fill(team: Team, tensors: Sequence[Tensor], own: Sequence[Tensor], spans: Sequence[Sequence[Span]]) -> None:
    """Copy the slices of all processes into the tensors, which are contiguous and may be on another device."""
    for piece, numbers in gathered(team, own, spans):
        tensors[piece.tensor].view(-1)[piece.first : piece.end].copy_(numbers)


def is_cut(tensor: Tensor) -> TypeIs[DTensor]:
    """Return whether `fully_shard` has cut the tensor, so that each process has a part of it."""
    from torch.distributed.tensor import DTensor  # takes a second, which only runs that cut weights should pay for

    return isinstance(tensor, DTensor)


class Slices:
    """`cluster.sharding: optimizer`. This process' slices of the parameters of a team: gradients are summed, and
    optimizers make their steps, on these only.

    A slice is a flat parameter of float32 (of float64 for float64). For a parameter of the same type it is a view of
    its memory, for one of bfloat16 a copy: the master of that slice.
    """

    def __init__(self, team: Team) -> None:
        self.team = team
        self._own: dict[nn.Parameter, nn.Parameter] = {}

    def __getitem__(self, parameter: nn.Parameter) -> nn.Parameter:
        if parameter not in self._own:
            numbers = self._kept(parameter.detach())
            wide = numbers if numbers.dtype is torch.float64 else numbers.float()
            self._own[parameter] = nn.Parameter(wide)
        return self._own[parameter]

    def forget(self) -> None:
        """Drop the references to all parameters and their slices."""
        self._own.clear()

    def _kept(self, tensor: Tensor) -> Tensor:
        return self.part(tensor)

    def part(self, tensor: Tensor) -> Tensor:
        """The view of this process' slice of a tensor. ModelError if its numbers do not lie in order."""
        if not tensor.is_contiguous():
            raise ModelError(
                f"a weight of shape {tuple(tensor.shape)} is not contiguous in memory and cannot be cut into slices",
                remedy="set cluster.sharding: whole",
            )
        first, end = self._span(tensor.shape, self.team.rank)
        return tensor.view(-1)[first:end]

    def spans(self, tensors: Sequence[Tensor]) -> list[list[Span]]:
        """Spans of the slices in the tensors: one list for each process."""
        return [[self._span(tensor.shape, rank) for tensor in tensors] for rank in range(self.team.size)]

    def _span(self, shape: torch.Size, rank: int) -> Span:
        return slice_of(shape.numel(), rank, self.team.size)


class WeightSlices(Slices):
    """`cluster.sharding: full`. This process' slices of parameters that PyTorch's `fully_shard` has cut along their
    first dimension: a slice is a view of the only part of a weight that the process has.

    A single number cannot be cut. All processes have it; the slice of the first one is the number, the others' empty.
    """

    def _kept(self, tensor: Tensor) -> Tensor:
        return tensor.to_local().view(-1) if is_cut(tensor) else self.part(tensor)

    def _span(self, shape: torch.Size, rank: int) -> Span:
        if not shape:
            return (0, 1) if rank == 0 else (1, 1)
        each, numbers = -(-shape[0] // self.team.size), shape[1:].numel()
        return min(shape[0], rank * each) * numbers, min(shape[0], (rank + 1) * each) * numbers

    @torch.no_grad()
    def whole(self, parameter: Tensor) -> Tensor:
        """Gather a whole weight on its device. Every process makes this call."""
        own = self._kept(parameter.detach())
        whole = torch.empty(parameter.shape, dtype=own.dtype, device=own.device)
        fill(self.team, [whole], [own], self.spans([parameter]))
        return whole
