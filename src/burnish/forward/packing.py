"""Packing: a micro-batch as one row of slots that holds each distinct prompt once.

Three responses to two prompts, `A B C` with `a b c` and `d`, and `D E` with `e f`:

    slot       0  1  2 | 3  4 | 5  6 |   | 7
    token      A  B  C | D  E | a  b |   | e
    position   0  1  2 | 0  1 | 3  4 |   | 2
    sequence   prompt 0  pr. 1  resp. of prompt 0, then of prompt 1

First all prompts, then all responses, grouped by prompt. The last token of a response predicts nothing and is left out,
so nothing remains of `d`. Every sequence (a prompt or a response) attends causally to itself, and a response to its
whole prompt as well. Positions of a response go on where its prompt ends. The state that predicts a response's first
token is the state at the prompt's last slot: here slot 2 for `a` and `d`, 4 for `e`. At the end there may be padding
(`burnish.machine.matmul_precision`), a separate sequence that nothing is read from.

A layout is made on the host, from `Batch.host`, and only then copied to the device: nothing here waits for a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from burnish.forward.batch import Batch, HostRows, Ints, upload
from burnish.machine.matmul_precision import rounded_up

PAYS = 0.85
"""Pack only if that needs less than this share of the padded batch's tokens."""


@dataclass(frozen=True, eq=False)
class Packing:
    """Layout of a micro-batch: the slots of each of its sequences in the packed row. All on the host.

    rows: what is packed; groups: row numbers of each distinct prompt; order (B,): row numbers in the order in which
    their responses are packed; prompt_starts (G,), prompt_lengths (G,): slots of the prompts; response_starts (B,),
    response_lengths (B,): slots of the responses, by row of the batch; padding: slots at the end that belong to no
    row; rounded: whether sizes repeat.
    """

    rows: HostRows
    groups: Sequence[Sequence[int]]
    order: Ints
    prompt_starts: Ints
    prompt_lengths: Ints
    response_starts: Ints
    response_lengths: Ints
    padding: int = 0
    rounded: bool = False

    @staticmethod
    def of(rows: HostRows, *, rounded: bool = False) -> Packing:
        """`rounded`: with as much padding as makes sizes repeat. Raises ValueError for an empty prompt."""
        rows.check_prompts()
        groups = rows.groups()
        order = np.concatenate([np.asarray(group, dtype=np.int64) for group in groups])
        prompt_lengths = rows.prompt_lengths[[group[0] for group in groups]]
        # The last token of a response predicts nothing, so it has no slot.
        response_lengths = np.maximum(rows.response_lengths - 1, 0)
        response_starts = np.empty_like(response_lengths)
        response_starts[order] = _starts(response_lengths[order]) + prompt_lengths.sum()
        prompt_starts, used = _starts(prompt_lengths), int(prompt_lengths.sum() + response_lengths.sum())
        padding = rounded_up(used) - used if rounded else 0
        return Packing(
            rows, groups, order, prompt_starts, prompt_lengths, response_starts, response_lengths, padding, rounded
        )

    @property
    def size(self) -> int:
        """Slots altogether."""
        return int(self.prompt_lengths.sum() + self.response_lengths.sum()) + self.padding

    @property
    def pays(self) -> bool:
        """True if the packed row is clearly shorter than the padded rows (packing has a cost, too), or has a size that
        repeats, as the sizes of padded rows do not."""
        return self.rounded or self.size < PAYS * len(self.rows) * int(self.rows.lengths.max())

    def tokens(self, batch: Batch) -> Tensor:
        """(1, S) int64 on the batch's device."""
        leaders = np.array([group[0] for group in self.groups])
        in_prompts = _ranges(leaders * batch.prompt_tokens.shape[1], self.prompt_lengths)
        in_responses = _ranges(self.order * batch.response_tokens.shape[1], self.response_lengths[self.order])
        index_S = upload(np.concatenate([in_prompts, in_responses]), batch.device)
        prompts_N, responses_N = index_S.split([len(in_prompts), len(in_responses)])
        tokens = [batch.prompt_tokens.take(prompts_N), batch.response_tokens.take(responses_N)]
        return torch.cat([*tokens, tokens[0].new_zeros(self.padding)])[None]

    def positions(self, device: torch.device) -> Tensor:
        """(1, S) int64: the position of each slot's token in its own row."""
        in_prompts = _ranges(np.zeros_like(self.prompt_lengths), self.prompt_lengths)
        # A response goes on where its prompt ended, wherever its slots are.
        in_responses = _ranges(self.rows.prompt_lengths[self.order], self.response_lengths[self.order])
        return upload(np.concatenate([in_prompts, in_responses, np.zeros(self.padding, dtype=np.int64)])[None], device)

    def sources(self, rows_N: Ints, columns_N: Ints) -> Ints:
        """(N,): the slots whose hidden states predict these response tokens."""
        # A response's first token is predicted by the last one of its prompt, which all rows of the group share.
        ends_B = np.empty_like(self.response_starts)
        for number, group in enumerate(self.groups):
            ends_B[list(group)] = self.prompt_starts[number] + self.prompt_lengths[number] - 1
        return np.where(columns_N == 0, ends_B[rows_N], self.response_starts[rows_N] + columns_N - 1)

    def times_shared(self, device: torch.device) -> Tensor:
        """(1, S) int64: the number of rows of the batch that each slot belongs to."""
        sizes = np.array([len(group) for group in self.groups])
        shared, once = np.repeat(sizes, self.prompt_lengths), np.ones(self.response_lengths.sum(), dtype=np.int64)
        return upload(np.concatenate([shared, once, np.zeros(self.padding, dtype=np.int64)])[None], device)

    def prompt_spans(self) -> list[slice]:
        """The slots of each prompt."""
        return _spans(self.prompt_starts, self.prompt_lengths)

    def response_spans(self) -> list[slice]:
        """The slots of each response, by row of the batch."""
        return _spans(self.response_starts, self.response_lengths)

    @property
    def padding_span(self) -> slice:
        """The slots at the end that belong to no row."""
        return slice(self.size - self.padding, self.size)

    def answer_spans(self) -> list[slice]:
        """For each prompt the slots of all its responses together."""
        counts = np.array([self.response_lengths[list(group)].sum() for group in self.groups])
        return _spans(self.response_starts[[group[0] for group in self.groups]], counts)


def bunches(lengths: Sequence[int], spread: float) -> list[list[int]]:
    """Numbers of the sequences in each bunch of similar lengths: the longest bunch first, within a bunch the longest
    sequence last; empty sequences are in none. Within a bunch lengths differ by less than the factor `spread`."""
    order = sorted((length, number) for number, length in enumerate(lengths) if length > 0)
    found = []
    while order:
        longest = order[-1][0]
        bunch = [number for length, number in order if length * spread > longest]
        order = order[: len(order) - len(bunch)]
        found.append(bunch)
    return found


def _starts(lengths: Ints) -> Ints:
    """First slots of sequences that follow each other."""
    return np.cumsum(lengths) - lengths


def _ranges(firsts: Ints, lengths: Ints) -> Ints:
    """`first, first + 1, ...` of each length, one after the other."""
    return np.repeat(firsts - _starts(lengths), lengths) + np.arange(lengths.sum())


def _spans(starts: Ints, lengths: Ints) -> list[slice]:
    return [slice(start, start + length) for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)]
