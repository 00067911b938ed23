"""The rows being decoded: their order in the decoder, their state, and the cache that is kept of finished ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from torch import Tensor

from burnish.machine.matmul_precision import countable
from burnish.rollouts.engine import Sampling
from burnish.rollouts.local.cache import PrefilledPrompts
from burnish.rollouts.local.decoders import Decoder
from burnish.rollouts.local.plain_decoders import TextDecoder
from burnish.rollouts.local.reusable_rows import KeptRow, KeptRows
from burnish.rollouts.local.static_decoder import StaticDecoder
from burnish.rollouts.local.static_steps import BLOCK, COUNT, POSITION, TOKEN
from burnish.rollouts.noise import sample_key, uniforms
from burnish.rollouts.sampling import sample
from burnish.rollouts.stop import StopConditions, check_logprob, response_limit
from burnish.types import Begun, FinishReason, Rollout, RolloutRequest, Versions


@dataclass(slots=True, eq=False)
class SampledRow:
    """One sample in progress."""

    order: int
    request: RolloutRequest
    sample_index: int
    key: int
    limit: int
    text: tuple[int, ...]
    """Tokens that are read before the first one is sampled: the prompt, and any beginning of the response."""
    tokens: list[int]
    logprobs: list[float]
    versions: Versions
    finish_reason: FinishReason | None = None

    def rollout(self, stop: StopConditions, version: int) -> Rollout:
        """The row as a response, of which weights of this version sampled the newest tokens."""
        assert self.finish_reason is not None
        versions = self.versions_with(version)
        return Rollout(
            prompt_id=self.request.prompt_id,
            group_id=self.request.group_id,
            sample_index=self.sample_index,
            prompt_tokens=self.request.prompt_tokens,
            response_tokens=tuple(self.tokens),
            rollout_logprobs=tuple(self.logprobs),
            finish_reason=self.finish_reason,
            policy_version=versions[0][1],
            response=stop.response_text(self.tokens),
            versions=versions if len(versions) > 1 else (),
        )

    def versions_with(self, version: int) -> Versions:
        """Return the versions that sampled what the row began with, and this one if it has sampled more of it."""
        first = len(self.text) - len(self.request.prompt_tokens)
        goes_on = self.versions and self.versions[-1][1] == version
        return self.versions if goes_on or first == len(self.tokens) else (*self.versions, (first, version))


def rows_for(
    requests: Sequence[RolloutRequest], sampling: Sampling, *, seed: int, step: int, context_length: int
) -> list[SampledRow]:
    """A row for each sample that these requests ask for, in their order. RolloutError for a prompt that leaves no room
    in the context."""
    samples = [(request, *sample) for request in requests for sample in request.samples()]
    return [
        SampledRow(
            order,
            request,
            index,
            sample_key(seed, step, request.name, index),
            response_limit(request, sampling, context_length),
            request.prompt_tokens + begun.response_tokens,
            list(begun.response_tokens),
            list(begun.rollout_logprobs),
            begun.versions,
        )
        for order, (request, index, begun) in enumerate(samples)
    ]


def requests_for(rows: Sequence[SampledRow], version: int) -> list[RolloutRequest]:
    """Requests for what these rows lack, of which weights of this version sampled the newest tokens."""
    return [
        replace(
            request,
            sample_indices=tuple(row.sample_index for row in members),
            begun=tuple(Begun(tuple(row.tokens), tuple(row.logprobs), row.versions_with(version)) for row in members),
        )
        for request, members in ((request, list(rows)) for request, rows in groupby(rows, lambda row: row.request))
    ]


class RowsInProgress:
    """The rows being decoded and their numbers on the device (`static_steps`): newest token, its position and so on.

    kept: store of finished rows, None to keep none. vocabulary: see `LocalEngine`.
    """

    def __init__(
        self, decoder: Decoder | TextDecoder, device: torch.device, kept: KeptRows | None, vocabulary: int | None
    ) -> None:
        self.rows: list[SampledRow] = []
        self._vocabulary = vocabulary
        self._kept = kept
        self._decoder = decoder
        self._device = device
        self._numbers_5R = torch.empty(5, 0, dtype=torch.int64, device=self._device)

    @property
    def reads_texts(self) -> bool:
        """True if rows enter with `join_texts`."""
        return isinstance(self._decoder, TextDecoder)

    def join(self, rows: list[SampledRow], prompts: PrefilledPrompts | None, sources: Sequence[int]) -> None:
        """Add rows, whose next input is the last token of their text."""
        assert not isinstance(self._decoder, TextDecoder)
        self._decoder.join([len(row.text) for row in rows], prompts, sources)
        self._enter(rows)

    def go_on(self, rows: list[SampledRow], kept: Sequence[KeptRow]) -> None:
        """Like `join`, for rows that go on from kept ones."""
        assert not isinstance(self._decoder, TextDecoder)
        self._enter([rows[i] for i in self._decoder.go_on(kept, [row.text for row in rows])])

    def join_texts(self, rows: list[SampledRow]) -> None:
        """Like `join`, for decoders that read prompts themselves."""
        assert isinstance(self._decoder, TextDecoder)
        self._decoder.join_texts([row.text for row in rows])
        self._enter(rows)

    def _enter(self, rows: list[SampledRow]) -> None:
        self.rows += rows
        columns = [(row.text[-1], len(row.text) - 1, row.key, len(row.tokens), row.limit) for row in rows]
        new_R5 = torch.tensor(columns, dtype=torch.int64, device=self._device)
        self._numbers_5R = torch.cat([self._numbers_5R, new_R5.T], dim=1)

    def advance(self, sampling: Sampling, stop: StopConditions) -> list[SampledRow]:
        """Decode one token for every row, or a block of them if the decoder draws several at a time; remove and return
        the finished rows."""
        tokens_BR, logprobs_BR = self._drawn(sampling, stop)
        self._numbers_5R[TOKEN] = tokens_BR[-1]
        self._numbers_5R[POSITION] += len(tokens_BR)
        self._numbers_5R[COUNT] += len(tokens_BR)
        for tokens, logprobs in zip(tokens_BR.tolist(), logprobs_BR.tolist(), strict=True):
            self._record(tokens, logprobs, stop)
        done = [row for row in self.rows if row.finish_reason is not None]
        if done:
            self._keep()
            self._leave()
        return done

    def _drawn(self, sampling: Sampling, stop: StopConditions) -> tuple[Tensor, Tensor]:
        """(B, R): the next tokens and their log-probabilities."""
        if isinstance(self._decoder, StaticDecoder):
            most = max(row.limit - len(row.tokens) for row in self.rows)
            steps = min(BLOCK, most)
            return self._decoder.steps.block(self._numbers_5R, steps, sampling, stop.token_ids, self._vocabulary)
        tokens_R, positions_R, keys_R, counts_R, _ = self._numbers_5R
        logits_RV = countable(self._decoder.logits(tokens_R, positions_R)[:, : self._vocabulary])
        # Noise depends on the row's key and token count only, so a sample does not depend on the rows next to it.
        tokens_R, logprobs_R = sample(logits_RV, uniforms(countable(keys_R), countable(counts_R)), sampling)
        return tokens_R[None].to(self._device), logprobs_R[None]

    def _record(self, tokens: list[int], logprobs: list[float], stop: StopConditions) -> None:
        for row, token, logprob in zip(self.rows, tokens, logprobs, strict=True):
            if row.finish_reason is not None:  # by an earlier token of the block
                continue
            check_logprob(logprob, len(row.tokens), row.request, row.sample_index)
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
        self._numbers_5R[:, targets] = self._numbers_5R[:, sources]
        self._numbers_5R = self._numbers_5R[:, :count]
