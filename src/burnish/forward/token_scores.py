"""What a pass over responses says of each of their tokens."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Per response position: log-probability of the token taken, and when asked for entropy (nats), whether the
    token is the likeliest one (bool), and the value of the state before it. All (B, T). Of the pass as a whole,
    `router_loss` () is the load-balancing loss of its tokens.

    Log-probabilities and entropy are of the temperature-scaled distribution. Slots past a response's end hold 0.
    """

    logprobs_BT: Tensor
    entropy_BT: Tensor | None = None
    correct_BT: Tensor | None = None
    values_BT: Tensor | None = None
    router_loss: Tensor | None = None
