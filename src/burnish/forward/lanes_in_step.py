"""Lanes of processes none of which can make a pass alone, because each has a part of every weight only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch import nn

from burnish.dealing import deal
from burnish.forward.lanes import Lanes, Part, Result, add_gradients, lanes_of, take_gradients
from burnish.forward.team import Team, is_cut


@dataclass(frozen=True)
class LanesInStep(Lanes):
    """`Lanes` of a team whose processes make equally many passes, side by side. Backward passes add up gradients over
    the processes.

    One that fails cannot tell the others: they are in the middle of a pass, and wait for weights rather than news. They
    notice when its process ends.
    """

    def _map_in(
        self, team: Team, parts: Sequence[Part], costs: Sequence[int], work: Callable[[Part], Result]
    ) -> list[Result]:
        own = {index: work(parts[index]) for index in self.indices(costs)}
        for part in self.fillers(parts, costs):
            work(part)  # for the others, whose passes need this process' weights
        results: dict[int, Result] = {}
        for given in team.exchange(own):
            results.update(given)
        return [results[index] for index in range(len(parts))]

    @contextmanager
    def adding(
        self, parts: Sequence[Part], costs: Sequence[int], parameters: Sequence[nn.Parameter], values: list[Result]
    ) -> Iterator[Iterable[Part]]:
        """See `Lanes.adding`."""
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
        """As many as bring this process to the number of passes of the one that has most."""
        assert self.team is not None
        if not parts:  # nothing in this batch is trained on, and so it is for all processes
            return []
        dealt = deal(costs, self.count)
        owns = [lanes_of(rank, self.team.size, self.count) for rank in range(self.team.size)]
        passes = [sum(len(dealt[lane]) for lane in range(*own)) for own in owns]
        return [parts[0]] * (max(passes) - passes[self.team.rank])
