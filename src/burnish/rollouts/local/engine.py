"""The local engine: samples directly from the training weights, in the process that trains them.

How a call runs: rows (one per sample) wait in a queue, longest prompts first. Each distinct prompt goes through the
model once, except its last token, and its keys and values are then copied to the rows of its samples. Decoding feeds
every row its newest token (at first the last token of its prompt). A finished row leaves at once, the last row takes
its place in memory, and waiting rows join when enough places are free.

While it is `keeping`, keys and values of finished rows stay (`burnish.rollouts.local.reusable_rows`). A row whose text
begins with the text of a kept one gets them, and only what follows goes through the model.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch

from burnish.errors import RolloutError
from burnish.forward.boundaries import Boundaries
from burnish.forward.fast_paths import FastPaths
from burnish.forward.row_rules import evaluation_mode
from burnish.models.weights import Weights, take_tensors
from burnish.rollouts.engine import KeepingEngine, NotingEngine, OnFinished, Requests, Sampling, StoppableEngine
from burnish.rollouts.local.choice import DecoderCandidate, MakeAnyDecoder, choose_way, goes_on_alike
from burnish.rollouts.local.decoders import Decoder, ModelDecoder
from burnish.rollouts.local.kernel_trial import choose_decoder, no_kernels
from burnish.rollouts.local.plain_decoders import TextDecoder
from burnish.rollouts.local.prefill import Prefiller, attention_kind
from burnish.rollouts.local.reusable_rows import KEEP_BYTES, KeptRows
from burnish.rollouts.local.rows import RowsInProgress, SampledRow, requests_for, rows_for
from burnish.rollouts.local.static_decoder import StaticDecoders
from burnish.rollouts.local.static_trial import choose_static, takes_static
from burnish.rollouts.sampling import check_sampling
from burnish.rollouts.stop import StopConditions, check_rotation
from burnish.types import Metric, PreTrainedModel, Reduction, Rollout, RolloutRequest, Tokenizer, UseKernels

if TYPE_CHECKING:
    from burnish.models.loading import LoadedModel

_ADMISSION_FRACTION = 0.125
"""Waiting rows join when this fraction of the places is free, so that prompts are prefilled several at a time."""


@dataclass(slots=True)
class _Seconds:
    """Time and tokens since the metrics were last read."""

    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    prefilled_tokens: int = 0
    reused_tokens: int = 0
    decoded_tokens: int = 0


@dataclass(slots=True)
class Session:
    """State that stays from call to call while the engine is keeping. decoder: with the present weights, for that many
    places."""

    rows: KeptRows
    decoder: Decoder | None = None
    places: int = 0


@dataclass(slots=True)
class DecodingLoop:
    """Decodes the rows of a call: they wait, join, get token after token, and leave. session: while the engine is
    keeping; it then outlasts the call."""

    model: PreTrainedModel
    make_decoder: MakeAnyDecoder
    pad_token_id: int
    max_batch_rows: int
    vocabulary: int | None
    session: Session | None = None
    spent: _Seconds = field(default_factory=_Seconds)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def run(
        self, rows: list[SampledRow], sampling: Sampling, stop: StopConditions, stopped: Callable[[], bool]
    ) -> Iterator[list[SampledRow]]:
        """Yield after each token, or block of tokens, the rows that it finished."""
        begun = sum(len(row.tokens) for row in rows)
        # Sorting brings equal prompts together, to be prefilled once, and prompts of similar length, to pad little.
        queue = deque(sorted(rows, key=lambda row: (-len(row.text), row.text)))
        places = min(self.max_batch_rows, len(rows))
        prefiller = Prefiller(self.model, pad_token_id=self.pad_token_id)
        decoder = self._taken_decoder(places)
        kept = self.session.rows if self.session else None
        decoding = RowsInProgress(decoder, self.device, kept, self.vocabulary)
        while (queue or decoding.rows) and not stopped():
            free = places - len(decoding.rows)
            if queue and free >= min(len(queue), max(1, int(places * _ADMISSION_FRACTION))):
                joining = [queue.popleft() for _ in range(min(free, len(queue)))]
                self._admit(joining, queue[0] if queue else None, prefiller, decoding)
            started = time.perf_counter()
            done = decoding.advance(sampling, stop)
            self.spent.decode_seconds += time.perf_counter() - started
            yield done
        self.spent.decoded_tokens += sum(len(row.tokens) for row in rows) - begun
        if self.session is not None and not isinstance(decoder, TextDecoder) and not decoding.rows:
            self.session.decoder, self.session.places = decoder, places
        if self.session is None:
            self.let_go()

    def let_go(self) -> None:
        """Let go of memory that the next call can do without."""
        if isinstance(self.make_decoder, StaticDecoders):
            self.make_decoder.let_go()

    def _taken_decoder(self, places: int) -> Decoder | TextDecoder:
        """Take the decoder of the last call, if it stayed and has the places, or make one. It stays again if this call
        leaves it empty."""
        session = self.session
        if session is not None and session.decoder is not None and places <= session.places:
            decoder, session.decoder = session.decoder, None
            return decoder
        return self.make_decoder(self.model, places)

    def _admit(
        self, joining: list[SampledRow], waiting: SampledRow | None, prefiller: Prefiller, decoding: RowsInProgress
    ) -> None:
        """Give the rows their prompts' caches and let them join. `waiting` is the next row in the queue."""
        if decoding.reads_texts:  # with the first token, so that their time counts as decoding
            decoding.join_texts(joining)
            self.spent.prefilled_tokens += sum(len(row.text) - 1 for row in joining)
            return
        started = time.perf_counter()
        new = self._go_on(joining, decoding) if self.session else joining
        # Samples of one prompt may be admitted in two calls: its cache is then kept for the second.
        later = waiting.text if waiting else None
        for chunk in prefiller.prefill([row.text for row in new], keep=later):
            decoding.join([new[i] for i in chunk.rows], chunk.prompts, chunk.sources)
        self.spent.prefill_seconds += time.perf_counter() - started
        self.spent.prefilled_tokens += prefiller.take_token_count()

    def _go_on(self, joining: list[SampledRow], decoding: RowsInProgress) -> list[SampledRow]:
        """Let those join that go on from a kept row. Returns the others."""
        assert self.session is not None
        found = self.session.rows.take([row.text for row in joining])
        going_on = [(row, kept) for row, kept in zip(joining, found, strict=True) if kept is not None]
        if going_on:
            decoding.go_on([row for row, _ in going_on], [kept for _, kept in going_on])
        self.spent.prefilled_tokens += sum(len(row.text) - 1 - len(kept.text) for row, kept in going_on)
        self.spent.reused_tokens += sum(len(kept.text) for _, kept in going_on)
        return [row for row, kept in zip(joining, found, strict=True) if kept is None]


