"""Critics as the run file asks: begun from the reward model, with a head of some spread, at the policy's rate."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from batches import batch_of

from burnish.config.loading import load_run_data
from burnish.config.schema import RlConfig
from burnish.config.schema_data import ModelConfig
from burnish.forward.batch import Batch, TokenScores
from burnish.models.loading import LoadedModel, load_model
from burnish.models.optimizers import AdamTF
from burnish.models.reward_model import Readout, new_reward_model
from burnish.models.roles import Denominators, ObjectiveValue
from burnish.models.value_head import ValueHead, init_value_head
from burnish.trainers.rl.setup.critic import build_separate_critic, build_shared_critic, with_value_loss
from burnish.trainers.rl.setup.roles import build_policy


@pytest.fixture(scope="module")
def folder(save_tiny_llama: Callable[..., Path]) -> Path:
    return save_tiny_llama("0123456789")


@pytest.fixture
def loaded(folder: Path) -> LoadedModel:
    return load_model(ModelConfig(path=str(folder), device="cpu"))


@pytest.fixture
def config(folder: Path) -> Callable[..., RlConfig]:
    def build(*overrides: str, algorithm: str = "oai_2019", reward: str = "model:rm") -> RlConfig:
        model = {"path": str(folder), "device": "cpu"}
        data = {"model": model, "data": {"train": "a.txt"}, "rewards": reward, "algorithm": algorithm}
        return load_run_data(data, overrides).config

    return build


def one_row(tokens: tuple[int, ...], prompt: tuple[int, ...]) -> Batch:
    zeros, slope = torch.zeros(1, len(tokens)), torch.linspace(-1.0, 1.0, len(tokens))[None]
    fields = {"values": zeros, "returns": 0.75 + 0.25 * slope, "advantages": slope, "rollout_logprobs": zeros}
    return batch_of([prompt], [tokens], **fields)


def test_a_critic_from_the_reward_model_begins_with_its_scores(config, loaded, folder, tmp_path) -> None:
    """The value before token t is the reward of the t tokens before it, the bias of the normalisation included."""
    model = new_reward_model(ModelConfig(path=str(folder), device="cpu"), Readout(), seed=3)
    model.normalise([0.0, 1.0], scale=True, measured_on="two")
    model.save(tmp_path)
    critic = build_separate_critic(config(algorithm="tldr_2020", reward=f"model:{tmp_path}"), loaded)
    response = (5, 6, 2)
    values = critic.values(one_row(response, (3, 4)))[0, 1:].tolist()
    assert values == pytest.approx(model.score([((3, 4), response[:t]) for t in (1, 2)]), abs=1e-5)
    assert model.normalization.bias == pytest.approx(-1.0)


@pytest.mark.parametrize("kind", ["shared", "separate"])
def test_first_values_are_0_unless_the_head_has_a_spread(kind, config, loaded) -> None:
    found = {}
    for std in (0.0, 0.5):
        given = config(f"critic.kind={kind}", f"critic.head_init_std={std}")
        critic = build_separate_critic(given, loaded) or build_shared_critic(given, build_policy(given, loaded))
        found[std] = critic.values(one_row((5, 6, 2), (3, 4)))
    assert found[0.0].tolist() == [[0.0, 0.0, 0.0]]
    assert bool((found[0.5] != 0).all())


def test_the_spread_of_the_head() -> None:
    head = ValueHead(4096, device=torch.device("cpu"))
    init_value_head(head, std=0.1, seed=0)
    assert head.weight.detach().std().item() == pytest.approx(0.1, rel=0.05)
    assert head.bias.item() == 0.0


def policy_gradient(scores: TokenScores, batch: Batch, denominators: Denominators) -> ObjectiveValue:
    return ObjectiveValue(-(batch.advantages * scores.logprobs_BT).sum() / denominators.num_tokens, {})  # type: ignore[operator]


policy_gradient.needs_entropy = False  # type: ignore[attr-defined]


def test_policy_and_head_step_as_by_one_optimizer(config: Callable[..., RlConfig], loaded: LoadedModel) -> None:
    """One AdamTF over trunk, output and value head, on the same gradients, moves every weight as the two do."""
    given = config("optimization.learning_rate=1e-2", "steps=5", "rollout.prompts_per_step=4")
    policy = build_policy(given, loaded)
    critic = build_shared_critic(given, policy)
    parameters = [*policy.model.parameters(), *critic.head.parameters()]
    copies = [torch.nn.Parameter(parameter.detach().clone()) for parameter in parameters]
    joint = AdamTF(copies, lr=1e-2, eps=1e-5)
    gradients: list[list[torch.Tensor]] = []
    plain_norm = policy._optimizers[0].weights.grad_norm

    def keep() -> torch.Tensor:
        gradients.append([torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters])
        return plain_norm()

    policy._optimizers[0].weights.grad_norm = keep  # type: ignore[method-assign]
    objective = with_value_loss(given, policy_gradient)  # type: ignore[arg-type]
    for step in range(2):
        policy.update(one_row((5, 6, 2), (3, 4)), objective)
        for copy, gradient in zip(copies, gradients[step], strict=True):
            copy.grad = gradient
        joint.step()
    torch.testing.assert_close(parameters, copies, atol=1e-6, rtol=1e-5)
