"""Properties of the losses on preferences: symmetries, signs of gradients, extremes, cuts, and refusals."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.algorithms.pair_losses import PAIR_LOSSES, Pairs, kto, kto_z, resolve_pair_loss
from burnish.algorithms.pair_losses.formulas import DIVERGENCES, apo_zero, exo_pair, hinge, robust, sigmoid, simpo
from burnish.errors import ConfigError

PAIRED = {name: row for name, row in PAIR_LOSSES.items() if row.inputs == ("pairs",)}
FIELDS = tuple(Pairs.__dataclass_fields__)
VARIANTS = [
    *((name, {}) for name in PAIRED),
    *(("sigmoid", {"divergence": name}) for name in DIVERGENCES[1:]),
    *((name, {"divergence": "forward_kl"}) for name in ("robust", "hinge")),
    *((name, {"beta": 10.0}) for name in PAIRED if "beta" in PAIRED[name].options),
]


def make_pairs(seed: int = 0, count: int = 16, dtype: torch.dtype = torch.float64) -> Pairs:
    """Responses of 1 to 12 tokens, each of log-probability -.1 or less."""
    g = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, 13, (2, count), generator=g)
    policy = -tokens * (0.1 + torch.rand(2, count, generator=g, dtype=torch.float64))
    reference = policy + torch.randn(2, count, generator=g, dtype=torch.float64)
    return Pairs(*policy.to(dtype), *reference.to(dtype), *tokens)


def swapped(pairs: Pairs) -> Pairs:
    policy, reference = (pairs.rejected, pairs.chosen), (pairs.ref_rejected, pairs.ref_chosen)
    return Pairs(*policy, *reference, pairs.rejected_tokens, pairs.chosen_tokens)


def gradients(name: str, pairs: Pairs, **options: object) -> tuple[Tensor, Tensor, Tensor]:
    """Losses, and the gradients of their sum for chosen and rejected."""
    chosen, rejected = pairs.chosen.clone().requires_grad_(), pairs.rejected.clone().requires_grad_()
    loss = PAIR_LOSSES[name].function(replace(pairs, chosen=chosen, rejected=rejected), **options)
    found = torch.autograd.grad(loss.sum(), (chosen, rejected), allow_unused=True)
    return loss.detach(), *(torch.zeros_like(chosen) if g is None else g for g in found)


def test_a_swap_mirrors_the_logistic_losses() -> None:
    """-log s(-h) is -log s(h) + h; smoothing multiplies h by 1 - 2e, and the correction for it divides again."""
    pairs = make_pairs()
    margin = 0.1 * (pairs.chosen_ratio - pairs.rejected_ratio)
    for loss, factor in ((sigmoid, 0.6), (robust, 1 / 0.6)):
        gap = loss(swapped(pairs), label_smoothing=0.2) - loss(pairs, label_smoothing=0.2)
        torch.testing.assert_close(gap, factor * margin)
    means = pairs.per_token()
    gap = simpo(swapped(pairs), gamma=0.0) - simpo(pairs, gamma=0.0)
    torch.testing.assert_close(gap, 2.0 * (means.chosen - means.rejected))
    torch.testing.assert_close(apo_zero(pairs) + apo_zero(swapped(pairs)), torch.full_like(margin, 2.0))


def test_half_the_labels_wrong_is_symmetric() -> None:
    pairs = make_pairs()
    torch.testing.assert_close(sigmoid(pairs, label_smoothing=0.5), sigmoid(swapped(pairs), label_smoothing=0.5))
    torch.testing.assert_close(exo_pair(pairs, label_smoothing=0.5), exo_pair(swapped(pairs), label_smoothing=0.5))


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_only_the_distance_from_the_reference_counts(name: str, options: dict[str, object]) -> None:
    pairs = make_pairs()
    loss = PAIRED[name].function
    other = replace(pairs, ref_chosen=pairs.ref_rejected, ref_rejected=pairs.ref_chosen)
    assert torch.equal(loss(pairs, **options), loss(other, **options)) == (not PAIRED[name].needs_reference)
    if PAIRED[name].needs_reference:
        moved = replace(pairs, chosen=pairs.chosen - 3, ref_chosen=pairs.ref_chosen - 3)
        torch.testing.assert_close(loss(moved, **options), loss(pairs, **options))


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_float32_is_near_float64(name: str, options: dict[str, object]) -> None:
    exact, near = gradients(name, make_pairs(), **options), gradients(name, make_pairs(dtype=torch.float32), **options)
    for wide, narrow in zip(exact, near, strict=True):
        assert (wide.dtype, narrow.dtype) == (torch.float64, torch.float32)
        torch.testing.assert_close(narrow.double(), wide, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_extremes_are_finite(name: str, options: dict[str, object], dtype: torch.dtype) -> None:
    corners = torch.tensor(list(product((-1e4, 0.0, 1e4), repeat=4)), dtype=dtype).T
    one = torch.ones_like(corners[0])
    for found in gradients(name, Pairs(*corners, one, one), **options):
        assert found.isfinite().all()


NOT_MONOTONE = {"ipo", "exo_pair", "nca_pair", "apo_down", "sppo_hard", "discopop"}
"""Losses with a best margin, or a best probability of the chosen response."""


@pytest.mark.parametrize(("name", "options"), [case for case in VARIANTS if case[0] not in NOT_MONOTONE])
def test_a_likelier_chosen_response_never_costs(name: str, options: dict[str, object]) -> None:
    _, chosen, rejected = gradients(name, make_pairs(count=64), **options)
    assert (chosen <= 0).all()
    assert (rejected >= 0).all()
    assert (chosen < 0).any()


def test_the_most_wrong_pair_keeps_its_gradient() -> None:
    """u = exp(-1e4): beyond its limit exp goes on along its tangent, so that the loss still falls with the ratio."""
    ratio = torch.tensor([-1e4, -5e3])
    zero = torch.zeros_like(ratio)
    pairs = Pairs(ratio, zero, zero, zero, zero + 1, zero + 1)
    loss, chosen, _ = gradients("sigmoid", pairs, divergence="forward_kl")
    assert loss[0] > loss[1]
    assert (chosen < 0).all()


def test_divergences_meet_at_their_limits() -> None:
    pairs = make_pairs()
    for loss in (sigmoid, robust, hinge):
        near = loss(pairs, divergence="alpha", alpha=1e-7)
        torch.testing.assert_close(near, loss(pairs), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(loss(pairs, divergence="alpha", alpha=1.0), loss(pairs, divergence="forward_kl"))


def test_a_step_of_aot_in_parts_has_the_gradient_of_sorted_values() -> None:
    step = make_pairs(seed=3)
    policy = torch.stack((step.chosen, step.rejected)).requires_grad_()
    live = replace(step, chosen=policy[0], rejected=policy[1])
    sides = {
        "aot": (live.chosen - live.rejected, live.ref_chosen - live.ref_rejected, ("ref_chosen", "ref_rejected")),
        "aot_unpaired": (live.chosen_ratio, live.rejected_ratio, ("rejected", "ref_rejected", "rejected_tokens")),
    }
    for name, (left, right, moved) in sides.items():
        whole = -F.logsigmoid(0.1 * (left.sort().values - right.sort().values)).sum()
        order = PAIR_LOSSES[name].order(step)  # of numbers without a gradient
        columns = {key: getattr(live, key)[order] if key in moved else getattr(live, key) for key in FIELDS}
        parts = [Pairs(*(column[part] for column in columns.values())) for part in ([*range(5)], [5], [*range(6, 16)])]
        total = torch.cat([PAIR_LOSSES[name].function(part) for part in parts]).sum()
        torch.testing.assert_close(total, whole)
        found, wanted = (torch.autograd.grad(loss, policy, retain_graph=True) for loss in (total, whole))
        torch.testing.assert_close(found, wanted)


def test_kto_is_finite_antisymmetric_and_leaves_its_zero_alone() -> None:
    ratio_B = torch.tensor([-1e4, -1.0, 0.5, 1e4], requires_grad=True)
    z = kto_z(torch.tensor([1.0, 2.0], requires_grad=True))
    assert not z.requires_grad
    good, bad = (kto(ratio_B, torch.full((4,), label), z) for label in (True, False))
    torch.testing.assert_close(good + bad, torch.ones(4))
    (gradient,) = torch.autograd.grad(good.sum(), ratio_B)
    assert (gradient <= 0).all()


def test_half_precision_is_widened() -> None:
    pairs = make_pairs(dtype=torch.bfloat16)
    assert all(row.function(pairs).dtype == torch.float32 for row in PAIRED.values())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sigmoid", {"label_smoothing": 0.6}, r"label_smoothing is 0\.6"),
        ("sigmoid", {"divergence": "forward"}, "did you mean 'forward_kl'"),
        ("hinge", {"divergence": "alpha", "alpha": 1.5}, r"alpha of the divergence is 1\.5"),
        ("robust", {"label_smoothing": 0.5}, r"from 0 to below 0\.5"),
        ("exo_pair", {"label_smoothing": 0.0}, "above 0"),
        ("discopop", {"tau": 2.0}, r"tau of discopop is 2\.0"),
        *((name, {"beta": 0.0}, r"beta is 0\.0") for name, row in PAIRED.items() if "beta" in row.options),
    ],
)
def test_numbers_out_of_range_are_refused(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PAIR_LOSSES[name].function(make_pairs(), **options)


def test_tensors_of_pairs_have_one_shape() -> None:
    pairs = make_pairs()
    with pytest.raises(ValueError, match="differ in shape"):
        replace(pairs, rejected=pairs.rejected[:3])


def test_a_loss_of_the_users_own(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "def margin(pairs, *, beta=1.0):\n    'Plain margin.'\n    return beta * (pairs.rejected - pairs.chosen)\n"
        "def single(logprobs_B): ...\n"
    )
    row = resolve_pair_loss(f"{file}:margin")
    assert (row.summary, row.options, row.needs_reference, row.order) == ("Plain margin.", {"beta": 1.0}, True, None)
    with pytest.raises(ConfigError, match=r"takes \(logprobs_B\)"):
        resolve_pair_loss(f"{file}:single")
    with pytest.raises(ConfigError, match="did you mean 'simpo'"):
        resolve_pair_loss("simop")
