"""Decoding for models whose rows cannot share one cache: like the model's own `generate`, or from the whole sequence.

Both are slower than a shared cache, and correct for any model that reads a sequence forwards. Which one a model needs
is found by a trial (`burnish.rollouts.local.choice`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from burnish.forward.batch import rows_by
from burnish.forward.row_rules import plain_inputs, quiet_outputs, row_rules
from burnish.types import PreTrainedModel

_CACHES = ("cache", "past_key_values", "cache_params", "state")
"""Names that models use for their cache of the tokens read so far."""

Tokens = tuple[int, ...]


class TextDecoder(ABC):
    """A decoder that reads prompts itself, otherwise like `decoders.Decoder`. It does not preallocate memory."""

    _rows: list[Any]

    def __init__(self, model: PreTrainedModel, places: int) -> None:
        self._model = model
        self._rows = []

    @abstractmethod
    def join_texts(self, prompts: Sequence[Tokens]) -> None:
        """Add rows with these prompts after the existing ones."""

    @abstractmethod
    def logits(self, tokens_R: Tensor, positions_R: Tensor) -> Tensor:
        """(R, vocabulary) after each row's newest token, which is at this position in its sequence."""

    def move(self, sources: Tensor, targets: Tensor, num_rows: int) -> None:
        """Move rows `sources` to the places of rows `targets`, and keep only the first `num_rows`."""
        for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
            self._rows[target] = self._rows[source]
        del self._rows[num_rows:]


@dataclass(slots=True, eq=False)
class _Cohort:
    """Rows that were added together with prompts of equal length, and so stay equally long: no padding, one cache.
    Finished members stay until all are finished."""

    text_NS: Tensor
    kept: dict[str, Any] = field(default_factory=dict)


class EqualLengthDecoder(TextDecoder):
    """Rows of equal length go through the model together, with the model's own cache."""

    _rows: list[tuple[_Cohort, int]]

    def join_texts(self, prompts: Sequence[Tokens]) -> None:
        by_length: dict[int, list[Tokens]] = {}
        places = []
        for prompt in prompts:
            members = by_length.setdefault(len(prompt), [])
            places.append((len(prompt), len(members)))
            members.append(prompt)
        device = next(self._model.parameters()).device
        # A row's newest token arrives with the call for its logits. The first one is the last token of its prompt.
        cohorts = {
            length: _Cohort(torch.tensor([text[:-1] for text in texts], dtype=torch.int64, device=device))
            for length, texts in by_length.items()
        }
        self._rows += [(cohorts[length], number) for length, number in places]

    def logits(self, tokens_R: Tensor, positions_R: Tensor) -> Tensor:
        members = rows_by(id(cohort) for cohort, _ in self._rows)
        parts = []
        for rows in members.values():
            cohort, numbers = self._rows[rows[0]][0], [self._rows[row][1] for row in rows]
            newest_N = tokens_R.new_zeros(len(cohort.text_NS))
            newest_N[numbers] = tokens_R[rows]
            parts.append(self._step(cohort, newest_N)[numbers])
        order = torch.tensor([row for rows in members.values() for row in rows], device=tokens_R.device)
        return torch.cat(parts).index_select(0, order.argsort())

    def _step(self, cohort: _Cohort, newest_N: Tensor) -> Tensor:
        """(N, vocabulary) after one more token. The model's cache is passed to the next call."""
        cohort.text_NS = torch.cat([cohort.text_NS, newest_N[:, None]], dim=1)
        begins = not cohort.kept
        inputs = self._model.prepare_inputs_for_generation(
            cohort.text_NS,
            next_sequence_length=None if begins else 1,
            is_first_iteration=begins,
            attention_mask=torch.ones_like(cohort.text_NS),
            use_cache=True,
            **cohort.kept,
        )
        outputs = self._model(**inputs | quiet_outputs(self._model))
        cohort.kept = {name: kept for name, kept in outputs.items() if name in _CACHES}  # each under one name only
        return outputs.logits[:, -1]


class WholeTextDecoder(TextDecoder):
    """Every row's sequence goes through the model again for every token, batched only with rows of its length."""

    _rows: list[list[int]]

    def __init__(self, model: PreTrainedModel, places: int) -> None:
        super().__init__(model, places)
        self._together = row_rules(model).beside != "alone"

    def join_texts(self, prompts: Sequence[Tokens]) -> None:
        self._rows += [list(prompt[:-1]) for prompt in prompts]

    def logits(self, tokens_R: Tensor, positions_R: Tensor) -> Tensor:
        for text, token in zip(self._rows, tokens_R.tolist(), strict=True):
            text.append(token)
        groups = rows_by((len(text), 0 if self._together else row) for row, text in enumerate(self._rows))
        parts = []
        for rows in groups.values():
            texts = torch.tensor([self._rows[row] for row in rows], device=tokens_R.device)
            parts.append(self._model(**plain_inputs(self._model, texts)).logits[:, -1])
        order = torch.tensor([row for rows in groups.values() for row in rows], device=tokens_R.device)
        return torch.cat(parts).index_select(0, order.argsort())
