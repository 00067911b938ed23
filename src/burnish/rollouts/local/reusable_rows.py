"""Finished rows that may go on: their keys and values, bounded by bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

KEEP_BYTES = 1 << 30
"""Default limit on the finished rows that an engine keeps."""

Tokens = tuple[int, ...]
Key = TypeVar("Key")


class Held(Protocol):
    """Keys and values in a decoder's own form."""

    @property
    def num_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True, eq=False)
class KeptRow:
    """The cache of a row: the tokens of `text`, first the ones that it shares with other rows, then its own.

    The last sampled token is not among them, because it was never an input of the model.
    """

    text: Tokens
    shared: Held | None
    own: Held


class KeptRows:
    """Rows by their texts. The oldest are dropped when there are more than `max_bytes`.

    Keys that several rows share are counted once, and stay as long as one of these rows does.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rows: dict[Tokens, KeptRow] = {}  # the oldest first
        self._ends: Counter[tuple[int, int]] = Counter()  # length and last token, so that few texts are compared
        self._uses: Counter[int] = Counter()  # rows by the id of what they share
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, row: KeptRow) -> None:
        """Keep a row, at the cost of older ones. A text that is kept already stays as it is."""
        if row.text in self._rows:
            return
        self._rows[row.text] = row
        self._ends[_end(row.text)] += 1
        self.num_bytes += row.own.num_bytes
        if row.shared is not None:
            self.num_bytes += 0 if self._uses[id(row.shared)] else row.shared.num_bytes
            self._uses[id(row.shared)] += 1
        while self.num_bytes > self._max_bytes:
            self._drop(next(iter(self._rows.values())))

    def take(self, texts: Sequence[Tokens]) -> list[KeptRow | None]:
        """Take the longest kept row with which each text begins, if there is one. A text is longer than its kept row.
        These rows are no longer kept; they are added again, with the new tokens, when they have finished again."""
        found = [self._longest(text) for text in texts]
        for row in {id(row): row for row in found if row is not None}.values():
            self._drop(row)
        return found

    def _longest(self, text: Tokens) -> KeptRow | None:
        for length, last in sorted(self._ends, reverse=True):
            if length < len(text) and text[length - 1] == last and text[:length] in self._rows:
                return self._rows[text[:length]]
        return None

    def _drop(self, row: KeptRow) -> None:
        del self._rows[row.text]
        _count_less(self._ends, _end(row.text))
        self.num_bytes -= row.own.num_bytes
        if row.shared is not None:
            _count_less(self._uses, id(row.shared))
            self.num_bytes -= 0 if self._uses[id(row.shared)] else row.shared.num_bytes


def _end(text: Tokens) -> tuple[int, int]:
    return len(text), text[-1]


def _count_less(counts: Counter[Key], key: Key) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
