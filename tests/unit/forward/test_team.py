"""Which numbers each process of a team keeps, and in which pieces they travel."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from burnish.forward.team import ROW, Piece, WeightSlices, pieces, slice_of, slices_of


def test_slices_by_hand() -> None:
    assert [slice_of(1000, rank, 2) for rank in range(2)] == [(0, 512), (512, 1000)]  # four rows, the last one short
    assert [slice_of(1000, rank, 3) for rank in range(3)] == [(0, 256), (256, 512), (512, 1000)]
    assert [slice_of(5, rank, 3) for rank in range(3)] == [(0, 0), (0, 0), (0, 5)]


@given(numel=st.integers(1, 5000), size=st.integers(1, 30))
def test_slices_are_whole_rows_and_cover_the_tensor(numel: int, size: int) -> None:
    (spans,) = zip(*slices_of([numel], size), strict=True)
    assert spans[0][0] == 0
    assert spans[-1][1] == numel
    assert all(end == first for (_, end), (first, _) in pairwise(spans))
    assert all(first % ROW == 0 for first, end in spans if first < end)
    assert spans[-1][0] < numel  # the last process has the end, with the numbers that fill no row
    assert max(end - first for first, end in spans) < numel / size + 2 * ROW


def test_pieces_by_hand() -> None:
    spans = [(10, 13), (0, 0), (4, 9)]
    assert list(pieces(spans, 4)) == [[Piece(0, 10, 13), Piece(2, 4, 5)], [Piece(2, 5, 9)]]
    assert list(pieces(spans, 100)) == [[Piece(0, 10, 13), Piece(2, 4, 9)]]
    assert list(pieces([(3, 3)], 4)) == []


@dataclass
class First:
    """The first of two processes, as far as slices need to know."""

    rank: int = 0
    size: int = 2


def test_slices_along_the_first_dimension_by_hand() -> None:
    slices = WeightSlices(First())  # type: ignore[arg-type]
    weight, single = torch.arange(15.0).view(5, 3), torch.tensor(7.0)
    assert slices.spans([weight, single]) == [[(0, 9), (0, 1)], [(9, 15), (1, 1)]]  # three rows of five; the number
    assert slices.part(weight).tolist() == [*range(9)]
    assert WeightSlices(First(rank=1)).part(single).tolist() == []  # type: ignore[arg-type]
    parameter = nn.Parameter(single)
    slices[parameter].data.fill_(8.0)
    assert float(parameter.detach()) == 8.0  # a view
