"""What a critic expects of held-out responses, and how well that agrees with their scores."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from burnish.algorithms.statistics import explained_variance
from burnish.models.roles import Critic
from burnish.observability.metrics import mean_of
from burnish.observability.recorder import TokenValues
from burnish.trainers.rl.batching import build_batch
from burnish.types import Metric, Reduction, Rollout, RolloutGroup


def held_out_values(
    critic: Critic, groups: Sequence[RolloutGroup], *, pad_token_id: int
) -> tuple[dict[str, Metric], TokenValues]:
    """Metrics `eval/...`, and the values of every response, including greedy ones.

    The value before the first token, which depends only on the prompt, is compared with the response's score (no KL, no
    discount). This uses the sampled responses, which are what a critic is trained for, or if there are none the greedy
    ones. `eval/explained_variance` is left out if all scores are equal.
    """
    rollouts = [r for g in groups for r in (*g.rollouts, g.greedy) if r is not None and r.response_tokens]
    if not rollouts:
        return {}, {}
    batch = build_batch(rollouts, pad_token_id=pad_token_id, mask_truncated=False)
    rows = critic.values(batch).tolist()
    values = {
        (r.group_id, r.sample_index): tuple(row[: len(r.response_tokens)])
        for r, row in zip(rollouts, rows, strict=True)
    }
    return _describe(_judged(groups), values), values


def _judged(groups: Sequence[RolloutGroup]) -> list[Rollout]:
    sampled = [r for g in groups for r in g.rollouts]
    chosen = sampled or [g.greedy for g in groups if g.greedy is not None]
    return [r for r in chosen if r.reward is not None and r.response_tokens]


def _describe(judged: Sequence[Rollout], values: TokenValues) -> dict[str, Metric]:
    expected = torch.tensor([values[r.group_id, r.sample_index][0] for r in judged], dtype=torch.float64)
    scores = torch.tensor([r.reward for r in judged], dtype=torch.float64)
    metrics = {"eval/value_mean": mean_of(expected.tolist())}
    if not judged:
        return metrics
    residual, variance = (values.var(correction=0).item() for values in (scores - expected, scores))
    explained = explained_variance(residual, variance)
    if explained is not None:
        metrics["eval/explained_variance"] = Metric(Reduction.LAST, explained)
    return metrics
