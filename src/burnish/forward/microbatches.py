"""Cutting a minibatch into micro-batches: memory and speed change, the result does not."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

FULL_SPEED_TOKENS = 1024
"""Above this many tokens a larger micro-batch is hardly faster on a CPU, except for very small models."""


def microbatches_by_tokens(lengths: Sequence[int], tokens_per_microbatch: int) -> list[list[int]]:
    """Row numbers of each micro-batch, longest rows first; rows x longest row stays within the budget.

    A single row above the budget gets its own micro-batch. Deterministic: equal lengths keep their order.
    """
    microbatches: list[list[int]] = []
    width = 0
    for row in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if microbatches and (len(microbatches[-1]) + 1) * width <= tokens_per_microbatch:
            microbatches[-1].append(row)
        else:
            microbatches.append([row])
            width = max(1, lengths[row])
    return microbatches


def microbatches_by_groups(
    prompt_lengths: Sequence[int],
    lengths: Sequence[int],
    groups: Sequence[Sequence[int]],
    tokens_per_microbatch: int,
    *,
    shared_tokens: int = FULL_SPEED_TOKENS,
    shared_responses: int | None = None,
    whole: bool = False,
) -> list[list[int]]:
    """Row numbers of each micro-batch for rows that are packed with each prompt once: groups stay together
    where they fit, longest prompts first, longest responses first within a group.

    A micro-batch with several groups is filled only to half the budget (or `shared_tokens`, if that is more): filling
    it further would take memory and save no time. For the same reason it has at most `shared_responses` tokens of
    responses. A single group may use all of the budget, because a group that is split reads its prompt again. A single
    row above the budget gets its own micro-batch, with `whole` a single group, because none is split.
    """
    microbatches: list[list[int]] = []
    used = answered = 0
    shared = min(tokens_per_microbatch, max(tokens_per_microbatch // 2, shared_tokens))
    # Row numbers break ties: equal batches are cut alike, wherever they come from.
    for group in sorted(groups, key=lambda rows: (-prompt_lengths[rows[0]], rows[0])):
        prompt, responses = prompt_lengths[group[0]], sum(lengths[row] for row in group)
        is_full = not microbatches or used + prompt + responses > shared
        is_full |= shared_responses is not None and answered + responses > shared_responses
        pending = prompt  # what the prompt costs in this micro-batch, paid by its first row there
        for row in sorted(group, key=lambda row: (-lengths[row], row)):
            if is_full or (used + pending + lengths[row] > tokens_per_microbatch and not whole):
                microbatches.append([])
                used, answered, pending, is_full = 0, 0, prompt, False
            microbatches[-1].append(row)
            used, answered, pending = used + pending + lengths[row], answered + lengths[row], 0
    return microbatches


def position_ids(attention_mask_BS: Tensor) -> Tensor:
    """(B, S) int64 positions for any padding layout: the number of real tokens before each slot.

    [23073, PAD, PAD, 11, 339, 561] has positions [0, 1, 1, 1, 2, 3]: padding takes no position.
    """
    return attention_mask_BS.cumsum(dim=-1, dtype=torch.int64) - attention_mask_BS.to(torch.int64)
