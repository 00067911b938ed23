"""The judges of a run, as the scorer calls them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

from burnish.errors import ConfigError, RewardError
from burnish.rewards.inputs import Item, Signature, check_options
from burnish.rewards.judging.asking import Asker
from burnish.rewards.judging.background import Background
from burnish.rewards.judging.cache import VerdictCache
from burnish.rewards.judging.client import ChatClient, Endpoint, NoVerdictError, bounds_of, read_key
from burnish.rewards.judging.forms import Judge
from burnish.rewards.judging.limits import Bounds, Clock, Gate
from burnish.rewards.judging.local import LocalChat, OpenModel
from burnish.rewards.judging.options import JudgeOptions
from burnish.rewards.judging.pairwise import Found, win_rates
from burnish.rewards.judging.tally import Tally
from burnish.rewards.loading import RewardSpec
from burnish.rewards.outcome import Outcome, failure
from burnish.types import Metric, RewardStatus, Rollout, Score

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CLOCK = Clock()
T = TypeVar("T")
Sample = tuple[str, int, int]
"""Label of the judge, group and number of a response."""


@dataclass(slots=True)
class Bench:
    """A judge with those it asks. `ask` is made on the event loop, with the first question."""

    judge: Judge
    timeout_seconds: float
    tally: Tally
    cache: VerdictCache | None
    open_endpoint: Callable[[], Endpoint]
    asker: Asker | None = None

    @property
    def judges_alone(self) -> bool:
        """Whether a response can be judged before the others of its group, and without being in their way."""
        return self.judge.options.form != "pairwise" and self.judge.options.url is not None


class Judges:
    """All rewards `judge` of a run. Use it from one thread at a time; what is asked runs on a thread of its own, and
    models of this process answer on another one."""

    def __init__(self, specs: Sequence[RewardSpec], open_model: OpenModel | None = None, clock: Clock = CLOCK) -> None:
        """Reads options, templates, keys and caches, and opens local models with `open_model`.

        Without `open_model`, a judge with `model_path` is checked and can be asked nothing. Raises ConfigError.
        """
        self._clock = clock
        self._background = Background("burnish-judges")
        self._local_thread = ThreadPoolExecutor(1, "burnish-local-judges")
        self._gates: dict[tuple[str | None, str | None], Gate] = {}
        self._benches = {spec.label: self._bench(spec, open_model) for spec in specs}
        self._early: dict[Sample, tuple[Rollout, Future[Found]]] = {}
        _check_shared_limits([bench.judge.options for bench in self._benches.values()])

    def signature(self, label: str) -> Signature:
        """What the judge reads of a row."""
        return self._benches[label].judge.signature

    def attach_policy(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """See `Judge.attach_policy`."""
        for bench in self._benches.values():
            bench.judge.attach_policy(tokenizer)

    def begin_early(self, label: str, items: Sequence[Item]) -> None:
        """Ask about these responses now, while others are still being sampled, if this judge needs no others."""
        bench = self._benches[label]
        for item in items if bench.judges_alone else ():
            self._early[_sample(label, item[1])] = (item[1], self._begin_one(bench, item))

    def begin(self, label: str, items: Sequence[Item]) -> Callable[[], list[Outcome]]:
        """Ask about these responses, as far as that has not begun. What is returned waits for the outcomes, in order.
        It raises RewardError if the endpoint refuses to answer at all."""
        bench = self._benches[label]
        if bench.judge.options.form == "pairwise":
            return partial(self._outcomes_of_groups, bench, self._begin_groups(bench, items))
        futures = [self._begun_early(label, item) or self._begin_one(bench, item) for item in items]
        return partial(self._outcomes, bench, futures)

    def take_metrics(self) -> dict[str, Metric]:
        """What the judges have done since the last call, all together; empty without judges."""
        metrics: dict[str, Metric] = {}
        for bench in self._benches.values():
            found = self._background.submit(_taken(bench.tally)).result() if self._background.is_running else {}
            for name, metric in found.items():
                metrics[name] = metrics[name].merge(metric) if name in metrics else metric
        return metrics

    def close(self) -> None:
        """End what is under way and its thread. Idempotent."""
        self._background.close()
        self._local_thread.shutdown(wait=False, cancel_futures=True)

    def _bench(self, spec: RewardSpec, open_model: OpenModel | None) -> Bench:
        options = read_options(spec)
        judge, tally = Judge.of(spec.label, options), Tally()
        tally.price_in, tally.price_out = options.price_in or 0.0, options.price_out or 0.0
        read_key(options)  # refused here, before anything is sampled
        if options.url is not None:
            open_endpoint: Callable[[], Endpoint] = partial(self._open_client, options, tally)
        elif open_model is not None:
            model = open_model(options)
            judge.special_tokens = model.special_tokens
            open_endpoint = partial(LocalChat, model, options, tally, model.name, self._local_thread)
        else:
            open_endpoint = partial(_nobody, spec.label)
        cache = None if options.cache is None else VerdictCache.open(options.cache)
        return Bench(judge, spec.timeout_seconds, tally, cache, open_endpoint)

    def _open_client(self, options: JudgeOptions, tally: Tally) -> ChatClient:
        """Judges of the same endpoint and key share its limits."""
        place = (options.url, options.key_variable)
        if place not in self._gates:
            self._gates[place] = Gate(bounds_of(options), self._clock)
        return ChatClient.open(options, self._gates[place], tally, self._clock)

    def _asker(self, bench: Bench) -> Asker:
        if bench.asker is None:
            endpoint = bench.open_endpoint()
            self._background.at_the_end(endpoint.close)
            bench.asker = Asker(endpoint, bench.cache, bench.tally, self._clock, bench.timeout_seconds)
        return bench.asker

    def _begin_one(self, bench: Bench, item: Item) -> Future[Found]:
        return self._background.submit(self._score(bench, item))

    async def _score(self, bench: Bench, item: Item) -> Found:
        try:
            return await bench.judge.score(item, self._asker(bench))
        except NoVerdictError as error:
            return error

    async def _win_rates(self, bench: Bench, group: Sequence[Item]) -> list[Found]:
        try:
            return await win_rates(bench.judge, group, self._asker(bench))
        except NoVerdictError as error:  # the row lacks what the prompt shows
            return [error] * len(group)

    def _begun_early(self, label: str, item: Item) -> Future[Found] | None:
        """Another response of that name is judged anew: the one that was begun came from a step that was cut short."""
        rollout, future = self._early.pop(_sample(label, item[1]), (None, None))
        return future if rollout == item[1] else None

    def _begin_groups(self, bench: Bench, items: Sequence[Item]) -> list[tuple[list[int], Future[list[Found]]]]:
        """For each group the positions of its responses, and their results to be."""
        numbered = sorted(enumerate(items), key=lambda entry: entry[1][1].group_id)
        begun = []
        for _, members in groupby(numbered, key=lambda entry: entry[1][1].group_id):
            positions, group = zip(*members, strict=True)
            begun.append((list(positions), self._background.submit(self._win_rates(bench, group))))
        return begun

    def _outcomes(self, bench: Bench, futures: Sequence[Future[Found]]) -> list[Outcome]:
        found = _wait(futures)
        return [_outcome(bench.judge.label, result) for result in found]

    def _outcomes_of_groups(
        self, bench: Bench, begun: Sequence[tuple[list[int], Future[list[Found]]]]
    ) -> list[Outcome]:
        results = _wait([future for _, future in begun])
        by_position = {
            position: result
            for (positions, _), group in zip(begun, results, strict=True)
            for position, result in zip(positions, group, strict=True)
        }
        return [_outcome(bench.judge.label, by_position[position]) for position in sorted(by_position)]


def read_options(spec: RewardSpec) -> JudgeOptions:
    """The options of a judge. ConfigError for one that it does not have, or that is out of range."""
    check_options(JudgeOptions, spec.label, spec.options)
    return JudgeOptions(**spec.options)


def _check_shared_limits(judges: Sequence[JudgeOptions]) -> None:
    """ConfigError if two judges set different limits for the same endpoint, which has to have one set of them."""
    found: dict[tuple[str, str | None], Bounds] = {}
    for options in judges:
        if options.url is None:
            continue
        bounds = bounds_of(options)
        if found.setdefault((options.url, options.key_variable), bounds) != bounds:
            raise ConfigError(
                f"two judges ask {options.url} with different limits",
                remedy="give both the same concurrency, requests_per_minute and tokens_per_minute: they share them",
            )


def _wait(futures: Sequence[Future[T]]) -> list[T]:
    """The results. After an error that ends the run, nothing more is asked."""
    try:
        return [future.result() for future in futures]
    except BaseException:
        for future in futures:
            future.cancel()
        raise


def _outcome(label: str, found: Found) -> Outcome:
    if isinstance(found, Score):
        return Outcome(RewardStatus.OK, found)
    return failure(found.status, f"judge {label!r}: {found.detail}")


def _sample(label: str, rollout: Rollout) -> Sample:
    return label, rollout.group_id, rollout.sample_index


async def _taken(tally: Tally) -> dict[str, Metric]:
    return tally.take()


def _nobody(label: str) -> Endpoint:
    raise RewardError(f"judge {label!r}: its model is not loaded here", remedy="give the scorer `open_model`")
