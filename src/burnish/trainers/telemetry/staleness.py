"""How old the weights are that sampled a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from burnish.errors import RolloutError
from burnish.observability.metrics import mean
from burnish.types import Metric, RolloutGroup


def describe_staleness(groups: Sequence[RolloutGroup], steps: Mapping[int, int], step: int) -> dict[str, Metric]:
    """By how many steps the tokens of the batch of `step` lag. `steps`: after which the policy had each version that
    may have sampled them. RolloutError for other versions."""
    tokens: Counter[int] = Counter()
    for rollout in (rollout for group in groups for rollout in group.rollouts):
        tokens.update(rollout.tokens_by_version())
    if others := tokens.keys() - steps.keys():
        allowed = " or ".join(str(version) for version in sorted(steps))
        raise RolloutError(
            f"the engine sampled with version {min(others)} of the policy instead of version {allowed}",
            remedy="an engine must take over the policy's weights and version in sync()",
        )
    lag = sum((step - 1 - steps[version]) * count for version, count in tokens.items())
    return {"rollout/staleness": mean(lag, sum(tokens.values()))}


def describe_renewal(groups: Sequence[RolloutGroup]) -> dict[str, Metric]:
    """In how many responses the weights changed."""
    renewed = [bool(rollout.versions) for group in groups for rollout in group.rollouts]
    return {"rollout/renewed_fraction": mean(sum(renewed), len(renewed))}
