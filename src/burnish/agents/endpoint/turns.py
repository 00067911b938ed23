"""Sampling of the waiting turns, in as few calls of the engine as their settings allow."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from burnish.agents.endpoint.answers import Reply, prompt_body, token_texts
from burnish.agents.endpoint.request_queue import Order
from burnish.agents.endpoint.requests import RewardCall, TurnRequest, Wish
from burnish.agents.endpoint.trajectory import NextTurn, Trajectory
from burnish.forward.divergences import PromptScores
from burnish.outside.listening import RefusedError
from burnish.rollouts.engine import Sampling
from burnish.types import Rollout, RolloutRequest

Draw = Callable[..., tuple[list[Rollout], list[RolloutRequest]]]
"""An engine's `generate_until` for a step: the finished rollouts, and requests for the stopped ones."""
ScorePrompt = Callable[[Sequence[int], int], PromptScores]
"""(prompt, number of the likeliest tokens to find) to the scores of the prompt's tokens but the first."""
Heard = Callable[[Order], None]
"""Called when an order has its answer."""


@dataclass(slots=True)
class _Begun:
    """An order whose turn is being sampled. asked: by it."""

    order: Order
    asked: TurnRequest
    trajectory: Trajectory
    turn: NextTurn


@dataclass(slots=True)
class TurnSampler:
    """Sampler of the turns of orders. Used by the thread that owns the engine.

    draw: of the engine, for a seed (a request may bring its own). model: name in the answers. score: of a server that
    knows log-probabilities of prompts.
    """

    draw: Draw
    model: str
    seed: int
    score: ScorePrompt | None = None
    refused: int = 0
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def speak(
        self, orders: Sequence[tuple[Order, Trajectory]], sampling: Sampling, heard: Heard = lambda order: None
    ) -> None:
        """Answer all orders, each as soon as the engine reports its turn; `heard` is then called.

        sampling: of the run, whose ends and lengths a wish narrows. Raises what the engine raises; orders without an
        answer are then left to the caller.
        """
        together: dict[tuple[Sampling, int], list[_Begun]] = {}
        for order, trajectory in orders:
            begun = self._begin(order, trajectory)
            if begun is None:
                heard(order)
                continue
            wish = begun.asked.wish
            # Turns of one length are sampled together: a short one would discard the tokens that a long one needs.
            length = trajectory.room.turn_tokens if wish.max_tokens is None else begun.turn.most_tokens
            settings = _settings(sampling, wish, length)
            together.setdefault((settings, self.seed if wish.seed is None else wish.seed), []).append(begun)
        for (settings, seed), some in together.items():
            self._sample(some, settings, seed, heard)

    def _begin(self, order: Order, trajectory: Trajectory) -> _Begun | None:
        """Find the next turn of an order; None if it is withdrawn, or refused here."""
        if not order.answer.set_running_or_notify_cancel():
            return None
        assert not isinstance(order.asked, RewardCall)
        try:
            return _Begun(order, order.asked, trajectory, trajectory.next_turn(order.asked, order.came))
        except RefusedError as error:
            refused = error
        except RecursionError:  # of tools or arguments, when they are written
            refused = RefusedError(400, "the request is nested too deeply")
        except Exception as error:  # noqa: BLE001  boundary: one client's request must not end the run of all others
            refused = RefusedError(500, f"the request cannot be read ({type(error).__name__}: {error})")
        self.refused += 1
        order.refuse(refused)
        return None

    def _sample(self, some: Sequence[_Begun], sampling: Sampling, seed: int, heard: Heard) -> None:
        waiting, began = dict(enumerate(some)), time.monotonic()

        def say(rollouts: Sequence[Rollout]) -> None:
            for rollout in rollouts:
                begun = waiting.pop(rollout.group_id, None)
                if begun is None:  # an engine may report a response early, and then return it
                    continue
                begun.order.reply(self._reply(begun, rollout, time.monotonic() - began))
                heard(begun.order)

        def stopped() -> bool:
            return any(begun.order.is_withdrawn for begun in waiting.values())

        requests = [begun.trajectory.engine_request(begun.turn, place) for place, begun in enumerate(some)]
        while requests:
            finished, rest = self.draw(requests, sampling, seed=seed, on_finished=say, stopped=stopped)
            say(finished)
            gone = {request.group_id for request in rest if some[request.group_id].order.is_withdrawn}
            for place in gone:
                heard(waiting.pop(place).order)
            requests = [request for request in rest if request.group_id not in gone]

    def _reply(self, begun: _Begun, rollout: Rollout, seconds: float) -> Reply:
        prompt, named, text = begun.turn.prompt, begun.asked.wish.prompt_logprobs, begun.trajectory.speech.text
        scored = None if self.score is None or named is None else prompt_body(prompt, self.score(prompt, named), text)
        said = begun.trajectory.say(begun.turn, rollout, seconds)
        return Reply(
            asked=begun.asked,
            said=said,
            prompt=prompt,
            texts=token_texts(begun.asked, said, text),
            model=self.model,
            number=next(self._numbers),
            created=int(time.time()),
            prompt_logprobs=scored,
        )


def _settings(sampling: Sampling, wish: Wish, length: int) -> Sampling:
    """Settings of the call, with the client's ends and length, and the settings that it may choose."""
    chosen: dict[str, Any] = dict(wish.chosen)
    if "temperature" in chosen:
        chosen["greedy"] = chosen["temperature"] == 0
        chosen["temperature"] = chosen["temperature"] or sampling.temperature
    return replace(
        sampling,
        **chosen,
        max_response_tokens=length,
        stop=(*sampling.stop, *wish.stop),
        stop_token_ids=(*sampling.stop_token_ids, *wish.stop_token_ids),
    )
