"""Masked arithmetic, over rows and over turns: what a masked slot holds, even NaN, reaches no value and no gradient.

The mask of the tokens that the policy sampled is made elsewhere (`Rollout.sampled_mask`).

The rule behind every function here: masked slots are replaced (`torch.where`) *before* anything is computed with them.
Multiplying by the mask afterwards is not enough, because 0 * NaN is NaN in both the value and the gradient.

Turns are the spans of a conversation that the policy sampled without a tool or environment in between. `turn_index_BT`
(int64) holds the number of the turn that a token belongs to, counted from 0 in each row, and -1 for tokens that the
policy did not sample: messages of tools and environments, and padding.
"""

from __future__ import annotations

import torch
from torch import Tensor

WHITEN_EPS = 1e-8  # inside the square root; far below any variance that carries signal


def as_float(values: Tensor) -> Tensor:
    """Convert `values` to float32, unless they are float64. Half precision is never used for arithmetic."""
    return values if values.dtype == torch.float64 else values.float()


def fill_masked(values: Tensor, mask: Tensor, value: float = 0.0) -> Tensor:
    """Convert `values` to floats, with `value` in every slot where `mask` is False. The gradient there is exactly 0.

    Raises ValueError if the shapes differ, because a mask that broadcasts hides a mistake.
    """
    if values.shape != mask.shape:
        raise ValueError(f"values have shape {tuple(values.shape)}, mask has shape {tuple(mask.shape)}")
    floats = as_float(values)
    return torch.where(mask.bool(), floats, torch.full_like(floats, value))


def divide(total: Tensor, denominator: Tensor | float, mask: Tensor) -> Tensor:
    """Compute `total / denominator`, with 0 instead of 0/0 if nothing in `mask` is set."""
    # new_full fills the number in on the device; copying it there, as `torch.tensor` does, would wait for the device.
    count = denominator.to(total) if isinstance(denominator, Tensor) else total.new_full((), denominator)
    nothing = (count == 0) & ~mask.bool().any()
    return total / torch.where(nothing, torch.ones_like(count), count)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of the unmasked values. 0-d; 0 for an empty mask. The sum is float64, so that the mean of equal float32
    values is exactly that value."""
    filled = fill_masked(values, mask)
    return divide(filled.sum(dtype=torch.float64), mask.bool().sum(), mask).to(filled.dtype)


def masked_var(values: Tensor, mask: Tensor, *, unbiased: bool = False) -> Tensor:
    """Variance of the unmasked values. 0-d; 0 if it is undefined (nothing unmasked, or one value and `unbiased`), and
    exactly 0 if they are all equal."""
    filled = fill_masked(values, mask)
    count = (mask.bool().sum() - int(unbiased)).clamp(min=1)
    squares = _deviations(filled, mask).square().sum(dtype=torch.float64)
    variance = (squares / count).to(filled.dtype)
    return torch.where(masked_constant(filled, mask), torch.zeros_like(variance), variance)


def masked_constant(values: Tensor, mask: Tensor) -> Tensor:
    """True (0-d) if all unmasked values are equal. Exact, unlike a variance of 0; False for an empty mask."""
    return fill_masked(values, mask, -torch.inf).max() == fill_masked(values, mask, torch.inf).min()


def whiten(values: Tensor, mask: Tensor, *, shift_mean: bool = True, unbiased: bool = False) -> Tensor:
    """Scale unmasked values to variance 1, and shift them to mean 0 unless `shift_mean` is False. Masked slots are 0.

    Values that are all equal have no scale: they become exactly 0, or stay unchanged without `shift_mean`. Statistics
    are computed on the given tensor, so pass the complete step or minibatch, never a micro-batch.
    """
    filled = fill_masked(values, mask)
    white = _deviations(filled, mask) * torch.rsqrt(masked_var(filled, mask, unbiased=unbiased) + WHITEN_EPS)
    moved = white if shift_mean else white + masked_mean(filled, mask)
    unscaled = torch.zeros_like(filled) if shift_mean else filled
    return fill_masked(torch.where(masked_constant(filled, mask), unscaled, moved), mask)


def _deviations(filled: Tensor, mask: Tensor) -> Tensor:
    """Distances from the unrounded float64 mean: nearly equal values can be closer together than the rounding error of
    a float32 mean."""
    mean = divide(filled.sum(dtype=torch.float64), mask.bool().sum(), mask)
    return fill_masked((filled.double() - mean).to(filled.dtype), mask)


def as_single_turn(mask_BT: Tensor) -> Tensor:
    """`turn_index_BT` of rows that are one turn each."""
    return torch.where(mask_BT.bool(), 0, -1)


def sum_within_turns(values_BT: Tensor, turn_index_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """At each unmasked token the sum of the unmasked values of its turn `[B, T]`, float64, without a gradient.

    A difference of two running sums: unlike an addition by index, it does not depend on the order of a GPU's threads.
    """
    running_BT = fill_masked(values_BT.detach(), mask_BT).double().cumsum(dim=1)
    before_BT = torch.nn.functional.pad(running_BT, (1, 0))
    first_BT, last_BT = _ends(turn_index_BT)
    return fill_masked(running_BT.gather(1, last_BT) - before_BT.gather(1, first_BT), mask_BT)


def lengths_within_turns(turn_index_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """At each unmasked token the number of unmasked tokens of its turn, and 1 elsewhere `[B, T]`, float64."""
    return sum_within_turns(mask_BT.double(), turn_index_BT, mask_BT).clamp(min=1)


def count_turns(turn_index_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Count the turns with at least one unmasked token in all rows together, 0-d."""
    # The turns of a row are in order, so each begins where the number rises above all before it.
    trained_BT = torch.nn.functional.pad(torch.where(mask_BT.bool(), turn_index_BT, -1), (1, 0), value=-1)
    highest_BT = trained_BT.cummax(dim=1).values
    return (highest_BT[:, 1:] > highest_BT[:, :-1]).sum()


def _ends(turn_index_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Columns of the first and the last token of the turn of each token."""
    width = turn_index_BT.shape[1]
    changes_BT = turn_index_BT[:, 1:] != turn_index_BT[:, :-1]
    columns_BT = torch.arange(width, device=turn_index_BT.device).expand_as(turn_index_BT)
    starts_BT = torch.nn.functional.pad(changes_BT, (1, 0), value=True)
    stops_BT = torch.nn.functional.pad(changes_BT, (0, 1), value=True)
    first_BT = torch.where(starts_BT, columns_BT, 0).cummax(dim=1).values
    last_BT = torch.where(stops_BT, columns_BT, width).flip(1).cummin(dim=1).values.flip(1)
    return first_BT, last_BT
