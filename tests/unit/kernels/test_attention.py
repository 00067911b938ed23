"""Attention of packed rows through kernels against one dense softmax in float64."""

from collections.abc import Sequence

import pytest
import torch
from dense_attention import dense
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.kernels.attention import SequenceGroups, attention_kernels

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("instruction_set")]


def sequences_of(groups: Sequence[Sequence[int]], order: torch.Tensor) -> list[list[torch.Tensor]]:
    """Groups of sequences of these lengths, over the slots in `order`."""
    parts = iter(order.split([count for group in groups for count in group]))
    return [[next(parts) for _ in group] for group in groups]


def visible(groups: Sequence[Sequence[torch.Tensor]], slots: int) -> torch.Tensor:
    """(S, S) bool: what each slot sees."""
    sees = torch.zeros(slots, slots, dtype=torch.bool)
    for group in groups:
        for number, sequence in enumerate(group):
            causal = torch.ones(len(sequence), len(sequence), dtype=torch.bool).tril()
            sees[sequence[:, None], sequence] = causal
            if number > 0:
                sees[sequence[:, None], group[0]] = True
    return sees


def compare(groups, heads: tuple[int, int], size: int, dtype: torch.dtype, tolerance: float) -> None:
    slots = sum(map(sum, groups))
    generator = torch.Generator().manual_seed(slots)
    sequences = sequences_of(groups, torch.randperm(slots, generator=generator))

    def draw(count: int) -> torch.Tensor:
        return torch.randn(slots, count, size, generator=generator).to(dtype)

    inputs, outer = (draw(heads[0]), draw(heads[1]), draw(heads[1])), draw(heads[0])
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    output = attention_kernels(dtype).attend(*leaves, SequenceGroups.of(sequences), 0.3)
    found = [output, *torch.autograd.grad(output, leaves, outer)]
    exact_leaves = [tensor.double().requires_grad_() for tensor in inputs]
    exact, _ = dense(*exact_leaves, visible(sequences, slots), 0.3)
    wanted = [exact, *torch.autograd.grad(exact, exact_leaves, outer.double())]
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype is dtype
        size = float(other.detach().norm())
        assert float((one.detach().double() - other.detach()).norm()) <= tolerance * max(size, 1)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 0.01)])
@pytest.mark.parametrize(("heads", "size"), [((4, 2), 8), ((2, 2), 16), ((6, 2), 48), ((8, 1), 64), ((2, 1), 80)])
def test_heads_of_all_shapes(heads: tuple[int, int], size: int, dtype: torch.dtype, tolerance: float) -> None:
    compare([[40, 17, 0, 1, 33], [16], [1, 5, 16], [70]], heads, size, dtype, tolerance)


group = st.lists(st.integers(0, 37), max_size=5).flatmap(lambda rest: st.integers(1, 50).map(lambda one: [one, *rest]))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(groups=st.lists(group, min_size=1, max_size=4))
def test_any_mix_of_groups_and_lengths(groups: list[list[int]]) -> None:
    compare(groups, (4, 2), 8, torch.float32, 2e-6)


def test_the_number_of_threads_changes_nothing() -> None:
    """Bit for bit, gradients too."""
    groups = sequences_of([[30, 20, 21], [50]], torch.arange(121))
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            torch.manual_seed(0)
            leaves = [torch.randn(121, heads, 16, requires_grad=True) for heads in (4, 2, 2)]
            output = attention_kernels(torch.float32).attend(*leaves, SequenceGroups.of(groups), 0.25)
            found.append([output, *torch.autograd.grad(output.square().sum(), leaves)])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


def test_what_is_no_number_stays_in_its_own_rows() -> None:
    """Slot 3, in the first response, is seen by slot 4 only; the other response and the prompt know nothing of it."""
    leaves = [torch.randn(8, heads, 16) for heads in (2, 1, 1)]
    leaves[1][3] = torch.nan
    groups = SequenceGroups.of([[torch.arange(2), torch.arange(2, 5), torch.arange(5, 8)]])
    output = attention_kernels(torch.float32).attend(*leaves, groups, 0.25)
    assert output.isnan().any(-1).any(-1).tolist() == [False, False, False, True, True, False, False, False]


@pytest.mark.parametrize(("heads", "size"), [((4, 2), 8), ((2, 1), 80)])
@pytest.mark.parametrize("groups", [[[40, 17, 0, 33]], [[70]], [[1, 1], [16, 16]], [[17, 1], [1, 49]]])
def test_scratch_memory_is_enough(groups, heads, size, monkeypatch) -> None:
    """On one thread nothing is written behind what was asked for."""
    asked: list[torch.Tensor] = []
    empty = torch.empty

    def guarded(*shape: int, **options: torch.dtype) -> torch.Tensor:
        if not isinstance(shape[0], int):
            return empty(*shape, **options)
        asked.append(torch.full((shape[0] + 64,), 7.0))
        return asked[-1]

    monkeypatch.setattr("burnish.kernels.attention.torch.empty", guarded)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        compare(groups, heads, size, torch.float32, 2e-6)
    finally:
        torch.set_num_threads(before)
    assert len(asked) == 2
    for scratch in asked:
        assert bool((scratch[-64:] == 7.0).all())
        assert bool((scratch[-min(10_000, len(scratch) // 2) : -64] != 7.0).any())
