"""From scored rollouts (host) to one batch (device), rows in the order of the groups, and to its minibatches."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from burnish.forward.batch import Batch
from burnish.types import FinishReason, Rollout, RolloutGroup, Turn


@dataclass(frozen=True, slots=True)
class BatchRewards:
    """The rewards of a batch's rows.

    scores_B: weighted sum of the rewards (with penalties). dense_rewards_BT: rewards per token, if any reward gave
    them. greedy_scores_B: score of the greedy response to the same prompt. parts_BC: each reward before its weight.
    counted_B: index of the row that counts for this one among the others of its group, if a sample has several rows.
    observation_ids_BT, history_ids_BT: in which state each turn is, for estimators that compare turns in one state.
    """

    scores_B: Tensor
    dense_rewards_BT: Tensor | None = None
    greedy_scores_B: Tensor | None = None
    parts_BC: Tensor | None = None
    weights_C: Tensor | None = None
    counted_B: Tensor | None = None
    observation_ids_BT: Tensor | None = None
    history_ids_BT: Tensor | None = None


def scored(groups: Sequence[RolloutGroup]) -> list[tuple[RolloutGroup, Rollout]]:
    """The rollouts that have a reward. One whose reward failed is left out of its group."""
    return [(group, rollout) for group in groups for rollout in group.rollouts if rollout.reward is not None]


def build_batch(rollouts: Sequence[Rollout], *, pad_token_id: int, mask_truncated: bool) -> Batch:
    """Right-padded tensors of the rollouts' own tokens; every response token that the policy sampled is trained on.

    With `mask_truncated`, responses that hit the length limit have no trained tokens.
    """
    loss_mask = padded([r.sampled_mask() for r in rollouts], False, torch.bool)
    # Their tokens stay in the batch, because scores and lengths of the group count them.
    if mask_truncated:
        loss_mask &= ~_truncated(rollouts)[:, None]
    return Batch(
        prompt_tokens=padded([r.prompt_tokens for r in rollouts], pad_token_id, torch.int64),
        prompt_lengths=torch.tensor([len(r.prompt_tokens) for r in rollouts]),
        response_tokens=padded([r.response_tokens for r in rollouts], pad_token_id, torch.int64),
        response_lengths=torch.tensor([len(r.response_tokens) for r in rollouts]),
        loss_mask=loss_mask,
        group_ids=torch.tensor([r.group_id for r in rollouts]),
        turn_index=_turn_index(rollouts) if any(rollout.turns for rollout in rollouts) else None,
        rollout_logprobs=padded([r.rollout_logprobs for r in rollouts], 0.0, torch.float32),
    )


def _truncated(rollouts: Sequence[Rollout]) -> Tensor:
    """(B,) bool: rows that hit the length limit, or belong to a conversation that did so in another row."""
    cut = [rollout.finish_reason is FinishReason.LENGTH for rollout in rollouts]
    samples = {rollout.sample for rollout, is_cut in zip(rollouts, cut, strict=True) if is_cut}
    earlier = [rollout.ends_in is not None and rollout.sample in samples for rollout in rollouts]
    return torch.tensor(cut) | torch.tensor(earlier)


def _turn_index(rollouts: Sequence[Rollout]) -> Tensor:
    """The number of the policy's turn of each token, -1 elsewhere. A row without turns is one."""
    rows = [labelled(rollout, range(len(rollout.policy_turns()))) for rollout in rollouts]
    return padded(rows, -1, torch.int64)


def labelled(rollout: Rollout, labels: Iterable[int]) -> list[int]:
    """Label each token of the response by its turn of the policy, -1 elsewhere. `labels`: one for each turn."""
    row = [-1] * len(rollout.response_tokens)
    for turn, label in zip(rollout.policy_turns(), labels, strict=True):
        row[turn.start : turn.stop] = [label] * (turn.stop - turn.start)
    return row


def with_states(rewards: BatchRewards, rollouts: Sequence[Rollout]) -> BatchRewards:
    """The rewards with the states of the turns of these rows."""
    observations, histories = turn_states(rollouts)
    rows = [[labelled(r, ids) for r, ids in zip(rollouts, found, strict=True)] for found in (observations, histories)]
    observation_ids_BT, history_ids_BT = (padded(each, -1, torch.int64) for each in rows)
    return replace(rewards, observation_ids_BT=observation_ids_BT, history_ids_BT=history_ids_BT)


