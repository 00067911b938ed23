"""Lanes: the fixed order in which the gradients of micro-batches are added, on any number of processes.

The micro-batches of a step are dealt to a fixed number of lanes. A lane adds up its own, one after the other; lanes are
added in a fixed binary tree. Floating-point sums depend on their order, and this order depends on the number of lanes
only, so processes that have a run of lanes each get the same bits as one process that has them all.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from torch import Tensor, nn

Span = tuple[int, int]
"""Lanes from the first number up to, but not including, the second: a node of the tree."""

Gradients = list[Tensor | None]
"""The gradient of each parameter, None where a lane has not reached it."""

Part = TypeVar("Part")
Result = TypeVar("Result")


def deal(costs: Sequence[int], lanes: int) -> list[list[int]]:
    """The micro-batches of each lane, in ascending order: dearest first, each to the lane that has the least so far.

    A function of the costs alone; equal ones go to the lower lane. Raises ValueError for fewer than one lane.
    """
    if lanes < 1:
        raise ValueError(f"a step needs at least one lane, got {lanes}")
    loads, dealt = [0] * lanes, [list[int]() for _ in range(lanes)]
    for index in sorted(range(len(costs)), key=lambda index: (-costs[index], index)):
        lane = min(range(lanes), key=lambda lane: (loads[lane], lane))
        loads[lane] += costs[index]
        dealt[lane].append(index)
    return [sorted(indices) for indices in dealt]


def halves(span: Span) -> tuple[Span, Span]:
    """The two children of a node with at least two lanes. The left one holds the largest power of two of them that
    leaves something for the right one, so a count that grows keeps the sums that it has."""
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
    """The sum of the lanes of `span`, added as the tree says. `value_of` gives the sum of a node that is there already,
    or None for one whose children have to be added; it is asked from left to right, and has to know single lanes."""
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


class Team(Protocol):
    """The processes that train one model together, each with lanes of its own."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def exchange(self, own: object) -> list[Any]:
        """What each process has given, in their order. For small values; waits until all of them have given one."""
        ...

    def add_up(self, nodes: Mapping[Span, Gradients], present: Sequence[bool], like: Sequence[Tensor]) -> Gradients:
        """The sum of all lanes from the nodes that each process has (`own_nodes`), added as the tree says.

        `present`: which parameters have a gradient in any lane; the others' sums are None. `like`: tensors of the
        gradients' shapes and types.
        """
        ...


class PeerFailedError(Exception):
    """Another process of the team has failed in the same work, so that this one cannot finish it."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """The number of lanes of a run, and the processes that share them: only this one where there is no team."""

    count: int = 1
    team: Team | None = None

    @property
    def own(self) -> Span:
        """The lanes of this process."""
        return (0, self.count) if self.team is None else lanes_of(self.team.rank, self.team.size, self.count)

    def budget(self, tokens: int, tokens_per_microbatch: int) -> int:
        """Tokens in a micro-batch: fewer where this gives every lane something to do. Depends on no process."""
        return (
            tokens_per_microbatch if self.count == 1 else max(1, min(tokens_per_microbatch, -(-tokens // self.count)))
        )

    def map(self, parts: Sequence[Part], costs: Sequence[int], work: Callable[[Part], Result]) -> list[Result]:
        """`work` done on every part, each by the process that has its lane; all results, in the order of the parts.

        Every process of a team makes this call, and gets all results. Raises what `work` raises here, PeerFailedError
        where it has raised elsewhere.
        """
        return [work(part) for part in parts] if self.team is None else self._map_in(self.team, parts, costs, work)

    def _map_in(
        self, team: Team, parts: Sequence[Part], costs: Sequence[int], work: Callable[[Part], Result]
    ) -> list[Result]:
        dealt = deal(costs, self.count)
        results: dict[int, Result] = {}
        with _telling(team) as outcome:
            outcome.own = {index: work(parts[index]) for lane in range(*self.own) for index in dealt[lane]}
        for given in outcome.everyones:
            results.update(given)
        return [results[index] for index in range(len(parts))]

    @contextmanager
    def adding(
        self, parts: Sequence[Part], costs: Sequence[int], parameters: Sequence[nn.Parameter], values: list[Result]
    ) -> Iterator[Iterable[Part]]:
        """The parts that this process has to make forward and backward passes over, lane by lane. Every pass appends
        one entry to `values`. At the end of the block the gradients of all parts, those of other processes too, are
        added to the ones that the parameters had, and `values` has the entries of all of them.

        Every process of a team enters it. Raises PeerFailedError where another one has raised in its block.
        """
        if self.count == 1 and self.team is None:
            yield parts
            return
        before, entries = take_gradients(parameters), len(values)
        sums = _LaneSums(parts, deal(costs, self.count), parameters, values)
        if self.team is None:
            yield sums.run([(0, self.count)])
            total = sums.nodes[0, self.count]
        else:
            with _telling(self.team) as outcome:
                yield sums.run(own_nodes((0, self.count), self.own))
                outcome.own = (values[entries:], sums.reached())
            values[entries:] = [value for given, _ in outcome.everyones for value in given]
            reached = [any(flags) for flags in zip(*(flags for _, flags in outcome.everyones), strict=True)]
            total = self.team.add_up(sums.nodes, reached, parameters)
        for parameter, gradient in zip(parameters, add_gradients(before, total), strict=True):
            parameter.grad = gradient


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
        """Which parameters have a gradient in any lane of this process."""
        return [
            any(flags) for flags in zip(*([g is not None for g in node] for node in self.nodes.values()), strict=True)
        ]


ONE_LANE = Lanes()
"""All micro-batches one after the other, in one process."""


@dataclass(slots=True)
class _Outcome:
    """What this process has worked out, and, afterwards, what each has."""

    own: Any = None
    everyones: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Failure:
    text: str


@contextmanager
def _telling(team: Team) -> Iterator[_Outcome]:
    """Around the work of this process: tells the others how it ended, so that none waits for a sum that never comes."""
    outcome = _Outcome()
    try:
        yield outcome
    except Exception as error:
        team.exchange(_Failure(f"{type(error).__name__}: {error}"))
        raise
    outcome.everyones = team.exchange(outcome.own)
    for rank, given in enumerate(outcome.everyones):
        if isinstance(given, _Failure):
            raise PeerFailedError(f"trainer {rank} failed: {given.text}")


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
    """The gradients that the parameters have, which they have no longer."""
    gradients = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    return gradients
