"""The rows that are decoded at a time: where each of them is, and what of it stays when it has finished."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.errors import RolloutError
from burnish.forward.precision import countable
from burnish.rollouts.engine import Sampling
from burnish.rollouts.local.cache import PrefilledPrompts
from burnish.rollouts.local.decoders import Decoder
from burnish.rollouts.local.kept import KeptRow, KeptRows
from burnish.rollouts.local.own_ways import TextDecoder
from burnish.rollouts.noise import uniforms
from burnish.rollouts.sampling import sample
from burnish.rollouts.stop import StopConditions
from burnish.types import FinishReason, RolloutRequest, Versions


@dataclass(slots=True, eq=False)
class Row:
    """One sample in progress."""

    order: int
    request: RolloutRequest
    sample_index: int
    key: int
    limit: int
    text: tuple[int, ...]
    """What is read before the first token is sampled: the prompt, and what there is of the response."""
    tokens: list[int]
    logprobs: list[float]
    versions: Versions
    finish_reason: FinishReason | None = None


class RowsInProgress:
    """The rows being decoded and their state on the device: newest token, its position, noise key, token count.

    kept: where finished rows are kept, if they are. vocabulary: see `LocalEngine`.
    """

    def __init__(
        self, decoder: Decoder | TextDecoder, device: torch.device, kept: KeptRows | None, vocabulary: int | None
    ) -> None:
        self.rows: list[Row] = []
        self._vocabulary = vocabulary
        self._kept = kept
        self._decoder = decoder
        self._device = device
        self._tokens = torch.empty(0, dtype=torch.int64, device=self._device)
        self._positions = torch.empty(0, dtype=torch.int64, device=self._device)
        self._keys = torch.empty(0, dtype=torch.int64, device=self._device)
        self._counts = torch.empty(0, dtype=torch.int64, device=self._device)

    @property
    def reads_texts(self) -> bool:
        """Whether rows enter with `join_texts`."""
        return isinstance(self._decoder, TextDecoder)

    def join(self, rows: list[Row], prompts: PrefilledPrompts | None, sources: Sequence[int]) -> None:
        """Add rows, whose next input is the last token of their text."""
        assert not isinstance(self._decoder, TextDecoder)
        self._decoder.join([len(row.text) for row in rows], prompts, sources)
        self._enter(rows)

    def go_on(self, rows: list[Row], kept: Sequence[KeptRow]) -> None:
        """Like `join`, for rows that go on from kept ones."""
        assert not isinstance(self._decoder, TextDecoder)
        self._enter([rows[i] for i in self._decoder.go_on(kept, [row.text for row in rows])])

    def join_texts(self, rows: list[Row]) -> None:
        """Like `join`, for decoders that read prompts themselves."""
        assert isinstance(self._decoder, TextDecoder)
        self._decoder.join_texts([row.text for row in rows])
        self._enter(rows)

    def _enter(self, rows: list[Row]) -> None:
        self.rows += rows
        newest = [row.text[-1] for row in rows]
        self._tokens = self._extended(self._tokens, newest)
        self._positions = self._extended(self._positions, [len(row.text) - 1 for row in rows])
        self._keys = self._extended(self._keys, [row.key for row in rows])
        self._counts = self._extended(self._counts, [len(row.tokens) for row in rows])

    def advance(self, sampling: Sampling, stop: StopConditions) -> list[Row]:
        """Decode one token for every row. Finished rows leave and are returned."""
        logits_RV = countable(self._decoder.logits(self._tokens, self._positions)[:, : self._vocabulary])
        # Noise depends on the row's key and token count only, so a sample does not depend on the rows next to it.
        uniforms_R = uniforms(countable(self._keys), countable(self._counts))
        tokens_R, logprobs_R = sample(logits_RV, uniforms_R, sampling)
        self._tokens = tokens_R.to(self._device)
        self._positions = self._positions + 1
        self._counts = self._counts + 1
        self._record(self._tokens.tolist(), logprobs_R.tolist(), stop)
        done = [row for row in self.rows if row.finish_reason is not None]
        if done:
            self._keep()
            self._leave()
        return done

    def _record(self, tokens: list[int], logprobs: list[float], stop: StopConditions) -> None:
        for row, token, logprob in zip(self.rows, tokens, logprobs, strict=True):
            if not math.isfinite(logprob):
                raise RolloutError(
                    f"the model gives log-probability {logprob} at response token {len(row.tokens)} of prompt "
                    f"{row.request.prompt_id!r}, sample {row.sample_index}",
                    remedy="weights or activations are not finite: lower the learning rate or use a wider dtype",
                )
            row.tokens.append(token)
            row.logprobs.append(logprob)
            row.finish_reason = stop.finish_reason(row.tokens, row.limit)

    def _keep(self) -> None:
        """Keep the rows that have finished, if any are kept."""
        if self._kept is None:
            return
        assert not isinstance(self._decoder, TextDecoder)
        for number, row in enumerate(self.rows):
            if row.finish_reason is not None:
                self._kept.add(self._decoder.kept(number, (*row.request.prompt_tokens, *row.tokens[:-1])))

    def _leave(self) -> None:
        """Drop finished rows. Rows from the end move into their places, and the others stay where they are."""
        count = sum(row.finish_reason is None for row in self.rows)
        holes = [i for i in range(count) if self.rows[i].finish_reason is not None]
        movers = [i for i in range(count, len(self.rows)) if self.rows[i].finish_reason is None]
        for hole, mover in zip(holes, movers, strict=True):
            self.rows[hole] = self.rows[mover]
        del self.rows[count:]
        targets = torch.tensor(holes, dtype=torch.int64, device=self._device)
        sources = torch.tensor(movers, dtype=torch.int64, device=self._device)
        self._decoder.move(sources, targets, count)
        self._tokens = _moved(self._tokens, sources, targets, count)
        self._positions = _moved(self._positions, sources, targets, count)
        self._keys = _moved(self._keys, sources, targets, count)
        self._counts = _moved(self._counts, sources, targets, count)

    def _extended(self, tensor: Tensor, values: list[int]) -> Tensor:
        return torch.cat([tensor, torch.tensor(values, dtype=torch.int64, device=self._device)])


def _moved(tensor: Tensor, sources: Tensor, targets: Tensor, count: int) -> Tensor:
    tensor = tensor.clone()
    tensor[targets] = tensor[sources]
    return tensor[:count]
