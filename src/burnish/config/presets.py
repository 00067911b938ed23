"""Algorithms by name: each preset lists the defaults of the run file that it changes.

Keys are dotted paths into `RlConfig` (`RmConfig` for RM_PRESETS). The two lineage presets also list values that equal
today's defaults, so that a changed default does not change them; docs/lineage.md gives the source of each.
Layers from weakest to strongest: defaults, preset, run file, command line. Printed by `burnish algorithms NAME`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from burnish.types import Json


@dataclass(frozen=True, slots=True)
class Preset:
    """One row of the table: what the preset is, where it comes from, what it sets."""

    name: str
    summary: str
    source: str
    values: Mapping[str, Json]


def _preset(
    name: str, summary: str, source: str, *, base: Mapping[str, Json] | None = None, **sections: Json
) -> Preset:
    """One row. base: values of another row that this one begins with; sections: its own."""
    return Preset(name, summary, source, {**(base or {}), **_values(**sections)})


def _values(**sections: Json) -> dict[str, Json]:
    """Values by section, as in a run file, by the full names of their fields."""
    values: dict[str, Json] = {}
    for section, given in sections.items():
        values |= (
            {f"{section}.{field}": v for field, v in given.items()} if isinstance(given, dict) else {section: given}
        )
    return values


def _kl(kl_in: str, coef: float, estimator: str) -> dict[str, Json]:
    """A KL to the reference, in the reward or in the loss."""
    return {"kl_in": kl_in, "kl_coef": coef, "kl_estimator": estimator}


_NO_CLIP: Mapping[str, Json] = {"clip_low": None, "clip_high": None}
_REINFORCE: Mapping[str, Json] = {"loss": "reinforce", **_NO_CLIP}

_LINEAGE_PPO = _values(
    steps=1953,
    rollout={"prompts_per_step": 512, "group_size": 1, "temperature": 0.7},
    scoring={"incomplete_score": -1.0},
    algorithm={
        "estimator": "gae",
        "gamma": 1.0,
        "lam": 0.95,
        "loss": "ppo_clip",
        "clip_low": 0.2,
        "clip_high": 0.2,
        "aggregation": "token_mean",
        "kl_in": "reward",
        "kl_estimator": "k1",
        "whiten_advantages": True,
        "entropy_coef": 0.0,
    },
    critic={"coef": 0.1, "clip": 0.2, "learning_rate": None},
    optimization={
        "schedule": "linear",
        "schedule_unit": "step",
        "eps": 1e-5,
        "max_grad_norm": None,
        "epochs": 4,
        "minibatches": 1,
    },
)
"""Settings that the code of 2019 and 2020 has in common. A million episodes at 512 responses per step are 1953
steps."""

PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        _preset(
            "grpo",
            "Group-normalised advantages, clipped ratio, KL to the reference in the loss.",
            "https://arxiv.org/abs/2402.03300",
            algorithm={"estimator": "grpo", "aggregation": "sequence_mean_token_mean", **_kl("loss", 0.04, "k3")},
            rollout={"group_size": 8},
        ),
        _preset(
            "ppo",
            "Advantages from a critic, clipped ratio and values, KL in the reward; needs no groups.",
            "https://arxiv.org/abs/1707.06347",
            algorithm={"estimator": "gae", "whiten_advantages": True, **_kl("reward", 0.05, "k1")},
            rollout={"group_size": 1},
            optimization={"epochs": 4},
        ),
        _preset(
            "dr_grpo",
            "GRPO without its two biases: it divides neither by the group's spread nor by the response's length.",
            "https://arxiv.org/abs/2503.20783",
            algorithm={"estimator": "dr_grpo", "aggregation": "sequence_mean_token_sum_norm"},
        ),
        _preset(
            "dapo",
            "GRPO with a higher upper clip, token mean, replacement of constant groups and a soft over-long penalty.",
            "https://arxiv.org/abs/2503.14476",
            algorithm={
                "estimator": "grpo",
                "clip_high": 0.28,
                "aggregation": "token_mean",
                "dynamic_sampling": True,
                "overlong_buffer": 0.2,
            },
        ),
        _preset(
            "rloo",
            "REINFORCE with the mean of the other samples as baseline, KL in the reward.",
            "https://arxiv.org/abs/2402.14740",
            algorithm={
                "estimator": "rloo",
                **_REINFORCE,
                "aggregation": "sequence_mean_token_sum",
                **_kl("reward", 0.05, "k1"),
            },
            rollout={"group_size": 4},
        ),
        _preset(
            "reinforce_plus_plus",
            "Return-to-go including the KL, whitened over the step; needs no groups.",
            "https://arxiv.org/abs/2501.03262",
            algorithm={"estimator": "reinforce_plus_plus", **_kl("reward", 0.01, "k1")},
        ),
        _preset(
            "reinforce_plus_plus_baseline",
            "Group mean as baseline, whitened over the step, KL (k2) in the loss.",
            "https://arxiv.org/abs/2501.03262",
            algorithm={"estimator": "reinforce_plus_plus_baseline", **_kl("loss", 0.01, "k2")},
        ),
        _preset(
            "remax",
            "REINFORCE with the score of the greedy response as baseline, KL in the reward.",
            "https://arxiv.org/abs/2310.10505",
            algorithm={
                "estimator": "remax",
                **_REINFORCE,
                "aggregation": "sequence_mean_token_sum",
                **_kl("reward", 0.01, "k1"),
            },
            rollout={"group_size": 1},
        ),
        _preset(
            "best_of_n",
            "Rejection sampling: likelihood of the best response to each prompt.",
            "https://arxiv.org/abs/2304.06767",
            algorithm={"estimator": "best_of_n", **_REINFORCE, "skip_zero_advantages": True},
        ),
        _preset(
            "online_dpo",
            "DPO between the best and the worst response to each prompt, sampled from the policy.",
            "https://arxiv.org/abs/2402.04792",
            algorithm={
                "estimator": "online_dpo",
                **_REINFORCE,
                "aggregation": "sequence_mean_token_sum",
                "skip_zero_advantages": True,
            },
            rollout={"group_size": 2},
        ),
        _preset(
            "opd",
            "On-policy distillation: a teacher judges each token of the policy's responses; needs no rewards.",
            "https://thinkingmachines.ai/blog/on-policy-distillation/",
            algorithm={"estimator": "opd"},
            rollout={"group_size": 4},
        ),
        _preset(
            "gspo",
            "Ratios of whole sequences, clipped very tightly.",
            "https://arxiv.org/abs/2507.18071",
            algorithm={"loss": "gspo", "clip_low": 3e-4, "clip_high": 4e-4, "aggregation": "sequence_mean_token_mean"},
        ),
        _preset(
            "cispo",
            "The importance weight is clipped, not the gradient; the cap is an absolute ratio.",
            "https://arxiv.org/abs/2506.13585",
            algorithm={"loss": "cispo", "loss_options": {"ratio_cap": 5.0}, "clip_low": 1.0, "clip_high": None},
        ),
        _preset(
            "gmpo",
            "Geometric instead of arithmetic mean of the token ratios of a sequence.",
            "https://arxiv.org/abs/2507.20673",
            algorithm={"loss": "gmpo", "clip_low": 0.4, "clip_high": 0.4, "aggregation": "sequence_mean_token_mean"},
        ),
        _preset(
            "sapo",
            "A smooth gate around ratio 1 instead of a clip.",
            "https://arxiv.org/abs/2511.20347",
            algorithm={"loss": "sapo", **_NO_CLIP, "aggregation": "sequence_mean_token_mean"},
        ),
        _preset(
            "opo",
            "Length-weighted optimal baseline, exact on-policy REINFORCE.",
            "https://arxiv.org/abs/2505.23585",
            algorithm={"estimator": "opo", **_REINFORCE},
        ),
        _preset(
            "gpg",
            "Plain policy gradient with the group mean as baseline, rescaled to make up for groups without a signal.",
            "https://arxiv.org/abs/2504.02546",
            algorithm={"estimator": "gpg", **_REINFORCE},
        ),
        _preset(
            "passk",
            "Rewards only the best sample of a group, by its lead over the second.",
            "https://arxiv.org/abs/2503.19595",
            algorithm={"estimator": "passk"},
        ),
        _preset(
            "gdpo",
            "Each reward component is normalised within its group, then they are summed and whitened.",
            "https://arxiv.org/abs/2601.05242",
            algorithm={"estimator": "gdpo"},
        ),
        _preset(
            "grpo_batch_std",
            "Group mean, standard deviation of the entire step.",
            "https://arxiv.org/abs/2508.08221",
            algorithm={"estimator": "grpo_batch_std"},
        ),
        _preset(
            "kimi",
            "Policy mirror descent: REINFORCE with a squared log-ratio penalty.",
            "https://arxiv.org/abs/2501.12599",
            algorithm={"estimator": "dr_grpo", "loss": "kimi", **_NO_CLIP},
        ),
        _preset(
            "dppo",
            "Tokens whose probability has moved too far are dropped, measured from the policy that sampled them.",
            "https://arxiv.org/abs/2602.04879",
            algorithm={"loss": "dppo", "old_logprobs": "sampler"},
        ),
        _preset(
            "maxrl",
            "Maximum likelihood of a correct answer: group-centred rewards divided by the group's mean.",
            "https://arxiv.org/abs/2602.02710",
            algorithm={"estimator": "maxrl"},
        ),
        _preset(
            "kl_cov",
            "GRPO with a KL penalty on the tokens with the highest covariance of log-probability and advantage.",
            "https://arxiv.org/abs/2505.22617",
            algorithm={"loss": "kl_cov", **_NO_CLIP},
        ),
        _preset(
            "clip_cov",
            "GRPO without the gradient of a few high-covariance tokens.",
            "https://arxiv.org/abs/2505.22617",
            algorithm={"loss": "clip_cov"},
        ),
        _preset(
            "topr",
            "Tapered off-policy REINFORCE: truncated importance weights on negative samples only.",
            "https://arxiv.org/abs/2503.14286",
            algorithm={"estimator": "dr_grpo", "loss": "topr", **_NO_CLIP},
        ),
        _preset(
            "reinforce",
            "Plain REINFORCE with a constant baseline.",
            "https://doi.org/10.1007/BF00992696",
            algorithm={"estimator": "raw", **_REINFORCE},
            rollout={"group_size": 1},
        ),
        _preset(
            "turn_grpo",
            "Conversations: each turn compared with the same turn of the other samples.",
            "https://arxiv.org/abs/2505.11821",
            algorithm={"estimator": "turn_grpo", "aggregation": "turn_mean_token_mean"},
            rollout={"group_size": 8},
        ),
        _preset(
            "gigpo",
            "Conversations: GRPO of the whole one, plus GRPO among turns in the same state of the environment.",
            "https://arxiv.org/abs/2505.10978",
            algorithm={
                "estimator": "gigpo",
                "gamma": 0.95,
                "aggregation": "turn_mean_token_mean",
                **_kl("loss", 0.01, "k3"),
            },
            rollout={"group_size": 8},
        ),
        _preset(
            "turn_gspo",
            "Conversations: ratios of whole turns, clipped very tightly.",
            "https://arxiv.org/abs/2511.20718",
            algorithm={"loss": "turn_gspo", "clip_low": 3e-4, "clip_high": 4e-4, "aggregation": "turn_mean_token_mean"},
        ),
        _preset(
            "oai_2019",
            "PPO of the 2019 RLHF code: fixed-length responses scored up to a full stop, adaptive KL, shared backbone.",
            "https://arxiv.org/abs/1909.08593",
            base=_LINEAGE_PPO,
            data={"query": {"start_text": ".", "end_text": "."}},
            rollout={"max_prompt_tokens": 64, "max_response_tokens": 24, "ignore_eos": True},
            scoring={"truncate_token": ".", "truncate_after": 16},
            algorithm={
                "whiten_rewards": True,
                "whiten_over": "minibatch",
                "kl_coef": 0.15,
                "kl_target": 6.0,
                "kl_horizon": 10_000,
            },
            critic={"kind": "shared", "init": "policy", "head_init_std": 0.0},
            optimization={"learning_rate": 1e-5, "optimizer": "adam_tf", "weight_decay": 0.0},
        ),
        _preset(
            "tldr_2020",
            "PPO of the 2020 summarisation code: EOS trick, critic from the reward model, fixed KL.",
            "https://arxiv.org/abs/2403.17031",
            base=_LINEAGE_PPO,
            rollout={"max_prompt_tokens": 512, "max_response_tokens": 53, "ignore_eos": False},
            algorithm={"whiten_rewards": False, "whiten_over": "step", "kl_coef": 0.05},
            critic={"kind": "separate", "init": "reward_model"},
            optimization={"learning_rate": 3e-6, "optimizer": "adamw", "weight_decay": 0.01},
        ),
    )
}

RM_PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        _preset(
            "oai_2019",
            "Softmax over four candidates, fixed-length responses, gain and bias trained and normalised twice.",
            "https://arxiv.org/abs/1909.08593",
            max_tokens=88,
            loss="best_of",
            candidates=4,
            score_at="last_position",
            response_length=24,
            normalization={
                "kind": "gain_bias",
                "on": "policy",
                "before": True,
                "after": True,
                "trainable": True,
                "responses": 512,
                "max_response_tokens": 24,
                "temperature": 0.7,
                "ignore_eos": True,
            },
            optimization={
                "learning_rate": 5e-5,
                "schedule": "linear",
                "comparisons_per_batch": 32,
                "epochs": 1,
                "optimizer": "adam_tf",
                "eps": 1e-5,
                "max_grad_norm": None,
            },
        ),
        _preset(
            "tldr_2020",
            "Logistic loss on pairs, score at the end of the response, mean 0 on the reference responses.",
            "https://arxiv.org/abs/2403.17031",
            max_tokens=638,
            loss="bradley_terry",
            score_at="last",
            append_eos=True,
            normalization={"kind": "bias", "on": "references", "before": False, "after": True},
            optimization={
                "learning_rate": 3e-6,
                "schedule": "cosine",
                "comparisons_per_batch": 64,
                "epochs": 1,
                "optimizer": "adamw",
                "eps": 1e-5,
                "weight_decay": 0.01,
                "max_grad_norm": None,
            },
        ),
    )
}
"""The values that `preset: NAME` sets in a run file of `burnish rm`: the reward models of the two lineage presets."""
