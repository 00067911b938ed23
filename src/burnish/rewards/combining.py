"""Combine the outcomes of a rollout into its reward (weighted sum, parts, token rewards, status), and count them.

Of conversations of several rows, rewards score the last row, and its score counts for all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from burnish.errors import RewardError
from burnish.rewards.inputs import Item
from burnish.rewards.outcome import Outcome
from burnish.types import FinishReason, Metric, Reduction, RewardStatus, Rollout, Score

TOLERANCE = 1e-5  # relative; token rewards are often summed in single precision


@dataclass(frozen=True, slots=True)
class Weighted:
    """The outcome of one reward, with its name in the logs and its weight in the sum. An audit is only logged.

    applies: False if the reward is not for this prompt (see `not_for_prompt`).
    """

    label: str
    weight: float
    outcome: Outcome
    audit: bool = False
    applies: bool = True

    @property
    def is_failed_audit(self) -> bool:
        """True for an audit that failed, which fails no response. (None is an answer, not a failure.)"""
        return self.audit and self.outcome.status in (RewardStatus.ERROR, RewardStatus.TIMEOUT)


def not_for_prompt(
    outcomes: Mapping[tuple[int, int], Outcome], groups: Sequence[Hashable]
) -> frozenset[tuple[int, int]]:
    """Find the keys (reward, position) of rewards that returned None for every response of a group. `groups` names the
    group of each position.

    None for only some of them is a missing score. If it were left out of the sum, a policy would be paid for responses
    that cannot be judged, and the responses of a group would be compared on different sums.
    """
    answered = {
        (reward, groups[position])
        for (reward, position), outcome in outcomes.items()
        if outcome.status is not RewardStatus.MISSING
    }
    return frozenset((reward, position) for reward, position in outcomes if (reward, groups[position]) not in answered)


def combine(rollout: Rollout, results: Sequence[Weighted], failure_score: float | None) -> Rollout:
    """Return the rollout with its reward, reward_parts, token_rewards and status.

    A reward that is not for this prompt is left out of the sum if another one is for it. If a summed reward failed or
    is missing, the rollout takes the status of the first failed one, else of the first missing one, and its reward is
    `failure_score` (None leaves the rollout unscored). The parts of the other rewards and of audits are kept for the
    logs.
    """
    parts = _parts(results)
    weighted = [result for result in results if not result.audit]
    weighted = [result for result in weighted if result.applies] or weighted
    failed = [result for result in weighted if result.outcome.status is not RewardStatus.OK]
    if failed:
        # A failure is reported first, because its cause can be fixed; a missing score may follow from the row.
        first = min(failed, key=lambda result: result.outcome.status is RewardStatus.MISSING)
        return replace(
            rollout,
            reward=failure_score,
            reward_parts=parts,
            token_rewards=None,
            status=first.outcome.status,
            status_detail=_why(first),
        )
    scored = [(result, result.outcome.score) for result in weighted if result.outcome.score is not None]
    return replace(
        rollout,
        reward=sum((result.weight * score.value for result, score in scored), 0.0),
        reward_parts=parts,
        token_rewards=_token_rewards(rollout, [(r.label, r.weight, score) for r, score in scored]),
        status=RewardStatus.OK,
        status_detail="",
    )


def _why(result: Weighted) -> str:
    """Explain why a response has no score, also where the same reward scored others of its group."""
    detail = result.outcome.detail
    if result.outcome.status is RewardStatus.MISSING and result.applies:
        return f"{detail}, yet it is for the prompt: it did not return None for every response to it"
    return detail


def _parts(results: Sequence[Weighted]) -> dict[str, float]:
    """The unweighted score of each reward under its label, and its named parts under `label/part`."""
    parts: dict[str, float] = {}
    for result in results:
        if result.outcome.score is not None:
            parts[result.label] = result.outcome.score.value
            parts.update({f"{result.label}/{name}": value for name, value in result.outcome.score.parts.items()})
    return parts


def _token_rewards(rollout: Rollout, scored: Sequence[tuple[str, float, Score]]) -> tuple[float, ...] | None:
    """Weighted sum per token if any reward is dense, else None. Rewards that are not dense count at the last token that
    the policy sampled."""
    if all(score.token_rewards is None for _, _, score in scored):
        return None
    total, last = [0.0] * len(rollout.response_tokens), rollout.last_sampled
    for label, weight, score in scored:
        if score.token_rewards is None:
            if last >= 0:
                total[last] += weight * score.value
            continue
        _check_token_rewards(rollout, label, score.value, score.token_rewards)
        for index, value in enumerate(score.token_rewards):
            total[index] += weight * value
    return tuple(total)


def _check_token_rewards(rollout: Rollout, label: str, value: float, token_rewards: tuple[float, ...]) -> None:
    tokens, size = len(rollout.response_tokens), sum(map(abs, token_rewards))
    if len(token_rewards) != tokens:
        what = f"{len(token_rewards)} token_rewards for a response of {tokens} tokens"
        remedy = "return one number per entry of response_tokens"
    elif lost := [n for n, ours in enumerate(rollout.sampled_mask()) if token_rewards[n] and not ours]:
        # Such a reward would have no effect: nothing is learned from tokens that the policy did not sample.
        what = f"{token_rewards[lost[0]]:g} as token_rewards[{lost[0]}], but the policy did not sample this token"
        remedy = "put it on the last token of a turn whose author is policy (see the parameter turns)"
    elif abs(sum(token_rewards) - value) > TOLERANCE * max(size, abs(value)):
        what = f"the value {value:g}, but its token_rewards sum to {sum(token_rewards):g}"
        remedy = "make value the sum of token_rewards"
    else:
        return
    where = f"prompt {rollout.prompt_id!r}, sample {rollout.sample_index}"
    raise RewardError(f"reward {label!r} returned {what} ({where})", remedy=remedy)


def to_score(items: Iterable[Item]) -> list[Item]:
    """Select the responses that rewards are to score: none of a failed environment, where there is nothing to
    score, nor conversations that go on in another row."""
    return [item for item in items if not is_lost(item[1]) and item[1].ends_in is None]


def is_lost(rollout: Rollout) -> bool:
    """Return whether the environment of the conversation has failed."""
    return rollout.finish_reason is FinishReason.FAILED


def with_scores(items: Sequence[Item], scored: Iterable[Rollout]) -> list[Rollout]:
    """Put the results for `to_score`, in their order, back among all rollouts. Earlier rows of a conversation get the
    score of its last row, but no token rewards."""
    results = iter(scored)
    own = [rollout if is_lost(rollout) or rollout.ends_in is not None else next(results) for _, rollout in items]
    ends = {rollout.sample: rollout for rollout in own if rollout.ends_in is None and not rollout.branch}
    return [
        rollout if is_lost(rollout) or rollout.ends_in is None else _as_end(rollout, ends[rollout.sample])
        for rollout in own
    ]


def _as_end(rollout: Rollout, end: Rollout) -> Rollout:
    return replace(
        rollout, reward=end.reward, reward_parts=end.reward_parts, status=end.status, status_detail=end.status_detail
    )


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
