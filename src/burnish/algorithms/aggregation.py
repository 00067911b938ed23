"""From one loss per token to one number per optimizer step.

Denominators belong to the entire optimizer step. They are counted once before the first forward pass and passed in, so
that the sum over micro-batches (or workers) equals the loss of the uncut minibatch, including its gradient.
"""

from __future__ import annotations

from torch import Tensor

from burnish.algorithms.masking import as_single_turn, count_turns, divide, fill_masked, lengths_within_turns
from burnish.algorithms.registry import ARXIV, Formula, by_name, find_row
from burnish.errors import ConfigError

Count = Tensor | float


def count_tokens(mask_BT: Tensor) -> Tensor:
    """Count trained tokens, 0-d."""
    return mask_BT.bool().sum()


def count_sequences(mask_BT: Tensor) -> Tensor:
    """Count sequences with at least one trained token, 0-d."""
    return mask_BT.bool().any(dim=1).sum()


def token_mean(loss_BT: Tensor, mask_BT: Tensor, *, num_tokens: Count | None = None) -> Tensor:
    """Every trained token of the step has the same weight, so long responses weigh more than short ones."""
    total = fill_masked(loss_BT, mask_BT).sum()
    return divide(total, count_tokens(mask_BT) if num_tokens is None else num_tokens, mask_BT)


def sequence_mean_token_mean(loss_BT: Tensor, mask_BT: Tensor, *, num_sequences: Count | None = None) -> Tensor:
    """Every sequence has the same weight, so each token of a long one weighs less."""
    lengths_B = mask_BT.bool().sum(dim=1).clamp(min=1)  # a row without trained tokens: 0 / 1 instead of 0 / 0
    return _sequence_mean(fill_masked(loss_BT, mask_BT).sum(dim=1) / lengths_B, mask_BT, num_sequences)


def sequence_mean_token_sum(loss_BT: Tensor, mask_BT: Tensor, *, num_sequences: Count | None = None) -> Tensor:
    """The policy gradient at sequence level: sum over tokens, mean over sequences."""
    return _sequence_mean(fill_masked(loss_BT, mask_BT).sum(dim=1), mask_BT, num_sequences)


def sequence_mean_token_sum_norm(
    loss_BT: Tensor, mask_BT: Tensor, *, length: float, num_sequences: Count | None = None
) -> Tensor:
    """Sum over tokens divided by the same `length` for all sequences (usually max_response_tokens)."""
    if not length > 0:
        raise ConfigError(f"length is {length}", remedy="set it to a number above 0, usually max_response_tokens")
    return sequence_mean_token_sum(loss_BT, mask_BT, num_sequences=num_sequences) / length


def turn_mean_token_mean(
    loss_BT: Tensor, mask_BT: Tensor, *, turn_index_BT: Tensor | None = None, num_turns: Count | None = None
) -> Tensor:
    """Every turn of the policy has the same weight: mean over its tokens, then over the turns of all rows. Without
    `turn_index_BT` (see `burnish.algorithms.masking`) each row is one turn."""
    turns_BT = as_single_turn(mask_BT) if turn_index_BT is None else turn_index_BT
    loss_BT = fill_masked(loss_BT, mask_BT)
    shares_BT = loss_BT / lengths_within_turns(turns_BT, mask_BT).to(loss_BT.dtype)
    return divide(shares_BT.sum(), count_turns(turns_BT, mask_BT) if num_turns is None else num_turns, mask_BT)


AGGREGATIONS: dict[str, Formula] = by_name(
    Formula(
        token_mean, "every token of the step has the same weight", ARXIV + "2503.14476", "sum_bt loss / num_tokens"
    ),
    Formula(
        sequence_mean_token_mean,
        "every sequence has the same weight",
        ARXIV + "2402.03300",
        "sum_b (sum_t loss / len_b) / num_sequences",
    ),
    Formula(
        sequence_mean_token_sum,
        "policy gradient at sequence level",
        ARXIV + "2402.14740",
        "sum_bt loss / num_sequences",
    ),
    Formula(
        sequence_mean_token_sum_norm,
        "sum over tokens on one constant scale, without length bias",
        ARXIV + "2503.20783",
        "sum_bt loss / (num_sequences * length)",
    ),
    Formula(
        turn_mean_token_mean,
        "every turn of the policy has the same weight",
        ARXIV + "2505.10978",
        "sum_turns (sum_t loss / len_turn) / num_turns",
    ),
)


def aggregate(
    loss_BT: Tensor,
    mask_BT: Tensor,
    mode: str,
    *,
    num_tokens: Count | None = None,
    num_sequences: Count | None = None,
    num_turns: Count | None = None,
    length: float | None = None,
    turn_index_BT: Tensor | None = None,
) -> Tensor:
    """Reduce `loss_BT` `[B, T]` to one number (0-d) as `mode` says. Masked slots never count.

    Args:
        mode: a key of `AGGREGATIONS`.
        num_tokens, num_sequences, num_turns: denominators of the entire optimizer step; by default the counts of
            this tensor. Sequences and turns without a trained token are not counted.
        length: the constant of `sequence_mean_token_sum_norm`, in tokens.
        turn_index_BT: for `turn_mean_token_mean`; None if each row is one turn.

    Raises ConfigError for an unknown mode, or if the mode needs `length` and it is not given.
    """
    row = find_row(mode, AGGREGATIONS, "aggregation")
    given: dict[str, Count | None] = {
        "num_tokens": num_tokens,
        "num_sequences": num_sequences,
        "num_turns": num_turns,
        "length": length,
        "turn_index_BT": turn_index_BT,
    }
    if length is None and "length" in row.required_options:
        raise ConfigError(f"aggregation {mode!r} needs a constant length", remedy="set length to max_response_tokens")
    return row.function(loss_BT, mask_BT, **{name: given[name] for name in row.option_names})


def _sequence_mean(loss_B: Tensor, mask_BT: Tensor, num_sequences: Count | None) -> Tensor:
    return divide(loss_B.sum(), count_sequences(mask_BT) if num_sequences is None else num_sequences, mask_BT)
