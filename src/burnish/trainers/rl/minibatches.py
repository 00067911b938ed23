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
    """Row numbers of each minibatch of an epoch, sizes equal to within one; a pure function of its arguments.

    `shuffle` "prompts" puts the groups in a random order and cuts that into minibatches: a minibatch holds whole
    groups, but for those that a cut falls into, so that each prompt is read once per epoch. "responses" puts all rows
    in a random order. Groups of one row make the two the same.
    """
    num_rows = len(group_ids_B)
    digest = hashlib.blake2b(repr((seed, step, epoch)).encode(), digest_size=8).digest()
    # 63 bits are what torch takes as a seed.
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    if shuffle == "responses":
        order_B = torch.randperm(num_rows, generator=generator)
    else:
        _, group_B = torch.unique(group_ids_B.cpu(), return_inverse=True)
        place_G = torch.randperm(int(group_B.max()) + 1, generator=generator).argsort()
        # A group that a cut falls into is torn elsewhere in each epoch.
        within_B = torch.randperm(num_rows, generator=generator)
        order_B = within_B[place_G[group_B[within_B]].argsort(stable=True)]
    return order_B.tensor_split(min(minibatches, num_rows))
