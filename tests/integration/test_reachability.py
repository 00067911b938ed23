"""Every registered estimator x loss makes a real optimizer step that changes the weights; nightly ones try every
aggregation x KL mode with each.

The rollouts are sampled once with the real engine and scored by the real reward; each combination then assigns credit
and updates a real policy, so an estimator or loss whose inputs nobody provides cannot hide.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from real_steps import sampled_step, with_algorithm
from rich.console import Console
from runs import BuildRl, fitted

from burnish.algorithms.advantages import ESTIMATORS
from burnish.algorithms.aggregation import AGGREGATIONS
from burnish.algorithms.kl import KL_ESTIMATORS
from burnish.algorithms.policy_losses.table import POLICY_LOSSES
from burnish.config.names import TURN_ESTIMATORS
from burnish.config.presets import PRESETS
from burnish.config.schema import AlgorithmConfig, CriticConfig
from burnish.models.critic import SeparateCritic
from burnish.models.policy import LocalPolicy
from burnish.models.roles import Critic
from burnish.observability.metrics import MetricStore, Stopwatch
from burnish.trainers.cluster import train_rl
from burnish.trainers.rl.collection import Collected
from burnish.trainers.rl.loop import RlRun, steer_kl
from burnish.trainers.rl.setup.critic import critic_settings
from burnish.types import Rollout, Turn

Step = tuple[RlRun, Collected]

CRITICS = ("separate", "shared")
CREDIT = [(critic, name) for name, row in ESTIMATORS.items() for critic in (CRITICS if row.needs_values else ("none",))]
"""Kinds of critics with the estimators that take them."""
KL_MODES = ("none", "reward", "loss")
NEGATIVE = {("maxrl", "reward")}
"""Not together: a KL makes rewards negative."""
AGGREGATION_NAMES = list(AGGREGATIONS)
OPTIONS: list[dict[str, object]] = [
    {"reward_clip": 0.4},
    {"whiten_rewards": True},
    {"whiten_advantages": True},
    {"advantage_clip": 0.5},
    {"entropy_coef": 0.01},
    {"mask_truncated": True},
    *({"mismatch_correction": f"{of}_{how}"} for of in ("token", "sequence", "turn") for how in ("truncate", "mask")),
    *({"mismatch_correction": f"sequence_mask_{how}"} for how in ("mean", "max")),
    {"top_entropy": 0.2},
    {"mismatch_correction": "sequence_off_policy", "mismatch_delta": 0.1},
    {"discount": "turn", "gamma": 0.9},
]
WITH_TURNS: list[dict[str, Any]] = [
    *({"estimator": name} for name in TURN_ESTIMATORS),
    {"estimator": "reinforce_plus_plus", "gamma": 0.9, "discount": "turn"},
    {"loss": "turn_gspo"},
    *({"mismatch_correction": f"turn_{mode}"} for mode in ("truncate", "mask")),
]


@pytest.fixture(scope="module")
def sampled(tiny_model: Path, tiny_task: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Step]:
    """One run with everything that any algorithm may ask for (reference, greedy responses), and one step's rollouts."""
    rollout = {"prompts_per_step": 4, "group_size": 4, "max_prompt_tokens": 8, "max_response_tokens": 4}
    fields = {"rollout": rollout, "optimization": {"learning_rate": 1e-3, "epochs": 2}}
    output = tmp_path_factory.mktemp("reach") / "run"
    with sampled_step(tiny_model, tiny_task, output, needs_greedy=True, **fields) as step:
        yield step


@pytest.fixture(scope="module")
def stepping(sampled: Step) -> Callable[[str], Step]:
    """The same run and rollouts, with a critic of this kind or with none."""
    run, collected = sampled

    @cache
    def with_critic(kind: str) -> Step:
        if kind == "none":
            return sampled
        config = run.config.model_copy(update={"critic": CriticConfig(kind=kind, learning_rate=1e-3)})  # type: ignore[arg-type]
        settings = critic_settings(config)
        assert isinstance(run.policy, LocalPolicy)
        policy = LocalPolicy(run.policy.loaded, run.policy.settings)
        shared = policy.add_value_head(settings) if kind == "shared" else None
        critic: Critic = shared or SeparateCritic.copy_of(policy.loaded, settings)
        return dataclasses.replace(run, config=config, policy=policy, critic=critic), collected

    return with_critic


def in_turns(rollout: Rollout) -> Rollout:
    """A response of three or more tokens as a conversation: a tool said the second of them."""
    end = len(rollout.response_tokens)
    if end < 3:
        return dataclasses.replace(rollout, turns=(Turn("policy", 0, end),))
    turns = (Turn("policy", 0, 1, reward=0.1), Turn("tool", 1, 2), Turn("policy", 2, end))
    logprobs = (rollout.rollout_logprobs[0], 0.0, *rollout.rollout_logprobs[2:])
    return dataclasses.replace(rollout, turns=turns, rollout_logprobs=logprobs)


@pytest.fixture(scope="module")
def conversing(sampled: Step) -> Step:
    """The same run and rollouts, as conversations."""
    run, collected = sampled
    groups = tuple(
        dataclasses.replace(group, rollouts=tuple(map(in_turns, group.rollouts))) for group in collected.groups
    )
    assert any(len(rollout.policy_turns()) > 1 for group in groups for rollout in group.rollouts)
    return run, dataclasses.replace(collected, groups=groups, sampled=groups)


