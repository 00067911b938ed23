"""What is made again instead of kept has the same gradients, and is gone in between."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from burnish.forward.kernel_layers import remade_in_backward


@pytest.fixture
def made() -> list[StorageWeakRef]:
    """Everything that `doubled` has made."""
    return []


@pytest.fixture
def doubled(made: list[StorageWeakRef]) -> Callable[[Tensor], Tensor]:
    def double(source: Tensor) -> Tensor:
        result = 2.0 * source.detach()
        made.append(StorageWeakRef(result.untyped_storage()))
        return result

    return double


def test_one_result_for_all_who_would_have_kept_it(made, doubled) -> None:
    source, layers = torch.ones(3, 4), [nn.Linear(4, 2, bias=bias) for bias in (True, False)]
    tensor = doubled(source)
    with remade_in_backward(tensor, lambda: doubled(source)):
        outputs = torch.cat([layer(tensor) for layer in layers], dim=1)
    del tensor
    assert made[0].expired()  # nobody keeps it
    outputs.sum().backward()
    assert len(made) == 2
    assert made[1].expired()
    for layer in layers:
        assert layer.weight.grad.tolist() == [[6.0] * 4] * 2  # three rows of 2


def test_a_second_backward_pass_makes_it_again(made, doubled) -> None:
    source, layer = torch.ones(3, 4), nn.Linear(4, 2)
    tensor = doubled(source)
    with remade_in_backward(tensor, lambda: doubled(source)):
        output = layer(tensor).sum()
    output.backward(retain_graph=True)
    output.backward()
    assert len(made) == 3
    assert layer.weight.grad.tolist() == [[12.0] * 4] * 2


def test_other_tensors_are_kept_as_ever(doubled) -> None:
    source = torch.ones(3, 4, requires_grad=True)
    tensor, weight = doubled(source), torch.full((4,), 5.0, requires_grad=True)
    with remade_in_backward(tensor, lambda: doubled(source)):
        (source * weight).sum().backward()
    assert source.grad.tolist() == [[5.0] * 4] * 3
    assert weight.grad.tolist() == [3.0] * 4


def test_a_pass_without_gradient_makes_nothing(made, doubled) -> None:
    source = torch.ones(3, 4)
    tensor = doubled(source)
    with torch.no_grad(), remade_in_backward(tensor, lambda: doubled(source)):
        nn.Linear(4, 2)(tensor)
    assert len(made) == 1
