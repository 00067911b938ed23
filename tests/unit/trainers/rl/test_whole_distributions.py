"""The reverse KL to a teacher over the vocabulary: its share of the loss by hand, its gradient against dense logits."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from gradients import gradient_of
from plain_samples import ones_batch
from torch import Tensor

from burnish.forward.batch import Batch, TokenScores
from burnish.forward.divergences import divergence
from burnish.models.characters import tiny_llama
from burnish.models.distillation import Teachers
from burnish.models.loading import LoadedModel
from burnish.models.optimizers import OptimizerSettings
from burnish.models.policy import LocalPolicy
from burnish.models.reference import FrozenReference
from burnish.models.roles import count_denominators
from burnish.observability.metrics import MetricStore
from burnish.trainers.rl.objective import TeacherObjective


def test_divergences_are_weighed_by_teacher_and_averaged_over_trained_tokens() -> None:
    mask = torch.tensor([[True, True], [True, False]])
    batch = ones_batch(mask, teacher_weights=torch.tensor([2.0, 0.5]), rollout_logprobs=torch.zeros(2, 2))
    divergence, agrees = torch.tensor([[0.1, 0.3], [0.2, 9.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    scores = TokenScores(torch.zeros(2, 2), divergence_BT=divergence, agrees_BT=agrees)
    value = TeacherObjective("token_mean", 4)(scores, batch, count_denominators(batch))
    assert value.loss.item() == pytest.approx((2 * 0.1 + 2 * 0.3 + 0.5 * 0.2) / 3)
    row = MetricStore.of([value.metrics]).row()
    assert row["policy/teacher_divergence"] == pytest.approx(0.2)
    assert row["policy/teacher_agreement"] == pytest.approx(1 / 3)


def model_of(width: int) -> LoadedModel:
    model = tiny_llama(
        vocab_size=16, hidden_size=width, eos_token_id=1, pad_token_id=2, initializer_range=0.3, seed=width
    )
    return LoadedModel(model.double(), None, (1,), 2, 128)  # type: ignore[arg-type]


@pytest.fixture
def two_prompts(make_batch_of: Callable[..., Batch]) -> Batch:
    """Five responses to two prompts, one of them with tokens that are not trained on."""
    batch, rows = make_batch_of(rows=5, width=6), torch.tensor([0, 0, 0, 3, 3])
    return batch.replace(
        prompt_tokens=batch.prompt_tokens[rows],
        prompt_lengths=batch.prompt_lengths[rows],
        group_ids=rows,
        teacher_weights=torch.tensor([1.0, 1.0, 1.0, 0.5, 0.5]),
        rollout_logprobs=torch.zeros(5, 6),
    )


def dense_loss(student: LoadedModel, teacher: LoadedModel, batch: Batch) -> Tensor:
    """Row by row, with all logits at once."""
    total = torch.zeros((), dtype=torch.float64)
    for row in range(len(batch)):
        first, length = int(batch.prompt_lengths[row]), int(batch.response_lengths[row])
        tokens = torch.cat((batch.prompt_tokens[row, :first], batch.response_tokens[row, :length]))[None]
        log_s, log_t = (one.model(tokens).logits[0, first - 1 : -1].log_softmax(-1) for one in (student, teacher))
        apart = (log_s.exp() * (log_s - log_t.detach())).sum(-1)
        total = total + batch.teacher_weights[row] * apart[batch.loss_mask[row, :length]].sum()  # type: ignore[index]
    return total / batch.loss_mask.sum()


@pytest.mark.parametrize("budget", [16, 1_000])
def test_the_gradient_is_that_of_dense_logits(two_prompts: Batch, budget: int) -> None:
    student, teacher, batch = model_of(16), model_of(32), two_prompts
    expected = torch.autograd.grad(dense_loss(student, teacher, batch), list(student.model.parameters()))
    policy = LocalPolicy(student, OptimizerSettings(1e-2, 10), tokens_per_microbatch=budget)
    teachers = Teachers([FrozenReference(teacher, temperature=1.0, tokens_per_microbatch=budget)])
    policy.compare_with(teachers.comparison(partial(divergence, name="reverse_kl")))
    found, _ = gradient_of(policy, batch, TeacherObjective("token_mean", 6))
    for mine, theirs in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-9)
