import math

import pytest
import torch
import torch.nn.functional as F

from burnish.algorithms.comparison_losses import best_of, bradley_terry
from burnish.algorithms.ratios import entropy_from_logits
from burnish.algorithms.token_losses import clipped_value, value_metrics
from burnish.errors import ConfigError


def test_value_loss_is_the_larger_of_both_errors():
    values, old, returns = torch.tensor([[1.0, 0.1, 1.0]]), torch.zeros(1, 3), torch.tensor([[2.0, 2.0, 0.0]])
    # clipped values .2, .1, .2: squared errors 3.24 against 1, 3.61 both, 0.04 against 1
    torch.testing.assert_close(clipped_value(values, old, returns, clip=0.2), torch.tensor([[1.62, 1.805, 0.5]]))
    torch.testing.assert_close(clipped_value(values, old, returns, clip=None), torch.tensor([[0.5, 1.805, 0.5]]))


def test_value_loss_stops_where_the_clip_holds():
    values = torch.tensor([[1.0, 1.0]], requires_grad=True)
    clipped_value(values, torch.zeros(1, 2), torch.tensor([[2.0, 0.0]]), clip=0.2).sum().backward()
    assert values.grad.tolist() == [[0.0, 1.0]]


def test_value_metrics_count_what_the_clip_holds():
    mask = torch.tensor([[True, True, False]])
    values, old, returns = torch.tensor([[1.0, 1.0, 1.0]]), torch.zeros(1, 3), torch.tensor([[2.0, 0.0, float("nan")]])
    metrics = value_metrics(values, old, returns, mask, clip=0.2)
    assert metrics["clip_fraction"].result() == 0.5
    assert metrics["error_mean"].result() == 0.0


def test_bradley_terry():
    loss = bradley_terry(torch.tensor([2.0, 0.0]), torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(loss, torch.tensor([math.log(1 + math.exp(-1)), math.log(2)]))


def test_bradley_terry_margin_centring_and_label_noise():
    chosen, rejected = torch.tensor([2.0]), torch.tensor([1.0])
    assert bradley_terry(chosen, rejected, margin=torch.tensor([1.0])).item() == pytest.approx(math.log(2))
    plain = bradley_terry(chosen, rejected).item()
    assert bradley_terry(chosen, rejected, center_coef=0.01).item() == pytest.approx(plain + 0.09)
    smoothed = bradley_terry(chosen, rejected, label_smoothing=0.1).item()
    assert smoothed == pytest.approx(plain + 0.1)  # -log s(-x) = -log s(x) + x
    with pytest.raises(ConfigError, match=r"label_smoothing is 0\.5"):
        bradley_terry(chosen, rejected, label_smoothing=0.5)


def test_bradley_terry_is_best_of_two():
    chosen, rejected = torch.tensor([2.0, -3.0, 80.0]), torch.tensor([1.0, 4.0, -80.0])
    pairs = torch.stack([chosen, rejected], dim=1)
    torch.testing.assert_close(best_of(pairs, torch.zeros(3, dtype=torch.long)), bradley_terry(chosen, rejected))


def test_best_of_is_cross_entropy_over_the_candidates_that_are_there():
    scores, best = torch.tensor([[1.0, 2.0, 0.5, 9.0]]), torch.tensor([1])
    torch.testing.assert_close(best_of(scores, best), F.cross_entropy(scores, best, reduction="none"))
    scores.requires_grad_()
    loss = best_of(scores, best, mask_BK=torch.tensor([[True, True, True, False]]))
    torch.testing.assert_close(loss, F.cross_entropy(scores[:, :3], best, reduction="none"))
    loss.sum().backward()
    assert scores.grad[0, 3].item() == 0.0


def test_entropy_of_uniform_certain_and_filtered_logits():
    logits = torch.tensor([[0.0] * 4, [1000.0, 0.0, 0.0, 0.0], [0.0, 0.0, -math.inf, -math.inf]], requires_grad=True)
    entropy = entropy_from_logits(logits)
    torch.testing.assert_close(entropy, torch.tensor([math.log(4), 0.0, math.log(2)]))
    entropy.sum().backward()
    assert logits.grad.isfinite().all()


def test_entropy_agrees_with_torch_in_bfloat16_input():
    logits = torch.linspace(-3, 3, 14).reshape(2, 7).bfloat16()
    expected = torch.distributions.Categorical(logits=logits.float()).entropy()
    torch.testing.assert_close(entropy_from_logits(logits), expected)
