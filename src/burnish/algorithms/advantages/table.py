"""The table of advantage estimators, and the lookup of a name in a run file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from burnish.algorithms.advantages import distillation, outcome, returns, turns
from burnish.algorithms.registry import Formula, find_row, first_line, load_function
from burnish.errors import ConfigError
from burnish.words import suggestion

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
    def needs_groups(self) -> bool:
        return "group_ids_B" in self.inputs

    @property
    def needs_values(self) -> bool:
        return "values_BT" in self.inputs

    @property
    def needs_greedy(self) -> bool:
        return "greedy_scores_B" in self.inputs

    @property
    def needs_parts(self) -> bool:
        return "parts_BC" in self.inputs

    @property
    def needs_teacher(self) -> bool:
        return "teacher_logprobs_BT" in self.inputs

    @property
    def needs_reference(self) -> bool:
        return "ref_logprobs_BT" in self.inputs

    @property
    def needs_old_logprobs(self) -> bool:
        """True if it reads log-probabilities under the weights that the step began with."""
        return "old_logprobs_BT" in self.inputs

    @property
    def needs_states(self) -> bool:
        """True if it compares turns in the same state."""
        return not {"observation_ids_BT", "history_ids_BT"}.isdisjoint(self.inputs)

    @property
    def compares_turns(self) -> bool:
        """True if it compares turns: it requires `turn_index_BT`, which others only accept to discount by turn."""
        return "turn_index_BT" in self.inputs and not self.may_discount_by_turn

    @property
    def may_discount_by_turn(self) -> bool:
        """True if `turn_index_BT` is optional: without it, the estimator discounts by token."""
        return "turn_index_BT" in self.optional_inputs

    @property
    def token_level(self) -> bool:
        """True if it works on token rewards and returns `(advantages_BT, returns_BT)`, not `advantages_B`."""
        return "token_rewards_BT" in self.inputs

    def __call__(self, tensors: Mapping[str, Tensor], options: Mapping[str, object]) -> Any:
        """Call the function with the `tensors` that its parameters name, and with `options`. A parameter with a default
        is None if there is no such tensor."""
        missing = [name for name in self.inputs if name not in tensors and name not in self.optional_inputs]
        if missing:
            raise ConfigError(f"estimator {self.name!r} needs {missing[0]}", remedy="pass it, or choose another one")
        self.check_options(options)
        return self.function(*(tensors.get(name) for name in self.inputs), **options)


ESTIMATORS: dict[str, Estimator] = {
    "gae": Estimator(
        "gae",
        returns.gae,
        "PPO's advantages from a critic",
        "https://arxiv.org/abs/1506.02438",
        "A_t = r_t + gamma V' - V_t + gamma lam A'; returns = A + V",
    ),
    "grpo": Estimator(
        "grpo",
        outcome.grpo,
        "standardised within the group",
        "https://arxiv.org/abs/2402.03300",
        "(r - mean_G) / (std_G + eps)",
    ),
    "dr_grpo": Estimator(
        "dr_grpo",
        outcome.dr_grpo,
        "centred within the group, scale unchanged",
        "https://arxiv.org/abs/2503.20783",
        "r - mean_G",
    ),
    "rloo": Estimator(
        "rloo",
        outcome.rloo,
        "unbiased leave-one-out baseline",
        "https://arxiv.org/abs/2402.14740",
        "r - (sum_G r - r) / (size_G - 1)",
    ),
    "reinforce_plus_plus": Estimator(
        "reinforce_plus_plus",
        returns.reinforce_plus_plus,
        "return-to-go whitened over the step; groups of one allowed",
        "https://arxiv.org/abs/2501.03262",
        "whiten_step(R_t), R_t = r_t + gamma R'",
    ),
    "reinforce_plus_plus_baseline": Estimator(
        "reinforce_plus_plus_baseline",
        outcome.reinforce_plus_plus_baseline,
        "group mean as baseline, one scale for the whole step",
        "https://arxiv.org/abs/2501.03262",
        "(r - mean_G) / std_step(r - mean_G)",
    ),
    "remax": Estimator(
        "remax",
        returns.remax_per_token,
        "score of the greedy response as baseline",
        "https://arxiv.org/abs/2310.10505",
        "R_t - r_greedy, R_t = r_t + R'",
    ),
    "opo": Estimator(
        "opo",
        outcome.opo,
        "length-weighted group mean as baseline",
        "https://arxiv.org/abs/2505.23585",
        "r - sum_G(length r) / sum_G(length)",
    ),
    "gpg": Estimator(
        "gpg",
        outcome.gpg,
        "centred, scaled up to make up for groups without a signal",
        "https://arxiv.org/abs/2504.02546",
        "(r - mean_G) * B / count(sequences in non-constant groups)",
    ),
    "passk": Estimator(
        "passk",
        outcome.passk,
        "trains the best of a group, for pass@k",
        "https://arxiv.org/abs/2503.19595",
        "r_max - r_second for the best of G, 0 for the others",
    ),
    "gdpo": Estimator(
        "gdpo",
        outcome.gdpo,
        "several rewards, each normalised before adding",
        "https://arxiv.org/abs/2601.05242",
        "x / std_step(x), x = sum_c w_c (r_c - mean_G r_c) / (std_G r_c + eps)",
    ),
    "grpo_batch_std": Estimator(
        "grpo_batch_std",
        outcome.grpo_batch_std,
        "group mean, standard deviation of the step",
        "https://arxiv.org/abs/2508.08221",
        "(r - mean_G) / (std_step(r) + eps)",
    ),
    "maxrl": Estimator(
        "maxrl",
        outcome.maxrl,
        "centred, divided by the mean: prompts that are seldom solved count for more",
        "https://arxiv.org/abs/2602.02710",
        "(r - mean_G) / mean_G, 0 where mean_G is 0, r in a group of one",
    ),
    "raw": Estimator(
        "raw",
        outcome.raw,
        "plain REINFORCE with a constant baseline",
        "https://doi.org/10.1007/BF00992696",
        "r - baseline",
    ),
    "turn_grpo": Estimator(
        "turn_grpo",
        turns.turn_grpo,
        "each turn standardised among the turns of the same number in its group",
        "https://arxiv.org/abs/2505.11821",
        "(R_t - mean) / (std + eps) over turns t of G, R_t = r_t + gamma R_{t+1}",
    ),
    "gigpo": Estimator(
        "gigpo",
        turns.gigpo,
        "grpo of the whole conversation, plus grpo among turns in the same state",
        "https://arxiv.org/abs/2505.10978",
        "(R - mean_G R) / (std_G R + eps) + omega (R_t - mean_S) / (std_S + eps), R_t = r_t + gamma R_{t+1}",
    ),
    "best_of_n": Estimator(
        "best_of_n",
        outcome.best_of_n,
        "rejection sampling: likelihood of the best of each group",
        "https://arxiv.org/abs/2304.06767",
        "1 for the best of G (or with r > above), 0 for the others",
    ),
    "online_dpo": Estimator(
        "online_dpo",
        outcome.online_dpo,
        "DPO between the best and the worst of each group",
        "https://arxiv.org/abs/2402.04792",
        "+-beta s(-h) for best and worst of G, h = beta (D_best - D_worst), D = sum_t(log p_old - log p_ref)",
    ),
    "opd": Estimator(
        "opd",
        distillation.opd,
        "on-policy distillation: a teacher judges each token",
        "https://thinkingmachines.ai/blog/on-policy-distillation/",
        "w (log T(y_t) - log S_old(y_t)) + reward_coef R_t, R_t = r_t + R'",
    ),
}


def resolve_estimator(name: str) -> Estimator:
    """Find the estimator called `name`: a key of `ESTIMATORS`, `package.module:function` or `path/to/file.py:function`.

    A plugin names its tensors as in `ESTIMATOR_INPUTS`, takes numbers after a bare `*`, and returns `advantages_B`, or
    `(advantages_BT, returns_BT)` if it asks for `token_rewards_BT`. ConfigError otherwise.
    """
    if ":" not in name:
        return find_row(name, ESTIMATORS, "advantage estimator")
    function = load_function(name, "advantage estimator")
    row = Estimator(name, function, first_line(function), name, "see its source")
    for parameter in row.inputs:
        if parameter not in ESTIMATOR_INPUTS:
            raise ConfigError(
                f"advantage estimator {name!r} asks for {parameter!r}, which does not exist",
                remedy=suggestion(parameter, ESTIMATOR_INPUTS) + " (numbers go after a bare *)",
            )
    return row
