"""The table of losses on preferences, and the lookup of a name in a run file. See docs/algorithms.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from burnish.algorithms.pair_losses import formulas
from burnish.algorithms.pair_losses.formulas import Pairs, kto, kto_z
from burnish.algorithms.registry import ARXIV, Formula, by_name, find_row, plugin_row
from burnish.errors import ConfigError

__all__ = ["PAIR_LOSSES", "PairLoss", "Pairs", "kto", "kto_z", "resolve_pair_loss"]


@dataclass(frozen=True)
class PairLoss(Formula):
    """A row of `PAIR_LOSSES`.

    needs_reference: False if reference log-probabilities change nothing. order: takes the `Pairs` of a whole step, and
    returns the index `[P]` that re-pairs it.
    """

    needs_reference: bool = True
    order: Callable[[Pairs], Tensor] | None = None


PAIR_LOSSES: dict[str, PairLoss] = by_name(
    PairLoss(formulas.sigmoid, "DPO: logistic loss", ARXIV + "2305.18290", "-(1 - e) log s(h) - e log s(-h)"),
    PairLoss(
        formulas.robust,
        "logistic loss, corrected for a known share of wrong labels",
        ARXIV + "2403.00409",
        "(-(1 - e) log s(h) + e log s(-h)) / (1 - 2e)",
    ),
    PairLoss(formulas.ipo, "square around a target", ARXIV + "2310.12036", "(D - 1 / (2 beta))^2"),
    PairLoss(formulas.hinge, "no gradient above a margin", ARXIV + "2305.10425", "max(0, 1 - h)"),
    PairLoss(
        formulas.exo_pair,
        "reverse KL to the smoothed label",
        ARXIV + "2402.00856",
        "KL(softmax(r_w, r_l) || (1 - e, e))",
    ),
    PairLoss(
        formulas.nca_pair,
        "absolute rewards, so that the chosen response does not fall",
        ARXIV + "2402.05369",
        "-log s(r_w) - log s(-r_w) / 2 - log s(-r_l) / 2",
    ),
    PairLoss(formulas.apo_zero, "raises w and lowers l", ARXIV + "2408.06266", "1 - s(r_w) + s(r_l)"),
    PairLoss(formulas.apo_down, "lowers both, l further", ARXIV + "2408.06266", "s(r_w) + 1 - s(r_w - r_l)"),
    PairLoss(
        formulas.aot,
        "logistic loss between sorted margins of policy and reference",
        ARXIV + "2406.05882",
        "sigmoid of sort(log p(w) - log p(l)) - sort(log p_ref(w) - log p_ref(l))",
        order=formulas.aot_order,
    ),
    PairLoss(
        formulas.aot_unpaired,
        "logistic loss between sorted chosen and sorted rejected ratios",
        ARXIV + "2406.05882",
        "sigmoid of sort(log ratio_w) - sort(log ratio_l)",
        order=formulas.aot_unpaired_order,
    ),
    PairLoss(
        formulas.sppo_hard,
        "square of each ratio around a target",
        ARXIV + "2405.00675",
        "(log ratio_w - 1 / (2 beta))^2 + (log ratio_l + 1 / (2 beta))^2",
    ),
    PairLoss(
        formulas.discopop,
        "logistic loss of wrong pairs, exponential of right ones",
        ARXIV + "2406.08414",
        "-(1 - g) log s(h) + g exp(-h), g = s(h / tau)",
    ),
    PairLoss(formulas.sft, "likelihood of w", ARXIV + "2404.19733", "-log p(w)", needs_reference=False),
    PairLoss(
        formulas.simpo,
        "logistic loss of means over tokens",
        ARXIV + "2405.14734",
        "-log s(beta (log p(w) / |w| - log p(l) / |l|) - gamma)",
        needs_reference=False,
    ),
    PairLoss(
        formulas.cpo,
        "logistic loss of log-probabilities, and likelihood of w",
        ARXIV + "2401.08417",
        "-log s(beta (log p(w) - log p(l))) - alpha log p(w) / |w|",
        needs_reference=False,
    ),
    PairLoss(
        formulas.orpo,
        "likelihood of w, and logistic loss of odds",
        ARXIV + "2403.07691",
        "-log p(w) / |w| - lam log s(log odds(w) - log odds(l)), odds = m / (1 - m), m = exp(log p / |y|)",
        needs_reference=False,
    ),
    PairLoss(
        formulas.kto,
        "single responses, each rated good or bad",
        ARXIV + "2402.01306",
        "weight (1 - s(+-beta (log ratio - z))), + for good ones; z = max(0, mean of mismatched log ratios)",
    ),
)
"""Losses on preferences. All take `Pairs` except `kto`, which rates single responses."""


def resolve_pair_loss(name: str) -> PairLoss:
    """Find the loss called `name`: a key of `PAIR_LOSSES`, `package.module:function` or `path/to/file.py:function`.

    A plugin takes `pairs` and numbers after a bare `*`, and returns one loss per pair, `[P]`. It is given a reference.
    ConfigError otherwise.
    """
    if ":" not in name:
        return find_row(name, PAIR_LOSSES, "preference loss")
    row = plugin_row(PairLoss, name, "preference loss")
    if row.inputs != ("pairs",):
        raise ConfigError(
            f"preference loss {name!r} takes ({', '.join(row.inputs)})",
            remedy="change it to take (pairs), and numbers after a bare *",
        )
    return row