def build_rewards(rows: Sequence[tuple[RolloutGroup, Rollout]]) -> BatchRewards:
    """Rewards of the rows."""
    rollouts = [rollout for _, rollout in rows]
    dense_BT = greedy_B = None
    if any(r.token_rewards is not None for r in rollouts):
        dense_BT = padded([_dense_row(r) for r in rollouts], 0.0, torch.float32)
    greedy = [group.greedy.reward for group, _ in rows if group.greedy is not None]
    # All rows or none: an estimator cannot use a baseline that some rows lack.
    if len(greedy) == len(rows) and None not in greedy:
        greedy_B = torch.tensor(greedy, dtype=torch.float32)
    return BatchRewards(
        scores_B=torch.tensor([r.reward for r in rollouts], dtype=torch.float32),
        dense_rewards_BT=dense_BT,
        greedy_scores_B=greedy_B,
        counted_B=_counted(rollouts) if any(r.branch for r in rollouts) else None,
    )


def with_parts(
    rewards: BatchRewards, rows: Sequence[tuple[RolloutGroup, Rollout]], weights: Mapping[str, float]
) -> BatchRewards:
    """The rewards with the weights of the run's rewards, by label, and what each has given these rows."""
    if not weights:
        return rewards
    parts_BC = None
    if _groups_have_equal_parts(rows, weights):
        parts = [[rollout.reward_parts.get(label, 0.0) for label in weights] for _, rollout in rows]
        parts_BC = torch.tensor(parts, dtype=torch.float32)
    return replace(rewards, parts_BC=parts_BC, weights_C=torch.tensor(list(weights.values()), dtype=torch.float32))


def _counted(rollouts: Sequence[Rollout]) -> Tensor:
    """For each row the first one of the same sample. A conversation that was sampled once must not count several times
    in its group's mean because it has several rows. Branches of an agent may differ in their scores; branches with the
    same score count once."""
    first: dict[tuple[tuple[int, int], float | None], int] = {}
    forked = {r.sample for r in rollouts if r.ends_in is not None}
    keys = [(r.sample, None if r.sample in forked else r.reward) for r in rollouts]
    return torch.tensor([first.setdefault(key, index) for index, key in enumerate(keys)])


def _groups_have_equal_parts(rows: Sequence[tuple[RolloutGroup, Rollout]], weights: Mapping[str, float]) -> bool:
    """Return whether each reward has scored all rows of a group or none. A reward that is not for a prompt then counts
    as 0 in the whole group, which says nothing about any of its rows."""
    scored_by: dict[int, set[str]] = {}
    for group, rollout in rows:
        labels = {label for label in weights if label in rollout.reward_parts}
        if not labels or scored_by.setdefault(group.group_id, labels) != labels:
            return False
    return True


def _dense_row(rollout: Rollout) -> tuple[float, ...]:
    """The row's token rewards. Next to rows with token rewards, a row with only a score has it on its last token."""
    if rollout.token_rewards is not None:
        return rollout.token_rewards
    last = rollout.last_sampled
    return tuple(
        float(rollout.reward or 0.0) if index == last else 0.0 for index in range(len(rollout.response_tokens))
    )


def padded(rows: Sequence[Sequence[float]], fill: float, dtype: torch.dtype) -> Tensor:
    """Rows as one tensor, filled up on the right."""
    return pad_sequence([torch.tensor(row, dtype=dtype) for row in rows], batch_first=True, padding_value=fill)


Numbers = list[list[int]]
"""One number for each turn of the policy, row by row."""


def turn_states(rollouts: Sequence[Rollout]) -> tuple[Numbers, Numbers]:
    """The states by the last observation, and by the whole history. Numbers are comparable within a group, whose rows
    have the same prompt."""
    observations = _numbered([(r.group_id, observed(r, turn)) for turn in r.policy_turns()] for r in rollouts)
    histories = _numbered([(r.group_id, digest) for digest in _digests(r)] for r in rollouts)
    return observations, histories


def _numbered(rows: Iterable[Sequence[Hashable]]) -> Numbers:
    """Numbers from 0 for the keys in rows, the same for equal keys."""
    known: dict[Hashable, int] = {}
    return [[known.setdefault(key, len(known)) for key in row] for row in rows]


def observed(rollout: Rollout, turn: Turn) -> Hashable:
    """Return the messages that this turn of the policy answers: everything since its previous turn, and nothing for the
    first one, which answers the prompt.

    By author, role and content, because the tokens around a message depend on how the policy's turn before it ended.
    """
    before = rollout.turns[: rollout.turns.index(turn)] if rollout.turns else ()
    since: list[Hashable] = []
    for other in reversed(before):
        if other.author == "policy":
            break
        said = tuple((message.role, message.content) for message in other.messages)
        since.append((other.author, said or rollout.response_tokens[other.start : other.stop]))
    return tuple(reversed(since))


def _digests(rollout: Rollout) -> list[bytes]:
    """A hash of all tokens of the response before each turn of the policy."""
    hashed, position, digests = hashlib.blake2b(digest_size=16), 0, []
    for turn in rollout.policy_turns():
        hashed.update(array("q", rollout.response_tokens[position : turn.start]).tobytes())
        digests.append(hashed.copy().digest())
        position = turn.start
    return digests


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
