"""Every registered estimator x loss makes a real optimizer step that changes the weights; nightly ones try every
aggregation x KL mode with each.

The rollouts are sampled once with the real engine and scored by the real reward; each combination then assigns credit
and updates a real policy, so an estimator or loss whose inputs nobody provides cannot hide.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from real_steps import sampled_step, with_algorithm
from rich.console import Console

from burnish.algorithms.advantages import ESTIMATORS
from burnish.algorithms.aggregation import AGGREGATIONS
from burnish.algorithms.kl import KL_ESTIMATORS
from burnish.algorithms.policy_losses.table import POLICY_LOSSES
from burnish.config.names import TURN_ESTIMATORS
from burnish.config.presets import PRESETS
from burnish.config.schema import AlgorithmConfig, CriticConfig, RlConfig
from burnish.models.critic import SeparateCritic, SharedCritic
from burnish.models.policy import LocalPolicy
from burnish.models.roles import Critic
from burnish.observability.metrics import MetricStore, Stopwatch
from burnish.trainers.rl.collection import Collected
from burnish.trainers.rl.loop import RlRun, steer_kl
from burnish.trainers.rl.setup.critic import critic_settings
from burnish.types import Rollout, Turn

CRITICS = ("separate", "shared")
WITH_CRITIC = [name for name, row in ESTIMATORS.items() if row.needs_values]
CRITIC_FREE = [name for name, row in ESTIMATORS.items() if not row.needs_values]
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
    {"mismatch_correction": "token_truncate"},
    {"mismatch_correction": "token_mask"},
    {"mismatch_correction": "sequence_truncate"},
    {"mismatch_correction": "sequence_mask"},
    {"mismatch_correction": "turn_truncate"},
    {"mismatch_correction": "turn_mask"},
    {"top_entropy": 0.2},
    {"mismatch_correction": "sequence_mask_mean"},
    {"mismatch_correction": "sequence_mask_max"},
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
def sampled(
    tiny_model: Path, tiny_task: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RlRun, Collected]]:
    """One run with everything that any algorithm may ask for (reference, greedy responses), and one step's rollouts."""
    rollout = {"prompts_per_step": 4, "group_size": 4, "max_prompt_tokens": 8, "max_response_tokens": 4}
    optimization = {"learning_rate": 1e-3, "epochs": 2}
    output = tmp_path_factory.mktemp("reach") / "run"
    with sampled_step(
        tiny_model, tiny_task, output, needs_greedy=True, rollout=rollout, optimization=optimization
    ) as step:
        yield step


@pytest.fixture(scope="module", params=CRITICS)
def with_critic(request: pytest.FixtureRequest, sampled: tuple[RlRun, Collected]) -> tuple[RlRun, Collected]:
    """The same run and rollouts with a critic of each kind."""
    run, collected = sampled
    config = run.config.model_copy(update={"critic": CriticConfig(kind=request.param, learning_rate=1e-3)})
    settings = critic_settings(config)
    assert isinstance(run.policy, LocalPolicy)
    policy = LocalPolicy(run.policy.loaded, run.policy.settings)
    separate = request.param == "separate"
    critic: Critic = SeparateCritic.copy_of(policy.loaded, settings) if separate else policy.add_value_head(settings)
    return dataclasses.replace(run, config=config, policy=policy, critic=critic), collected


def in_turns(rollout: Rollout) -> Rollout:
    """A response of three or more tokens as a conversation: a tool said the second of them."""
    end = len(rollout.response_tokens)
    if end < 3:
        return dataclasses.replace(rollout, turns=(Turn("policy", 0, end),))
    turns = (Turn("policy", 0, 1, reward=0.1), Turn("tool", 1, 2), Turn("policy", 2, end))
    logprobs = (rollout.rollout_logprobs[0], 0.0, *rollout.rollout_logprobs[2:])
    return dataclasses.replace(rollout, turns=turns, rollout_logprobs=logprobs)


@pytest.fixture(scope="module")
def conversing(sampled: tuple[RlRun, Collected]) -> tuple[RlRun, Collected]:
    """The same run and rollouts, as conversations."""
    run, collected = sampled
    groups = tuple(
        dataclasses.replace(group, rollouts=tuple(map(in_turns, group.rollouts))) for group in collected.groups
    )
    assert any(len(rollout.policy_turns()) > 1 for group in groups for rollout in group.rollouts)
    return run, dataclasses.replace(collected, groups=groups, sampled=groups)


def step_changes_weights(run: RlRun, collected: Collected, algorithm: AlgorithmConfig) -> dict[str, float]:
    one = with_algorithm(run, algorithm)
    model = run.policy.model  # type: ignore[attr-defined]
    before = [p.detach().clone() for p in model.parameters()]
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
    assert batch is not None
    assert batch.advantages is not None
    assert bool(torch.isfinite(batch.advantages).all())
    assert all(math.isfinite(value) for value in row.values()), row
    assert row["policy/grad_norm"] > 0
    assert moved
    assert row["policy/optimizer_steps"] == 2
    return row


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


@pytest.mark.parametrize("estimator", CRITIC_FREE)
@pytest.mark.parametrize("loss", list(POLICY_LOSSES))
def test_every_estimator_makes_a_real_step_with_every_loss(
    sampled: tuple[RlRun, Collected], estimator: str, loss: str
) -> None:
    step_changes_weights(*sampled, algorithm_of(estimator, loss, *paired(estimator, loss)))


