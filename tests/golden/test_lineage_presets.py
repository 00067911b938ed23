"""Every field of the lineage presets, against the table of published numbers; docs/lineage.md shows the same table."""

from collections.abc import Callable
from typing import Any

import pytest

from burnish.config.loading import flat_values, load_run_data
from burnish.config.presets import PRESETS, RM_PRESETS
from burnish.models.optimizers import OptimizerSettings

RUN = {"model": "m", "data": {"train": "a.txt"}}

# field: (oai_2019, tldr_2020)
RL: dict[str, tuple[Any, Any]] = {
    "steps": (1953, 1953),  # 1e6 episodes // 512
    "rollout.prompts_per_step": (512, 512),
    "rollout.group_size": (1, 1),
    "rollout.max_prompt_tokens": (64, 512),
    "rollout.max_response_tokens": (24, 53),
    "rollout.temperature": (0.7, 0.7),
    "rollout.top_k": (0, 0),
    "rollout.top_p": (1.0, 1.0),
    "rollout.ignore_eos": (True, False),
    "data.query.start_text": (".", None),
    "data.query.end_text": (".", None),
    "scoring.truncate_token": (".", None),
    "scoring.truncate_after": (16, 0),
    "scoring.incomplete_score": (-1.0, -1.0),
    "algorithm.estimator": ("gae", "gae"),
    "algorithm.gamma": (1.0, 1.0),
    "algorithm.lam": (0.95, 0.95),
    "algorithm.loss": ("ppo_clip", "ppo_clip"),
    "algorithm.clip_low": (0.2, 0.2),
    "algorithm.clip_high": (0.2, 0.2),
    "algorithm.aggregation": ("token_mean", "token_mean"),
    "algorithm.kl_in": ("reward", "reward"),
    "algorithm.kl_estimator": ("k1", "k1"),
    "algorithm.kl_coef": (0.15, 0.05),
    "algorithm.kl_target": (6.0, None),
    "algorithm.kl_horizon": (10_000, 10_000),
    "algorithm.whiten_rewards": (True, False),
    "algorithm.whiten_advantages": (True, True),
    "algorithm.whiten_over": ("minibatch", "step"),
    "algorithm.entropy_coef": (0.0, 0.0),
    "algorithm.reward_clip": (None, None),
    "critic.kind": ("shared", "separate"),
    "critic.init": ("policy", "reward_model"),
    "critic.head_init_std": (0.0, 0.0),
    "critic.coef": (0.1, 0.1),
    "critic.clip": (0.2, 0.2),
    "critic.learning_rate": (None, None),  # that of the policy: one optimizer
    "optimization.learning_rate": (1e-5, 3e-6),
    "optimization.schedule": ("linear", "linear"),
    "optimization.schedule_unit": ("step", "step"),
    "optimization.warmup_steps": (0, 0),
    "optimization.final_learning_rate_fraction": (0.0, 0.0),
    "optimization.optimizer": ("adam_tf", "adamw"),
    "optimization.eps": (1e-5, 1e-5),
    "optimization.weight_decay": (0.0, 0.01),
    "optimization.max_grad_norm": (None, None),
    "optimization.epochs": (4, 4),
    "optimization.minibatches": (1, 1),
}

RM: dict[str, tuple[Any, Any]] = {
    "max_tokens": (88, 638),
    "loss": ("best_of", "bradley_terry"),
    "candidates": (4, None),
    "margins": (False, False),
    "label_smoothing": (0.0, 0.0),
    "append_eos": (True, True),
    "head_init_std": (None, None),  # 1 / sqrt(d_model + 1)
    "score_at": ("last_position", "last"),
    "response_length": (24, None),
    "normalization.kind": ("gain_bias", "bias"),
    "normalization.on": ("policy", "references"),
    "normalization.before": (True, False),
    "normalization.after": (True, True),
    "normalization.trainable": (True, False),
    "normalization.responses": (512, 256),
    "normalization.max_response_tokens": (24, 128),
    "normalization.temperature": (0.7, 1.0),
    "normalization.ignore_eos": (True, False),
    "optimization.learning_rate": (5e-5, 3e-6),
    "optimization.schedule": ("linear", "cosine"),
    "optimization.comparisons_per_batch": (32, 64),
    "optimization.epochs": (1, 1),
    "optimization.optimizer": ("adam_tf", "adamw"),
    "optimization.eps": (1e-5, 1e-5),
    "optimization.weight_decay": (0.0, 0.01),
    "optimization.max_grad_norm": (None, None),
}
COLUMNS = {"oai_2019": 0, "tldr_2020": 1}


def policy(preset: str, *words: str) -> Any:
    return load_run_data({**RUN, "rewards": "model:rm", "algorithm": preset}, words).config


def reward_model(preset: str, *words: str) -> Any:
    return load_run_data({**RUN, "preset": preset}, words, "rm").config


@pytest.mark.parametrize("preset", COLUMNS)
def test_every_field_of_the_policys_presets(preset: str) -> None:
    found = flat_values(policy(preset))
    for field, values in RL.items():
        assert found.get(field) == values[COLUMNS[preset]], field
    covered = {field for field in RL if found.get(field) is not None or field in found} | {"data.query"}
    assert set(PRESETS[preset].values) - {"algorithm.preset"} <= covered


