"""Which rows of a step's batch are in which minibatch."""

from __future__ import annotations

import hashlib
from typing import Literal

import torch
from torch import Tensor

Shuffled = Literal["prompts", "responses"]


def epoch_rows(
    group_ids_B: Tensor, *, minibatches: int, shuffle: Shuffled, seed: int, step: int, epoch: int
) -> tuple[Tensor, ...]:
    """Row numbers of each minibatch of an epoch. Sizes differ by at most one. A pure function of its arguments.

    `shuffle` "prompts" puts the groups in a random order and cuts that into minibatches. A minibatch then holds whole
    groups, except for a group at a cut, so each prompt is read about once per epoch. "responses" puts all rows in a
    random order. With groups of one row the two are equivalent.
    """
    num_rows = len(group_ids_B)
    digest = hashlib.blake2b(repr((seed, step, epoch)).encode(), digest_size=8).digest()
    # torch takes seeds of 63 bits.
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    if shuffle == "responses":
        order_B = torch.randperm(num_rows, generator=generator)
    else:
        _, group_B = torch.unique(group_ids_B.cpu(), return_inverse=True)
        place_G = torch.randperm(int(group_B.max()) + 1, generator=generator).argsort()
        # Also shuffle within groups, so that a group at a cut is split differently in each epoch.
        within_B = torch.randperm(num_rows, generator=generator)
        order_B = within_B[place_G[group_B[within_B]].argsort(stable=True)]
    return order_B.tensor_split(min(minibatches, num_rows))
