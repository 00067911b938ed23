"""Adam in TensorFlow's form against its closed form, published numbers and the other form."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from burnish.config.schema_optimization import OptimizationConfig
from burnish.models.optimizers import AdamTF, OptimizerSettings, WeightOptimizer

EPS = 1e-5


def constant_gradient_steps(optimizer_class, gradient, count):
    """Steps / learning rate for a gradient that stays the same."""
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = optimizer_class([weight], lr=1e-3, eps=EPS, weight_decay=0.0)
    steps = []
    for _ in range(count):
        before = weight.item()
        weight.grad = torch.full((1,), gradient, dtype=torch.float64)
        optimizer.step()
        steps.append((before - weight.item()) / 1e-3)
    return steps


@pytest.mark.parametrize(
    ("gradient", "torch_form", "tf_form"),
    [
        (1e-3, 0.990099, (0.759747, 0.817219, 0.845548)),
        (1e-4, 0.909091, (0.240253, 0.308964, 0.353775)),
        (1e-5, 0.5, (0.030653, 0.042797, 0.051903)),
    ],
)
def test_published_steps_of_a_constant_gradient(gradient, torch_form, tf_form):
    assert constant_gradient_steps(AdamTF, gradient, 3) == pytest.approx(tf_form, abs=1e-6)
    assert constant_gradient_steps(torch.optim.AdamW, gradient, 3) == pytest.approx([torch_form] * 3, abs=1e-6)


def test_closed_form_of_a_constant_gradient():
    """m and v are g(1 - b1^t) and g^2(1 - b2^t), so the step is g c / (g c + eps) with c = sqrt(1 - b2^t)."""
    found = constant_gradient_steps(AdamTF, 1e-4, 50)
    roots = [math.sqrt(1 - 0.999**t) for t in range(1, 51)]
    assert found == pytest.approx([1e-4 * c / (1e-4 * c + EPS) for c in roots], rel=1e-9)


@pytest.mark.parametrize(("t", "effective"), [(1, 3.1623e-7), (10, 9.9775e-7), (100, 3.0856e-6), (1000, 7.9518e-6)])
def test_effective_epsilon_of_the_other_form(t, effective):
    """In the place where TensorFlow's form has eps, PyTorch's has eps sqrt(1 - b2^t): a step of AdamTF with that
    epsilon is the step of AdamW with EPS."""
    generator = torch.Generator().manual_seed(t)
    start = torch.randn(7, generator=generator, dtype=torch.float64)
    gradient, mean = (1e-4 * torch.randn(7, generator=generator, dtype=torch.float64) for _ in range(2))
    square = 1e-8 * torch.rand(7, generator=generator, dtype=torch.float64)
    ends = []
    for optimizer_class, eps in ((torch.optim.AdamW, EPS), (AdamTF, effective)):
        weight = nn.Parameter(start.clone())
        optimizer = optimizer_class([weight], lr=1e-3, eps=eps, weight_decay=0.0)
        optimizer.state[weight] = {
            "step": torch.tensor(float(t - 1)),
            "exp_avg": mean.clone(),
            "exp_avg_sq": square.clone(),
        }
        weight.grad = gradient.clone()
        optimizer.step()
        ends.append(weight.detach())
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=2e-8)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_it_is_the_other_form_with_a_growing_epsilon(weight_decay):
    """TF(eps) makes the steps of AdamW whose epsilon at step t is eps / sqrt(1 - b2^t)."""
    generator = torch.Generator().manual_seed(0)
    ours, theirs = (nn.Parameter(torch.ones(4, 3, dtype=torch.float64)) for _ in range(2))
    settings = {"lr": 1e-2, "betas": (0.9, 0.99), "weight_decay": weight_decay}
    tf, adam = AdamTF([ours], eps=EPS, **settings), torch.optim.AdamW([theirs], eps=EPS, **settings)
    for t in range(1, 30):
        gradient = 1e-4 * torch.randn(4, 3, generator=generator, dtype=torch.float64)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        adam.param_groups[0]["eps"] = EPS / math.sqrt(1 - 0.99**t)
        tf.step()
        adam.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_a_weight_without_gradient_stays():
    moved, still = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizer = AdamTF([moved, still], lr=0.1, weight_decay=0.5)
    moved.grad = torch.ones(1)
    optimizer.step()
    assert moved.item() != 1.0
    assert still.item() == 1.0
    assert still not in optimizer.state


def test_the_run_file_chooses_it_and_its_state_goes_on_bit_for_bit():
    config = OptimizationConfig(optimizer="adam_tf", eps=EPS, learning_rate=0.1)
    settings = OptimizerSettings.from_config(config, total_steps=10)

    def steps(optimizer, parameter, numbers):
        for number in numbers:
            parameter.grad = torch.tensor([0.3, -0.7]) * (number + 1)
            optimizer.step(number, optimizer.grad_norm())

    straight = nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = WeightOptimizer([("p", straight)], settings)
    steps(optimizer, straight, range(3))
    resumed = nn.Parameter(straight.detach().clone())
    other = WeightOptimizer([("p", resumed)], settings)
    other.load_state(optimizer.state())
    steps(optimizer, straight, range(3, 6))
    steps(other, resumed, range(3, 6))
    assert torch.equal(straight, resumed)
    plain = nn.Parameter(torch.tensor([1.0, 2.0]))
    steps(WeightOptimizer([("p", plain)], OptimizerSettings(0.1, 10, eps=EPS)), plain, range(6))
    assert not torch.equal(plain, straight)
