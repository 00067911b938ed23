"""Sampling orders whose entire state is one integer: the number of items drawn so far."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from fractions import Fraction
from math import gcd, lcm

import numpy as np

from burnish.errors import DataError

# A mixture stores its state after every 1,024 draws, so that going back does not replay it from the beginning.
_MARK_EVERY = 1024


class PromptSampler:
    """Draws from several sources, each item once per pass. `take` is a pure function of (seed, position).

    Every pass over a source has a new permutation, keyed by (seed, source number, pass number). At any point, the
    number of draws from each source is within one of its share (Tijdeman 1980, "The chairman assignment problem",
    https://doi.org/10.1016/0012-365X(80)90269-1). The object's attributes only cache; they hold no state.
    """

    def __init__(
        self, sizes: Sequence[int], weights: Sequence[float] | None = None, *, seed: int, shuffle: bool = True
    ) -> None:
        """sizes: number of items per source. weights: shares on any positive scale, equal by default."""
        self._sizes = list(sizes)
        self._offsets = [sum(self._sizes[:source]) for source in range(len(self._sizes))]
        self._mixer = Mixer(weights if weights is not None else [1.0] * len(self._sizes))
        self._seed = seed
        self._shuffle = shuffle
        self._orders: dict[int, tuple[int, list[int]]] = {}
        if not self._sizes or min(self._sizes) < 1:
            raise DataError(f"cannot sample from sources of sizes {self._sizes}", remedy="leave out empty sources")
        if weights is not None and len(weights) != len(self._sizes):
            raise DataError(f"{len(weights)} weights for {len(self._sizes)} sources", remedy="give each source one")

    def __len__(self) -> int:
        """Items in one pass over all sources."""
        return sum(self._sizes)

    def take(self, n: int, position: int) -> list[int]:
        """The next `n` indices after `position` draws. Indices count the items of all sources, one after another."""
        if n < 0 or position < 0:
            raise ValueError(f"cannot take {n} items from position {position}")
        counts = self._mixer.counts(position)
        drawn = []
        for source in self._mixer.sources(position, n):
            drawn.append(self._offsets[source] + self._item(source, counts[source]))
            counts[source] += 1
        return drawn

    def _item(self, source: int, draw: int) -> int:
        number, place = divmod(draw, self._sizes[source])
        if not self._shuffle:
            return place
        cached = self._orders.get(source)
        if cached is None or cached[0] != number:
            cached = (number, permutation(self._sizes[source], self._seed, source, number))
            self._orders[source] = cached
        return cached[1][place]


def next_batch(
    lengths: Sequence[int], tokens_per_batch: int, sampler: PromptSampler, position: int
) -> tuple[list[int], int]:
    """The batch by token budget (without padding) that begins after `position` draws, and the position after it.

    A batch ends when the next example does not fit. It may span the end of a pass over the data. DataError for an
    example that is longer than a batch.
    """
    batch: list[int] = []
    room = tokens_per_batch
    while True:
        (index,) = sampler.take(1, position + len(batch))
        length = lengths[index]
        if not 0 < length <= tokens_per_batch:
            raise DataError(
                f"example {index} has {length:,} tokens and does not fit a batch of {tokens_per_batch:,} tokens",
                remedy="raise optimization.tokens_per_batch, or lower max_tokens",
            )
        if length > room:
            return batch, position + len(batch)
        batch.append(index)
        room -= length


def permutation(size: int, *key: int) -> list[int]:
    """A permutation of `range(size)` that depends only on the key."""
    digest = hashlib.sha256(":".join(map(str, key)).encode()).digest()
    # The legacy RandomState, because numpy guarantees its streams: the same in every version, on every machine.
    return np.random.RandomState(np.frombuffer(digest, dtype="<u4").astype(np.uint32)).permutation(size).tolist()


class Mixer:
    """The sequence of sources for given weights: after k draws, source i was drawn k * share_i times, to within one."""

    def __init__(self, weights: Sequence[float]) -> None:
        # Fractions of the decimal text, so that 0.1 is 1/10 and the period below stays small.
        shares = [Fraction(repr(float(weight))) for weight in weights]
        if any(share <= 0 for share in shares):
            raise DataError(
                f"weights of data sources must be positive, got {list(weights)}", remedy="set weight above 0"
            )
        scale = lcm(*(share.denominator for share in shares))
        parts = [int(share * scale) for share in shares]
        divisor = gcd(*parts)
        self._parts = [part // divisor for part in parts]
        # After one period every source has been drawn exactly `part` times, and the sequence repeats.
        self._period = sum(self._parts)
        self._marks = [[0] * len(self._parts)]
        self._restart()

    def counts(self, position: int) -> list[int]:
        """Number of draws from each source among the first `position` draws."""
        periods, rest = divmod(position, self._period)
        self._move_to(rest)
        return [periods * part + count for part, count in zip(self._parts, self._counts, strict=True)]

    def sources(self, position: int, n: int) -> list[int]:
        """The sources of draws position ... position + n - 1."""
        if len(self._parts) == 1:
            return [0] * n
        self._move_to(position % self._period)
        return [self._step() for _ in range(n)]

    def _restart(self) -> None:
        self._at = 0
        self._counts = [0] * len(self._parts)

    def _move_to(self, place: int) -> None:
        if len(self._parts) == 1:
            self._at, self._counts = place, [place]
            return
        mark = min(place // _MARK_EVERY, len(self._marks) - 1)
        if not mark * _MARK_EVERY <= self._at <= place:
            self._at, self._counts = mark * _MARK_EVERY, list(self._marks[mark])
        while self._at < place:
            self._step()

    def _step(self) -> int:
        """Draw once: of the eligible sources, the one with the earliest deadline."""
        source = self._most_urgent()
        self._counts[source] += 1
        self._at += 1
        if self._at == len(self._marks) * _MARK_EVERY:
            self._marks.append(list(self._counts))
        if self._at == self._period:
            self._restart()
        return source

    def _most_urgent(self) -> int:
        # In units of 1 / (period * slack): lag = share * (draws so far + 1) - count, due once it reaches 1 / slack.
        slack = 2 * len(self._parts) - 2
        best, urgency, best_part = -1, 0, 1
        for source, part in enumerate(self._parts):
            lag = slack * (part * (self._at + 1) - self._counts[source] * self._period)
            if lag < self._period:
                continue
            time_left = (slack - 1) * self._period - lag  # over `part`, compared crosswise to stay in whole numbers
            if best < 0 or time_left * best_part < urgency * part:
                best, urgency, best_part = source, time_left, part
        return best
