"""Scores normalised by domain before the estimator, advantages weighted after it. Rows are in the batch's order."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from burnish.config.domains import DomainSettings
from burnish.forward.batch import Batch, present
from burnish.trainers.rl.batching import BatchRewards
from burnish.trainers.rl.domains import Domain, Domains
from burnish.types import Rollout, RolloutGroup

Row = tuple[RolloutGroup, Rollout]
EPS = 1e-6
"""Added to a standard deviation."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Number, mean and sum of squared distances from the mean of the scores so far (Welford's, merged as by Chan et al.
    1983, https://doi.org/10.1080/00031305.1983.10483115)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, scores: Sequence[float]) -> Moments:
        mean = sum(scores) / max(len(scores), 1)
        return cls(len(scores), mean, sum((score - mean) ** 2 for score in scores))

    def merge(self, other: Moments) -> Moments:
        count = self.count + other.count
        if not count:
            return self
        apart = other.mean - self.mean
        squares = self.squares + other.squares + apart**2 * self.count * other.count / count
        return Moments(count, self.mean + apart * other.count / count, squares)

    @property
    def deviation(self) -> float:
        """Standard deviation (of a population)."""
        return float((self.squares / max(self.count, 1)) ** 0.5)

    @property
    def scale(self) -> float:
        """Divisor of shifted scores: 1 if they are all equal, up to rounding. A greedy response may score otherwise;
        dividing its distance by almost 0 would make it a baseline of a million."""
        return 1.0 if self.deviation <= EPS * max(1.0, abs(self.mean)) else self.deviation + EPS


@dataclass(slots=True)
class DomainCredit:
    """Normalisation and weights of the domains of a run. The statistics of `running` normalisation are part of a
    checkpoint: `commit` keeps a step's once its updates are done."""

    domains: Domains
    seen: dict[str, Moments] = field(default_factory=dict)
    _newest: dict[str, Moments] = field(default_factory=dict)

    def normalized(self, rewards: BatchRewards, batch: Batch, rows: Sequence[Row]) -> BatchRewards:
        """The rewards with the scores of each domain shifted, scaled and clipped as it asks for."""
        shift, scale, limit = [0.0] * len(rows), [1.0] * len(rows), [float("inf")] * len(rows)
        for members, settings in self._together(rows):
            moments = self._moments(
                settings, _counted_once([(rows[i][1], rewards.scores_B[i].item()) for i in members])
            )
            for index in members:
                limit[index] = settings.own.reward_clip or float("inf")
                if moments is not None:
                    shift[index], scale[index] = moments.mean, moments.scale
        if not any(shift) and set(scale) <= {1.0} and set(limit) <= {float("inf")}:
            return rewards
        last_B = batch.response_lengths - 1
        return _scaled(rewards, torch.tensor(shift), torch.tensor(scale), torch.tensor(limit), last_B)

    def weighted(self, batch: Batch, rows: Sequence[Row]) -> Batch:
        """The batch with each row's advantages times its weight."""
        weights = [1.0] * len(rows)
        for domain in (one for one in self.domains.by_name.values() if one.settings.weighs):
            members = [i for i, (group, _) in enumerate(rows) if self.domains.of(group.prompt) is domain]
            for index, weight in zip(members, _weights(domain, [rows[i] for i in members]), strict=True):
                weights[index] = weight
        if all(weight == 1.0 for weight in weights):
            return batch
        return batch.replace(advantages=present(batch.advantages, "advantages") * torch.tensor(weights)[:, None])

    def commit(self) -> None:
        """Keep the statistics of the step that was normalised last, because it has been trained on."""
        self.seen, self._newest = {**self.seen, **self._newest}, {}

    def state_dict(self) -> dict[str, object]:
        return {name: dataclasses.astuple(moments) for name, moments in sorted(self.seen.items())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.seen, self._newest = {name: Moments(*numbers) for name, numbers in state.items()}, {}

    def _together(self, rows: Sequence[Row]) -> list[tuple[list[int], DomainSettings]]:
        """Rows whose scores are normalised together."""
        found: dict[tuple[str, int], tuple[list[int], DomainSettings]] = {}
        for index, (group, _) in enumerate(rows):
            settings = self.domains.of(group.prompt).settings
            key = settings.key, group.group_id if settings.own.normalize == "group" else -1
            found.setdefault(key, ([], settings))[0].append(index)
        return list(found.values())

    def _moments(self, settings: DomainSettings, scores: Sequence[float]) -> Moments | None:
        own = settings.own.normalize
        if own == "none":
            return None
        here = Moments.of(scores)
        if own != "running":
            return here
        self._newest[settings.key] = self.seen.get(settings.key, Moments()).merge(here)
        return self._newest[settings.key]


def _counted_once(scored: Sequence[tuple[Rollout, float]]) -> list[float]:
    """Scores of samples: a conversation of several rows counts once, by its end, and an agent's branches once for each
    reward."""
    ends = [(rollout, score) for rollout, score in scored if rollout.ends_in is None]
    return list({(rollout.sample, rollout.reward): score for rollout, score in ends}.values())


def _scaled(rewards: BatchRewards, shift_B: Tensor, scale_B: Tensor, limit_B: Tensor, last_B: Tensor) -> BatchRewards:
    scores_B = ((rewards.scores_B - shift_B) / scale_B).clamp(-limit_B, limit_B)
    greedy_B, dense_BT = rewards.greedy_scores_B, rewards.dense_rewards_BT
    if greedy_B is not None:
        greedy_B = ((greedy_B - shift_B) / scale_B).clamp(-limit_B, limit_B)
    if dense_BT is not None:
        # Scaled like the scores. A shift per response has no token to belong to, so it falls on the last.
        dense_BT = dense_BT / scale_B[:, None]
        dense_BT[torch.arange(len(dense_BT)), last_B] += scores_B - dense_BT.sum(dim=1)
    return dataclasses.replace(rewards, scores_B=scores_B, greedy_scores_B=greedy_B, dense_rewards_BT=dense_BT)


def _weights(domain: Domain, rows: Sequence[Row]) -> list[float]:
    """Weights of the domain's rows: `loss_weight` times the weights by difficulty and length, whose means are 1."""
    if not rows:
        return []
    own = domain.settings.own
    difficulty = [_hardness(domain.filter.solved(group)) ** own.difficulty_weight for group, _ in rows]
    length = [max(rollout.num_sampled(), 1) ** -own.length_weight for _, rollout in rows]
    product = [own.loss_weight] * len(rows)
    for factors in (difficulty, length):
        mean = sum(factors) / len(factors)
        product = [weight * factor / mean for weight, factor in zip(product, factors, strict=True)]
    return product


def _hardness(solved: Sequence[bool]) -> float:
    """Share of a group that is not solved, plus one part more, so that a group that is solved has some weight."""
    return 1.0 if not solved else 1 - sum(solved) / len(solved) + 1 / len(solved)
