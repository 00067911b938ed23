"""Duplicate prompts: in both training and held-out data, or within one of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

NAMED = 3
"""Number of pairs of rows that a printed line names."""

Asked = tuple[str, Hashable]
"""Id of a row, and its prompt (text, messages or token ids) in a form that can be compared."""
Twins = tuple[tuple[str, str], ...]
"""(id of a row, id of the first row with the same prompt)"""


@dataclass(frozen=True, slots=True)
class Overlap:
    """Rows whose prompt another row already has.

    `shared` pairs a held-out row with a training row, `repeated_*` a row with an earlier row of the same data.
    """

    num_train: int
    num_heldout: int
    shared: Twins
    repeated_train: Twins
    repeated_heldout: Twins

    def lines(self) -> list[str]:
        """One line for each kind of duplicate that was found."""
        kinds = (
            (self.shared, self.num_heldout, "held-out prompts are training prompts too", "is"),
            (self.repeated_train, self.num_train, "training prompts repeat an earlier one", "repeats"),
            (self.repeated_heldout, self.num_heldout, "held-out prompts repeat an earlier one", "repeats"),
        )
        return [
            f"{len(twins):,} of {total:,} {what}: {_name_pairs(twins, verb)}"
            for twins, total, what, verb in kinds
            if twins
        ]


def find_overlap(train: Iterable[Asked], heldout: Iterable[Asked] = ()) -> Overlap:
    """Find held-out prompts that are also training prompts, and prompts that repeat an earlier row of the same data."""
    training, held_out = list(train), list(heldout)
    first_in_train, repeated_train = _first_rows(training)
    _, repeated_heldout = _first_rows(held_out)
    shared = tuple((row_id, first_in_train[asked]) for row_id, asked in held_out if asked in first_in_train)
    return Overlap(len(training), len(held_out), shared, repeated_train, repeated_heldout)


def _first_rows(rows: Sequence[Asked]) -> tuple[dict[Hashable, str], Twins]:
    first: dict[Hashable, str] = {}
    repeated = [(row_id, first[asked]) for row_id, asked in rows if first.setdefault(asked, row_id) != row_id]
    return first, tuple(repeated)


def _name_pairs(twins: Twins, verb: str) -> str:
    named = ", ".join(f"{row_id} {verb} {other}" for row_id, other in twins[:NAMED])
    more = len(twins) - NAMED
    return named + (f", and {more:,} more" if more > 0 else "")