def step_changes_weights(run: RlRun, collected: Collected, algorithm: AlgorithmConfig) -> None:
    """Also those of the value head, where there is a critic."""
    one = with_algorithm(run, algorithm)
    model, critic = run.policy.model, run.critic  # type: ignore[attr-defined]
    head = [] if critic is None else list(critic.head.parameters())  # type: ignore[attr-defined]
    before, head_before = ([p.detach().clone() for p in weights] for weights in (model.parameters(), head))
    metrics = MetricStore()
    batch = one.prepare(collected, Stopwatch(), metrics)
    assert batch is not None
    one.update(batch, 1, metrics)
    if batch.ref_logprobs is not None:
        metrics.merge(steer_kl(batch, one.kl, algorithm))
    row = metrics.row()
    moved = any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    with torch.no_grad():
        for parameter, old in zip(model.parameters(), before, strict=True):
            parameter.copy_(old)
    assert batch.advantages is not None
    assert bool(torch.isfinite(batch.advantages).all())
    assert all(math.isfinite(value) for value in row.values()), row
    assert moved
    assert all(not torch.equal(old, new) for old, new in zip(head_before, head, strict=True))
    for learner in ("policy", "critic") if head else ("policy",):
        assert row[f"{learner}/grad_norm"] > 0
        assert row[f"{learner}/optimizer_steps"] == 2


def algorithm_of(estimator: str, loss: str, aggregation: str, kl_in: str, **fields: object) -> AlgorithmConfig:
    return AlgorithmConfig(
        estimator=estimator,
        loss=loss,
        aggregation=aggregation,
        kl_in=kl_in,
        kl_coef=0.0 if kl_in == "none" else 0.05,
        kl_estimator={"reward": "k1", "loss": "k3"}.get(kl_in),
        **fields,  # type: ignore[arg-type]
    )


def paired(estimator: str, loss: str) -> tuple[str, str]:
    """One aggregation and KL mode for each estimator x loss, so that every two of the four meet somewhere."""
    row, column = list(ESTIMATORS).index(estimator), list(POLICY_LOSSES).index(loss)
    aggregation = AGGREGATION_NAMES[(row + column) % len(AGGREGATION_NAMES)]
    kl_in = KL_MODES[(row + 2 * column) % len(KL_MODES)]
    return aggregation, "none" if (estimator, kl_in) in NEGATIVE else kl_in


def test_any_two_choices_meet_in_some_case() -> None:
    cases = [(estimator, loss, *paired(estimator, loss)) for estimator in ESTIMATORS for loss in POLICY_LOSSES]
    choices = (list(ESTIMATORS), list(POLICY_LOSSES), AGGREGATION_NAMES, list(KL_MODES))
    for first, second in itertools.combinations(range(4), 2):
        met = {(case[first], case[second]) for case in cases}
        assert met == set(itertools.product(choices[first], choices[second])) - NEGATIVE


every_credit = pytest.mark.parametrize(("critic", "estimator"), CREDIT)
every_loss = pytest.mark.parametrize("loss", POLICY_LOSSES)
every_critic = pytest.mark.parametrize("critic", ["none", *CRITICS])


@every_credit
@every_loss
def test_every_estimator_makes_a_real_step_with_every_loss(
    stepping: Callable[[str], Step], critic: str, estimator: str, loss: str
) -> None:
    algorithm = algorithm_of(estimator, loss, *paired(estimator, loss), whiten_advantages=critic != "none")
    step_changes_weights(*stepping(critic), algorithm)


@pytest.mark.matrix
@every_credit
@every_loss
def test_every_combination_makes_a_real_step(
    stepping: Callable[[str], Step], critic: str, estimator: str, loss: str
) -> None:
    for aggregation, kl_in in itertools.product(AGGREGATIONS, KL_MODES):
        if (estimator, kl_in) not in NEGATIVE:
            algorithm = algorithm_of(estimator, loss, aggregation, kl_in, whiten_advantages=critic != "none")
            step_changes_weights(*stepping(critic), algorithm)


@pytest.mark.parametrize(
    "number", range(len(WITH_TURNS)), ids=lambda number: "-".join(map(str, WITH_TURNS[number].values()))
)
def test_conversations_make_a_real_step(conversing: Step, number: int) -> None:
    fields = {"estimator": "grpo", "loss": "ppo_clip"} | WITH_TURNS[number]
    aggregation = AGGREGATION_NAMES[number % len(AGGREGATION_NAMES)]
    step_changes_weights(*conversing, algorithm_of(aggregation=aggregation, kl_in=KL_MODES[number % 3], **fields))


@every_critic
@pytest.mark.parametrize("kl_estimator", KL_ESTIMATORS)
@pytest.mark.parametrize("kl_in", ["reward", "loss"])
def test_every_kl_estimator_works_in_both_places(
    stepping: Callable[[str], Step], critic: str, kl_estimator: str, kl_in: str
) -> None:
    kl = {"kl_in": kl_in, "kl_coef": 0.1, "kl_estimator": kl_estimator, "kl_target": 1.0}
    own = {} if critic == "none" else {"estimator": "gae", "whiten_advantages": True}
    step_changes_weights(*stepping(critic), AlgorithmConfig(**kl, **own))  # type: ignore[arg-type]


@every_critic
@pytest.mark.parametrize(
    "options", OPTIONS, ids=lambda options: "-".join(str(part) for item in options.items() for part in item)
)
def test_every_option_makes_a_real_step(
    stepping: Callable[[str], Step], critic: str, options: dict[str, object]
) -> None:
    own = {} if critic == "none" else {"estimator": "gae"}
    step_changes_weights(*stepping(critic), AlgorithmConfig(**own, **options))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_trains_from_a_run_file(tiny_run: BuildRl, preset: str) -> None:
    """The whole path, run file to checkpoint, for two steps."""
    result = train_rl(tiny_run(*fitted(preset), algorithm=preset, steps=2), console=Console(quiet=True))
    assert result.step == 2
    assert (result.weights / "model.safetensors").is_file()
