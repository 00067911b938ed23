"""Keys and values for decoding when several rows continue one prompt: each prompt is stored once.

Rows (R) are samples, groups (G) the distinct prompts that they continue. A token attends to its prompt and to its own
row. The two parts are computed separately and joined by their log-sum-exps, like blocks of keys in FlashAttention (Dao
et al. 2022, https://arxiv.org/abs/2205.14135). All tokens of a prompt except the last are in the prompt's part. The
last is the first token of a row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.forward.matmul_precision import usual_float32
from burnish.rollouts.local.cache import Columns, PrefilledPrompts

_FIRST_COLUMNS = 64


@dataclass(frozen=True, slots=True, eq=False)
class CacheShape:
    """The shape of each layer's cache. `scaling` multiplies the attention scores."""

    layers: int
    heads: int
    key_heads: int
    head_size: int
    scaling: float


@dataclass(frozen=True, slots=True, eq=False)
class _Membership:
    """Rows by the prompt that they continue: table_GN (rows; shorter groups repeat one of theirs), place_R (where each
    row is in the table), mask_G11P (added to the scores; None if all prompts have the full width), bare_R1 (True if a
    row's prompt has nothing cached; None if there is no such row)."""

    table_GN: Tensor
    place_R: Tensor
    mask_G11P: Tensor | None
    bare_R1: Tensor | None


