"""The engine protocol: prompts in, rollouts out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from burnish.models.weights import Weights
from burnish.types import Metric, Rollout, RolloutRequest

OnFinished = Callable[[Sequence[Rollout]], None]
"""Called while an engine samples, as often as once a token: with the responses that are done since, or none."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw tokens. `greedy` takes the likeliest token; temperature, top_k, top_p and min_p are then unused
    (reported log-probabilities are still those at `temperature`).

    stop_token_ids end a response and stay in it; stop texts end it with the token that completes them. With
    `ignore_eos` the model's own end-of-sequence ids are tokens like any other, and a response that nothing else stops
    has exactly max_response_tokens tokens; a prompt that leaves no room for them is a RolloutError.
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


class RolloutEngine(Protocol):
    """Samples responses; the result depends on (seed, step, prompt id, sample index) and weights only, never on how
    requests were batched.

    An engine that holds something (a process, a connection) is a context manager as well: the run enters it before the
    first call and leaves it when it ends, however it ends.
    """

    def generate(
        self,
        requests: Sequence[RolloutRequest],
        sampling: Sampling,
        *,
        seed: int,
        step: int,
        on_finished: OnFinished | None = None,
    ) -> list[Rollout]:
        """One rollout per request and sample index, in the order of the requests.

        `Rollout.response` is the text of all sampled tokens, special ones too, but for the token that ended it.
        `on_finished` gets those very rollouts, each once, in any order; an engine that learns of all at once need not
        call it.
        """
        ...

    def sync(self, weights: Weights) -> None:
        """Take over these weights: share `weights.module`, where the engine samples from it, or copy
        `weights.tensors()`. Later rollouts carry `weights.version`. They are valid until the policy's next update."""
        ...

    def take_metrics(self) -> Mapping[str, Metric]:
        """What to log of the work since the last call, by name (`rollout/...`); may be empty. Each number is handed
        over once: the next call begins at 0."""
        ...
