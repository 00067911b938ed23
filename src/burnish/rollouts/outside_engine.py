"""The boundary to a plugin engine: errors that it raises and wrong results are reported as the engine's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from burnish.config.engines import NO_TRAITS, EngineTraits
from burnish.errors import RolloutError
from burnish.models.weights import Weights
from burnish.outside.plugins import calling_outside
from burnish.rollouts.engine import (
    KeepingEngine,
    OnFinished,
    Requests,
    RestingEngine,
    RolloutEngine,
    Sampling,
    StoppableEngine,
    keeping,
    let_rest,
)
from burnish.rollouts.sampling import check_traits
from burnish.types import Metric, Rollout, RolloutRequest

_PROTOCOL = "see burnish.rollouts.engine.RolloutEngine for what an engine must return"


@dataclass(eq=False)
class OutsideEngine(RestingEngine, KeepingEngine):
    """A `RolloutEngine` around a user's class. Raises RolloutError for whatever it raises, for rollouts other than
    those asked for, for tokens that are not among the first `vocabulary` ids, and for settings that its traits exclude.
    Enters and leaves the engine if that is a context manager. rests: the run asks for its memory between calls."""

    engine: RolloutEngine
    name: str
    vocabulary: int
    traits: EngineTraits = NO_TRAITS
    rests: bool = False

    def generate(
        self, requests: Requests, sampling: Sampling, *, seed: int, step: int, on_finished: OnFinished | None = None
    ) -> list[Rollout]:
        check_traits(sampling, self.traits)
        with self._calling("generate"):
            found: Any = self.engine.generate(requests, sampling, seed=seed, step=step, on_finished=on_finished)
        problem = _problem(found, requests, self.vocabulary)
        if problem:
            raise RolloutError(f"rollout.engine {self.name!r}: generate returned {problem}", remedy=_PROTOCOL)
        return list(found)

    def sync(self, weights: Weights) -> None:
        with self._calling("sync"):
            self.engine.sync(weights)

    def take_metrics(self) -> Mapping[str, Metric]:
        with self._calling("take_metrics"):
            found: object = self.engine.take_metrics()
        if not isinstance(found, Mapping) or not all(isinstance(metric, Metric) for metric in found.values()):
            raise RolloutError(
                f"rollout.engine {self.name!r}: take_metrics returned {found!r:.80}, not names to burnish.types.Metric",
                remedy=_PROTOCOL,
            )
        return found

    def rest(self) -> None:
        """See `RestingEngine`."""
        if self.rests:
            with self._calling("rest"):
                let_rest(self.engine)

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """See `KeepingEngine`. Nothing is kept unless the traits say so."""
        with ExitStack() as stack:
            if self.traits.keeps_rows:
                with self._calling("keeping"):
                    stack.enter_context(keeping(self.engine))
            yield

    def __enter__(self) -> OutsideEngine:
        if isinstance(self.engine, AbstractContextManager):
            with self._calling("__enter__"):
                self.engine.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        if isinstance(self.engine, AbstractContextManager):
            with self._calling("__exit__"):
                self.engine.__exit__(*exception)

    def _calling(self, method: str) -> AbstractContextManager[None]:
        return calling_outside(f"rollout.engine {self.name!r}, {method}", RolloutError)


@dataclass(eq=False)
class OutsideStoppableEngine(OutsideEngine, StoppableEngine):
    """An `OutsideEngine` around a `StoppableEngine`."""

    engine: StoppableEngine

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
        """See `StoppableEngine`."""
        check_traits(sampling, self.traits)
        with self._calling("generate_until"):
            found: Any = self.engine.generate_until(
                requests, sampling, seed=seed, step=step, stopped=stopped, on_finished=on_finished
            )
        if problem := _problem_of_both(found, requests, self.vocabulary):
            raise RolloutError(
                f"rollout.engine {self.name!r}: generate_until returned {problem}",
                remedy="see burnish.rollouts.engine.StoppableEngine for what an engine must return",
            )
        rollouts, rest = found
        return list(rollouts), list(rest)


def outside_engine(
    engine: RolloutEngine, name: str, vocabulary: int, traits: EngineTraits = NO_TRAITS, *, rests: bool = False
) -> OutsideEngine:
    """The boundary to this engine."""
    if isinstance(engine, StoppableEngine):
        return OutsideStoppableEngine(engine, name, vocabulary, traits, rests)
    return OutsideEngine(engine, name, vocabulary, traits, rests)


def _problem_of_both(found: object, requests: Sequence[RolloutRequest], vocabulary: int) -> str:
    """Describe what is wrong with finished rollouts and the requests for the others; "" if nothing is."""
    if not isinstance(found, tuple) or len(found) != 2 or not all(isinstance(part, list) for part in found):
        return f"{found!r:.80}, not a list of rollouts and a list of requests"
    rollouts, rest = found
    if not all(isinstance(request, RolloutRequest) for request in rest):
        return "something other than burnish.types.RolloutRequest in its second list"
    left = {(request.group_id, index) for request in rest for index, _ in request.samples()}
    done = [
        replace(r, sample_indices=tuple(i for i in r.sample_indices if (r.group_id, i) not in left)) for r in requests
    ]
    asked = {(request.group_id, index) for request in requests for index in request.sample_indices}
    if not left <= asked:
        return "requests for samples that were not asked for"
    return _problem(rollouts, done, vocabulary)


def _problem(found: object, requests: Sequence[RolloutRequest], vocabulary: int) -> str:
    """Describe what is wrong with the rollouts; "" if nothing is."""
    if not isinstance(found, (list, tuple)):
        return f"a {type(found).__name__}, not a list of rollouts"
    odd = [item for item in found if not isinstance(item, Rollout)]
    if odd:
        return f"a list with a {type(odd[0]).__name__} in it, not only burnish.types.Rollout"
    wanted = [(request.group_id, index) for request in requests for index in request.sample_indices]
    if [(rollout.group_id, rollout.sample_index) for rollout in found] != wanted:
        return f"{len(found)} rollouts that are not, in order, the {len(wanted)} samples asked for"
    uneven = [r for r in found if len(r.response_tokens) != len(r.rollout_logprobs) or not r.response_tokens]
    if uneven:
        tokens, numbers = len(uneven[0].response_tokens), len(uneven[0].rollout_logprobs)
        return f"a response of {tokens} tokens with {numbers} log-probabilities"
    unknown = [token for rollout in found for token in rollout.response_tokens if not 0 <= token < vocabulary]
    if unknown:
        return f"token {unknown[0]}, but the tokenizer's ids end at {vocabulary - 1}: an engine must not sample others"
    return ""
