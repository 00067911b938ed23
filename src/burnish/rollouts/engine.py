"""The engine protocol: prompts in, rollouts out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from burnish.types import Metric, Rollout, RolloutRequest

if TYPE_CHECKING:
    from burnish.models.weights import Weights

Requests = Sequence[RolloutRequest]
OnFinished = Callable[[Sequence[Rollout]], None]
"""Called during sampling, up to once per token, with the responses that have finished since the last call (or none)."""
EVALUATION_STEP = -1
"""`step` of every evaluation. A step only names noise, so this number gives all evaluations of a run the same noise,
and no step of training has it. Nothing asks for it."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Settings for drawing tokens. `greedy` takes the most likely token and ignores temperature, top_k, top_p and min_p
    (reported log-probabilities are still at `temperature`).

    stop_token_ids end a response and stay in it. Stop texts end it with the token that completes them. With
    `ignore_eos` the model's own end-of-sequence ids are ordinary tokens, so a response that nothing else stops has
    exactly max_response_tokens tokens. A prompt that leaves no room for them raises RolloutError. `only_scored`:
    nothing is trained on the responses, so of a conversation of several rows only the one in which it ends is wanted.
    """

    max_response_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    greedy: bool = False
    ignore_eos: bool = False
    only_scored: bool = False


class RolloutEngine(Protocol):
    """Samples responses. The result depends only on (seed, step, name of the request, sample index) and the weights,
    never on how requests were batched.

    An engine with resources (a process, a connection) is also a context manager: the run enters it before the first
    call and leaves it when the run ends, even after an error.
    """

    def generate(
        self, requests: Requests, sampling: Sampling, *, seed: int, step: int, on_finished: OnFinished | None = None
    ) -> list[Rollout]:
        """One rollout per request and sample index, in the order of the requests.

        `Rollout.response` is the text of all sampled tokens, including special ones, except the token that ended it.
        `on_finished` gets the same rollouts, each once, in any order. An engine that gets all of them at once need not
        call it.
        """

    def sync(self, weights: Weights) -> None:
        """Use these weights: share `weights.module` if the engine samples from it, or copy `weights.tensors()`. Later
        rollouts have `weights.version`. The weights are valid until the policy's next update."""

    def take_metrics(self) -> Mapping[str, Metric]:
        """Metrics of the work since the last call, by name (`rollout/...`); may be empty. Each call starts again at 0,
        so nothing is reported twice."""


class RestingEngine(RolloutEngine, ABC):
    """An engine that can give up memory while it does nothing (`cluster.offload: [rollout_engine]`). An engine says so
    by deriving from this class."""

    @abstractmethod
    def rest(self) -> None:
        """Give up the memory until `sync` or `generate` is called next. Nothing if the run does not ask for that."""


def let_rest(engine: RolloutEngine) -> None:
    """Let the engine give up its memory, if it is one that does."""
    if isinstance(engine, RestingEngine):
        engine.rest()


class NotingEngine(RolloutEngine, ABC):
    """An engine with something to tell the user once it is made. It says so by deriving from this class."""

    notes: tuple[str, ...] = ()
    """Sentences."""


def notes_of(engine: RolloutEngine) -> tuple[str, ...]:
    """Return the engine's notes for the user, none from an engine that writes none."""
    return engine.notes if isinstance(engine, NotingEngine) else ()


class StoppableEngine(RolloutEngine, ABC):
    """An engine that can stop in the middle of responses and go on with them later, which `partial` needs. An engine
    says so by deriving from this class.

    Its `generate` goes on with what `RolloutRequest.begun` holds: a response that was stopped and goes on with the same
    weights has the same tokens as one that was not. Nothing of it is sampled or reported twice.
    """

    @abstractmethod
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
        """Like `generate`, until `stopped()`, which is asked after every token, or every few. Returns the finished
        rollouts, in the order of the requests, and requests for the others with what there is of them."""


class KeepingEngine(RolloutEngine, ABC):
    """An engine that can keep what it has computed of finished rows, so that a conversation's next turn costs only what
    is new. An engine says so by deriving from this class."""

    @abstractmethod
    def keeping(self) -> AbstractContextManager[None]:
        """Inside, rows of later calls may go on from rows that have finished: a prompt that begins with such a row's
        prompt and response is read from there on. It is recognised by its tokens, so nobody has to announce it.

        Nothing else changes: the same tokens, and log-probabilities that differ by rounding. How much is kept is
        bounded; what is not kept is read again. `sync` forgets everything, and so does leaving."""


def keeping(engine: RolloutEngine) -> AbstractContextManager[None]:
    """Let the engine keep finished rows for later calls, if it is one that can."""
    return engine.keeping() if isinstance(engine, KeepingEngine) else nullcontext()
