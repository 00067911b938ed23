"""The table of losses on preferences, and the lookup of a name in a run file. See docs/algorithms.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from burnish.algorithms.pair_losses import formulas
from burnish.algorithms.pair_losses.formulas import Pairs, kto, kto_z
from burnish.algorithms.registry import Formula, find_row, first_line, load_function
from burnish.errors import ConfigError

__all__ = ["PAIR_LOSSES", "PairLoss", "Pairs", "kto", "kto_z", "resolve_pair_loss"]

_ARXIV = "https://arxiv.org/abs/"


@dataclass(frozen=True)
class PairLoss(Formula):
    """A row of `PAIR_LOSSES`.

    needs_reference: False if reference log-probabilities change nothing. order: takes the `Pairs` of a whole step, and
    returns the index `[P]` that re-pairs it.
    """

    needs_reference: bool = True
    order: Callable[[Pairs], Tensor] | None = None

    @property
    def reorders(self) -> bool:
        return self.order is not None

    @property
    def takes_pairs(self) -> bool:
        """False if it rates single responses."""
        return self.inputs == ("pairs",)


_ROWS: tuple[PairLoss, ...] = (
    PairLoss(
        "sigmoid", formulas.sigmoid, "DPO: logistic loss", _ARXIV + "2305.18290", "-(1 - e) log s(h) - e log s(-h)"
    ),
    PairLoss(
        "robust",
        formulas.robust,
        "logistic loss, corrected for a known share of wrong labels",
        _ARXIV + "2403.00409",
        "(-(1 - e) log s(h) + e log s(-h)) / (1 - 2e)",
    ),
    PairLoss("ipo", formulas.ipo, "square around a target", _ARXIV + "2310.12036", "(D - 1 / (2 beta))^2"),
    PairLoss("hinge", formulas.hinge, "no gradient above a margin", _ARXIV + "2305.10425", "max(0, 1 - h)"),
    PairLoss(
        "exo_pair",
        formulas.exo_pair,
        "reverse KL to the smoothed label",
        _ARXIV + "2402.00856",
        "KL(softmax(r_w, r_l) || (1 - e, e))",
    ),
    PairLoss(
        "nca_pair",
        formulas.nca_pair,
        "absolute rewards, so that the chosen response does not fall",
        _ARXIV + "2402.05369",
        "-log s(r_w) - log s(-r_w) / 2 - log s(-r_l) / 2",
    ),
    PairLoss("apo_zero", formulas.apo_zero, "raises w and lowers l", _ARXIV + "2408.06266", "1 - s(r_w) + s(r_l)"),
    PairLoss(
        "apo_down", formulas.apo_down, "lowers both, l further", _ARXIV + "2408.06266", "s(r_w) + 1 - s(r_w - r_l)"
    ),
    PairLoss(
        "aot",
        formulas.aot,
        "logistic loss between sorted margins of policy and reference",
        _ARXIV + "2406.05882",
        "sigmoid of sort(log p(w) - log p(l)) - sort(log p_ref(w) - log p_ref(l))",
        order=formulas.aot_order,
    ),
    PairLoss(
        "aot_unpaired",
        formulas.aot_unpaired,
        "logistic loss between sorted chosen and sorted rejected ratios",
        _ARXIV + "2406.05882",
        "sigmoid of sort(log ratio_w) - sort(log ratio_l)",
        order=formulas.aot_unpaired_order,
    ),
    PairLoss(
        "sppo_hard",
        formulas.sppo_hard,
        "square of each ratio around a target",
        _ARXIV + "2405.00675",
        "(log ratio_w - 1 / (2 beta))^2 + (log ratio_l + 1 / (2 beta))^2",
    ),
    PairLoss(
        "discopop",
        formulas.discopop,
        "logistic loss of wrong pairs, exponential of right ones",
        _ARXIV + "2406.08414",
        "-(1 - g) log s(h) + g exp(-h), g = s(h / tau)",
    ),
    PairLoss("sft", formulas.sft, "likelihood of w", _ARXIV + "2404.19733", "-log p(w)", needs_reference=False),
    PairLoss(
        "simpo",
        formulas.simpo,
        "logistic loss of means over tokens",
        _ARXIV + "2405.14734",
        "-log s(beta (log p(w) / |w| - log p(l) / |l|) - gamma)",
        needs_reference=False,
    ),
    PairLoss(
        "cpo",
        formulas.cpo,
        "logistic loss of log-probabilities, and likelihood of w",
        _ARXIV + "2401.08417",
        "-log s(beta (log p(w) - log p(l))) - alpha log p(w) / |w|",
        needs_reference=False,
    ),
    PairLoss(
        "orpo",
        formulas.orpo,
        "likelihood of w, and logistic loss of odds",
        _ARXIV + "2403.07691",
        "-log p(w) / |w| - lam log s(log odds(w) - log odds(l)), odds = m / (1 - m), m = exp(log p / |y|)",
        needs_reference=False,
    ),
    PairLoss(
        "kto",
        formulas.kto,
        "single responses, each rated good or bad",
        _ARXIV + "2402.01306",
        "weight (1 - s(+-beta (log ratio - z))), + for good ones; z = max(0, mean of mismatched log ratios)",
    ),
)
PAIR_LOSSES: dict[str, PairLoss] = {row.name: row for row in _ROWS}
"""Losses on preferences. All take `Pairs` except `kto`, which rates single responses."""


def resolve_pair_loss(name: str) -> PairLoss:
    """Find the loss called `name`: a key of `PAIR_LOSSES`, `package.module:function` or `path/to/file.py:function`.

    A plugin takes `pairs` and numbers after a bare `*`, and returns one loss per pair, `[P]`. It is given a reference.
    ConfigError otherwise.
    """
    if ":" not in name:
        return find_row(name, PAIR_LOSSES, "preference loss")
    function = load_function(name, "preference loss")
    row = PairLoss(name, function, first_line(function), name, "see its source")
    if not row.takes_pairs:
        raise ConfigError(
            f"preference loss {name!r} takes ({', '.join(row.inputs)})",
            remedy="change it to take (pairs), and numbers after a bare *",
        )
    return row
