"""Divergences from a teacher: numbers worked out by hand, gradients, and chunks against the definition."""

from dataclasses import replace
from functools import partial
from math import log
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from burnish.forward.divergences import HeadInput, compare_in_chunks, compare_plainly, divergence, score_tokens
from burnish.forward.logprobs import HeadTransform

TEACHER, STUDENT = (1 / 2, 3 / 8, 1 / 8), (1 / 4, 1 / 4, 1 / 2)
BY_HAND = {  # of the mixture (3/8, 5/16, 5/16) the last one
    "forward_kl": log(2) / 4 + 3 * log(1.5) / 8,
    "reverse_kl": 3 * log(2) / 4 - log(1.5) / 4,
    "jsd": (log(4 / 3) / 2 + 3 * log(1.2) / 8 + log(0.4) / 8) / 2 + (log(2 / 3) / 4 + log(0.8) / 4 + log(1.6) / 2) / 2,
}
NAMES = sorted(BY_HAND)


def logits_of(*probabilities: float) -> Tensor:
    return torch.tensor([probabilities], dtype=torch.float64).log()


def random_heads(tokens: int, *, dtype: torch.dtype = torch.float64) -> tuple[HeadInput, HeadInput, Tensor]:
    """A student with a bias and a soft cap, and a teacher of another width with two rows for no token."""
    noise = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=noise, dtype=torch.float64).to(dtype)

    student = HeadInput(normal(tokens, 4), normal(7, 4), normal(7), HeadTransform(1.5, 3.0))
    teacher = HeadInput(normal(tokens, 6), normal(9, 6), vocabulary=7)
    return student, teacher, torch.arange(tokens) % 7


@pytest.mark.parametrize("name", NAMES)
def test_by_hand(name: str) -> None:
    student, teacher = logits_of(*STUDENT), logits_of(*TEACHER)
    assert divergence(student, teacher, name=name).item() == pytest.approx(BY_HAND[name])
    # Doubled logits at temperature 2 are the same distributions, and the loss is times 4.
    assert divergence(2 * student, 2 * teacher, name=name, temperature=2).item() == pytest.approx(4 * BY_HAND[name])
    assert divergence(student, student, name=name).item() == pytest.approx(0)


def test_the_likeliest_token_and_the_rest_by_hand() -> None:
    """The teacher has 1/2 for its likeliest token and 1/2 for the rest, the student 1/4 and 3/4."""
    found = divergence(logits_of(*STUDENT), logits_of(*TEACHER), name="forward_kl", top_k=1)
    assert found.item() == pytest.approx(log(2) / 2 + log(2 / 3) / 2)
    proportional = logits_of(1 / 4, 9 / 16, 3 / 16)  # the others 3 : 1, as the teacher has them
    bound, whole = (divergence(proportional, logits_of(*TEACHER), name="forward_kl", top_k=k) for k in (1, None))
    assert bound.item() == pytest.approx(whole.item())


def test_the_scores_of_a_token_and_what_is_kept_of_a_teacher_by_hand() -> None:
    head = HeadInput(torch.cat((logits_of(*TEACHER), logits_of(*STUDENT))))
    logprobs_N, ranks_N, likeliest = score_tokens(head, torch.tensor([1, 2]), 1)
    assert logprobs_N.exp().tolist() == pytest.approx([3 / 8, 1 / 2])
    assert ranks_N.tolist() == [2, 1]
    assert likeliest.ids_NK.tolist() == [[0], [2]]
    assert likeliest.logprobs_NC.exp().flatten().tolist() == pytest.approx([1 / 2] * 4)


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_kept_of_a_teacher_gives_the_same_numbers_and_gradients(name: str, k: int) -> None:
    """With all tokens kept, the rest has the probability 0."""
    student, teacher, targets_N = random_heads(5)
    found = []
    kept = score_tokens(teacher, targets_N, k, temperature=2.0).likeliest
    formula = partial(divergence, name=name, temperature=2.0, top_k=k)
    for one, settings in ((teacher, {}), (kept, {"chunk_elements": 14})):
        weight = student.weight_VH.detach().clone().requires_grad_()
        compared = compare_in_chunks(replace(student, weight_VH=weight), one, targets_N, formula, **settings)
        compared.divergence_N.sum().backward()
        found.append((compared.divergence_N.tolist(), compared.agrees_N.tolist(), weight.grad.flatten().tolist()))
    assert found[1] == tuple(pytest.approx(numbers, abs=1e-12) for numbers in found[0])


