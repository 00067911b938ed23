"""A cache of fixed shapes, in which each prompt is kept once, and the attention of all rows' newest tokens over it.

Slots (S) hold rows, prompts (P) the texts that they begin with; number 0 is the prompt without a token. A row's tokens
after its prompt are its own. A query attends to its prompt and to its own part separately; the two are joined by their
log-sum-exps, as in training (`burnish.forward.merged_attention`). All of a prompt's queries read its keys together.

Nothing here depends on a number on the device, so that a pass can be captured as a CUDA graph: the visible length of a
store is a tensor, and `Shape` says how much of it a pass reads at most. H heads, K key heads, G heads for each of
these, D head size, W columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from burnish.forward.batch import rows_by
from burnish.forward.merged_attention import join
from burnish.forward.row_rules import quiet_outputs
from burnish.machine.matmul_precision import usual_float32
from burnish.rollouts.local.cache import Columns, PrefilledPrompts, as_argument
from burnish.rollouts.local.static_steps import Shape, bucket, power_of_two

_FIRST_COLUMNS = 64


@dataclass(frozen=True, slots=True, eq=False)
class VisibleColumns:
    """Columns that N sequences of queries see: the first ones of N stores of equal capacity.

    lengths_N int32, at least 1: numbers of columns. query_ends, key_ends (N + 1,) int32: starts of sequences and stores
    laid end to end. hidden_N11W: -inf in the columns that are not seen; None for a kernel that takes lengths.
    """

    lengths_N: Tensor
    query_ends: Tensor
    key_ends: Tensor
    hidden_N11W: Tensor | None
    columns: int
    longest_query: int


Kernel = Callable[[Tensor, Tensor, Tensor, VisibleColumns, float | None], tuple[Tensor, Tensor]]
"""Queries (Q, K, D) of all sequences, keys and values (N, room, K, D): means (Q, K, D) and log-sum-exps (Q, K)."""


def flash(
    query_QKD: Tensor, keys: Tensor, values: Tensor, sight: VisibleColumns, scaling: float | None
) -> tuple[Tensor, Tensor]:
    """Attend with FlashAttention's kernel for sequences of any length: bfloat16 and float16 on a GPU."""
    output_QKD, sums_KQ, *_ = torch.ops.aten._flash_attention_forward(
        query_QKD,
        keys.flatten(0, 1),
        values.flatten(0, 1),
        sight.query_ends,
        sight.key_ends,
        sight.longest_query,
        sight.columns,
        0.0,
        False,
        False,
        scale=scaling,
        seqused_k=sight.lengths_N,
    )
    return output_QKD, sums_KQ.T


@usual_float32()
def fused(
    query_QKD: Tensor, keys: Tensor, values: Tensor, sight: VisibleColumns, scaling: float | None
) -> tuple[Tensor, Tensor]:
    """Attend with PyTorch's fused attention and a mask; every sequence has the same number of queries."""
    assert sight.hidden_N11W is not None
    query_NKMD = query_QKD.unflatten(0, (len(keys), -1)).transpose(1, 2)
    key_NKWD, value_NKWD = (store[:, : sight.columns].transpose(1, 2) for store in (keys, values))
    hidden = sight.hidden_N11W.expand(*query_NKMD.shape[:3], -1)
    if query_QKD.device.type == "cpu":
        output, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query_NKMD, key_NKWD, value_NKWD, attn_mask=hidden, scale=scaling
        )
    else:
        output, sums, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
            query_NKMD, key_NKWD, value_NKWD, hidden, True, scale=scaling
        )
    sums_NKM = sums[..., : query_NKMD.shape[2]]  # the latter pads them
    return output.transpose(1, 2).flatten(0, 1), sums_NKM.transpose(1, 2).flatten(0, 1)


@dataclass(slots=True, eq=False)
class _Prompt:
    number: int
    length: int


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    prompt: _Prompt
    first: int
    """Position of the first token that is the row's own."""


