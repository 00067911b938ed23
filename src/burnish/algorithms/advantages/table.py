"""The table of advantage estimators, and the lookup of a name in a run file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from burnish.algorithms.advantages import outcome, returns, turns
from burnish.algorithms.registry import ARXIV, Formula, by_name, find_row, plugin_row
from burnish.errors import ConfigError, suggestion

ESTIMATOR_INPUTS = (
    "scores_B",
    "group_ids_B",
    "lengths_B",
    "greedy_scores_B",
    "parts_BC",
    "weights_C",
    "token_rewards_BT",
    "values_BT",
    "mask_BT",
    "turn_index_BT",
    "observation_ids_BT",
    "history_ids_BT",
    "old_logprobs_BT",
    "ref_logprobs_BT",
    "teacher_logprobs_BT",
    "teacher_weights_B",
)


@dataclass(frozen=True)
class Estimator(Formula):
    """A row of `ESTIMATORS`. Its function's signature lists its inputs, from which the run's roles are planned."""

    @property
    def needs_values(self) -> bool:
        return "values_BT" in self.inputs

    @property
    def needs_greedy(self) -> bool:
        return "greedy_scores_B" in self.inputs

    @property
    def compares_turns(self) -> bool:
        """True if it compares turns: it requires `turn_index_BT`, which others only accept to discount by turn."""
        return "turn_index_BT" in self.inputs and "turn_index_BT" not in self.optional_inputs

    @property
    def token_level(self) -> bool:
        """True if it works on token rewards and returns `(advantages_BT, returns_BT)`, not `advantages_B`."""
        return "token_rewards_BT" in self.inputs

    def __call__(self, tensors: Mapping[str, Tensor | None], options: Mapping[str, object]) -> Any:
        """Call the function with the `tensors` that its parameters name, and with `options`. A parameter with a default
        is None if there is no such tensor."""
        missing = [name for name in self.inputs if tensors.get(name) is None and name not in self.optional_inputs]
        if missing:
            raise ConfigError(f"estimator {self.name!r} needs {missing[0]}", remedy="pass it, or choose another one")
        self.check_options(options)
        return self.function(*(tensors.get(name) for name in self.inputs), **options)


ESTIMATORS: dict[str, Estimator] = by_name(
    Estimator(
        returns.gae,
        "PPO's advantages from a critic",
        ARXIV + "1506.02438",
        "A_t = r_t + gamma V' - V_t + gamma lam A'; returns = A + V",
    ),
    Estimator(outcome.grpo, "standardised within the group", ARXIV + "2402.03300", "(r - mean_G) / (std_G + eps)"),
    Estimator(outcome.dr_grpo, "centred within the group, scale unchanged", ARXIV + "2503.20783", "r - mean_G"),
    Estimator(
        outcome.rloo, "unbiased leave-one-out baseline", ARXIV + "2402.14740", "r - (sum_G r - r) / (size_G - 1)"
    ),
    Estimator(
        returns.reinforce_plus_plus,
        "return-to-go whitened over the step; groups of one allowed",
        ARXIV + "2501.03262",
        "whiten_step(R_t), R_t = r_t + gamma R'",
    ),
    Estimator(
        outcome.reinforce_plus_plus_baseline,
        "group mean as baseline, one scale for the whole step",
        ARXIV + "2501.03262",
        "(r - mean_G) / std_step(r - mean_G)",
    ),
    Estimator(
        returns.remax_per_token,
        "score of the greedy response as baseline",
        ARXIV + "2310.10505",
        "R_t - r_greedy, R_t = r_t + R'",
        alias="remax",
    ),
    Estimator(
        outcome.opo,
        "length-weighted group mean as baseline",
        ARXIV + "2505.23585",
        "r - sum_G(length r) / sum_G(length)",
    ),
    Estimator(
        outcome.gpg,
        "centred, scaled up to make up for groups without a signal",
        ARXIV + "2504.02546",
        "(r - mean_G) * B / count(sequences in non-constant groups)",
    ),
    Estimator(
        outcome.passk,
        "trains the best of a group, for pass@k",
        ARXIV + "2503.19595",
        "r_max - r_second for the best of G, 0 for the others",
    ),
    Estimator(
        outcome.gdpo,
        "several rewards, each normalised before adding",
        ARXIV + "2601.05242",
        "x / std_step(x), x = sum_c w_c (r_c - mean_G r_c) / (std_G r_c + eps)",
    ),
    Estimator(
        outcome.grpo_batch_std,
        "group mean, standard deviation of the step",
        ARXIV + "2508.08221",
        "(r - mean_G) / (std_step(r) + eps)",
    ),
    Estimator(
        outcome.maxrl,
        "centred, divided by the mean: prompts that are seldom solved count for more",
        ARXIV + "2602.02710",
        "(r - mean_G) / mean_G, 0 where mean_G is 0, r in a group of one",
    ),
    Estimator(
        outcome.raw, "plain REINFORCE with a constant baseline", "https://doi.org/10.1007/BF00992696", "r - baseline"
    ),
    Estimator(
        turns.turn_grpo,
        "each turn standardised among the turns of the same number in its group",
        ARXIV + "2505.11821",
        "(R_t - mean) / (std + eps) over turns t of G, R_t = r_t + gamma R_{t+1}",
    ),
    Estimator(
        turns.gigpo,
        "grpo of the whole conversation, plus grpo among turns in the same state",
        ARXIV + "2505.10978",
        "(R - mean_G R) / (std_G R + eps) + omega (R_t - mean_S) / (std_S + eps), R_t = r_t + gamma R_{t+1}",
    ),
    Estimator(
        outcome.best_of_n,
        "rejection sampling: likelihood of the best of each group",
        ARXIV + "2304.06767",
        "1 for the best of G (or with r > above), 0 for the others",
    ),
    Estimator(
        outcome.online_dpo,
        "DPO between the best and the worst of each group",
        ARXIV + "2402.04792",
        "+-beta s(-h) for best and worst of G, h = beta (D_best - D_worst), D = sum_t(log p_old - log p_ref)",
    ),
    Estimator(
        returns.opd,
        "on-policy distillation: a teacher judges each token",
        "https://thinkingmachines.ai/blog/on-policy-distillation/",
        "w (log T(y_t) - log S_old(y_t)) + reward_coef R_t, R_t = r_t + R'",
    ),
)


def resolve_estimator(name: str) -> Estimator:
    """Find the estimator called `name`: a key of `ESTIMATORS`, `package.module:function` or `path/to/file.py:function`.

    A plugin names its tensors as in `ESTIMATOR_INPUTS`, takes numbers after a bare `*`, and returns `advantages_B`, or
    `(advantages_BT, returns_BT)` if it asks for `token_rewards_BT`. ConfigError otherwise.
    """
    if ":" not in name:
        return find_row(name, ESTIMATORS, "advantage estimator")
    row = plugin_row(Estimator, name, "advantage estimator")
    for parameter in row.inputs:
        if parameter not in ESTIMATOR_INPUTS:
            raise ConfigError(
                f"advantage estimator {name!r} asks for {parameter!r}, which does not exist",
                remedy=suggestion(parameter, ESTIMATOR_INPUTS) + " (numbers go after a bare *)",
            )
    return row
