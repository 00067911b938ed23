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


def _preset(name: str, summary: str, source: str, **values: Json) -> Preset:
    return Preset(name, summary, source, {key.replace("__", "."): value for key, value in values.items()})


def _kl(kl_in: str, coef: float, estimator: str) -> dict[str, Json]:
    """A KL to the reference, in the reward or in the loss."""
    return {"algorithm__kl_in": kl_in, "algorithm__kl_coef": coef, "algorithm__kl_estimator": estimator}


_NO_CLIP: Mapping[str, Json] = {"algorithm__clip_low": None, "algorithm__clip_high": None}
_REINFORCE: Mapping[str, Json] = {"algorithm__loss": "reinforce", **_NO_CLIP}

_LINEAGE_PPO: Mapping[str, Json] = {
    "steps": 1953,
    "rollout__prompts_per_step": 512,
    "rollout__group_size": 1,
    "rollout__temperature": 0.7,
    "scoring__incomplete_score": -1.0,
    "algorithm__estimator": "gae",
    "algorithm__gamma": 1.0,
    "algorithm__lam": 0.95,
    "algorithm__loss": "ppo_clip",
    "algorithm__clip_low": 0.2,
    "algorithm__clip_high": 0.2,
    "algorithm__aggregation": "token_mean",
    "algorithm__kl_in": "reward",
    "algorithm__kl_estimator": "k1",
    "algorithm__whiten_advantages": True,
    "algorithm__entropy_coef": 0.0,
    "critic__coef": 0.1,
    "critic__clip": 0.2,
    "critic__learning_rate": None,
    "optimization__schedule": "linear",
    "optimization__schedule_unit": "step",
    "optimization__eps": 1e-5,
    "optimization__max_grad_norm": None,
    "optimization__epochs": 4,
    "optimization__minibatches": 1,
}
"""Settings that the code of 2019 and 2020 has in common. A million episodes at 512 responses per step are 1953
steps."""

PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        _preset(
            "grpo",
            "Group-normalised advantages, clipped ratio, KL to the reference in the loss.",
            "https://arxiv.org/abs/2402.03300",
            algorithm__estimator="grpo",
            algorithm__aggregation="sequence_mean_token_mean",
            **_kl("loss", 0.04, "k3"),
            rollout__group_size=8,
        ),
        _preset(
            "ppo",
            "Advantages from a critic, clipped ratio and values, KL in the reward; needs no groups.",
            "https://arxiv.org/abs/1707.06347",
            algorithm__estimator="gae",
            algorithm__whiten_advantages=True,
            **_kl("reward", 0.05, "k1"),
            rollout__group_size=1,
            optimization__epochs=4,
        ),
        _preset(
            "dr_grpo",
            "GRPO without its two biases: it divides neither by the group's spread nor by the response's length.",
            "https://arxiv.org/abs/2503.20783",
            algorithm__estimator="dr_grpo",
            algorithm__aggregation="sequence_mean_token_sum_norm",
        ),
        _preset(
            "dapo",
            "GRPO with a higher upper clip, token mean, replacement of constant groups and a soft over-long penalty.",
            "https://arxiv.org/abs/2503.14476",
            algorithm__estimator="grpo",
            algorithm__clip_high=0.28,
            algorithm__aggregation="token_mean",
            algorithm__dynamic_sampling=True,
            algorithm__overlong_buffer=0.2,
        ),
        _preset(
            "rloo",
            "REINFORCE with the mean of the other samples as baseline, KL in the reward.",
            "https://arxiv.org/abs/2402.14740",
            algorithm__estimator="rloo",
            **_REINFORCE,
            algorithm__aggregation="sequence_mean_token_sum",
            **_kl("reward", 0.05, "k1"),
            rollout__group_size=4,
        ),
        _preset(
            "reinforce_plus_plus",
            "Return-to-go including the KL, whitened over the step; needs no groups.",
            "https://arxiv.org/abs/2501.03262",
            algorithm__estimator="reinforce_plus_plus",
            **_kl("reward", 0.01, "k1"),
        ),
        _preset(
            "reinforce_plus_plus_baseline",
            "Group mean as baseline, whitened over the step, KL (k2) in the loss.",
            "https://arxiv.org/abs/2501.03262",
            algorithm__estimator="reinforce_plus_plus_baseline",
            **_kl("loss", 0.01, "k2"),
        ),
        _preset(
            "remax",
            "REINFORCE with the score of the greedy response as baseline, KL in the reward.",
            "https://arxiv.org/abs/2310.10505",
            algorithm__estimator="remax",
            **_REINFORCE,
            algorithm__aggregation="sequence_mean_token_sum",
            **_kl("reward", 0.01, "k1"),
            rollout__group_size=1,
        ),
        _preset(
            "best_of_n",
            "Rejection sampling: likelihood of the best response to each prompt.",
            "https://arxiv.org/abs/2304.06767",
            algorithm__estimator="best_of_n",
            **_REINFORCE,
            algorithm__skip_zero_advantages=True,
        ),
        _preset(
            "online_dpo",
            "DPO between the best and the worst response to each prompt, sampled from the policy.",
            "https://arxiv.org/abs/2402.04792",
            algorithm__estimator="online_dpo",
            **_REINFORCE,
            algorithm__aggregation="sequence_mean_token_sum",
            algorithm__skip_zero_advantages=True,
            rollout__group_size=2,
        ),
        _preset(
            "opd",
            "On-policy distillation: a teacher judges each token of the policy's responses; needs no rewards.",
            "https://thinkingmachines.ai/blog/on-policy-distillation/",
            algorithm__estimator="opd",
            rollout__group_size=4,
        ),
        _preset(
            "gspo",
            "Ratios of whole sequences, clipped very tightly.",
            "https://arxiv.org/abs/2507.18071",
            algorithm__loss="gspo",
            algorithm__clip_low=3e-4,
            algorithm__clip_high=4e-4,
            algorithm__aggregation="sequence_mean_token_mean",
        ),
        _preset(
            "cispo",
            "The importance weight is clipped, not the gradient; the cap is an absolute ratio.",
            "https://arxiv.org/abs/2506.13585",
            algorithm__loss="cispo",
            algorithm__loss_options={"ratio_cap": 5.0},
            algorithm__clip_low=1.0,
            algorithm__clip_high=None,
        ),
        _preset(
            "gmpo",
            "Geometric instead of arithmetic mean of the token ratios of a sequence.",
            "https://arxiv.org/abs/2507.20673",
            algorithm__loss="gmpo",
            algorithm__clip_low=0.4,
            algorithm__clip_high=0.4,
            algorithm__aggregation="sequence_mean_token_mean",
        ),
        _preset(
            "sapo",
            "A smooth gate around ratio 1 instead of a clip.",
            "https://arxiv.org/abs/2511.20347",
            algorithm__loss="sapo",
            **_NO_CLIP,
            algorithm__aggregation="sequence_mean_token_mean",
        ),
        _preset(
            "opo",
            "Length-weighted optimal baseline, exact on-policy REINFORCE.",
            "https://arxiv.org/abs/2505.23585",
            algorithm__estimator="opo",
            **_REINFORCE,
        ),
        _preset(
            "gpg",
            "Plain policy gradient with the group mean as baseline, rescaled to make up for groups without a signal.",
            "https://arxiv.org/abs/2504.02546",
            algorithm__estimator="gpg",
            **_REINFORCE,
        ),
        _preset(
            "passk",
            "Rewards only the best sample of a group, by its lead over the second.",
            "https://arxiv.org/abs/2503.19595",
            algorithm__estimator="passk",
        ),
        _preset(
            "gdpo",
            "Each reward component is normalised within its group, then they are summed and whitened.",
            "https://arxiv.org/abs/2601.05242",
            algorithm__estimator="gdpo",
        ),
        _preset(
            "grpo_batch_std",
            "Group mean, standard deviation of the entire step.",
            "https://arxiv.org/abs/2508.08221",
            algorithm__estimator="grpo_batch_std",
        ),
        _preset(
            "kimi",
            "Policy mirror descent: REINFORCE with a squared log-ratio penalty.",
            "https://arxiv.org/abs/2501.12599",
            algorithm__estimator="dr_grpo",
            algorithm__loss="kimi",
            **_NO_CLIP,
        ),
        _preset(
            "dppo",
            "Tokens whose probability has moved too far are dropped, measured from the policy that sampled them.",
            "https://arxiv.org/abs/2602.04879",
            algorithm__loss="dppo",
            algorithm__old_logprobs="sampler",
        ),
        _preset(
            "maxrl",
            "Maximum likelihood of a correct answer: group-centred rewards divided by the group's mean.",
            "https://arxiv.org/abs/2602.02710",
            algorithm__estimator="maxrl",
        ),
        _preset(
            "kl_cov",
            "GRPO with a KL penalty on the tokens with the highest covariance of log-probability and advantage.",
            "https://arxiv.org/abs/2505.22617",
            algorithm__loss="kl_cov",
            **_NO_CLIP,
        ),
        _preset(
            "clip_cov",
            "GRPO without the gradient of a few high-covariance tokens.",
            "https://arxiv.org/abs/2505.22617",
            algorithm__loss="clip_cov",
        ),
        _preset(
            "topr",
            "Tapered off-policy REINFORCE: truncated importance weights on negative samples only.",
            "https://arxiv.org/abs/2503.14286",
            algorithm__estimator="dr_grpo",
            algorithm__loss="topr",
            **_NO_CLIP,
        ),
        _preset(
            "reinforce",
            "Plain REINFORCE with a constant baseline.",
            "https://doi.org/10.1007/BF00992696",
            algorithm__estimator="raw",
            **_REINFORCE,
            rollout__group_size=1,
        ),
        _preset(
            "turn_grpo",
            "Conversations: each turn compared with the same turn of the other samples.",
            "https://arxiv.org/abs/2505.11821",
            algorithm__estimator="turn_grpo",
            algorithm__aggregation="turn_mean_token_mean",
            rollout__group_size=8,
        ),
        _preset(
            "gigpo",
            "Conversations: GRPO of the whole one, plus GRPO among turns in the same state of the environment.",
            "https://arxiv.org/abs/2505.10978",
            algorithm__estimator="gigpo",
            algorithm__gamma=0.95,
            algorithm__aggregation="turn_mean_token_mean",
            **_kl("loss", 0.01, "k3"),
            rollout__group_size=8,
        ),
        _preset(
            "turn_gspo",
            "Conversations: ratios of whole turns, clipped very tightly.",
            "https://arxiv.org/abs/2511.20718",
            algorithm__loss="turn_gspo",
            algorithm__clip_low=3e-4,
            algorithm__clip_high=4e-4,
            algorithm__aggregation="turn_mean_token_mean",
        ),
        _preset(
            "oai_2019",
            "PPO of the 2019 RLHF code: fixed-length responses scored up to a full stop, adaptive KL, shared backbone.",
            "https://arxiv.org/abs/1909.08593",
            **_LINEAGE_PPO,
            data__query={"start_text": ".", "end_text": "."},
            rollout__max_prompt_tokens=64,
            rollout__max_response_tokens=24,
            rollout__ignore_eos=True,
            scoring__truncate_token=".",
            scoring__truncate_after=16,
            algorithm__whiten_rewards=True,
            algorithm__whiten_over="minibatch",
            algorithm__kl_coef=0.15,
            algorithm__kl_target=6.0,
            algorithm__kl_horizon=10_000,
            critic__kind="shared",
            critic__init="policy",
            critic__head_init_std=0.0,
            optimization__learning_rate=1e-5,
            optimization__optimizer="adam_tf",
            optimization__weight_decay=0.0,
        ),
        _preset(
            "tldr_2020",
            "PPO of the 2020 summarisation code: EOS trick, critic from the reward model, fixed KL.",
            "https://arxiv.org/abs/2403.17031",
            **_LINEAGE_PPO,
            rollout__max_prompt_tokens=512,
            rollout__max_response_tokens=53,
            rollout__ignore_eos=False,
            algorithm__whiten_rewards=False,
            algorithm__whiten_over="step",
            algorithm__kl_coef=0.05,
            critic__kind="separate",
            critic__init="reward_model",
            optimization__learning_rate=3e-6,
            optimization__optimizer="adamw",
            optimization__weight_decay=0.01,
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
            normalization__kind="gain_bias",
            normalization__on="policy",
            normalization__before=True,
            normalization__after=True,
            normalization__trainable=True,
            normalization__responses=512,
            normalization__max_response_tokens=24,
            normalization__temperature=0.7,
            normalization__ignore_eos=True,
            optimization__learning_rate=5e-5,
            optimization__schedule="linear",
            optimization__comparisons_per_batch=32,
            optimization__epochs=1,
            optimization__optimizer="adam_tf",
            optimization__eps=1e-5,
            optimization__max_grad_norm=None,
        ),
        _preset(
            "tldr_2020",
            "Logistic loss on pairs, score at the end of the response, mean 0 on the reference responses.",
            "https://arxiv.org/abs/2403.17031",
            max_tokens=638,
            loss="bradley_terry",
            score_at="last",
            append_eos=True,
            normalization__kind="bias",
            normalization__on="references",
            normalization__before=False,
            normalization__after=True,
            optimization__learning_rate=3e-6,
            optimization__schedule="cosine",
            optimization__comparisons_per_batch=64,
            optimization__epochs=1,
            optimization__optimizer="adamw",
            optimization__eps=1e-5,
            optimization__weight_decay=0.01,
            optimization__max_grad_norm=None,
        ),
    )
}
"""The values that `preset: NAME` sets in a run file of `burnish rm`: the reward models of the two lineage presets."""
