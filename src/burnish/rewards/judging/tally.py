"""Counts of requests, verdicts, tokens and costs of judges since the last reading."""

from __future__ import annotations

from dataclasses import dataclass, fields

from burnish.types import Metric, Reduction


@dataclass(slots=True)
class Tally:
    """Counts of one judge. Only the thread of the judges changes them."""

    requests: int = 0
    retries: int = 0
    verdicts: int = 0
    cached: int = 0
    repaired: int = 0
    failed: int = 0
    compared: int = 0
    inconsistent: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    seconds: float = 0.0
    price_in: float = 0.0
    price_out: float = 0.0

    def take(self) -> dict[str, Metric]:
        """Return the counts as metrics, and reset them."""
        asked = self.verdicts - self.cached
        cost = (self.tokens_in * self.price_in + self.tokens_out * self.price_out) / 1e6
        metrics = {
            "judge/requests": Metric(Reduction.SUM, float(self.requests)),
            "judge/retries": Metric(Reduction.SUM, float(self.retries)),
            "judge/cached_fraction": Metric(Reduction.MEAN, float(self.cached), float(self.verdicts)),
            "judge/repaired_fraction": Metric(Reduction.MEAN, float(self.repaired), float(asked)),
            "judge/failed_fraction": Metric(Reduction.MEAN, float(self.failed), float(self.verdicts)),
            "judge/inconsistent_fraction": Metric(Reduction.MEAN, float(self.inconsistent), float(self.compared)),
            "judge/tokens_in": Metric(Reduction.SUM, float(self.tokens_in)),
            "judge/tokens_out": Metric(Reduction.SUM, float(self.tokens_out)),
            "judge/seconds": Metric(Reduction.MEAN, self.seconds, float(self.requests)),
        }
        if self.price_in or self.price_out:
            metrics["judge/cost"] = Metric(Reduction.SUM, cost)
        for entry in fields(self):
            if not entry.name.startswith("price"):
                setattr(self, entry.name, 0)
        return metrics
