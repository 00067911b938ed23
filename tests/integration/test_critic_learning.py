"""Critics learn what there is to learn: returns that the prompt tells, checked on rollouts that stay as they are."""

from pathlib import Path

import pytest
import torch
from runs import BuildRl, lines_of, rows_of, trained

from burnish.algorithms.policy_losses.clipped import ppo_clip
from burnish.config.schema_data import ModelConfig
from burnish.forward.batch import Batch
from burnish.forward.scoring import ResponsePositions, TrunkRunner
from burnish.models.critic import SeparateCritic, SharedCritic
from burnish.models.loading import load_model
from burnish.models.optimizers import OptimizerSettings
from burnish.models.policy import LocalPolicy
from burnish.trainers.rl.objective import ActorCriticObjective, ClippedValueObjective, PolicyObjective

pytestmark = pytest.mark.slow

FIRST_DIGIT = """
def first_digit(prompt: str) -> float:
    return int(prompt[0]) / 9
"""
LOSS = ClippedValueObjective(clip=None, aggregation="token_mean", length=4)


def variance_explained(values: torch.Tensor, returns: torch.Tensor) -> float:
    """1 - Var(R - V) / Var(R), from the definition."""
    return float(1 - (returns - values).var() / returns.var())


@pytest.fixture
def rollouts() -> Batch:
    """Prompts `a+b=` and random responses of 1 to 4 digits; every return is a / 9."""
    generator = torch.Generator().manual_seed(0)
    sums = torch.cartesian_prod(torch.arange(10), torch.arange(10))
    lengths = torch.randint(1, 5, (100,), generator=generator)
    plus, equals = torch.full((100,), 10), torch.full((100,), 11)
    return Batch(
        prompt_tokens=torch.stack([sums[:, 0], plus, sums[:, 1], equals], dim=1),
        prompt_lengths=torch.full((100,), 4),
        response_tokens=torch.randint(0, 10, (100, 4), generator=generator),
        response_lengths=lengths,
        loss_mask=torch.arange(4) < lengths[:, None],
        group_ids=torch.arange(100),
        advantages=torch.zeros(100, 4),
        values=torch.zeros(100, 4),
        returns=(sums[:, :1] / 9).expand(100, 4).clone(),
    )


def explained(critic: SeparateCritic | SharedCritic, batch: Batch) -> float:
    return variance_explained(critic.values(batch)[batch.loss_mask], batch.returns[batch.loss_mask])  # type: ignore[index]


def test_a_shared_trunk_comes_to_explain_fixed_returns(tiny_model: Path, rollouts: Batch) -> None:
    """Advantages of 0 leave only the value loss, which reaches the trunk through the policy's own update."""
    settings = OptimizerSettings(3e-3, 200)
    policy = LocalPolicy(load_model(ModelConfig(path=str(tiny_model), device="cpu")), settings)
    critic = policy.add_value_head(settings)
    numbers = {"clip_low": 0.2, "clip_high": 0.2}
    objective = ActorCriticObjective(PolicyObjective(ppo_clip, numbers, "token_mean", 4), LOSS, coef=0.1)
    for _ in range(80):
        policy.update(rollouts, objective)
    assert explained(critic, rollouts) > 0.9


def test_a_head_alone_approaches_the_best_linear_read_out(tiny_model: Path, rollouts: Batch) -> None:
    """The least-squares fit to the trunk's hidden states is the most that a head on a still trunk can explain."""
    policy = LocalPolicy(load_model(ModelConfig(path=str(tiny_model), device="cpu")), OptimizerSettings(1e-3, 10))
    critic = policy.add_value_head(OptimizerSettings(3e-2, 1000))
    mask = rollouts.loss_mask
    with torch.no_grad():
        trained = ResponsePositions.of(rollouts, only_trained=True)
        hidden_NH = TrunkRunner(policy.model.base_model).hidden(rollouts, trained).double()
    returns_N = rollouts.returns[mask].double()  # type: ignore[index]
    inputs = torch.cat([hidden_NH, torch.ones(len(hidden_NH), 1)], dim=1)
    best = variance_explained(inputs @ torch.linalg.lstsq(inputs, returns_N).solution, returns_N)
    for _ in range(600):
        critic.update(rollouts, LOSS)
    assert 0.3 < best <= 1
    assert 0.8 * best < explained(critic, rollouts) <= best + 1e-6


def test_explained_variance_of_a_run(tiny_run: BuildRl, tmp_path: Path) -> None:
    """A critic of its own reaches 0.8 within twelve steps, and the logged number is that of the recorded rollouts:
    values from before the update, over the trained tokens."""
    (tmp_path / "first.py").write_text(FIRST_DIGIT)
    config = tiny_run(
        "steps=12",
        rewards=[{"name": f"{tmp_path}/first.py:first_digit"}],
        algorithm={"preset": "ppo"},
        critic={"learning_rate": 3e-3},
        optimization={"learning_rate": 1e-4, "epochs": 4, "minibatches": 2},
        rollout={"prompts_per_step": 32, "group_size": 1, "max_prompt_tokens": 8, "max_response_tokens": 4},
    )
    trained(config)
    rows = rows_of(config.output)
    assert rows[0]["critic/explained_variance"] == pytest.approx(0, abs=1e-9)
    assert min(row["critic/explained_variance"] for row in rows[-3:]) > 0.8
    for row in (rows[1], rows[-1]):
        file = Path(config.output) / "rollouts" / f"step-{row['step']:06d}.jsonl"
        lines = lines_of(file)
        values, returns = (
            torch.tensor([number for line in lines for number in line[name]])
            for name in ("token_values", "token_returns")
        )
        assert row["critic/explained_variance"] == pytest.approx(variance_explained(values, returns), abs=1e-4)
        assert row["critic/value_mean"] == pytest.approx(float(values.mean()), abs=1e-5)
