"""Counts of a step's responses by the results of their rewards, as logged metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from burnish.rewards.combining import Weighted
from burnish.rewards.inputs import Item
from burnish.types import Metric, Reduction, RewardStatus, Rollout

FAILURES = (RewardStatus.TIMEOUT, RewardStatus.ERROR, RewardStatus.MISSING)


def has_failed(rollout: Rollout) -> bool:
    """Return whether a reward failed or gave no score, even if `failure_score` stands in for it."""
    return rollout.status is not RewardStatus.OK


class Counts:
    """Counts of the responses that were added."""

    def __init__(self) -> None:
        self.incomplete = 0
        self.total: Counter[str] = Counter()  # by domain
        self.failed: Counter[str] = Counter()
        self.status: Counter[RewardStatus] = Counter()
        self.asked: Counter[str] = Counter()  # by label of the reward
        self.not_mine: Counter[str] = Counter()
        self.audits: Counter[str] = Counter()
        self.failed_audits: Counter[str] = Counter()

    def add(self, items: Sequence[Item], results: Sequence[Sequence[Weighted]], scored: Sequence[Rollout]) -> None:
        """Count responses by the results of each reward and by their final status."""
        for (prompt, _), rollout in zip(items, scored, strict=True):
            self.total[prompt.domain] += 1
            self.status[rollout.status] += 1
            self.failed[prompt.domain] += has_failed(rollout)
        for result in (one for found in results for one in found):
            self.asked[result.label] += 1
            self.not_mine[result.label] += not result.applies
            self.audits[result.label] += result.audit
            self.failed_audits[result.label] += result.is_failed_audit

    def metrics(self) -> dict[str, Metric]:
        """Return the counts as metrics."""
        total = self.total.total()
        metrics = {
            "reward/failed_fraction": _share(self.failed.total(), total),
            "reward/incomplete_fraction": _share(self.incomplete, total),
        }
        metrics |= {f"reward/{status.value}_fraction": _share(self.status[status], total) for status in FAILURES}
        for domain, count in sorted(self.total.items()):
            metrics[f"reward/failed_fraction/{domain}"] = _share(self.failed[domain], count)
        for label, count in self.asked.items():
            metrics[f"reward/not_mine_fraction/{label}"] = _share(self.not_mine[label], count)
        for label in +self.audits:
            metrics[f"reward/audit_failed_fraction/{label}"] = _share(self.failed_audits[label], self.audits[label])
        return metrics


def _share(count: int, total: int) -> Metric:
    return Metric(Reduction.MEAN, float(count), float(total))