@pytest.mark.matrix
@pytest.mark.parametrize("estimator", CRITIC_FREE)
@pytest.mark.parametrize("loss", list(POLICY_LOSSES))
def test_every_combination_makes_a_real_step(sampled: tuple[RlRun, Collected], estimator: str, loss: str) -> None:
    for aggregation, kl_in in itertools.product(AGGREGATIONS, KL_MODES):
        if (estimator, kl_in) in NEGATIVE:
            continue
        step_changes_weights(*sampled, algorithm_of(estimator, loss, aggregation, kl_in))


@pytest.mark.parametrize(
    "number", range(len(WITH_TURNS)), ids=lambda number: "-".join(map(str, WITH_TURNS[number].values()))
)
def test_conversations_make_a_real_step(conversing: tuple[RlRun, Collected], number: int) -> None:
    fields = {"estimator": "grpo", "loss": "ppo_clip"} | WITH_TURNS[number]
    aggregation = AGGREGATION_NAMES[number % len(AGGREGATION_NAMES)]
    step_changes_weights(*conversing, algorithm_of(aggregation=aggregation, kl_in=KL_MODES[number % 3], **fields))


def critic_steps(run: RlRun, collected: Collected, algorithm: AlgorithmConfig) -> None:
    """Make a step, in which the value head has to move too."""
    critic: SeparateCritic | SharedCritic = run.critic  # type: ignore[assignment]
    before = [parameter.detach().clone() for parameter in critic.head.parameters()]
    row = step_changes_weights(run, collected, algorithm)
    assert all(not torch.equal(old, new) for old, new in zip(before, critic.head.parameters(), strict=True))
    assert row["critic/grad_norm"] > 0
    assert row["critic/optimizer_steps"] == 2


@pytest.mark.parametrize("estimator", WITH_CRITIC)
@pytest.mark.parametrize("loss", list(POLICY_LOSSES))
def test_every_loss_with_a_critic_makes_a_real_step(
    with_critic: tuple[RlRun, Collected], estimator: str, loss: str
) -> None:
    critic_steps(*with_critic, algorithm_of(estimator, loss, *paired(estimator, loss), whiten_advantages=True))


@pytest.mark.matrix
@pytest.mark.parametrize("estimator", WITH_CRITIC)
@pytest.mark.parametrize("loss", list(POLICY_LOSSES))
def test_every_combination_with_a_critic_makes_a_real_step(
    with_critic: tuple[RlRun, Collected], estimator: str, loss: str
) -> None:
    for aggregation, kl_in in itertools.product(AGGREGATIONS, KL_MODES):
        critic_steps(*with_critic, algorithm_of(estimator, loss, aggregation, kl_in, whiten_advantages=True))


@pytest.mark.parametrize("kl_estimator", list(KL_ESTIMATORS))
@pytest.mark.parametrize("kl_in", ["reward", "loss"])
def test_every_kl_estimator_works_in_both_places(
    sampled: tuple[RlRun, Collected], kl_estimator: str, kl_in: str
) -> None:
    algorithm = AlgorithmConfig(kl_in=kl_in, kl_coef=0.1, kl_estimator=kl_estimator, kl_target=1.0)
    step_changes_weights(*sampled, algorithm)


@pytest.mark.parametrize("kl_estimator", list(KL_ESTIMATORS))
@pytest.mark.parametrize("kl_in", ["reward", "loss"])
def test_every_kl_estimator_works_in_both_places_with_a_critic(
    with_critic: tuple[RlRun, Collected], kl_estimator: str, kl_in: str
) -> None:
    algorithm = AlgorithmConfig(
        estimator="gae", kl_in=kl_in, kl_coef=0.1, kl_estimator=kl_estimator, kl_target=1.0, whiten_advantages=True
    )
    assert step_changes_weights(*with_critic, algorithm)["critic/grad_norm"] > 0


@pytest.mark.parametrize(
    "options", OPTIONS, ids=lambda options: "-".join(str(part) for item in options.items() for part in item)
)
def test_every_option_makes_a_real_step(sampled: tuple[RlRun, Collected], options: dict[str, object]) -> None:
    step_changes_weights(*sampled, AlgorithmConfig(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options", OPTIONS, ids=lambda options: "-".join(str(part) for item in options.items() for part in item)
)
def test_every_option_makes_a_real_step_with_a_critic(
    with_critic: tuple[RlRun, Collected], options: dict[str, object]
) -> None:
    algorithm = AlgorithmConfig(estimator="gae", **options)  # type: ignore[arg-type]
    assert step_changes_weights(*with_critic, algorithm)["critic/grad_norm"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("preset", list(PRESETS))
def test_every_preset_trains_from_a_run_file(
    tiny_run: Callable[..., RlConfig], for_the_task: Callable[[str], tuple[str, ...]], preset: str
) -> None:
    """The whole path, run file to checkpoint, for two steps."""
    from burnish.trainers.cluster import train_rl

    result = train_rl(tiny_run(*for_the_task(preset), algorithm=preset, steps=2), console=Console(quiet=True))
    assert result.step == 2
    assert (result.weights / "model.safetensors").is_file()