@pytest.mark.parametrize("preset", COLUMNS)
def test_every_field_of_the_reward_models_presets(preset: str) -> None:
    found = flat_values(reward_model(preset))
    for field, values in RM.items():
        assert found[field] == values[COLUMNS[preset]], field
    assert set(RM_PRESETS[preset].values) <= set(RM)


def test_the_file_wins_over_the_preset_of_a_reward_model() -> None:
    loaded = load_run_data({**RUN, "preset": "oai_2019", "loss": "best_of", "candidates": 3}, ["max_tokens=99"], "rm")
    assert (loaded.config.candidates, loaded.config.max_tokens, loaded.config.score_at) == (3, 99, "last_position")
    assert loaded.provenance["score_at"] == "preset oai_2019"
    assert loaded.provenance["candidates"] == "file"
    assert loaded.provenance["max_tokens"] == "command line"


OFF = [
    (policy, "oai_2019", "scoring.truncate_token=null"),
    (policy, "oai_2019", "scoring.incomplete_score=null"),
    (policy, "oai_2019", "rollout.ignore_eos=false"),
    (policy, "oai_2019", "data.query=null"),
    (policy, "oai_2019", "algorithm.kl_in=none"),
    (policy, "oai_2019", "algorithm.kl_target=null"),
    (policy, "oai_2019", "algorithm.whiten_rewards=false"),
    (policy, "oai_2019", "algorithm.whiten_advantages=false"),
    (policy, "oai_2019", "algorithm.whiten_over=step"),
    (policy, "oai_2019", "algorithm.lam=1.0"),
    (policy, "oai_2019", "critic.kind=separate"),
    (policy, "oai_2019", "critic.clip=null"),
    (policy, "oai_2019", "critic.coef=1.0"),
    (policy, "oai_2019", "critic.head_init_std=0.1"),
    (policy, "oai_2019", "critic.learning_rate=1e-4"),
    (policy, "oai_2019", "optimization.optimizer=adamw"),
    (policy, "oai_2019", "optimization.schedule=constant"),
    (policy, "oai_2019", "optimization.schedule_unit=optimizer_step"),
    (policy, "oai_2019", "optimization.max_grad_norm=1.0"),
    (policy, "oai_2019", "optimization.minibatches=4"),
    (reward_model, "oai_2019", "normalization.kind=none"),
    (reward_model, "oai_2019", "normalization.kind=bias"),
    (reward_model, "oai_2019", "normalization.before=false"),
    (reward_model, "oai_2019", "normalization.after=false"),
    (reward_model, "oai_2019", "normalization.trainable=false"),
    (reward_model, "oai_2019", "head_init_std=0.02"),
    (reward_model, "oai_2019", "optimization.optimizer=adamw"),
    (reward_model, "oai_2019", "optimization.schedule=constant"),
    (reward_model, "tldr_2020", "normalization.kind=none"),
    (reward_model, "tldr_2020", "normalization.on=policy"),
    (reward_model, "tldr_2020", "optimization.schedule=linear"),
]


@pytest.mark.parametrize(("of", "preset", "word"), OFF)
def test_each_detail_is_one_word_from_off(of: Callable[..., Any], preset: str, word: str) -> None:
    assert of(preset, word)


def test_without_its_token_the_rule_about_truncation_is_gone() -> None:
    scoring = policy("oai_2019", "scoring.truncate_token=null").scoring
    assert (scoring.truncate_after, scoring.incomplete_score) == (0, None)
    trick = policy("tldr_2020", "scoring.truncate_token=null").scoring
    assert trick.incomplete_score == -1.0  # which is about the end of the response there


def test_learning_rates_of_the_reward_model_of_2019() -> None:
    """4,992 labels in batches of 32 are 156 steps, from 5e-5 down to 5e-5 * 32 / 4992."""
    config = reward_model("oai_2019")
    steps = 4992 // config.optimization.comparisons_per_batch
    settings = OptimizerSettings.from_config(config.optimization, total_steps=steps)
    rates = [settings.learning_rate_at(step) for step in range(steps)]
    assert (steps, rates[0]) == (156, 5e-5)
    assert rates[-1] == pytest.approx(3.20513e-7, rel=1e-5)
    assert rates[-1] == pytest.approx(5e-5 * 32 / 4992)


def test_learning_rates_of_the_policy_of_2019() -> None:
    """The four epochs of a step share one rate, 1e-5 at first and 1e-5 / 1953 at last."""
    config = policy("oai_2019")
    settings = OptimizerSettings.from_config(config.optimization, total_steps=config.policy_updates)
    rates = [settings.learning_rate_at(update) for update in range(config.policy_updates)]
    assert len(rates) == 1953 * 4
    assert rates[:5] == pytest.approx([1e-5] * 4 + [1e-5 * 1952 / 1953])
    assert rates[-4:] == pytest.approx([5.12033e-9] * 4, rel=1e-5)
    smooth = OptimizerSettings.from_config(
        config.optimization.model_copy(update={"schedule_unit": "optimizer_step"}), total_steps=config.policy_updates
    )
    assert smooth.learning_rate_at(config.policy_updates - 1) == pytest.approx(1e-5 / 7812)