class SharedRows(Cache):
    """Cache of rows, of which 0 .. `num_rows` - 1 are in use. The model must have been set to packed attention: its
    pass reads the newest tokens of all slots as one packed row, with this object as its `PackedAttention`."""

    def __init__(self, model: PreTrainedModel, places: int, kernel: Kernel) -> None:
        super().__init__(layers=[])
        self._model = model
        self._places = places
        self._kernel = kernel
        self._heads = int(model.config.get_text_config().num_attention_heads)
        self._own: list[tuple[Tensor, Tensor]] = []  # keys and values of each layer: (places, columns, K, D)
        self._prompts: list[tuple[Tensor, Tensor]] = []  # (prompts, columns, K, D)
        self._rows: list[_Row] = []
        self._numbers: dict[str, Tensor] = {}
        self._arranged: tuple[int, int, int] | None = None  # slots, prompts and rows of a prompt; None if out of date
        self._layer = 0

    @property
    def cache(self) -> SharedRows:
        """The cache of the `SlottedPass`: this object is both."""
        return self

    def tensors(self) -> Iterator[Tensor]:
        """Yield all tensors that a pass reads or writes, besides the model's."""
        for keys, values in (*self._own, *self._prompts):
            yield from (keys, values)
        yield from self._numbers.values()

    def append(
        self,
        lengths: Sequence[int],
        prompts: PrefilledPrompts | None,
        sources: Sequence[int],
        own: Sequence[Columns] | None = None,
    ) -> None:
        """See `RowCache.append`."""
        begun = [columns.width for columns in own] if own is not None else [0] * len(lengths)
        if prompts is not None:
            self._make_layers(prompts)
        stored: dict[int, _Prompt] = {}
        for number, (length, source) in enumerate(zip(lengths, sources, strict=True)):
            shared = 0 if prompts is None else length - 1 - begun[number]
            if source not in stored:
                stored[source] = self._stored(prompts, source, shared)
            self._rows.append(_Row(stored[source], shared))
            if own is not None:
                self._write(len(self._rows) - 1, own[number])
        self._arranged = None

    def columns(self, row: int, start: int, stop: int) -> Columns:
        """Return views of a row at these positions: all of its prompt, or all its own. Valid until the next call."""
        entry = self._rows[row]
        if stop <= entry.first:
            stores, place, at = self._prompts, entry.prompt.number, slice(start, stop)
        else:
            stores, place, at = self._own, row, slice(start - entry.first, stop - entry.first)
        return Columns(
            [keys[place, at].transpose(0, 1) for keys, _ in stores],
            [values[place, at].transpose(0, 1) for _, values in stores],
        )

    def move(self, sources: Tensor, targets: Tensor, num_rows: int) -> None:
        """See `RowCache.move`."""
        for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
            self._rows[target] = self._rows[source]
        del self._rows[num_rows:]
        if len(sources):
            for keys, values in self._own:
                keys[targets], values[targets] = keys[sources], values[sources]
        self._arranged = None

    def fit(self, slots: int, positions: Sequence[int], steps: int) -> Shape:
        """Make room for the tokens of this many steps, the first of them at these positions."""
        columns = bucket(max(at - row.first for at, row in zip(positions, self._rows, strict=True)) + steps)
        self._reserve_own(columns)
        if self._arranged is None or self._arranged[0] != slots:
            self._arrange(slots)
        assert self._arranged is not None
        longest = bucket(max(row.prompt.length for row in self._rows))
        return Shape(*self._arranged, columns=columns, prompt_columns=longest)

    def logits(self, shape: Shape, tokens_S: Tensor, positions_S: Tensor) -> Tensor:
        """(S, vocabulary) after these tokens at these positions."""
        self._begin(shape, positions_S)
        outputs = self._model(
            input_ids=tokens_S[None],
            position_ids=positions_S[None],
            attention_mask=tokens_S.new_zeros(1, 1, 1, 1),  # four dimensions: no mask is to be made
            packed=self,
            use_cache=True,
            **as_argument(self, self._model),
            **quiet_outputs(self._model),
        )
        return outputs.logits[0]

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: object, **__: object) -> tuple:
        """Write the new tokens of one layer, (1, K, S, D), whose queries `attend` next."""
        self._layer = layer_idx
        for store, states in zip(self._own[layer_idx], (key_states, value_states), strict=True):
            store.flatten(0, 1).index_copy_(0, self._columns_S, states[0].transpose(0, 1))
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0  # positions and a mask are given

    def attend(self, query_SHD: Tensor, key_SKD: Tensor, value_SKD: Tensor, scaling: float | None) -> Tensor:
        """(S, H, D). The tokens' own keys and values are in the cache already."""
        keys, values = (store[: self._shape.slots] for store in self._own[self._layer])
        prompt_keys, prompt_values = (store[: self._shape.prompts] for store in self._prompts[self._layer])
        query_SGKD = query_SHD.unflatten(1, (key_SKD.shape[1], -1)).transpose(1, 2)
        own, own_sums = self._kernel(query_SGKD.flatten(0, 1), keys, values, self._own_sight, scaling)
        by_prompt = query_SGKD.index_select(0, self._order_X).flatten(0, 1)
        seen, sums = self._kernel(by_prompt, prompt_keys, prompt_values, self._prompt_sight, scaling)
        group = query_SGKD.shape[1]
        seen_SGKD, sums_SGK = (part.unflatten(0, (-1, group)).index_select(0, self._place_S) for part in (seen, sums))
        sums_SGK = sums_SGK.masked_fill(~self._is_shared_S[:, None, None], -math.inf)
        own = own.float()  # of few tokens: rounded once, when they are joined
        join(own, own_sums, seen_SGKD.flatten(0, 1).float(), sums_SGK.flatten(0, 1))
        return own.to(query_SHD.dtype).unflatten(0, (-1, group)).transpose(1, 2).flatten(1, 2)

    def _begin(self, shape: Shape, positions_S: Tensor) -> None:
        """Prepare the tensors that all layers share."""
        self._shape, slots, prompts = shape, shape.slots, shape.prompts
        room, prompt_room = self._own[0][0].shape[1], self._prompts[0][0].shape[1]
        column_S = positions_S - self._numbers["first"][:slots]
        counting = torch.arange(max(slots, prompts) + 1, device=positions_S.device)
        self._columns_S = counting[:slots] * room + column_S
        self._order_X = self._numbers["order"][: prompts * shape.rows or slots]
        self._place_S = self._numbers["place"][:slots]
        prompt_lengths_P = self._numbers["lengths"][:prompts].clamp(min=1)
        self._is_shared_S = self._numbers["first"][:slots] > 0
        self._own_sight = self._sight(column_S + 1, counting[: slots + 1], room, shape.columns, 1)
        ends, longest = self._numbers["ends"][: prompts + 1], shape.rows or slots
        self._prompt_sight = self._sight(prompt_lengths_P, ends, prompt_room, shape.prompt_columns, longest)

    def _sight(self, lengths_N: Tensor, ends: Tensor, room: int, columns: int, longest: int) -> VisibleColumns:
        keys = self._own[0][0]
        group = self._heads // keys.shape[2]
        hidden = None
        if self._kernel is not flash:
            is_hidden_N11W = torch.arange(columns, device=keys.device) >= lengths_N[:, None, None, None]
            hidden = torch.zeros_like(is_hidden_N11W, dtype=keys.dtype).masked_fill_(is_hidden_N11W, -math.inf)
        key_ends = torch.arange(len(ends), dtype=torch.int32, device=keys.device) * room
        return VisibleColumns(lengths_N.int(), (ends * group).int(), key_ends, hidden, columns, longest * group)

    def _arrange(self, slots: int) -> None:
        """Lay the rows out by prompt: rows of a prompt next to each other; for `fused`, equally many places for
        each."""
        prompt_of = [row.prompt.number for row in self._rows] + [0] * (slots - len(self._rows))
        members = rows_by(prompt_of)
        prompts, rows = power_of_two(max(members) + 1), 0
        if self._kernel is not flash:
            rows = power_of_two(max((len(some) for number, some in members.items() if number), default=1))
        ends = [0, *accumulate(rows or len(members.get(number, ())) for number in range(prompts))]
        order, place = [0] * ends[-1], [0] * slots
        for number, some in members.items():
            if number or not rows:  # the result for a row without a prompt is not used
                for at, slot in enumerate(some, start=ends[number]):
                    order[at], place[slot] = slot, at
        lengths = {row.prompt.number: row.prompt.length for row in self._rows}
        self._put("first", [row.first for row in self._rows] + [0] * (slots - len(self._rows)))
        self._put("lengths", [lengths.get(number, 0) for number in range(prompts)])
        for name, numbers in (("order", order), ("place", place), ("ends", ends)):
            self._put(name, numbers)
        self._arranged = (slots, prompts, rows)

    def _put(self, name: str, numbers: Sequence[int]) -> None:
        """Write numbers to the same memory on the device as before, if there is room."""
        if name not in self._numbers or len(self._numbers[name]) < len(numbers):
            room = max(power_of_two(len(numbers)), self._places + 1)
            self._numbers[name] = torch.zeros(room, dtype=torch.int64, device=self._own[0][0].device)
        self._numbers[name][: len(numbers)] = torch.tensor(numbers)

    def _stored(self, prompts: PrefilledPrompts | None, source: int, length: int) -> _Prompt:
        if prompts is None or length == 0:
            return _Prompt(0, 0)
        used = {row.prompt.number for row in self._rows} | {0}
        number = next(number for number in range(len(used) + 1) if number not in used)
        self._reserve_prompts(number + 1, length)
        for stores, keys, values in zip(self._prompts, prompts.keys, prompts.values, strict=True):
            for store, states in zip(stores, (keys, values), strict=True):
                store[number, :length] = states[source, :, :length].transpose(0, 1)
        return _Prompt(number, length)

    def _write(self, row: int, own: Columns) -> None:
        self._reserve_own(bucket(own.width))
        for stores, keys, values in zip(self._own, own.keys, own.values, strict=True):
            for store, states in zip(stores, (keys, values), strict=True):
                store[row, : own.width] = states.transpose(0, 1)

    def _make_layers(self, like: PrefilledPrompts) -> None:
        if self._own:
            return
        for keys, values in zip(like.keys, like.values, strict=True):
            shapes = [(states.shape[1], states.shape[3]) for states in (keys, values)]
            # Zeros: a hidden column has weight 0, but 0 times a stray NaN would still be NaN.
            own, prompts = (
                tuple(keys.new_zeros(rows, _FIRST_COLUMNS, *shape) for shape in shapes) for rows in (self._places, 2)
            )
            self._own.append((own[0], own[1]))
            self._prompts.append((prompts[0], prompts[1]))

    def _reserve_own(self, columns: int) -> None:
        for layer, stores in enumerate(self._own):  # one after the other, so that no more than one is there twice
            self._own[layer] = _grown(stores, self._places, columns)

    def _reserve_prompts(self, count: int, width: int) -> None:
        for layer, stores in enumerate(self._prompts):
            self._prompts[layer] = _grown(stores, power_of_two(count), bucket(width))


def _grown(stores: tuple[Tensor, Tensor], rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """The stores, with capacity for at least this much."""
    more = max(0, rows - stores[0].shape[0]), max(0, columns - stores[0].shape[1])
    if not any(more):
        return stores
    padding = (0, 0, 0, 0, 0, more[1], 0, more[0])
    return torch.nn.functional.pad(stores[0], padding), torch.nn.functional.pad(stores[1], padding)
