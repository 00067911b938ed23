"""Losses of supervised fine-tuning per token, against numbers by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from burnish.algorithms.token_losses import dynamic_nll

YES = torch.ones(1, 3, dtype=torch.bool)


def test_by_hand() -> None:
    """-p log p of 1, 1/2 and 1/4: 0, ln 2 / 2 and ln 4 / 4, which is the same. Its gradient for log p is -p."""
    logprobs = torch.tensor([[1.0, 0.5, 0.25]]).log().requires_grad_()
    loss = dynamic_nll(logprobs, YES)
    torch.testing.assert_close(loss.detach(), torch.tensor([[0.0, 0.5 * math.log(2), 0.5 * math.log(2)]]))
    loss.sum().backward()
    assert logprobs.grad is not None
    torch.testing.assert_close(logprobs.grad, torch.tensor([[-1.0, -0.5, -0.25]]))


def test_a_masked_token_has_neither_loss_nor_gradient() -> None:
    logprobs = torch.tensor([[-1.0, math.nan, -math.inf]], requires_grad=True)
    loss = dynamic_nll(logprobs, torch.tensor([[True, False, False]]))
    assert loss.tolist() == [[pytest.approx(math.exp(-1)), 0.0, 0.0]]
    loss.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [[pytest.approx(-math.exp(-1)), 0.0, 0.0]]


@given(st.lists(st.floats(-20.0, 0.0), min_size=1, max_size=8), st.integers(1, 4))
def test_its_mean_is_the_formula_on_trls_page(numbers: list[float], repeated: int) -> None:
    """TRL's page of the SFTTrainer names the loss `dft` by the same paper: the cross entropy of each token, times the
    probability of the token without gradient, divided by the number of tokens."""
    logits = torch.tensor([[number, 0.3, -number / 7] for number in numbers * repeated], dtype=torch.float64)
    logits.requires_grad_()
    labels = torch.zeros(len(logits), dtype=torch.int64)
    cross_entropy = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    theirs = (torch.exp(-cross_entropy.detach()) * cross_entropy).sum() / len(labels)
    logprobs = logits.log_softmax(-1)[:, 0][None]
    ours = dynamic_nll(logprobs, torch.ones_like(logprobs, dtype=torch.bool)).sum() / len(labels)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(loss, logits, retain_graph=True)[0] for loss in (ours, theirs)))
