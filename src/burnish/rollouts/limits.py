"""How long a response to a prompt may be, the same for every engine."""

from __future__ import annotations

from burnish.errors import RolloutError
from burnish.rollouts.engine import Sampling
from burnish.types import RolloutRequest


def response_limit(request: RolloutRequest, sampling: Sampling, context_length: int) -> int:
    """Longest response to this prompt, in tokens. RolloutError when the prompt is empty or leaves too little room."""
    length = len(request.prompt_tokens)
    if length == 0:
        raise RolloutError(
            f"prompt {request.prompt_id!r} has no tokens", remedy="give it a text, or a beginning-of-sequence token"
        )
    if length >= context_length:
        raise RolloutError(
            f"prompt {request.prompt_id!r} has {length} tokens, which leaves no room for a response in the model's "
            f"context of {context_length}",
            remedy="lower rollout.max_prompt_tokens, or use a model with a longer context",
        )
    room = context_length - length
    if sampling.ignore_eos and room < sampling.max_response_tokens:
        raise RolloutError(
            f"prompt {request.prompt_id!r} has {length} tokens, which leaves room for {room} more in the model's "
            f"context of {context_length}, but with ignore_eos responses have exactly "
            f"{sampling.max_response_tokens}",
            remedy="lower rollout.max_prompt_tokens or rollout.max_response_tokens",
        )
    return min(sampling.max_response_tokens, room)
