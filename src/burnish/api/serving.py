"""A policy behind the token endpoint, without a training run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from burnish.config.names import AUTO_PARSER
from burnish.errors import RolloutError

if TYPE_CHECKING:
    from burnish.api.policy import Policy
    from burnish.rollouts.endpoint.requests import Others
    from burnish.rollouts.endpoint.standing import Standing
    from burnish.rollouts.engine import Sampling


@dataclass(frozen=True, slots=True)
class Serving:
    """How a policy is served.

    name: what clients call it. context: most tokens of prompt and answer, None for the model's own limit. turns: of one
    trajectory. rows: turns that are sampled at the same time. others: whether clients choose sampling settings.
    """

    name: str
    sampling: Sampling
    others: Others = "follow"
    context: int | None = None
    turns: int = 1_000
    rows: int = 32
    parser: str = AUTO_PARSER
    seed: int = 0


def standing(policy: Policy, serving: Serving) -> Standing:
    """Load the policy, ready to answer. ModelError or RolloutError if it cannot be sampled from, or has no such
    context."""
    from burnish.rollouts.endpoint.requests import Terms
    from burnish.rollouts.endpoint.speech import Speech
    from burnish.rollouts.endpoint.standing import Standing
    from burnish.rollouts.endpoint.trajectory import Room
    from burnish.rollouts.local.engine import LocalEngine

    loaded = policy.loaded()
    context = serving.context or loaded.context_length
    if context > loaded.context_length:
        raise RolloutError(
            f"the model has a context of {loaded.context_length:,} tokens, and {context:,} are asked for",
            remedy="lower --context, or leave it out",
        )
    engine = LocalEngine(
        loaded.model,
        tokenizer=loaded.tokenizer,
        eos_token_ids=loaded.eos_token_ids,
        pad_token_id=loaded.pad_token_id,
        context_length=context,
        max_batch_rows=serving.rows,
        kernels=loaded.kernels,
        paths=loaded.paths,
    )
    speech = Speech.of(
        loaded.tokenizer,
        (*loaded.eos_token_ids, *serving.sampling.stop_token_ids),
        policy.template_options,
        parser=serving.parser,
    )
    turn_tokens = min(serving.sampling.max_response_tokens, context)
    return Standing(
        engine,
        speech,
        Terms(serving.sampling, serving.name, context, serving.others),
        Room(serving.turns, turn_tokens, context, context),
        seed=serving.seed,
    )
