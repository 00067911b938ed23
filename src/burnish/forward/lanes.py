"""Lanes: the fixed order in which the gradients of micro-batches are added, on any number of processes.

The micro-batches of a step are dealt to a fixed number of lanes. A lane adds up its own, one after the other; lanes are
added in a fixed binary tree. Floating-point sums depend on their order, and this order depends only on the number of
lanes, so processes that share the lanes get the same bits as one process that has them all.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from burnish.algorithms.balancing import deal
from burnish.forward.team import Gradients, Slices, Span, Team, fill, is_cut, scattered, slices_of, telling
from burnish.machine.memory import return_freed_memory

Part = TypeVar("Part")
Result = TypeVar("Result")


def halves(span: Span) -> tuple[Span, Span]:
    """The two children of a node with at least two lanes. The left one holds the largest power of two of them that
    leaves something for the right one, so sums stay valid as the number of lanes grows."""
    first, end = span
    left = 1 << ((end - first - 1).bit_length() - 1)
    return (first, first + left), (first + left, end)


def own_nodes(span: Span, own: Span) -> list[Span]:
    """The largest nodes below `span` that lie within the lanes `own`, from left to right."""
    first, end = span
    if own[0] <= first and end <= own[1]:
        return [span]
    if end <= own[0] or own[1] <= first or end - first == 1:
        return []
    left, right = halves(span)
    return own_nodes(left, own) + own_nodes(right, own)


def tree_sum(span: Span, value_of: Callable[[Span], Result | None], add: Callable[[Result, Result], Result]) -> Result:
    """The sum of the lanes of `span`, added in the order of the tree. `value_of` returns the sum of a node that exists
    already, or None if its children have to be added; it is asked from left to right, and must know single lanes."""
    value = value_of(span)
    if value is not None:
        return value
    left, right = halves(span)
    return add(tree_sum(left, value_of, add), tree_sum(right, value_of, add))


def lanes_of(rank: int, size: int, lanes: int) -> Span:
    """The lanes of one of `size` processes. Raises ValueError unless `size` divides their number."""
    if lanes % size:
        raise ValueError(f"{lanes} lanes cannot be shared equally by {size} processes")
    each = lanes // size
    return rank * each, (rank + 1) * each


@dataclass(frozen=True, slots=True)
class Lanes:
    """The number of lanes of a run, and the team of processes that share them, if there is more than one.

    slices: where each process keeps a slice of the summed gradients only, those slices.
    """

    count: int = 1
    team: Team | None = None
    slices: Slices | None = None

    @property
    def keeps_state(self) -> bool:
        """True if this process hands out the training state: the first of a team, or the only one."""
        return self.team is None or self.team.rank == 0

    @property
    def own(self) -> Span:
        """The lanes of this process."""
        return (0, self.count) if self.team is None else lanes_of(self.team.rank, self.team.size, self.count)

    def budget(self, tokens: int, tokens_per_microbatch: int) -> int:
        """Tokens in a micro-batch: fewer if this gives every lane something to do. The same on every process."""
        return (
            tokens_per_microbatch if self.count == 1 else max(1, min(tokens_per_microbatch, -(-tokens // self.count)))
        )

    def map(self, parts: Sequence[Part], costs: Sequence[int], work: Callable[[Part], Result]) -> list[Result]:
        """Do `work` on every part, each in the process that has its lane; return the results in the order of the parts.

        Every process of a team makes this call, and gets all results. Raises what `work` raises here, PeerFailedError
        if it has raised in another process.
        """
        return [work(part) for part in parts] if self.team is None else self._map_in(self.team, parts, costs, work)

    def _map_in(
        self, team: Team, parts: Sequence[Part], costs: Sequence[int], work: Callable[[Part], Result]
    ) -> list[Result]:
        with telling(team) as outcome:
            outcome.own = {index: work(parts[index]) for index in self.indices(costs)}
        results = {index: result for given in outcome.everyones for index, result in given.items()}
        return [results[index] for index in range(len(parts))]

    def indices(self, costs: Sequence[int]) -> list[int]:
        """The parts of this process, lane by lane."""
        dealt = deal(costs, self.count)
        return [index for lane in range(*self.own) for index in dealt[lane]]

    def adding(
        self, parts: Sequence[Part], costs: Sequence[int], parameters: Sequence[nn.Parameter], values: list[Result]
    ) -> AbstractContextManager[Iterable[Part]]:
        """Yield the parts over which this process has to make forward and backward passes, lane by lane. Every pass
        appends one entry to `values`. At the end of the block the gradients of all parts, in all processes, are added
        to the gradients that the parameters had, and `values` has the entries of all parts. With `slices` the
        parameters themselves have no gradients then, but their slices do.

        Every process of a team enters it. Raises PeerFailedError where another one has raised in its block.
        """
        if self.count == 1 and self.team is None:
            return nullcontext(parts)
        return self._adding_in_tree(parts, costs, parameters, values)

    @contextmanager
    def _adding_in_tree(
        self, parts: Sequence[Part], costs: Sequence[int], parameters: Sequence[nn.Parameter], values: list[Result]
    ) -> Iterator[Iterable[Part]]:
        summed = parameters if self.slices is None else [self.slices[parameter] for parameter in parameters]
        before, entries = take_gradients(summed), len(values)
        sums = _LaneSums(parts, deal(costs, self.count), parameters, values)
        if self.team is None:
            yield sums.run([(0, self.count)])
            total = sums.nodes[0, self.count]
        else:
            with telling(self.team) as outcome:
                yield sums.run(own_nodes((0, self.count), self.own))
                outcome.own = (values[entries:], sums.reached())
            values[entries:] = [value for given, _ in outcome.everyones for value in given]
            reached = [any(flags) for flags in zip(*(flags for _, flags in outcome.everyones), strict=True)]
            total = self._added_up(self.team, sums.nodes, reached, parameters)
        for parameter, gradient in zip(summed, add_gradients(before, total), strict=True):
            parameter.grad = gradient

    def fillers(self, parts: Sequence[Part], costs: Sequence[int]) -> list[Part]:
        """Return parts for passes after this process' own whose results do not count: none, unless all processes have
        to make equally many passes (`LanesInStep`)."""
        return []

    def reaching(self, outputs: Sequence[Tensor], loss: Tensor) -> Tensor:
        """The loss of a pass, prepared for its backward pass: through the outputs that the loss has used."""
        return loss

    def _added_up(
        self, team: Team, nodes: Mapping[Span, Gradients], reached: Sequence[bool], like: Sequence[Tensor]
    ) -> Gradients:
        """The sum of all lanes, None for parameters that none has reached: whole gradients, or this process' slices.

        Each process adds up its own slice of every gradient.
        """
        return_freed_memory()  # of passes and sampling: the exchange takes the most memory of a step
        there = [index for index, has in enumerate(reached) if has]
        given = {span: [gradients[index] for index in there] for span, gradients in nodes.items()}
        shapes = [like[index] for index in there]
        places = slices_of([tensor.numel() for tensor in shapes], team.size)
        own = [torch.empty(end - first, device=like[0].device) for first, end in places[team.rank]]
        spans = [own_nodes((0, self.count), lanes_of(rank, team.size, self.count)) for rank in range(team.size)]
        for taken, parts in scattered(team, given, shapes, spans):
            numbers = tree_sum((0, self.count), parts.get, torch.Tensor.add_)
            for piece, part in zip(taken, numbers.split([end - first for _, first, end in taken]), strict=True):
                start = places[team.rank][piece.tensor][0]
                own[piece.tensor][piece.first - start : piece.end - start] = part
        if self.slices is None:
            whole = [torch.empty(tensor.shape, device=tensor.device) for tensor in shapes]
            fill(team, whole, own, places)
            own = whole
        total: Gradients = [None] * len(like)
        for index, gradient in zip(there, own, strict=True):
            total[index] = gradient
        return total


@dataclass(slots=True)
class _LaneSums(Generic[Part, Result]):
    """The gradients of the lanes of one process, added up to the nodes of the tree that it has."""

    parts: Sequence[Part]
    dealt: list[list[int]]
    parameters: Sequence[nn.Parameter]
    values: list[Result]
    nodes: dict[Span, Gradients] = field(default_factory=dict)

    def run(self, spans: Sequence[Span]) -> Iterator[Part]:
        """Hand out the parts of these nodes; whoever takes them leaves gradients on the parameters."""
        for span in spans:
            self.nodes[span] = yield from self._node(span)

    def _node(self, span: Span) -> Generator[Part, None, Gradients]:
        if span[1] - span[0] == 1:
            for index in self.dealt[span[0]]:
                yield self.parts[index]
            return take_gradients(self.parameters)
        left, right = halves(span)
        return add_gradients((yield from self._node(left)), (yield from self._node(right)))

    def reached(self) -> list[bool]:
        """Return, for each parameter, whether any lane of this process has a gradient of it."""
        return [
            any(flags) for flags in zip(*([g is not None for g in node] for node in self.nodes.values()), strict=True)
        ]


@dataclass(frozen=True)
class LanesInStep(Lanes):
    """`Lanes` of a team whose processes make equally many passes, side by side. Backward passes add up gradients over
    the processes.

    A process that fails cannot tell the others: they are in the middle of a pass and wait for weights, not for
    messages. They notice when it ends.
    """

    def _map_in(
        self, team: Team, parts: Sequence[Part], costs: Sequence[int], work: Callable[[Part], Result]
    ) -> list[Result]:
        own = {index: work(parts[index]) for index in self.indices(costs)}
        for part in self.fillers(parts, costs):
            work(part)  # for the others, whose passes need this process' weights
        results = {index: result for given in team.exchange(own) for index, result in given.items()}
        return [results[index] for index in range(len(parts))]

    @contextmanager
    def adding(
        self, parts: Sequence[Part], costs: Sequence[int], parameters: Sequence[nn.Parameter], values: list[Result]
    ) -> Iterator[Iterable[Part]]:
        """Like `Lanes.adding`, but backward passes have summed the gradients of cut parameters already."""
        assert self.team is not None
        entries = len(values)
        uncut = [parameter for parameter in parameters if not is_cut(parameter)]
        total = take_gradients(uncut)
        yield [parts[index] for index in self.indices(costs)]
        own = [None if parameter.grad is None else parameter.grad.cpu() for parameter in uncut]
        everyones = self.team.exchange((values[entries:], own))
        values[entries:] = [value for given, _ in everyones for value in given]
        for _, theirs in everyones:  # backward passes add up the gradients of cut parameters only
            total = add_gradients(total, [None if g is None else g.to(uncut[0].device) for g in theirs])
        for parameter, gradient in zip(uncut, total, strict=True):
            parameter.grad = gradient

    def fillers(self, parts: Sequence[Part], costs: Sequence[int]) -> list[Part]:
        """As many parts as bring this process to the largest number of passes of any process."""
        assert self.team is not None
        if not parts:  # nothing in this batch is trained on, and so it is for all processes
            return []
        dealt = deal(costs, self.count)
        owns = [lanes_of(rank, self.team.size, self.count) for rank in range(self.team.size)]
        passes = [sum(len(dealt[lane]) for lane in range(*own)) for own in owns]
        return [parts[0]] * (max(passes) - passes[self.team.rank])

    def reaching(self, outputs: Sequence[Tensor], loss: Tensor) -> Tensor:
        """Like `Lanes.reaching`, but through all outputs, because all processes have to exchange gradients of the same
        weights."""
        return _ReachingAll.apply(loss, *outputs)


class _ReachingAll(torch.autograd.Function):
    """A loss whose backward pass goes through all outputs: unused ones have a gradient of 0."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, *outputs: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(*outputs)
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        return gradient, *(torch.zeros_like(output) for output in ctx.saved_tensors)


ONE_LANE = Lanes()
"""All micro-batches one after the other, in one process."""


def add_gradients(left: Gradients, right: Gradients) -> Gradients:
    """The sum, in the memory of `left`."""
    for index, more in enumerate(right):
        into = left[index]
        if into is None:
            left[index] = more
        elif more is not None:
            into.add_(more)
    return left


def take_gradients(parameters: Sequence[nn.Parameter]) -> Gradients:
    """Take the gradients off the parameters, which have none afterwards."""
    gradients = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    return gradients
