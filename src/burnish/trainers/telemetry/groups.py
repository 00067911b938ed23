"""Metrics of a step's groups: rewards, lengths, finish reasons, conversations, domains, age of weights."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from burnish.errors import RolloutError
from burnish.observability.metrics import mean, mean_of, total
from burnish.types import FinishReason, Metric, Reduction, Rollout, RolloutGroup

T = TypeVar("T")
_OF_SCORES = re.compile(r"(?<!environment_)reward|constant_fraction")


def without_scores(metrics: Mapping[str, T]) -> dict[str, T]:
    """Leave out the metrics of scores. Where only a teacher judges, every response scores 0, which says nothing."""
    return {name: value for name, value in metrics.items() if not _OF_SCORES.search(name)}


def scores_of(group: RolloutGroup) -> list[float]:
    return [r.reward for r in group.samples() if r.reward is not None]


def constant_fraction(groups: Sequence[RolloutGroup]) -> Metric:
    """Fraction of the groups with at least two scored responses in which all have the same reward."""
    scores = [scores for scores in map(scores_of, groups) if len(scores) > 1]
    return mean_of([min(rewards) == max(rewards) for rewards in scores])


def describe_groups(
    groups: Sequence[RolloutGroup], missing: int = 0, turn_limit: int | None = None, *, fixed_length: bool = False
) -> dict[str, Metric]:
    """Measure rewards, lengths and finish reasons of everything that was sampled, before any filter or penalty.

    Lengths count the policy's sampled tokens in a row, not text of tools and environments. missing: groups that the
    step lacks. fixed_length: no response ended by itself, so none counts as cut. turn_limit: on the tokens of a turn.
    """
    rollouts = [r for group in groups for r in group.rollouts]
    samples = [r for group in groups for r in group.samples()]
    rewards = [reward for group in groups for reward in scores_of(group)]
    lengths = [r.num_sampled() for r in rollouts]
    metrics = {
        "reward/mean": mean_of(rewards),
        "reward/square_mean": mean_of([reward * reward for reward in rewards]),
        "reward/max": Metric(Reduction.MAX, max(rewards, default=0.0), len(rewards)),
        "reward/min": Metric(Reduction.MIN, min(rewards, default=0.0), len(rewards)),
        "rollout/response_tokens_mean": mean_of(lengths),
        "rollout/response_tokens_max": Metric(Reduction.MAX, max(lengths, default=0), len(lengths)),
        "rollout/response_tokens_sum": Metric(Reduction.SUM, sum(lengths)),
        "rollout/truncated_fraction": mean_of(
            [r.finish_reason is FinishReason.LENGTH for r in rollouts if not fixed_length]
        ),
        "groups/missing": Metric(Reduction.LAST, missing),
        "groups/sampled": Metric(Reduction.LAST, len(groups)),
        "groups/constant_fraction": constant_fraction(groups),
        "groups/shrunk_to_one": total(sum(len(g.samples()) > 1 and len(scores_of(g)) == 1 for g in groups)),
    }
    domains = sorted({group.prompt.domain for group in groups})
    by_domain = _rewards_of(groups, domains) if len(domains) > 1 else {}  # domains of the rows, if there are several
    turns = describe_conversations(rollouts) | _cut_turns(rollouts, turn_limit)
    return metrics | mean_parts(samples, "reward/part") | by_domain | turns


def describe_domains(
    sampled: Sequence[RolloutGroup],
    kept: Sequence[RolloutGroup],
    wanted: Mapping[str, int],
    solved: Mapping[int, Sequence[bool]],
) -> dict[str, Metric]:
    """Measure each domain of a run with `domains`. wanted: groups of each that the step was to have; a domain with a
    small share is in some steps only, and has no metrics in the others. solved: by group id, whether each response that
    can be judged is solved."""
    metrics: dict[str, Metric] = {}
    for name, count in wanted.items():
        ours = [group for group in sampled if group.prompt.domain == name]
        trained = sum(group.prompt.domain == name for group in kept)
        places = float(count > 0)  # without any, nothing is measured
        rollouts = [r for group in ours for r in group.rollouts]
        found = {
            "prompts": Metric(Reduction.LAST, trained, places),
            "missing": Metric(Reduction.LAST, count - trained, places),
            "left_out_fraction": Metric(Reduction.MEAN, len(ours) - trained, len(ours)),
            "constant_fraction": constant_fraction(ours),
            "solved_fraction": mean_of([one for group in ours for one in solved[group.group_id]]),
            "response_tokens_mean": mean_of([r.num_sampled() for r in rollouts]),
            "truncated_fraction": mean_of([r.finish_reason is FinishReason.LENGTH for r in rollouts]),
        }
        metrics |= {f"domain/{name}/{metric}": value for metric, value in found.items()}
    return metrics | _rewards_of(sampled, wanted)


def describe_audits(sampled: Sequence[RolloutGroup], labels: Sequence[str]) -> dict[str, Metric]:
    """Average the rewards that are only watched."""
    parts = [rollout.reward_parts for group in sampled for rollout in group.samples()]
    return {f"reward/audit/{label}": mean_of([part[label] for part in parts if label in part]) for label in labels}


def describe_penalties(groups: Sequence[RolloutGroup]) -> dict[str, Metric]:
    """The mean soft over-long penalty of the groups that the step trains on."""
    parts = [rollout.reward_parts for group in groups for rollout in group.rollouts]
    return {"reward/overlong_penalty": mean_of([part["overlong"] for part in parts if "overlong" in part])}


def mean_parts(rollouts: Sequence[Rollout], prefix: str) -> dict[str, Metric]:
    """`prefix/LABEL` and `prefix/LABEL/PART`: means of each reward before its weight, and of its parts, over the
    rollouts that have it."""
    labels = sorted({label for r in rollouts for label in r.reward_parts})
    return {
        f"{prefix}/{label}": mean_of([r.reward_parts[label] for r in rollouts if label in r.reward_parts])
        for label in labels
    }


def _rewards_of(groups: Sequence[RolloutGroup], domains: Iterable[str]) -> dict[str, Metric]:
    return {
        f"reward/domain/{domain}": mean_of(
            [reward for group in groups if group.prompt.domain == domain for reward in scores_of(group)]
        )
        for domain in domains
    }


def describe_conversations(rollouts: Sequence[Rollout], prefix: str = "") -> dict[str, Metric]:
    """Metrics of the responses that have turns, or whose environment has failed; empty if there is none.

    prefix: in front of the names, for an evaluation.
    """
    held: dict[tuple[int, int], list[Rollout]] = {}
    for rollout in rollouts:
        if rollout.turns or rollout.finish_reason is FinishReason.FAILED:
            held.setdefault(rollout.sample, []).append(rollout)
    if not held:
        return {}
    spoken = [[turn for row in rows for turn in row.turns if turn.author == "policy"] for rows in held.values()]
    calls = [sum(len(message.tool_calls) for turn in turns for message in turn.messages) for turns in spoken]
    ends = [rows[-1] for rows in held.values()]
    pays = [rollout.environment_reward for rollout in ends if rollout.environment_reward is not None]
    found = {
        "turns_mean": mean_of([len(turns) for turns in spoken]),
        "called_fraction": mean_of([count > 0 for count in calls]),
        "sampled_tokens_mean": mean_of([sum(row.num_sampled() for row in rows) for rows in held.values()]),
        **({} if prefix else {"rows_mean": mean_of([len(rows) for rows in held.values()])}),
        "out_of_turns_fraction": mean_of([rollout.finish_reason is FinishReason.TURNS for rollout in ends]),
        "failed_fraction": mean_of([rollout.finish_reason is FinishReason.FAILED for rollout in ends]),
        **({"environment_reward_mean": mean_of(pays)} if pays else {}),
    }
    return {f"{prefix}conversation/{name}": metric for name, metric in found.items()}


def _cut_turns(rollouts: Sequence[Rollout], limit: int | None) -> dict[str, Metric]:
    """Fraction of the responses that the `limit` on the tokens of a turn has cut; empty without a limit."""
    ends = [(rollout.finish_reason is FinishReason.LENGTH, rollout.turns[-1]) for rollout in rollouts if rollout.turns]
    if limit is None or not ends:
        return {}
    cut = [is_cut and turn.author == "policy" and turn.stop - turn.start >= limit for is_cut, turn in ends]
    return {"conversation/cut_turn_fraction": mean_of(cut)}


def check_versions(groups: Sequence[RolloutGroup], allowed: Collection[int]) -> Counter[int]:
    """Count the tokens that each version of the weights sampled. RolloutError for a version that is not allowed."""
    tokens: Counter[int] = Counter()
    for rollout in (rollout for group in groups for rollout in group.rollouts):
        tokens.update(rollout.tokens_by_version())
    if others := tokens.keys() - set(allowed):
        wanted = " or ".join(str(version) for version in sorted(allowed))
        raise RolloutError(
            f"the engine sampled with version {min(others)} of the policy instead of version {wanted}",
            remedy="an engine must take over the policy's weights and version in sync()",
        )
    return tokens


def describe_staleness(groups: Sequence[RolloutGroup], steps: Mapping[int, int], step: int) -> dict[str, Metric]:
    """Mean lag, in steps, of the tokens of the batch of `step`. `steps`: by version that may have sampled them, the
    step after which the policy had it. RolloutError for other versions."""
    tokens = check_versions(groups, steps)
    lag = sum((step - 1 - steps[version]) * count for version, count in tokens.items())
    return {"rollout/staleness": mean(lag, sum(tokens.values()))}


def describe_renewal(groups: Sequence[RolloutGroup]) -> dict[str, Metric]:
    """Fraction of the responses within which the weights changed."""
    renewed = [bool(rollout.versions) for group in groups for rollout in group.rollouts]
    return {"rollout/renewed_fraction": mean_of(renewed)}
