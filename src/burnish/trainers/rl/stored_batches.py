"""Collected batches as text, for checkpoints of runs that sample ahead of training.

Prompts are not stored: each follows from its place in the order of its domain, as it did when the batch was drawn.
"""

from __future__ import annotations

import json
from typing import Any

from burnish.trainers.rl.collection import Collected, Collector, penalised
from burnish.types import Metric, Reduction, Rollout, RolloutGroup


def to_text(collected: Collected) -> str:
    """The batch as JSON. Floats keep their last bit."""
    return json.dumps(
        {
            "places": collected.places,
            "positions": dict(collected.positions),
            "kept": [group.group_id for group in collected.groups],
            "rollouts": [[rollout.to_dict() for rollout in group.rollouts] for group in collected.sampled],
            "greedy": [None if group.greedy is None else group.greedy.to_dict() for group in collected.sampled],
            "metrics": {name: _plain(metric) for name, metric in collected.metrics.items()},
        }
    )


def from_text(text: str, collector: Collector) -> Collected:
    """What `to_text` was given. Raises ValueError, KeyError or TypeError for another text."""
    stored: dict[str, Any] = json.loads(text)
    places = tuple((str(name), int(place)) for name, place in stored["places"])
    prompts = [collector.domains.feeds.at(name, place).encoded.prompt for name, place in places]
    members = zip(prompts, stored["rollouts"], stored["greedy"], strict=True)
    sampled = tuple(
        RolloutGroup(
            prompt,
            group_id,
            tuple(Rollout.from_dict(row) for row in rows),
            None if greedy is None else Rollout.from_dict(greedy),
        )
        for group_id, (prompt, rows, greedy) in enumerate(members)
    )
    kept, overlong = [sampled[group_id] for group_id in stored["kept"]], collector.config.algorithm.overlong_buffer
    if overlong is not None:
        kept = [penalised(group, overlong, collector.domains) for group in kept]
    metrics = {
        name: Metric(Reduction(rule), value, weight) for name, (rule, value, weight) in stored["metrics"].items()
    }
    return Collected(tuple(kept), sampled, stored["positions"], metrics, places)


def _plain(metric: Metric) -> tuple[str, float, float]:
    value, weight = metric.added_up()
    return metric.reduction.value, float(value), float(weight)
