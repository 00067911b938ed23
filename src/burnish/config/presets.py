"""Algorithms by name: each preset is a plain list of differences from the defaults of the run file.

Keys are dotted paths into `RlConfig`. Layers from weakest to strongest: defaults, preset, run file, command line.
Printed by `burnish algorithms NAME`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Preset:
    """One row of the table: what it is, where it comes from, what it sets."""

    name: str
    summary: str
    source: str
    values: Mapping[str, Any]


def _preset(name: str, summary: str, source: str, **values: Any) -> Preset:
    return Preset(name, summary, source, {key.replace("__", "."): value for key, value in values.items()})


_NO_CLIP = {"algorithm__clip_low": None, "algorithm__clip_high": None}

PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        _preset(
            "grpo",
            "Group-normalised advantages, clipped ratio, KL to the reference in the loss.",
            "https://arxiv.org/abs/2402.03300",
            algorithm__estimator="grpo",
            algorithm__aggregation="sequence_mean_token_mean",
            algorithm__kl_in="loss",
            algorithm__kl_coef=0.04,
            algorithm__kl_estimator="k3",
            rollout__group_size=8,
        ),
        _preset(
            "ppo",
            "Advantages from a critic, clipped ratio, clipped values, KL in the reward; no groups needed.",
            "https://arxiv.org/abs/1707.06347",
            algorithm__estimator="gae",
            algorithm__whiten_advantages=True,
            algorithm__kl_in="reward",
            algorithm__kl_coef=0.05,
            algorithm__kl_estimator="k1",
            rollout__group_size=1,
            optimization__epochs=4,
        ),
        _preset(
            "dr_grpo",
            "GRPO without the two biases: no division by the group's spread, none by the response's length.",
            "https://arxiv.org/abs/2503.20783",
            algorithm__estimator="dr_grpo",
            algorithm__aggregation="sequence_mean_token_sum_norm",
        ),
        _preset(
            "dapo",
            "GRPO with a higher upper clip, token mean, refilled constant groups and a soft over-long penalty.",
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
            algorithm__loss="reinforce",
            **_NO_CLIP,
            algorithm__aggregation="sequence_mean_token_sum",
            algorithm__kl_in="reward",
            algorithm__kl_coef=0.05,
            algorithm__kl_estimator="k1",
            rollout__group_size=4,
        ),
        _preset(
            "reinforce_plus_plus",
            "Return-to-go with the KL inside, whitened over the step; no groups needed.",
            "https://arxiv.org/abs/2501.03262",
            algorithm__estimator="reinforce_plus_plus",
            algorithm__kl_in="reward",
            algorithm__kl_coef=0.01,
            algorithm__kl_estimator="k1",
        ),
        _preset(
            "reinforce_plus_plus_baseline",
            "Group mean as baseline, whitened over the step, KL (k2) in the loss.",
            "https://arxiv.org/abs/2501.03262",
            algorithm__estimator="reinforce_plus_plus_baseline",
            algorithm__kl_in="loss",
            algorithm__kl_coef=0.01,
            algorithm__kl_estimator="k2",
        ),
        _preset(
            "remax",
            "REINFORCE with the score of the greedy response as baseline, KL in the reward.",
            "https://arxiv.org/abs/2310.10505",
            algorithm__estimator="remax",
            algorithm__loss="reinforce",
            **_NO_CLIP,
            algorithm__aggregation="sequence_mean_token_sum",
            algorithm__kl_in="reward",
            algorithm__kl_coef=0.01,
            algorithm__kl_estimator="k1",
            rollout__group_size=1,
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
            algorithm__loss="reinforce",
            **_NO_CLIP,
        ),
        _preset(
            "gpg",
            "Plain policy gradient with the group mean, rescaled for groups without signal.",
            "https://arxiv.org/abs/2504.02546",
            algorithm__estimator="gpg",
            algorithm__loss="reinforce",
            **_NO_CLIP,
        ),
        _preset(
            "passk",
            "Only the best sample of a group is rewarded, by its lead over the second.",
            "https://arxiv.org/abs/2503.19595",
            algorithm__estimator="passk",
        ),
        _preset(
            "gdpo",
            "Each reward component normalised inside its group, then summed and whitened.",
            "https://arxiv.org/abs/2601.05242",
            algorithm__estimator="gdpo",
        ),
        _preset(
            "grpo_batch_std",
            "Group mean, standard deviation of the whole step.",
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
            "kl_cov",
            "GRPO with a KL penalty on the tokens whose log-probability and advantage move together most.",
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
            algorithm__loss="reinforce",
            **_NO_CLIP,
            rollout__group_size=1,
        ),
    )
}
