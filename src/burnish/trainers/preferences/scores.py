"""Measurements of a policy on held-out comparisons and rated responses."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from burnish.data.preference_tokens import PreferenceExample
from burnish.forward.batch import Batch
from burnish.trainers.preferences.batches import build_batch, mismatched, plain_batch, responses_of
from burnish.trainers.preferences.objective import PreferenceObjective, Responses
from burnish.trainers.preferences.reference import KeptReference, Text
from burnish.trainers.reward_model.preference_metrics import LengthRule, ScoredComparison, describe

EVALUATION_ROWS = 64
"""Held-out examples scored at once."""
Score = Callable[[Batch], Tensor]
"""Gives the (B, T) log-probabilities of the responses of a batch."""


@dataclass(frozen=True, slots=True)
class HeldOutPreferences:
    """Held-out examples, and texts whose log ratio `kto` compares with (see `mismatched`)."""

    examples: tuple[PreferenceExample, ...]
    others: tuple[Text, ...] = ()

    @staticmethod
    def of(examples: Sequence[PreferenceExample], objective: PreferenceObjective) -> HeldOutPreferences:
        """Examples with what the objective needs beside them."""
        return HeldOutPreferences(tuple(examples), tuple(mismatched(examples)) if objective.rates_responses else ())

    def texts(self) -> list[Text]:
        """Every text that the reference has to know."""
        return [*(one.text for one in responses_of(self.examples)), *self.others]

    def measure(
        self,
        score: Score,
        reference: KeptReference | None,
        objective: PreferenceObjective,
        rule: LengthRule | None,
        *,
        pad_token_id: int,
    ) -> dict[str, float]:
        """Compute the metrics of an evaluation, named `eval/...`."""
        if self.others:
            batch = plain_batch(self.others, reference, pad_token_id=pad_token_id)
            objective = replace(objective, kl=objective.mismatched_kl(score(batch).cpu(), batch))
        found: dict[str, list[float]] = defaultdict(list)
        for start in range(0, len(self.examples), EVALUATION_ROWS):
            rows = responses_of(self.examples[start : start + EVALUATION_ROWS])
            batch = build_batch(rows, reference, pad_token_id=pad_token_id)
            responses = Responses.of(score(batch).cpu(), batch)
            found["loss"] += objective.losses(responses, batch)[0].tolist()
            for name, chosen in (("better", responses.preferred), ("worse", ~responses.preferred)):
                some = responses.select(chosen.nonzero().squeeze(1))
                found[f"{name} reward"] += objective.rewards(some).tolist()
                found[f"{name} logprob"] += some.logprobs.tolist()
                found[f"{name} length"] += some.tokens.tolist()
        ranked = {"eval/accuracy": _ranked(found["better reward"], found["worse reward"])}
        return (_compared(found, rule) if are_pairs(self.examples) else ranked) | {
            "eval/loss": _mean(found["loss"]),
            "eval/margin": _mean(found["better reward"]) - _mean(found["worse reward"]),
            "eval/chosen_logprob": _mean(found["better logprob"]),
            "eval/rejected_logprob": _mean(found["worse logprob"]),
        }


def are_pairs(examples: Sequence[PreferenceExample]) -> bool:
    """True if every example compares responses; False if some rate a single one."""
    return all(example.good is None for example in examples)


def _compared(found: dict[str, list[float]], rule: LengthRule | None) -> dict[str, float]:
    """Metrics of a reward model whose scores are the rewards that the policy implies."""
    names = ("better reward", "worse reward", "better length", "worse length")
    rows = zip(*(found[name] for name in names), strict=True)
    return describe([ScoredComparison((r, s), (int(a), int(b)), 0) for r, s, a, b in rows], rule)


def _ranked(good: Sequence[float], bad: Sequence[float]) -> float:
    """Probability that a good response has a higher reward than a bad one, half of it for equal ones (the area under
    the ROC curve). 1/2 if either kind is missing."""
    if not good or not bad:
        return 0.5
    ordered = np.sort(np.asarray(bad))
    below, up_to = (np.searchsorted(ordered, good, side=side) for side in ("left", "right"))
    return float((below + up_to).sum() / (2 * len(good) * len(bad)))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
