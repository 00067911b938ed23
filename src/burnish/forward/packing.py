"""Rows that share a prompt, laid out in one packed row that holds each prompt once: `p1 p2 ... | r1 | r2 | r3 ...`.

The last token of a response predicts nothing and is left out. Prompts attend causally to themselves, responses to their
prompt and causally to themselves; the positions of a response go on from the end of its prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.forward.attention import AttentionPart, GatheredAttention, PackedAttention
from burnish.forward.batch import Batch
from burnish.forward.merged_attention import CausalRows, MergedAttention, SharedKeys
from burnish.kernels.attention import Stretches

SPREAD, GATHERED_SPREAD = 1.25, 2.0
"""Rows whose lengths differ by up to this factor attend side by side, padded to the longest of them; by more where the
parts are gathered, on devices that are quicker with few and large operations."""

MERGED_ON = ("cpu",)
"""Types of device whose fused attention tells its log-sum-exps (`burnish.forward.merged_attention`)."""

PAYS = 0.85
"""Rows are packed when this leaves less than this part of the tokens of the padded batch."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedRows:
    """S tokens of a micro-batch in one row.

    tokens_1S, positions_1S (1, S) int64; source_BT (B, T): slot whose hidden state predicts each response token.
    """

    tokens_1S: Tensor
    positions_1S: Tensor
    source_BT: Tensor
    attention: PackedAttention


def prompt_groups(batch: Batch) -> list[list[int]]:
    """Row numbers of each distinct prompt, in the order in which the prompts first appear."""
    groups: dict[bytes, list[int]] = {}
    tokens, lengths = batch.prompt_tokens.cpu().numpy(), batch.prompt_lengths.tolist()
    for row, length in enumerate(lengths):
        groups.setdefault(tokens[row, :length].tobytes(), []).append(row)
    return list(groups.values())


def pays(batch: Batch, groups: Sequence[Sequence[int]]) -> bool:
    """Whether the packed row is clearly shorter than the padded rows: gathering costs something, too."""
    prompts, lengths = batch.prompt_lengths.tolist(), batch.response_lengths.tolist()
    padded = len(batch) * max(prompt + length for prompt, length in zip(prompts, lengths, strict=True))
    packed = sum(prompts[group[0]] + sum(max(lengths[row] - 1, 0) for row in group) for group in groups)
    return packed < PAYS * padded


def pack(batch: Batch, groups: Sequence[Sequence[int]], dtype: torch.dtype) -> PackedRows:
    """Lay out the rows, responses of one prompt behind each other; `dtype` is that of the attention scores.

    Raises ValueError for an empty prompt (nothing predicts its first response token).
    """
    if bool((batch.prompt_lengths < 1).any()):
        raise ValueError("a row has an empty prompt; put at least one token (such as bos) before the response")
    device = batch.device
    leaders_G = torch.tensor([group[0] for group in groups], device=device)
    group_B = torch.zeros(len(batch), dtype=torch.int64)
    for number, group in enumerate(groups):
        group_B[list(group)] = number
    group_B = group_B.to(device)
    order_B = torch.tensor([row for group in groups for row in group], device=device)
    prompts = Segments.after(0, batch.prompt_lengths[leaders_G])
    responses = Segments.after(prompts.total, (batch.response_lengths - 1).clamp(min=0), order_B)
    in_prompt_GP = prompts.inside(batch.prompt_tokens.shape[1])
    in_response_BT = responses.inside(batch.response_tokens.shape[1])[order_B]
    columns_P = torch.arange(in_prompt_GP.shape[1], device=device)
    columns_T = torch.arange(in_response_BT.shape[1], device=device)
    tokens_S = torch.cat([batch.prompt_tokens[leaders_G][in_prompt_GP], batch.response_tokens[order_B][in_response_BT]])
    response_positions_BT = batch.prompt_lengths[order_B, None] + columns_T
    positions_S = torch.cat([columns_P.expand_as(in_prompt_GP)[in_prompt_GP], response_positions_BT[in_response_BT]])
    last_of_prompt_B = (prompts.starts + prompts.lengths - 1)[group_B]
    source_BT = torch.where(columns_T == 0, last_of_prompt_B[:, None], responses.starts[:, None] + columns_T - 1)
    source_BT = source_BT.clamp(max=tokens_S.shape[0] - 1)
    attention: PackedAttention
    if device.type in MERGED_ON:
        attention = merged_layout(prompts, responses, groups)
    else:
        attention = gathered_layout(prompts, responses, group_B, dtype)
    return PackedRows(tokens_S[None], positions_S[None], source_BT, attention)


def packed_weights(batch: Batch, groups: Sequence[Sequence[int]], size: int) -> Tensor:
    """(1, size) int64: rows that each slot of the packed row stands for, those of a prompt as many as share it."""
    prompts = [(len(group), group[0]) for group in groups]
    sizes = torch.tensor([count for count, _ in prompts], device=batch.device)
    shared = sizes.repeat_interleave(batch.prompt_lengths[[leader for _, leader in prompts]])
    return torch.cat([shared, shared.new_ones(size - len(shared))])[None]


