"""Decoders: they compute the logits after each row's newest token, for all rows at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from burnish.forward.row_rules import quiet_outputs
from burnish.rollouts.local.cache import Columns, Masks, PrefilledPrompts, RowCache, as_argument
from burnish.rollouts.local.prefill import RowReader, as_columns
from burnish.rollouts.local.reusable_rows import KeptRow, Tokens
from burnish.types import PreTrainedModel


class Decoder(Protocol):
    """A decoder, with the keys and values of the R rows being decoded, numbered from 0."""

    def join(self, lengths: Sequence[int], prompts: PrefilledPrompts | None, sources: Sequence[int]) -> None:
        """Add rows after the existing ones. Row i has a text of `lengths[i]` tokens, all of which except the last are
        cached in prompt `sources[i]` (`prompts` is None for texts of one token)."""

    def logits(self, tokens_R: Tensor, positions_R: Tensor) -> Tensor:
        """(R, vocabulary) after each row's newest token, which is at this position in its sequence."""

    def move(self, sources: Tensor, targets: Tensor, num_rows: int) -> None:
        """Move rows `sources` to the places of rows `targets`, and keep only the first `num_rows`."""

    def kept(self, row: int, text: Tokens) -> KeptRow:
        """Return the cache of a row, which has read `text` and leaves next."""

    def go_on(self, kept: Sequence[KeptRow], texts: Sequence[Tokens]) -> list[int]:
        """Add rows that go on from kept ones of decoders of this kind, with the same weights. Each text begins with the
        kept tokens and has at least one more. New tokens, except the last, are read. A kept row must not be used again.
        Returns the rows (indices) in the order in which they were added."""


MakeDecoder = Callable[["PreTrainedModel", int], Decoder]
"""Takes the model and the number of places for rows."""


@dataclass(slots=True, eq=False)
class _Prompt:
    """The prompt of some rows, copied when the first of them is kept."""

    width: int
    columns: Columns | None = None


class PromptedRows(Protocol):
    """A cache of rows, numbered from 0, that begin with prompts."""

    def append(
        self,
        lengths: Sequence[int],
        prompts: PrefilledPrompts | None,
        sources: Sequence[int],
        own: Sequence[Columns] | None = None,
    ) -> None:
        """See `RowCache.append`."""

    def columns(self, row: int, start: int, stop: int) -> Columns:
        """Like `RowCache.columns`, for all of a row's prompt, or all columns after it."""

    def move(self, sources: Tensor, targets: Tensor, num_rows: int) -> None:
        """See `RowCache.move`."""


class CachingDecoder(ABC):
    """A `Decoder` with the model's own keys and values.

    It copies kept rows from its cache, each prompt once for its rows, and reads on with the model's own pass.
    """

    def __init__(self, model: PreTrainedModel, cache: PromptedRows) -> None:
        self._model = model
        self._cache = cache
        self._prompts: list[_Prompt] = []  # of each row

    @abstractmethod
    def logits(self, tokens_R: Tensor, positions_R: Tensor) -> Tensor:
        """See `Decoder`."""

    def join(self, lengths: Sequence[int], prompts: PrefilledPrompts | None, sources: Sequence[int]) -> None:
        """See `Decoder`."""
        found: dict[int, _Prompt] = {}
        for length, source in zip(lengths, sources, strict=True):
            self._prompts.append(found.setdefault(source, _Prompt(length - 1)))
        self._cache.append(lengths, prompts, sources)

    def move(self, sources: Tensor, targets: Tensor, num_rows: int) -> None:
        """See `Decoder`."""
        for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
            self._prompts[target] = self._prompts[source]
        del self._prompts[num_rows:]
        self._cache.move(sources, targets, num_rows)

    def kept(self, row: int, text: Tokens) -> KeptRow:
        """See `Decoder`."""
        prompt = self._prompts[row]
        if prompt.columns is None and prompt.width:
            prompt.columns = self._cache.columns(row, 0, prompt.width).copy()
        return KeptRow(text, prompt.columns, self._cache.columns(row, prompt.width, len(text)).copy())

    def go_on(self, kept: Sequence[KeptRow], texts: Sequence[Tokens]) -> list[int]:
        """See `Decoder`."""
        order: list[int] = []
        found: dict[int, _Prompt] = {}
        for chunk in RowReader(self._model).read_on(kept, texts):
            for i in chunk.rows:
                columns = as_columns(kept[i].shared)
                prompt = _Prompt(columns.width if columns else 0, columns)
                self._prompts.append(found.setdefault(id(columns), prompt))
            self._cache.append([len(texts[i]) for i in chunk.rows], chunk.prompts, chunk.sources, chunk.own)
            order += chunk.rows
        return order


class ModelDecoder(CachingDecoder):
    """Decoder for any `transformers` causal language model that caches keys and values."""

    def __init__(self, model: PreTrainedModel, places: int, attention: str) -> None:
        cache = RowCache(places)
        super().__init__(model, cache)
        self._pass = MaskedPass(model, cache, attention)

    def logits(self, tokens_R: Tensor, positions_R: Tensor) -> Tensor:
        """See `Decoder`."""
        return self._pass.logits(tokens_R, positions_R, int(positions_R.max()) + 1)


class MaskedPass:
    """A model's pass over the newest tokens of rows, with masks over their cache."""

    def __init__(self, model: PreTrainedModel, cache: RowCache, attention: str) -> None:
        self._model = model
        self._cache = cache
        self._cached = as_argument(cache, model)
        self._masks = Masks(model, attention)

    def logits(self, tokens_R: Tensor, positions_R: Tensor, width: int) -> Tensor:
        """(R, vocabulary) after these tokens at these positions, all below `width`."""
        positions_R1 = positions_R[:, None]
        self._cache.begin(positions_R1, width)
        outputs = self._model(
            input_ids=tokens_R[:, None],
            position_ids=positions_R1,
            attention_mask=self._masks(positions_R1, width),
            use_cache=True,
            logits_to_keep=1,
            **self._cached,
            **quiet_outputs(self._model),
        )
        return outputs.logits[:, -1]
