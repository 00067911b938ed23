"""The words of the configuration and the tables of the mathematics say the same."""

from __future__ import annotations

import pytest

from burnish.algorithms.advantages import ESTIMATORS
from burnish.algorithms.policy_losses import POLICY_LOSSES
from burnish.config import names
from burnish.config.fields import iter_fields
from burnish.config.presets import PRESETS
from burnish.config.schema import RlConfig, SftConfig


def test_the_tables_have_the_same_names() -> None:
    assert tuple(ESTIMATORS) == names.ESTIMATOR_NAMES
    assert tuple(POLICY_LOSSES) == names.LOSS_NAMES


def test_what_estimators_need_agrees_with_their_signatures() -> None:
    assert {n for n, e in ESTIMATORS.items() if e.needs_groups} == set(names.GROUP_ESTIMATORS)
    assert {n for n, e in ESTIMATORS.items() if e.needs_values} == set(names.CRITIC_ESTIMATORS)
    assert {n for n, e in ESTIMATORS.items() if e.needs_greedy} == set(names.GREEDY_ESTIMATORS)
    for option, users in (("gamma", names.GAMMA_ESTIMATORS), ("lam", names.LAM_ESTIMATORS)):
        assert {n for n, e in ESTIMATORS.items() if option in e.options} == set(users)
    assert {n for n, e in ESTIMATORS.items() if e.may_discount_by_turn} == set(names.DISCOUNT_ESTIMATORS)
    assert {n for n, e in ESTIMATORS.items() if e.compares_turns} == set(names.TURN_ESTIMATORS)


def test_what_losses_clip_agrees_with_their_signatures() -> None:
    for option, users in (("clip_low", names.CLIP_LOW_LOSSES), ("clip_high", names.CLIP_HIGH_LOSSES)):
        assert {n for n, row in POLICY_LOSSES.items() if option in (*row.options, *row.required_options)} == set(users)


@pytest.mark.parametrize("preset", PRESETS.values(), ids=list(PRESETS))
def test_presets_give_their_loss_and_estimator_options_they_know(preset) -> None:  # type: ignore[no-untyped-def]
    loss = POLICY_LOSSES[preset.values.get("algorithm.loss", "ppo_clip")]
    loss.check_options(preset.values.get("algorithm.loss_options", {}))
    estimator = ESTIMATORS[preset.values.get("algorithm.estimator", "grpo")]
    estimator.check_options(preset.values.get("algorithm.estimator_options", {}))


def test_words_of_other_systems_lead_to_fields_that_exist() -> None:
    known = {field.path for field in (*iter_fields(RlConfig), *iter_fields(SftConfig))}
    assert set(names.WORDS_ELSEWHERE.values()) <= known