class SharedCache:
    """Rows 0 .. `num_rows` - 1 are in use. CPU only, where `torch`'s fused attention returns its log-sum-exp.

    Rows' own keys and values are float32 whatever the model's dtype: with one query per row, that attention takes four
    times as long in bfloat16 (which it converts for every query) as in float32. Prompts, with many queries each, keep
    `dtype`.
    """

    def __init__(self, shape: CacheShape, places: int, dtype: torch.dtype) -> None:
        self.num_rows = 0
        self._shape = shape
        self._dtype = dtype
        own = (places, shape.key_heads, _FIRST_COLUMNS, shape.head_size)
        self._keys = [torch.empty(own, dtype=torch.float32) for _ in range(shape.layers)]
        self._values = [torch.empty(own, dtype=torch.float32) for _ in range(shape.layers)]
        none = (0, shape.key_heads, 0, shape.head_size)
        self._prompt_keys = [torch.zeros(none, dtype=dtype) for _ in range(shape.layers)]
        self._prompt_values = [torch.zeros(none, dtype=dtype) for _ in range(shape.layers)]
        self._prompt_lengths: list[int] = []  # cached tokens of each group
        self._group_of_row: list[int] = []
        self._first_position_R = torch.empty(0, dtype=torch.int64)
        self._membership: _Membership | None = None
        self._columns_R = torch.empty(0, dtype=torch.int64)
        self._column: int | None = None
        self._width = 0
        self._mask_R11T: Tensor | None = None

    def append(
        self,
        lengths: Sequence[int],
        prompts: PrefilledPrompts | None,
        sources: Sequence[int],
        own: Sequence[Columns] | None = None,
    ) -> None:
        """Add rows. Row i has a text of `lengths[i]` tokens, of which all but the last are cached: in prompt
        `sources[i]` (`prompts` is None if nothing is), and then in `own[i]`."""
        groups = sorted(set(sources))
        first = len(self._prompt_lengths)
        number = {source: first + i for i, source in enumerate(groups)}
        widths = [columns.width for columns in own] if own else [0] * len(lengths)
        shared = [length - 1 - width for length, width in zip(lengths, widths, strict=True)]
        cached = dict(zip(sources, shared, strict=True))
        self._prompt_lengths += [cached[source] for source in groups]
        self._group_of_row += [number[source] for source in sources]
        self._first_position_R = torch.cat([self._first_position_R, torch.tensor(shared, dtype=torch.int64)])
        self._reserve(max(widths))
        joining = slice(self.num_rows, self.num_rows + len(sources))
        self.num_rows += len(sources)
        index = torch.tensor(groups)
        for layer in range(self._shape.layers):
            keys = None if prompts is None else prompts.keys[layer][index]
            values = None if prompts is None else prompts.values[layer][index]
            self._prompt_keys[layer] = _stacked(self._prompt_keys[layer], keys, len(groups))
            self._prompt_values[layer] = _stacked(self._prompt_values[layer], values, len(groups))
            # A masked column has weight 0, but 0 times a stray NaN would still be NaN.
            self._keys[layer][joining] = 0
            self._values[layer][joining] = 0
            for row, columns in enumerate(own or (), start=joining.start):
                self._keys[layer][row, :, : columns.width] = columns.keys[layer]
                self._values[layer][row, :, : columns.width] = columns.values[layer]
        self._membership = None

    def columns(self, row: int, start: int, stop: int) -> Columns:
        """What is cached at positions `start` to `stop` - 1 of a row: in its prompt, or its own from the first on. Not
        a copy if it has the model's dtype: valid until the next call of any method."""
        if stop <= int(self._first_position_R[row]):
            keys, values, number, place = self._prompt_keys, self._prompt_values, self._group_of_row[row], start
        else:
            keys, values, number, place = self._keys, self._values, row, start - int(self._first_position_R[row])
        part = slice(place, place + stop - start)
        return Columns(*([tensor[number, :, part].to(self._dtype) for tensor in both] for both in (keys, values)))

    def move(self, sources: Tensor, targets: Tensor, num_rows: int) -> None:
        """Copy rows `sources` over rows `targets`, and keep only the first `num_rows`. Prompts that no row continues
        are dropped."""
        for tensor in (*self._keys, *self._values) if len(sources) else ():
            tensor[targets, :, : self._width] = tensor[sources, :, : self._width]
        self._first_position_R[targets] = self._first_position_R[sources]
        self._first_position_R = self._first_position_R[:num_rows].clone()
        for target, source in zip(targets.tolist(), sources.tolist(), strict=True):
            self._group_of_row[target] = self._group_of_row[source]
        del self._group_of_row[num_rows:]
        self.num_rows = num_rows
        self._drop_finished_prompts()
        self._membership = None

    def begin(self, positions_R: Tensor) -> None:
        """Make room for each row's token at these positions in its sequence."""
        self._columns_R = positions_R - self._first_position_R
        lowest, highest = (int(bound) for bound in self._columns_R.aminmax())
        # Rows that are equally far into their responses write one column, a slice, and need no mask.
        self._column = lowest if lowest == highest else None
        self._width = highest + 1
        self._reserve(self._width)
        self._mask_R11T = None
        if self._column is None:
            hidden = torch.arange(self._width) > self._columns_R[:, None]
            self._mask_R11T = _additive(hidden, torch.float32)
        if self._membership is None:
            self._membership = self._grouped()

    def attend(self, layer: int, query_RHD: Tensor, key_RKD: Tensor, value_RKD: Tensor) -> Tensor:
        """Write the new token's key and value. Returns (R, H, D), its attention over prompt and row (with itself)."""
        assert self._membership is not None
        keys, values = self._keys[layer], self._values[layer]
        if self._column is not None:
            keys[: self.num_rows, :, self._column] = key_RKD
            values[: self.num_rows, :, self._column] = value_RKD
        else:
            rows = torch.arange(self.num_rows)
            keys[rows, :, self._columns_R] = key_RKD.float()
            values[rows, :, self._columns_R] = value_RKD.float()
        seen = slice(0, self.num_rows), slice(None), slice(0, self._width)
        own_RH1D, own_RH1 = _attention(
            query_RHD[:, :, None].float(), keys[seen], values[seen], self._mask_R11T, self._shape.scaling
        )
        own_RHD = own_RH1D[:, :, 0]
        if self._prompt_keys[layer].shape[2] == 0:
            return own_RHD.to(query_RHD.dtype)
        prompt_RHD, prompt_RH = self._prompt_part(layer, query_RHD, self._membership)
        # The prompt's share of the softmax: e^p / (e^p + e^o) for log-sum-exps p of the prompt and o of the row.
        weight_RH = torch.sigmoid(prompt_RH - own_RH1[:, :, 0])
        return torch.lerp(own_RHD, prompt_RHD.float(), weight_RH[:, :, None]).to(query_RHD.dtype)

    def _prompt_part(self, layer: int, query_RHD: Tensor, members: _Membership) -> tuple[Tensor, Tensor]:
        """(output (R, H, D), log-sum-exp (R, H)) of each row over its prompt. Query heads that share a key head and
        rows that share a prompt become queries of one attention call."""
        shape = self._shape
        groups, size = members.table_GN.shape
        repeat = shape.heads // shape.key_heads
        query_GKQD = (
            query_RHD.index_select(0, members.table_GN.flatten())
            .view(groups, size, shape.key_heads, repeat, shape.head_size)
            .transpose(1, 2)
            .reshape(groups, shape.key_heads, size * repeat, shape.head_size)
        )
        keys, values = self._prompt_keys[layer], self._prompt_values[layer]
        output_GKQD, sums_GKQ = _attention(query_GKQD, keys, values, members.mask_G11P, shape.scaling)
        spread = (groups, shape.key_heads, size, repeat)
        output = output_GKQD.reshape(*spread, shape.head_size).transpose(1, 2).reshape(-1, shape.heads, shape.head_size)
        sums = sums_GKQ.reshape(spread).transpose(1, 2).reshape(-1, shape.heads)
        output_RHD, sums_RH = output.index_select(0, members.place_R), sums.index_select(0, members.place_R)
        return output_RHD, sums_RH if members.bare_R1 is None else sums_RH.masked_fill(members.bare_R1, -torch.inf)

    def _grouped(self) -> _Membership:
        rows_of: list[list[int]] = [[] for _ in self._prompt_lengths]
        for row, group in enumerate(self._group_of_row):
            rows_of[group].append(row)
        size = max(len(rows) for rows in rows_of)
        place = torch.empty(self.num_rows, dtype=torch.int64)
        for group, rows in enumerate(rows_of):
            place[rows] = torch.arange(len(rows)) + group * size
        table = torch.tensor([rows + rows[:1] * (size - len(rows)) for rows in rows_of])
        lengths = torch.tensor(self._prompt_lengths)
        hidden = torch.arange(self._prompt_keys[0].shape[2]) >= lengths[:, None]
        bare = lengths[torch.tensor(self._group_of_row)][:, None] == 0
        return _Membership(
            table,
            place,
            _additive(hidden, self._dtype) if bool(hidden.any()) else None,
            bare if bool(bare.any()) else None,
        )

    def _drop_finished_prompts(self) -> None:
        """Move the last prompts to the places of finished ones."""
        rows = Counter(self._group_of_row)
        count = len(rows)
        if count == len(self._prompt_lengths):
            return
        holes = [group for group in range(count) if group not in rows]
        movers = [group for group in range(count, len(self._prompt_lengths)) if group in rows]
        renamed = dict(zip(movers, holes, strict=True))
        for mover, hole in renamed.items():
            self._prompt_lengths[hole] = self._prompt_lengths[mover]
            for tensor in (*self._prompt_keys, *self._prompt_values):
                tensor[hole] = tensor[mover]
        del self._prompt_lengths[count:]
        self._group_of_row = [renamed.get(group, group) for group in self._group_of_row]
        width = max(self._prompt_lengths, default=0)
        self._prompt_keys = [tensor[:count, :, :width] for tensor in self._prompt_keys]
        self._prompt_values = [tensor[:count, :, :width] for tensor in self._prompt_values]

    def _reserve(self, width: int) -> None:
        """Make room for `width` columns. Only rows in use are copied."""
        columns = self._keys[0].shape[2]
        if width <= columns:
            return
        columns = max(width, columns * 3 // 2)
        self._keys = [self._wider(tensor, columns) for tensor in self._keys]
        self._values = [self._wider(tensor, columns) for tensor in self._values]

    def _wider(self, narrow: Tensor, columns: int) -> Tensor:
        wide = narrow.new_empty(*narrow.shape[:2], columns, narrow.shape[3])
        used = slice(0, self.num_rows)
        wide[used, :, : narrow.shape[2]] = narrow[used]
        wide[used, :, narrow.shape[2] :] = 0
        return wide


@usual_float32()
def _attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float) -> tuple[Tensor, Tensor]:
    """(output, log-sum-exp of the scores) of `torch`'s fused attention for CPUs. Heads may share keys."""
    output, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, attn_mask=mask, scale=scaling
    )
    return output, sums


def _additive(hidden_NX: Tensor, dtype: torch.dtype) -> Tensor:
    """(N, 1, 1, X): 0 where visible, -inf where hidden."""
    return torch.zeros(hidden_NX.shape, dtype=dtype).masked_fill(hidden_NX, -torch.inf)[:, None, None, :]


def _stacked(above: Tensor, below: Tensor | None, count: int) -> Tensor:
    """Concatenate prompts, padded to the longest. `below` None means `count` prompts with nothing cached."""
    below = above.new_zeros(count, above.shape[1], 0, above.shape[3]) if below is None else below
    width = max(above.shape[2], below.shape[2])
    parts = [torch.nn.functional.pad(part, (0, 0, 0, width - part.shape[2])) for part in (above, below)]
    return torch.cat(parts) if len(above) else parts[1]