@pytest.mark.parametrize("name", NAMES)
@given(st.lists(st.floats(-5, 5), min_size=10, max_size=10), st.floats(0.05, 0.95))
def test_more_of_the_tokens_give_a_bound_nearer_to_all(name: str, numbers: list[float], beta: float) -> None:
    student, teacher = torch.tensor(numbers, dtype=torch.float64).view(2, 1, 5)
    found = [divergence(student, teacher, name=name, beta=beta, top_k=k).item() for k in (1, 2, 3, 4, 5, None)]
    assert all(less <= more + 1e-9 for less, more in zip([0, *found], found, strict=False))
    assert found[-2] == found[-1]
    shifted = divergence(student + 3, teacher - 2, name=name, beta=beta)
    assert shifted.item() == pytest.approx(found[-1], abs=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_tokens_that_a_head_rules_out_leave_numbers_finite(name: str) -> None:
    student = torch.tensor([[0.0, 1.0, -torch.inf]], requires_grad=True)
    found = divergence(student, torch.tensor([[1.0, 0.0, -torch.inf]]), name=name, top_k=2)
    found.sum().backward()
    assert found.isfinite().all()
    assert student.grad.isfinite().all()


def test_jsd_tends_to_both_divergences() -> None:
    student, teacher = logits_of(*STUDENT), logits_of(*TEACHER)
    small = 1e-6
    forward = divergence(student, teacher, name="jsd", beta=small).item() / small
    reverse = divergence(student, teacher, name="jsd", beta=1 - small).item() / small
    assert (forward, reverse) == pytest.approx((BY_HAND["forward_kl"], BY_HAND["reverse_kl"]), rel=1e-4)


@pytest.mark.parametrize("top_k", [None, 3])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_in_chunks(name: str, top_k: int | None) -> None:
    student, teacher, targets = random_heads(5)
    formula = partial(divergence, name=name, temperature=1.7, beta=0.3, top_k=top_k)

    def compared(hidden: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        own = HeadInput(hidden, weight, bias, student.transform)
        return compare_in_chunks(own, teacher, targets, formula, chunk_elements=14)[:2]

    leaves: Any = (student.hidden_NH, student.weight_VH, student.bias_V)
    inputs = [leaf.clone().requires_grad_() for leaf in leaves]
    assert torch.autograd.gradcheck(compared, inputs)


@pytest.mark.parametrize("rows", [1, 2, 100])
def test_chunks_equal_the_definition(rows: int) -> None:
    student, teacher, targets = random_heads(9, dtype=torch.float32)
    formula = partial(divergence, name="jsd", beta=0.3, temperature=2)
    leaves = [student.hidden_NH, student.weight_VH, student.bias_V]
    results = []
    for compare in (compare_plainly, partial(compare_in_chunks, chunk_elements=7 * rows)):
        for leaf in leaves:
            leaf.grad = None
            leaf.requires_grad_()
        found = compare(student, teacher, targets, formula)
        (found.divergence_N * torch.arange(9) - found.logprobs_N).sum().backward()
        results.append([found.logprobs_N.detach(), found.divergence_N.detach(), *(leaf.grad for leaf in leaves)])
    torch.testing.assert_close(*results)


def test_heads_over_other_tokens_are_refused() -> None:
    student, teacher, targets = random_heads(2)
    formula = partial(divergence, name="forward_kl")
    with pytest.raises(ValueError, match=r"\(2, 7\) and \(2, 6\)"):
        compare_in_chunks(student, HeadInput(teacher.hidden_NH, teacher.weight_VH, vocabulary=6), targets, formula)