def _decoding(
    model: PreTrainedModel, context_length: int, *, plain: bool, kernels: UseKernels, paths: FastPaths
) -> DecoderCandidate:
    """The decoder for texts of this length, which is tried here. RolloutError for models that have none."""
    attention = attention_kind(model.config)
    way = choose_way(model, attention, context_length)
    own = partial(ModelDecoder, attention=attention)
    has_choice = way.note is None and not plain
    if has_choice and kernels != "required" and takes_static(next(model.parameters()).device):
        return DecoderCandidate(choose_static(model, own, context_length, paths))
    # The kernels attend to every token, so the model may have no window that this run can exceed.
    if has_choice and _sees_all(model, context_length):
        return DecoderCandidate(choose_decoder(model, own, kernels, paths))
    if kernels == "required":
        raise no_kernels()
    return way


def _sees_all(model: PreTrainedModel, context_length: int) -> bool:
    """Return whether texts of this length exceed no window or boundary of the model."""
    return not Boundaries.of(model.config).crossed_by(context_length)


class LocalEngine(StoppableEngine, KeepingEngine, NotingEngine):
    """A StoppableEngine for any `transformers` causal language model (or peft wrapper), which it never changes. It is a
    KeepingEngine, too: within `keeping`, the weights may change only by `sync`.

    The model is used as it is (dtype, device, adapters). It is in evaluation mode only during `generate`.
    eos_token_ids: every id that ends a response. context_length: tokens of prompt and response together.
    max_batch_rows: rows decoded at once. It affects memory and speed, never a sample.
    plain: always decode with the model's own forward pass.
    kernels: whether C code (`burnish.kernels`) may decode instead.
    paths: chooses among equivalent ways to decode, and remembers the choice.
    vocabulary: ids from this number on are never sampled; None if all of the model's may be.
    keep_bytes: most that is kept of finished rows while `keeping`, 0 for nothing. Nothing is kept of models with a
    window or boundary that this run can exceed, or that cannot share a cache.
    `version` belongs to the weights of the last `sync`. `notes` are sentences for the user.

    Raises RolloutError for models that it cannot sample from with the log-probabilities of training
    (`burnish.rollouts.local.choice`).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        tokenizer: Tokenizer,
        eos_token_ids: Sequence[int],
        pad_token_id: int,
        context_length: int,
        max_batch_rows: int,
        plain: bool = False,
        kernels: UseKernels = "auto",
        paths: FastPaths | None = None,
        vocabulary: int | None = None,
        keep_bytes: int = KEEP_BYTES,
    ) -> None:
        if max_batch_rows < 1:
            raise RolloutError(f"max_batch_rows is {max_batch_rows}", remedy="max_batch_rows must be at least 1")
        check_rotation(model.config, context_length)
        self.version = 0
        self._model = model
        self._tokenizer = tokenizer
        self._eos_token_ids = tuple(eos_token_ids)
        self._context_length = context_length
        with evaluation_mode(model):
            found = _decoding(model, context_length, plain=plain, kernels=kernels, paths=paths or FastPaths())
        self.notes = () if found.note is None else (found.note,)
        self._keep_bytes = keep_bytes if found.note is None and _sees_all(model, context_length) else 0
        self._goes_on: bool | None = None  # whether kept rows can; not tried yet
        self._loop = DecodingLoop(model, found.make, pad_token_id, max_batch_rows, vocabulary)

    @staticmethod
    def of(loaded: LoadedModel, *, max_batch_rows: int, context_length: int | None = None) -> LocalEngine:
        """The engine of a loaded model, for texts up to its context if nothing else is said."""
        return LocalEngine(
            loaded.model,
            tokenizer=loaded.tokenizer,
            eos_token_ids=loaded.eos_token_ids,
            pad_token_id=loaded.pad_token_id,
            context_length=context_length or loaded.context_length,
            max_batch_rows=max_batch_rows,
            plain=loaded.plain,
            kernels=loaded.kernels,
            paths=loaded.paths,
            vocabulary=loaded.vocabulary,
            keep_bytes=0 if loaded.plain else KEEP_BYTES,  # reading on is a fast path
        )

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """See `KeepingEngine`. Raises RolloutError if it is called inside itself."""
        if self._loop.session is not None:
            raise RolloutError("the local engine is keeping rows already", remedy="leave the first `keeping` before")
        if self._goes_on is None and self._keep_bytes:
            with evaluation_mode(self._model):
                self._goes_on = goes_on_alike(self._model, self._loop.make_decoder)
        if not self._goes_on:
            yield
            return
        self._loop.session = Session(KeptRows(self._keep_bytes))
        try:
            yield
        finally:
            self._loop.session = None
            self._loop.let_go()

    def sync(self, weights: Weights) -> None:
        """Use these weights and their version. If they are the engine's own module, nothing is copied. An engine in
        another process than the policy copies them into its module."""
        if weights.module is not self._model:
            take_tensors(self._model, weights.tensors())
        self.version = weights.version
        if self._loop.session is not None:
            self._loop.session = Session(KeptRows(self._keep_bytes))

    def take_metrics(self) -> dict[str, Metric]:
        """Seconds and tokens of prefill and decoding since the last call, and of reuse if there was any."""
        spent, self._loop.spent = self._loop.spent, _Seconds()
        reused = {"rollout/reused_tokens": Metric(Reduction.SUM, spent.reused_tokens)} if spent.reused_tokens else {}
        return reused | {
            "time/prefill_seconds": Metric(Reduction.SUM, spent.prefill_seconds),
            "time/decode_seconds": Metric(Reduction.SUM, spent.decode_seconds),
            "rollout/prefilled_tokens": Metric(Reduction.SUM, spent.prefilled_tokens),
            "rollout/decoded_tokens": Metric(Reduction.SUM, spent.decoded_tokens),
            "throughput/decoded_tokens_per_second": Metric(Reduction.MEAN, spent.decoded_tokens, spent.decode_seconds),
        }

    def generate(
        self, requests: Requests, sampling: Sampling, *, seed: int, step: int, on_finished: OnFinished | None = None
    ) -> list[Rollout]:
        """One rollout per request and sample index, in the order of the requests.

        The same prompt id and sample index give the same sample in any position, even twice in one call.
        Raises RolloutError for settings out of range, empty prompts, prompts that leave no room in the context, and
        log-probabilities that are not finite.
        """
        rollouts, _ = self.generate_until(
            requests, sampling, seed=seed, step=step, stopped=lambda: False, on_finished=on_finished
        )
        return rollouts

    def generate_until(
        self,
        requests: Requests,
        sampling: Sampling,
        *,
        seed: int,
        step: int,
        stopped: Callable[[], bool],
        on_finished: OnFinished | None = None,
    ) -> tuple[list[Rollout], list[RolloutRequest]]:
        """See `StoppableEngine`. Raises what `generate` raises."""
        check_sampling(sampling)
        rows = rows_for(requests, sampling, seed=seed, step=step, context_length=self._context_length)
        stop = StopConditions.of(sampling, self._eos_token_ids, self._tokenizer)
        finished: dict[int, Rollout] = {}
        with torch.no_grad(), evaluation_mode(self._model):
            for done in self._loop.run(rows, sampling, stop, stopped):
                rollouts = {row.order: row.rollout(stop, self.version) for row in done}
                finished |= rollouts
                if on_finished is not None:
                    on_finished(list(rollouts.values()))
        open_rows = [row for row in rows if row.finish_reason is None]
        return [finished[row.order] for row in rows if row.order in finished], requests_for(open_rows, self.version)
