"""What estimators and losses from outside may return, and what is said of anything else."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from burnish.algorithms.policy_losses import PolicyLoss
from burnish.errors import ConfigError
from burnish.trainers.rl.credit.user_functions import CheckedLoss, checked_advantages
from burnish.types import Metric, Reduction

MASK = torch.tensor([[True, True], [True, False], [False, False]])
NAN = float("nan")


def outcome(result: Any) -> torch.Tensor:
    return checked_advantages(result, MASK, name="mine:best", token_level=False)[0]


def test_any_floating_numbers_of_the_right_shape_are_taken_as_constants() -> None:
    given = torch.tensor([1.0, -1.0, NAN], dtype=torch.float64, requires_grad=True)
    taken = outcome(given)  # the third response is not trained on
    assert taken.dtype is torch.float32
    assert not taken.requires_grad
    assert taken[:2].tolist() == [1.0, -1.0]
    half = torch.full((3, 2), 0.5, dtype=torch.bfloat16)
    advantages, returns = checked_advantages((half, half), MASK, name="mine:best", token_level=True)
    assert advantages.tolist() == [[0.5, 0.5]] * 3
    assert returns is not None


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ("high", "returned 'high' as advantages, not floating numbers of shape (3,)"),
        (None, "returned None as advantages"),
        ([1.0, 2.0, 3.0], "returned a list as advantages"),
        (torch.zeros(2), "returned a tensor of float32 and shape (2,) as advantages"),
        (torch.zeros(3, 2), "a tensor of float32 and shape (3, 2)"),
        (torch.zeros(3, dtype=torch.int64), "a tensor of int64"),
        (torch.tensor([1.0, NAN, 0.0]), "returned 1 advantages that are not finite"),
    ],
)
def test_an_estimator_that_returns_something_else_is_named(result: Any, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        outcome(result)
    assert told in refused.value.message
    assert "algorithm.estimator 'mine:best'" in refused.value.message


@pytest.mark.parametrize("result", [torch.zeros(3, 2), (torch.zeros(3, 2), None), (torch.zeros(3), torch.zeros(3, 2))])
def test_a_token_level_one_owes_a_pair(result: Any) -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.estimator 'mine:best' returned"):
        checked_advantages(result, MASK, name="mine:best", token_level=True)


LOGPROBS = torch.zeros(3, 2, requires_grad=True)


def loss_returning(result: Any) -> Callable[[], PolicyLoss]:
    checked = CheckedLoss(lambda *_: result, "mine:loss")
    return lambda: checked(LOGPROBS, LOGPROBS.detach(), torch.ones(3, 2), MASK)


def test_a_good_loss_passes() -> None:
    good = PolicyLoss(-LOGPROBS, {"x": Metric(Reduction.LAST, 1.0)})
    assert loss_returning(good)() is good


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ("low", "'low', not a PolicyLoss"),
        (torch.zeros(3, 2), "a tensor of float32 and shape (3, 2), not a PolicyLoss"),
        (PolicyLoss("low", {}), "'low' as per_token_BT"),  # type: ignore[arg-type]
        (PolicyLoss(LOGPROBS.sum(), {}), "shape () as per_token_BT, not floating numbers of shape (3, 2)"),
        (PolicyLoss(torch.zeros(3, 2), {}), "does not depend on logprobs_BT"),
        (PolicyLoss(-LOGPROBS, {"x": 1.0}), "{'x': 1.0} as metrics"),  # type: ignore[dict-item]
        (PolicyLoss(-LOGPROBS, None), "None as metrics"),  # type: ignore[arg-type]
    ],
)
def test_a_loss_that_returns_something_else_is_named(result: Any, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        loss_returning(result)()
    assert told in refused.value.message
    assert "algorithm.loss 'mine:loss' returned" in refused.value.message


def test_a_loss_that_raises_is_named_with_its_line_and_memory_is_not_its_fault() -> None:
    def broken(*_: Any) -> None:
        raise KeyError("x")

    def hungry(*_: Any) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")

    with pytest.raises(
        ConfigError, match=r"algorithm.loss 'mine:loss' failed: KeyError: 'x' \(.*test_user_functions\.py:"
    ):
        CheckedLoss(broken, "mine:loss")(LOGPROBS, LOGPROBS, LOGPROBS, MASK)
    with pytest.raises(RuntimeError, match="can't allocate"):
        CheckedLoss(hungry, "mine:loss")(LOGPROBS, LOGPROBS, LOGPROBS, MASK)
