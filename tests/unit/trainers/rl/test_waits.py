"""An optimizer step asks for no number before its row is asked for: on a GPU each one is a wait for all work so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import pytest
import torch
from plain_samples import ones_batch

from burnish.algorithms.mismatch import correction_weights
from burnish.algorithms.policy_losses.table import POLICY_LOSSES
from burnish.forward.batch import Batch, TokenScores
from burnish.models.roles import Denominators
from burnish.observability.metrics import MetricStore
from burnish.trainers.rl.objective import (
    ActorCriticObjective,
    ClippedValueObjective,
    LikelihoodObjective,
    PolicyObjective,
)

DENOMINATORS = Denominators(num_tokens=24, num_sequences=8, num_turns=8)
Waits = Callable[[Counter[str]], AbstractContextManager[Any]]


def part(seed: int) -> Batch:
    """A micro-batch of four responses of three tokens, with all that an objective may ask for."""
    generator = torch.Generator().manual_seed(seed)

    def numbers() -> torch.Tensor:
        return -torch.rand(4, 3, generator=generator)

    return ones_batch(
        torch.ones(4, 3, dtype=torch.bool),
        advantages=numbers(),
        old_logprobs=numbers(),
        ref_logprobs=numbers(),
        rollout_logprobs=numbers(),
        values=numbers(),
        returns=numbers(),
        selection=numbers() < -0.5,
        turn_index=torch.arange(3).div(2, rounding_mode="floor").expand(4, 3),
    )


def step(objective: Callable[..., Any]) -> MetricStore:
    """Two micro-batches, forward and backward, and what they report."""
    store = MetricStore()
    for seed in range(2):
        batch = part(seed)
        fresh = (batch.old_logprobs + 0.1).requires_grad_()  # type: ignore[operator]
        entropy, values = (-fresh * 2).detach(), (fresh * 0.5)
        value = objective(TokenScores(fresh, entropy_BT=entropy, values_BT=values), batch, DENOMINATORS)
        value.loss.backward()
        store.merge(value.metrics)
    return store


@pytest.mark.parametrize("by", ["sequence", "turn"])
@pytest.mark.parametrize("loss", sorted(POLICY_LOSSES))
def test_policy_and_value_losses_wait_for_nothing(loss: str, by: str, waits: Waits) -> None:
    row = POLICY_LOSSES[loss]
    policy = PolicyObjective(
        policy_loss=row.function,
        numbers={},
        aggregation=f"{by}_mean_token_mean",
        length=4,
        kl_coef=0.1,
        kl_times_ratio=True,
        entropy_coef=0.01,
        correction=partial(correction_weights, level=by, mode="mask", low=0.5, high=2.0),
        takes=row.more_inputs,
    )
    objective = ActorCriticObjective(policy, ClippedValueObjective(0.2, "token_mean", 4), coef=0.5)
    counted: Counter[str] = Counter()
    with waits(counted):
        store = step(objective)
        assert not counted
        assert {"policy/loss", "policy/entropy", "policy/kl_loss", "critic/loss"} <= store.row().keys()
    assert counted


def test_supervised_steps_wait_for_nothing(waits: Waits) -> None:
    counted: Counter[str] = Counter()
    with waits(counted):
        store = step(LikelihoodObjective())
        assert not counted
    assert store.row().keys() == {"train/loss"}
