"""Checks that every engine makes: the length of responses, and their log-probabilities."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from burnish.errors import RolloutError
from burnish.forward.boundaries import Boundaries
from burnish.rollouts.engine import Sampling
from burnish.types import RolloutRequest

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def response_limit(request: RolloutRequest, sampling: Sampling, context_length: int) -> int:
    """Longest response to this prompt, in tokens. RolloutError if the prompt is empty or leaves too little room."""
    length = len(request.prompt_tokens)
    if length == 0:
        raise RolloutError(
            f"prompt {request.name!r} has no tokens", remedy="give it text, or a beginning-of-sequence token"
        )
    if length >= context_length:
        raise RolloutError(
            f"prompt {request.name!r} has {length} tokens, which leaves no room for a response in the model's "
            f"context of {context_length}",
            remedy="lower rollout.max_prompt_tokens, or use a model with a longer context",
        )
    room = context_length - length
    if sampling.ignore_eos and room < sampling.max_response_tokens:
        raise RolloutError(
            f"prompt {request.name!r} has {length} tokens, which leaves room for {room} more in the model's "
            f"context of {context_length}, but with ignore_eos responses have exactly "
            f"{sampling.max_response_tokens}",
            remedy="lower rollout.max_prompt_tokens or rollout.max_response_tokens",
        )
    return min(sampling.max_response_tokens, room)


def check_logprob(logprob: float, position: int, request: RolloutRequest, sample_index: int) -> None:
    """Raise RolloutError for a log-probability that is not finite, at this position of a response."""
    if not math.isfinite(logprob):
        raise RolloutError(
            f"the model gives log-probability {logprob} at response token {position} of prompt {request.name!r}, "
            f"sample {sample_index}",
            remedy="weights or activations are not finite: lower the learning rate or use a wider dtype",
        )


def check_rotation(config: PreTrainedConfig, reach: int) -> None:
    """Raise RolloutError if sequences of up to `reach` tokens can cross the length beyond which the model rotates all
    positions by other angles. Tokens sampled before that point would get other log-probabilities in training."""
    boundaries = Boundaries.of(config)
    limit = boundaries.rotation if boundaries.stretch is None else boundaries.stretch
    if limit is not None and reach > limit:
        raise RolloutError(
            f"this run's sequences have up to {reach} tokens, but this {config.model_type} model rotates all positions "
            f"by different angles once a sequence is longer than {limit} tokens (its rope_parameters), so the "
            "log-probabilities of tokens sampled before that would differ from those in training",
            remedy=f"keep rollout.max_prompt_tokens + rollout.max_response_tokens at or below {limit}",
        )