def merged_layout(prompts: Segments, responses: Segments, groups: Sequence[Sequence[int]]) -> MergedAttention:
    """A prompt that several rows share is one causal stretch, and so is each of their responses, which see the prompt's
    keys as well; a row that shares its prompt with none is one stretch altogether."""
    groups_of_stretches: list[list[Tensor]] = []
    shared: list[SharedKeys] = []
    response_spans = responses.spans()
    for group, prompt in zip(groups, prompts.spans(), strict=True):
        own = [response_spans[row] for row in group]
        if len(group) == 1:
            groups_of_stretches.append([torch.cat([_arange(prompt), _arange(own[0])])])
            continue
        groups_of_stretches.append([_arange(span) for span in (prompt, *own)])
        queries = slice(own[0].start, own[-1].stop)
        if queries.stop > queries.start:
            shared.append(SharedKeys(queries, prompt))
    stretches = [stretch for group in groups_of_stretches for stretch in group]
    return MergedAttention(tuple(_causal_rows(stretches)), tuple(shared), Stretches.of(groups_of_stretches))


def _causal_rows(stretches: Sequence[Tensor]) -> Iterator[CausalRows]:
    """Stretches of similar lengths beside each other; empty ones are in none."""
    for bunch in _bunches([len(stretch) for stretch in stretches], SPREAD):
        slots_NQ = torch.nn.utils.rnn.pad_sequence([stretches[number] for number in bunch], batch_first=True)
        lengths = torch.tensor([len(stretches[number]) for number in bunch])
        real = torch.arange(slots_NQ.shape[1]) < lengths[:, None]
        yield CausalRows(slots_NQ, real.flatten().nonzero()[:, 0])


def _arange(span: slice) -> Tensor:
    return torch.arange(span.start, span.stop)


def _bunches(lengths: Sequence[int], spread: float) -> Iterator[list[int]]:
    """Numbers of the stretches in each bunch of similar lengths, longest last; empty ones are in none."""
    order = sorted((length, number) for number, length in enumerate(lengths) if length > 0)
    while order:
        longest = order[-1][0]
        bunch = [number for length, number in order if length * spread > longest]
        order = order[: len(order) - len(bunch)]
        yield bunch


def gathered_layout(prompts: Segments, responses: Segments, group_B: Tensor, dtype: torch.dtype) -> GatheredAttention:
    """The prompt's keys once more beside those of each response, with a mask; for any device."""
    parts = [*_prompt_parts(prompts), *_response_parts(prompts, responses, group_B, dtype)]
    return _together(parts, responses.total)


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Stretches of the packed row, one after the other: first slot and length of each (N,), and the slot after all."""

    starts: Tensor
    lengths: Tensor
    total: int

    @staticmethod
    def after(first: int, lengths: Tensor, order: Tensor | None = None) -> Segments:
        """From slot `first` on, in this order (numbers of the segments; None: in their own)."""
        in_order = lengths if order is None else lengths[order]
        ends = in_order.cumsum(0)
        starts = ends - in_order + first
        if order is not None:
            starts = torch.empty_like(starts).index_copy_(0, order, starts)
        return Segments(starts, lengths, first + int(ends[-1]))

    def spans(self) -> list[slice]:
        """The slots of each."""
        return [slice(a, a + n) for a, n in zip(self.starts.tolist(), self.lengths.tolist(), strict=True)]

    def inside(self, width: int) -> Tensor:
        """(N, width) bool: columns that belong to the segment."""
        return torch.arange(width, device=self.lengths.device) < self.lengths[:, None]

    def slots(self, rows: Tensor, width: int) -> Tensor:
        """(rows, width): the slots of each, any valid one past its end."""
        columns = torch.arange(width, device=self.lengths.device)
        return self.starts[rows, None] + torch.minimum(columns, self.lengths[rows, None] - 1)

    def alike(self) -> Iterator[tuple[Tensor, int]]:
        """(segments, longest of them) of each bunch of similar lengths; empty segments are in none."""
        lengths = self.lengths.tolist()
        for bunch in _bunches(lengths, GATHERED_SPREAD):
            yield torch.tensor(bunch, device=self.lengths.device), lengths[bunch[-1]]


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    attention: AttentionPart
    real_NQ: Tensor
    """Where a query stands, not padding."""


def _prompt_parts(prompts: Segments) -> Iterator[_Part]:
    for rows, width in prompts.alike():
        slots = prompts.slots(rows, width)
        yield _Part(AttentionPart(slots, slots, None), prompts.inside(width)[rows])


def _response_parts(prompts: Segments, responses: Segments, group_B: Tensor, dtype: torch.dtype) -> Iterator[_Part]:
    for rows, width in responses.alike():
        groups_N = group_B[rows]
        prompt_width = int(prompts.lengths[groups_N].max())
        queries = responses.slots(rows, width)
        keys = torch.cat([prompts.slots(groups_N, prompt_width), queries], dim=1)
        in_prompt = prompts.inside(prompt_width)[groups_N][:, None, None, :]
        if bool(in_prompt.all()):
            in_prompt = in_prompt[:1]  # prompts of one length need no mask of their own
        causal = torch.ones(width, width, dtype=torch.bool, device=keys.device).tril()
        visible = torch.cat([in_prompt.expand(-1, -1, width, -1), causal.expand(in_prompt.shape[0], 1, -1, -1)], dim=3)
        mask = torch.zeros(visible.shape, dtype=dtype, device=keys.device).masked_fill(~visible, -torch.inf)
        yield _Part(AttentionPart(queries, keys, mask), responses.inside(width)[rows])


def _together(parts: Sequence[_Part], size: int) -> GatheredAttention:
    """Where the output of each of `size` tokens stands among the outputs of all parts."""
    slots = torch.cat([part.attention.queries_NQ.flatten() for part in parts])
    real = torch.cat([part.real_NQ.flatten() for part in parts])
    place_S = torch.zeros(size, dtype=torch.int64, device=slots.device)
    place_S[slots[real]] = real.nonzero()[:, 0]
    return GatheredAttention(tuple(part.attention for part in parts), place_S)
