"""The judges of a run, as the scorer calls them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from anyio.from_thread import BlockingPortal, start_blocking_portal

from burnish.errors import ConfigError, RewardError
from burnish.observability.timeline import WorkSpans
from burnish.rewards.checked_options import checked
from burnish.rewards.inputs import Item, Signature
from burnish.rewards.judging.asking import Asker, Endpoint, JudgementCache
from burnish.rewards.judging.client import ChatClient, NoVerdictError, Tally
from burnish.rewards.judging.forms import Judge
from burnish.rewards.judging.limits import Bounds, RateLimiter
from burnish.rewards.judging.local import LocalChat, OpenModel
from burnish.rewards.judging.options import JudgeOptions
from burnish.rewards.judging.pairwise import Found, win_rates
from burnish.rewards.loading import RewardSpec
from burnish.rewards.outcome import Outcome, failure
from burnish.types import Metric, RewardStatus, Rollout, RowKey, Score, Tokenizer

Begun = Sequence[tuple[Sequence[int], Future[list[Found]]]]
"""The positions of responses that are judged together, and the future with their results."""


@dataclass(slots=True)
class Bench:
    """A judge with its endpoint. asker: None if its model is not loaded here. spans: the times of its work."""

    judge: Judge
    asker: Asker | None
    spans: WorkSpans

    @property
    def is_pairwise(self) -> bool:
        return self.judge.options.form == "pairwise"


class Judges:
    """The rewards `judge` of a run. Use it from one thread at a time. Requests run on the event loop of another thread,
    which starts with the first one, and models of this process answer on a third one."""

    def __init__(self, specs: Sequence[RewardSpec], open_model: OpenModel | None = None) -> None:
        """Read options, templates, keys and caches, and open local models with `open_model`.

        Without `open_model`, a judge with `model_path` is checked but cannot be asked. Raises ConfigError.
        """
        self.spans = WorkSpans()
        self._portal: BlockingPortal | None = None
        self._thread = ExitStack()
        self._local_thread = ThreadPoolExecutor(1, "burnish-local-judges")
        self._gates: dict[tuple[str, str | None], RateLimiter] = {}
        self._benches = {spec.label: self._bench(spec, open_model) for spec in specs}
        self._early: dict[tuple[str, RowKey], tuple[Rollout, Future[list[Found]]]] = {}  # by label and response

    def signature(self, label: str) -> Signature:
        """Signature of a judge: the row values and columns that it reads."""
        return self._benches[label].judge.signature

    def attach_policy(self, tokenizer: Tokenizer) -> None:
        """Call `Judge.attach_policy` on each judge."""
        for bench in self._benches.values():
            bench.judge.attach_policy(tokenizer)

    def begin_early(self, label: str, items: Sequence[Item]) -> None:
        """Ask about these responses now, while others are still being sampled, if this judge does not compare them."""
        bench = self._benches[label]
        if not bench.is_pairwise and bench.judge.options.url is not None:  # a local judge would slow down sampling
            for item, future in zip(items, self._begin(bench, [[item] for item in items]), strict=True):
                self._early[label, item[1].key] = (item[1], future)

    def begin(self, label: str, items: Sequence[Item]) -> Callable[[], list[Outcome]]:
        """Ask about these responses, unless `begin_early` has. The returned function waits for the outcomes, in order,
        and raises RewardError if the endpoint refuses all requests."""
        bench = self._benches[label]
        groups = _groups(items) if bench.is_pairwise else [([place], [item]) for place, item in enumerate(items)]
        early = [self._begun_early(label, group[0]) for _, group in groups]
        rest = iter(self._begin(bench, [group for (_, group), begun in zip(groups, early, strict=True) if not begun]))
        begun = [(places, future or next(rest)) for (places, _), future in zip(groups, early, strict=True)]
        return partial(_outcomes, label, begun)

    def take_metrics(self) -> dict[str, Metric]:
        """Metrics of all judges together since the last call; empty if none was asked."""
        metrics: dict[str, Metric] = {}
        for asker in (bench.asker for bench in self._benches.values()):
            found = {} if asker is None or self._portal is None else self._portal.call(asker.tally.take)
            for name, metric in found.items():
                metrics[name] = metrics[name].merge(metric) if name in metrics else metric
        return metrics

    def close(self) -> None:
        """Cancel pending requests and end the threads. Idempotent."""
        if self._portal is not None:
            for asker in (bench.asker for bench in self._benches.values()):
                if asker is not None:
                    self._portal.call(asker.endpoint.close)
            self._portal.call(self._portal.stop, True)
            self._portal = None
        self._thread.close()
        self._local_thread.shutdown(wait=False, cancel_futures=True)

    def _bench(self, spec: RewardSpec, open_model: OpenModel | None) -> Bench:
        options = read_options(spec)
        judge = Judge.of(spec.label, options)
        tally = Tally(price_in=options.price_in or 0.0, price_out=options.price_out or 0.0)
        endpoint: Endpoint | None = None
        if options.url is not None:
            endpoint = ChatClient(options, self._gate(options), tally)
        elif open_model is not None:
            model = open_model(options)
            judge.special_tokens = model.special_tokens
            endpoint = LocalChat(model, options, tally, model.name, self._local_thread)
        cache = None if options.cache is None else JudgementCache.open(options.cache)
        asker = None if endpoint is None else Asker(endpoint, cache, tally, spec.timeout_seconds)
        return Bench(judge, asker, self.spans)

    def _gate(self, options: JudgeOptions) -> RateLimiter:
        """The limits of an endpoint, shared by its judges with the same key. ConfigError if they set different ones."""
        bounds = Bounds(options.concurrency, options.requests_per_minute, options.tokens_per_minute)
        gate = self._gates.setdefault(((options.url or "").rstrip("/"), options.key_variable), RateLimiter(bounds))
        if gate.bounds != bounds:
            raise ConfigError(
                f"two judges ask {options.url} with different limits",
                remedy="give both the same concurrency, requests_per_minute and tokens_per_minute: they share them",
            )
        return gate

    def _begin(self, bench: Bench, groups: Sequence[Sequence[Item]]) -> list[Future[list[Found]]]:
        if self._portal is None:
            self._portal = self._thread.enter_context(start_blocking_portal(name="burnish-judges"))
        return self._portal.call(_start, bench, groups)

    def _begun_early(self, label: str, item: Item) -> Future[list[Found]] | None:
        """Take the future of an early request. None for a different response under the same key: the earlier one came
        from a step that was interrupted."""
        rollout, future = self._early.pop((label, item[1].key), (None, None))
        return future if rollout == item[1] else None


def read_options(spec: RewardSpec) -> JudgeOptions:
    """Read the options of a judge. ConfigError for an unknown option, or a value out of range."""
    return checked(JudgeOptions, spec.label, spec.options)


def _groups(items: Sequence[Item]) -> list[tuple[Sequence[int], Sequence[Item]]]:
    """Group responses that are compared with each other, with their positions."""
    numbered = sorted(enumerate(items), key=lambda entry: entry[1][1].group_id)
    members = groupby(numbered, key=lambda entry: entry[1][1].group_id)
    return [tuple(zip(*group, strict=True)) for _, group in members]  # type: ignore[misc]


def _start(bench: Bench, groups: Sequence[Sequence[Item]]) -> list[Future[list[Found]]]:
    """Start one task for each group. It runs on the event loop, so that none begins before all are made: equal requests
    are sent once, and a model of this process answers them in one batch, however slow the machine is."""
    loop = asyncio.get_running_loop()
    return [asyncio.run_coroutine_threadsafe(_judged(bench, group), loop) for group in groups]


async def _judged(bench: Bench, group: Sequence[Item]) -> list[Found]:
    """Judge one response, or a group whose responses are compared."""
    if bench.asker is None:
        raise RewardError(
            f"judge {bench.judge.label!r}: its model is not loaded here", remedy="give the scorer `open_model`"
        )
    label, began = bench.judge.label, time.monotonic()
    try:
        if bench.is_pairwise:
            return await win_rates(bench.judge, group, bench.asker)
        return [await bench.judge.score(item, bench.asker) for item in group]
    except NoVerdictError as error:  # for the one response, or because the row lacks a value that the prompt shows
        return [error] * len(group)
    finally:
        bench.spans.add(label if label.startswith("judge") else f"judge {label}", label, began)


def _outcomes(label: str, begun: Begun) -> list[Outcome]:
    """Wait for all outcomes, in order. An error that ends the run cancels what is left."""
    found: dict[int, Found] = {}
    try:
        for positions, future in begun:
            found.update(zip(positions, future.result(), strict=True))
    except BaseException:
        for _, future in begun:
            future.cancel()
        raise
    return [_outcome(label, found[position]) for position in sorted(found)]


def _outcome(label: str, found: Found) -> Outcome:
    if isinstance(found, Score):
        return Outcome(RewardStatus.OK, found)
    return failure(found.status, f"judge {label!r}: {found.detail}")
