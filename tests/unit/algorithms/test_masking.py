import pytest
import torch

from burnish.algorithms.masking import divide, fill_masked, masked_mean, masked_var, whiten

NAN = float("nan")


def test_mean_and_variance_of_the_unmasked_values_only():
    values, mask = torch.tensor([[1.0, NAN], [3.0, 5.0]]), torch.tensor([[True, False], [True, True]])
    assert masked_mean(values, mask).item() == 3.0
    assert masked_var(values, mask).item() == pytest.approx(8 / 3)
    assert masked_var(values, mask, unbiased=True).item() == pytest.approx(4.0)


def test_nothing_unmasked_gives_zero():
    mask = torch.zeros(3, dtype=torch.bool)
    values = torch.full((3,), NAN, requires_grad=True)
    mean = masked_mean(values, mask)
    mean.backward()
    assert mean.item() == 0.0
    assert values.grad.tolist() == [0.0, 0.0, 0.0]
    assert masked_var(values, mask, unbiased=True).item() == 0.0
    assert whiten(values, mask).tolist() == [0.0, 0.0, 0.0]


def test_a_denominator_of_zero_is_not_hidden_when_there_are_values():
    assert divide(torch.tensor(2.0), 0, torch.tensor([True])).isinf()


def test_unbiased_variance_of_one_value_is_zero_not_nan():
    assert masked_var(torch.tensor([2.0]), torch.tensor([True]), unbiased=True).item() == 0.0


def test_whitening_moves_the_mean_or_keeps_it():
    values, mask = torch.tensor([2.0, 4.0, 6.0, NAN]), torch.tensor([True, True, True, False])
    white = whiten(values, mask)
    assert masked_mean(white, mask).item() == pytest.approx(0.0, abs=1e-6)
    assert masked_var(white, mask).item() == pytest.approx(1.0, abs=1e-5)
    assert masked_mean(whiten(values, mask, shift_mean=False), mask).item() == pytest.approx(4.0, abs=1e-6)
    assert white[3].item() == 0.0


@pytest.mark.parametrize(
    ("given", "computed"),
    [(torch.bfloat16, torch.float32), (torch.float16, torch.float32), (torch.float64, torch.float64)],
)
def test_arithmetic_is_in_float32_at_least(given, computed):
    mask = torch.ones(2, dtype=torch.bool)
    assert fill_masked(torch.ones(2, dtype=given), mask).dtype == computed
    assert whiten(torch.ones(2, dtype=given), mask).dtype == computed


def test_bfloat16_sums_do_not_stall():
    ones = torch.ones(4096, dtype=torch.bfloat16)
    assert masked_mean(ones, torch.ones(4096, dtype=torch.bool)).item() == 1.0


def test_a_mask_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="mask has shape"):
        masked_mean(torch.ones(2, 3), torch.ones(3, dtype=torch.bool))


@pytest.mark.parametrize("value", [123.4, 0.1, -1e-3, 1e6 / 3, 0.0])
@pytest.mark.parametrize("shape", [(64, 97), (3,), (1,), (1000, 333)])
def test_equal_values_are_whitened_to_exactly_nothing(value, shape):
    """A float32 mean of equal values is not that value, and the difference over a deviation of about 0 is noise."""
    mask = torch.ones(shape, dtype=torch.bool)
    mask.view(-1)[1:2] = False
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        values = torch.full(shape, value, dtype=dtype)
        assert masked_mean(values, mask).item() == pytest.approx(values.view(-1)[0].item(), rel=1e-15)
        assert masked_var(values, mask).item() == 0.0
        assert not whiten(values, mask).any()
        kept = whiten(values, mask, shift_mean=False)
        assert torch.equal(kept, torch.where(mask, values.to(kept.dtype), torch.zeros_like(kept)))


def test_a_small_difference_is_a_difference():
    values, mask = torch.full((64, 97), 123.4), torch.ones(64, 97, dtype=torch.bool)
    values[5, 5] = 124.4
    assert whiten(values, mask)[5, 5].item() == pytest.approx((64 * 97 - 1) ** 0.5, rel=1e-4)


def test_values_far_from_zero_are_whitened_around_their_own_mean():
    """Half of them one float32 step above the others: the mean between is no float32 number."""
    low = torch.tensor(123.4)
    high = torch.nextafter(low, torch.tensor(200.0))
    values = torch.stack([low, high] * 50)
    step = (high.double() - low.double()).item()
    mask = torch.ones(100, dtype=torch.bool)
    assert masked_var(values, mask).item() == pytest.approx(step**2 / 4, rel=1e-6)
    white = whiten(values * 1000, mask)
    assert white.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert white[0].item() == -white[1].item()
