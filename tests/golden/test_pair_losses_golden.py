"""Losses on preferences, worked out by hand for one pair or two.

The pair: log p(w) = -10 over 4 tokens (mean -2.5), log p(l) = -20 over 10 tokens (mean -2), the reference's -12 and
-19. Log-ratios are 2 and -1, so D = 3; with beta = .5, h = 1.5, r_w = 1 and r_l = -.5.

Logistic function and minus its logarithm: s(1.5) = .817574, s(1) = .731059, s(-.5) = .377541; -log s is .201413 at 1.5,
1.701413 at -1.5, .313262 at 1, 1.313262 at -1, .474077 at .5, .974077 at -.5, 2.578890 at -2.5.
"""

import pytest
import torch

from burnish.algorithms.pair_losses import PAIR_LOSSES, Pairs, formulas, kto, kto_z

BETA = {"beta": 0.5}
SMOOTH = {"beta": 0.5, "label_smoothing": 0.1}


def pairs_of(*numbers: list[float]) -> Pairs:
    return Pairs(*(torch.tensor(column, dtype=torch.float64) for column in numbers))


PAIR = pairs_of([-10.0], [-20.0], [-12.0], [-19.0], [4.0], [10.0])


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("sigmoid", BETA, 0.201413),  # -log s(1.5)
        ("sigmoid", SMOOTH, 0.351413),  # .9 x .201413 + .1 x 1.701413
        ("robust", SMOOTH, 0.013913),  # (.9 x .201413 - .1 x 1.701413) / .8 = (.181272 - .170141) / .8
        ("ipo", BETA, 4.0),  # (3 - 1)^2
        ("hinge", {"beta": 0.1}, 0.7),  # 1 - .3
        ("hinge", BETA, 0.0),  # 1 - 1.5 is below 0
        # .817574 (-.201413 - log .9) + .182426 (-1.701413 - log .1) = -.817574 x .096053 + .182426 x .601172
        ("exo_pair", SMOOTH, 0.031139),
        ("nca_pair", BETA, 1.206931),  # .313262 + 1.313262 / 2 + .474077 / 2
        ("apo_zero", BETA, 0.646482),  # 1 - .731059 + .377541
        ("apo_down", BETA, 0.913484),  # .731059 + 1 - .817574
        ("sppo_hard", {"beta": 0.1}, 25.0),  # (2 - 5)^2 + (-1 + 5)^2
        ("discopop", {"beta": 0.5, "tau": 1.0}, 0.219168),  # .182426 x .201413 + .817574 exp(-1.5) = .036743 + .182425
        ("sft", {}, 10.0),
        ("simpo", {}, 2.126928),  # -log s(2 (-2.5 + 2) - 1) = -log s(-2) = 2 + log(1 + exp(-2)) = 2 + .126928
        ("cpo", {"beta": 0.5, "alpha": 0.4}, 1.006715),  # log(1 + exp(-5)) = .006715, and .4 x 2.5
        # m = .082085 and .135335, log odds -2.414350 and -1.854587: 2.5 + .1 x log(1 + exp(.559763)) = 2.5 + .101169
        ("orpo", {}, 2.601169),
        # 1/u = .135335 and 2.718282: h = .5 x 2.582947 = 1.291473, log(1 + exp(-1.291473))
        ("sigmoid", {**BETA, "divergence": "forward_kl"}, 0.242841),
        # log s(2) - log s(-1) = -.126928 + 1.313262 = 1.186334: h = .593167
        ("sigmoid", {**BETA, "divergence": "js"}, 0.439915),
        # (exp(.5) - exp(-1)) / .5 = 2.561684: h = 1.280842
        ("sigmoid", {**BETA, "divergence": "alpha", "alpha": 0.5}, 0.245142),
    ],
)
def test_one_pair(name: str, options: dict[str, object], expected: float) -> None:
    assert PAIR_LOSSES[name].function(PAIR, **options).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        # Means are -2.5 and -2, the reference's -3 and -1.9: ratios .5 and -.1, D = .6
        ("sigmoid", {"beta": 0.5}, 0.554355),  # log(1 + exp(-.3))
        ("ipo", {"beta": 0.5}, 0.16),  # (.6 - 1)^2
        # The mean of `cpo` stays
        ("cpo", {"beta": 0.5, "alpha": 0.4}, 1.825939),  # log(1 + exp(.25)) = .825939, and .4 x 2.5
    ],
)
def test_one_pair_per_token(name: str, options: dict[str, object], expected: float) -> None:
    loss = PAIR_LOSSES[name].function(PAIR.per_token(), **options)
    assert loss.item() == pytest.approx(expected, abs=1e-6)


TWO = pairs_of([-10.0, -5.0], [-20.0, -7.0], [-12.0, -3.0], [-19.0, -12.0], [4.0, 2.0], [10.0, 2.0])


def test_aot_compares_margins_of_the_same_rank() -> None:
    """The policy's margins are 10 and 2, the reference's 7 and 9: 10 belongs to 9 and 2 to 7, h = .5 and -2.5."""
    assert formulas.aot_order(TWO).tolist() == [1, 0]
    assert formulas.aot(TWO, beta=0.5).tolist() == pytest.approx([0.474077, 2.578890], abs=1e-6)


def test_aot_unpaired_compares_ratios_of_the_same_rank() -> None:
    """Chosen ratios are 2 and -2, rejected ones -1 and 5: 2 belongs to 5 and -2 to -1, h = -1.5 and -.5."""
    assert formulas.aot_unpaired_order(TWO).tolist() == [1, 0]
    assert formulas.aot_unpaired(TWO, beta=0.5).tolist() == pytest.approx([1.701413, 0.974077], abs=1e-6)


def test_kto() -> None:
    """z = .5: 1 - s(.5 (2 - .5)) = 1 - s(.75) = .320821, and 1.5 (1 - s(.5 (.5 + 2))) = 1.5 x .222700."""
    ratio_B, desirable_B = torch.tensor([2.0, -2.0]), torch.tensor([True, False])
    kl = kto_z(torch.tensor([-2.0, 3.0]))
    loss_B = kto(ratio_B, desirable_B, kl, beta=0.5, undesirable_weight=1.5)
    assert loss_B.tolist() == pytest.approx([0.320821, 0.334050], abs=1e-6)
    assert kto_z(torch.tensor([-3.0, 1.0])).item() == 0.0  # the mean is -1
    assert kto(ratio_B - ratio_B, desirable_B, torch.tensor(-1.0)).tolist() == [0.5, 0.5]  # 1 - s(0)
