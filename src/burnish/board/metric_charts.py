"""Tables of the charts that several metrics share, and of families of metrics that share one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

from burnish.observability.metric_names import explain

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of one or several metrics. Metrics that the run does not have are left out."""

    section: str
    title: str
    metrics: tuple[tuple[str, str], ...]
    """(label, metric) of each line."""
    help: str = ""


CHARTS: tuple[Chart, ...] = (
    Chart("Learning", "Reward", (("mean", "reward/mean"),), "mean score of the step's responses"),
    Chart("Learning", "Held-out reward", (("greedy", "eval/reward_mean"), ("sampled", "eval/sampled_reward_mean"))),
    Chart("Learning", "Held-out accuracy", (("accuracy", "eval/accuracy"), ("low", "eval/accuracy_low"),
                                            ("high", "eval/accuracy_high"),
                                            ("length rule", "eval/length_rule_accuracy")),
          "share of prompts solved, or of comparisons that the reward model gets right"),
    Chart("Learning", "Training accuracy", (("accuracy", "train/accuracy"),), "share of comparisons"),
    Chart("Reward model", "Score", (("mean", "eval/score_mean"), ("std", "eval/score_std"),
                                    ("gap to the best other", "eval/score_gap"))),
    Chart("Reward model", "Calibration error", (("expected", "eval/calibration_error"),)),
    Chart("Reward model", "Score and length", (("correlation", "eval/length_correlation"),)),
    Chart("Learning", "Loss", (("training", "train/loss"), ("held-out", "eval/loss"))),
    Chart("Learning", "Token accuracy", (("held-out", "eval/token_accuracy"),)),
    Chart("Learning", "Reward spread", (("std", "reward/std"), ("min", "reward/min"), ("max", "reward/max"))),
    Chart("Learning", "Groups without signal", (("fraction", "groups/constant_fraction"),), "all scores equal"),
    Chart("Learning", "Failed rewards", (("fraction", "reward/failed_fraction"),)),
    Chart("Policy", "KL to the reference", (("per response", "kl/reference"),), "nats"),
    Chart("Policy", "KL per token", (("per token", "kl/reference_per_token"),), "nats"),
    Chart("Policy", "KL coefficient", (("coefficient", "kl/coef"),)),
    Chart("Policy", "Entropy", (("entropy", "policy/entropy"),), "nats per token"),
    Chart("Policy", "Clipped tokens", (("both", "policy/clip_fraction"), ("low", "policy/clip_fraction_low"),
                                       ("high", "policy/clip_fraction_high"))),
    Chart("Policy", "Gradient norm", (("before clipping", "policy/grad_norm"),)),
    Chart("Policy", "Learning rate", (("learning rate", "policy/learning_rate"),)),
    Chart("Critic", "Explained variance", (("returns of the step", "critic/explained_variance"),
                                            ("held-out scores", "eval/explained_variance")),
          "1 is perfect, 0 no better than a constant"),
    Chart("Critic", "Value against return", (("value", "critic/value_mean"), ("return", "critic/return_mean"),
                                              ("held-out value", "eval/value_mean")),
          "means per token; held out, before the first one"),
    Chart("Critic", "Value loss", (("loss", "critic/loss"),)),
    Chart("Critic", "Clipped values", (("fraction of tokens", "critic/clip_fraction"),)),
    Chart("Responses", "Length", (("mean", "rollout/response_tokens_mean"), ("max", "rollout/response_tokens_max")),
          "tokens"),
    Chart("Responses", "Cut at the limit", (("training", "rollout/truncated_fraction"),
                                            ("held-out", "eval/truncated_fraction"))),
    Chart("Responses", "Sampler against trainer",
          (("mean", "rollout/logprob_diff_mean"), ("max", "rollout/logprob_diff_max")), "log-probability gap"),
    Chart("Conversations", "Turns of the policy", (("training", "conversation/turns_mean"),
                                                    ("held-out", "eval/conversation/turns_mean")), "mean per response"),
    Chart("Conversations", "Responses that call a tool", (("training", "conversation/called_fraction"),
                                                          ("held-out", "eval/conversation/called_fraction"))),
    Chart("Conversations", "What the environment pays", (("training", "conversation/environment_reward_mean"),
                                                         ("held-out", "eval/conversation/environment_reward_mean")),
          "mean per response"),
    Chart("Conversations", "Ended by the limit of turns", (("training", "conversation/out_of_turns_fraction"),
                                                           ("held-out", "eval/conversation/out_of_turns_fraction")),
          "share of responses"),
    Chart("Conversations", "Sampled tokens", (("training", "conversation/sampled_tokens_mean"),
                                              ("held-out", "eval/conversation/sampled_tokens_mean")),
          "mean per response, without what tools and environments said"),
    Chart("Conversations", "Calls of tools", (("calls", "tool/calls"),), "of the whole step"),
    Chart("Conversations", "Calls per turn", (("calls", "tool/calls_per_turn"),)),
    Chart("Conversations", "Calls that went wrong", (("cannot be read", "tool/malformed_fraction"),
                                                     ("cannot be made", "tool/invalid_fraction"),
                                                     ("failed", "tool/failed_fraction"),
                                                     ("of these, too slow", "tool/timed_out_fraction")),
          "share of calls"),
    Chart("Conversations", "Results cut short", (("of tools", "tool/cut_fraction"),
                                                 ("of environments", "environment/cut_fraction"))),
    Chart("Conversations", "Failed environments", (("of those started", "environment/failed_fraction"),
                                                   ("of those started, too slow", "environment/timed_out_fraction"),
                                                   ("training responses", "conversation/failed_fraction"),
                                                   ("held-out responses", "eval/conversation/failed_fraction")),
          "their responses have no score"),
    Chart("Conversations", "Environments started", (("environments", "environment/opened"),)),
    Chart("Conversations", "Restarts of what starts tools and environments", (("restarts", "conversation/restarts"),)),
    Chart("Conversations", "Agents", (("started", "agent/started"), ("turns", "agent/turns"),
                                      ("requests refused", "agent/refused"))),
    Chart("Conversations", "Failed agents", (("of those started", "agent/failed_fraction"),
                                             ("too slow", "agent/timed_out_fraction")),
          "their responses have no score"),
    Chart("Conversations", "Rows of a response", (("all", "conversation/rows_mean"),
                                                  ("of agents", "agent/branches_mean")),
          "more than 1: histories were written anew, or edited"),
    Chart("Conversations", "Waiting for tools and environments", (("seconds", "time/answers_seconds"),),
          "seconds in which nothing was sampled"),
    Chart("Speed", "Throughput", (("generate", "throughput/generate_tokens_per_second"),
                                  ("update", "throughput/update_tokens_per_second"),
                                  ("whole step", "throughput/response_tokens_per_second"),
                                  ("training", "throughput/tokens_per_second")), "tokens per second"),
    Chart("Speed", "Seconds per step", (("step", "time/step_seconds"),)),
    Chart("Speed", "Sampling", (("prefill", "time/prefill_seconds"), ("decode", "time/decode_seconds")),
          "seconds of engines, of all rollout workers together, without evaluation"),
    Chart("Speed", "Starting and waking of vLLM", (("start", "time/engine_start_seconds"),
                                                   ("sleep and wake", "time/engine_sleep_seconds")),
          "seconds, parts of other phases"),
)  # fmt: skip

FAMILIES: tuple[tuple[str, str, str, str], ...] = (
    ("Learning", "Reward by part", "reward/part/", ""),
    ("Learning", "Reward by domain", "reward/domain/", ""),
    ("Learning", "Held-out reward by domain", "eval/domain/", "/reward_mean"),
    ("Learning", "Held-out accuracy by domain", "eval/domain/", "/accuracy"),
    ("Learning", "Held-out failures by domain", "eval/domain/", "/failed_fraction"),
    ("Learning", "Held-out length by domain", "eval/domain/", "/response_tokens_mean"),
    ("Learning", "Held-out responses cut, by domain", "eval/domain/", "/truncated_fraction"),
    ("Learning", "Held-out reward by part", "eval/part/", ""),
    ("Learning", "Audits: rewards that nothing learns from", "reward/audit/", ""),
    ("Learning", "Audits that failed", "reward/audit_failed_fraction/", ""),
    ("Learning", "Responses that a reward is not for", "reward/not_mine_fraction/", ""),
    ("Domains", "Solved", "domain/", "/solved_fraction"),
    ("Domains", "Prompts trained on", "domain/", "/prompts"),
    ("Domains", "Prompts missing", "domain/", "/missing"),
    ("Domains", "Groups left out", "domain/", "/left_out_fraction"),
    ("Domains", "Groups with equal scores", "domain/", "/constant_fraction"),
    ("Domains", "Length of responses", "domain/", "/response_tokens_mean"),
    ("Domains", "Cut at the limit", "domain/", "/truncated_fraction"),
    ("Learning", "Solved in k samples", "eval/pass@", ""),
    ("Speed", "Seconds of reward workers", "time/reward_worker_seconds/", ""),
    ("Reward model", "Accuracy by lead", "eval/accuracy_by_gap/", ""),
    ("Reward model", "Accuracy by labelled margin", "eval/accuracy_by_margin/", ""),
)
"""Section, title, and the prefix and suffix of the metrics that share one chart, each with its own line."""


def named_charts(names: Collection[str]) -> Iterator[Chart]:
    """Yield the charts of `CHARTS` and `FAMILIES` with those of their metrics that a run has. A chart of one metric
    says what that means."""
    for chart in CHARTS:
        about = chart.help or (explain(chart.metrics[0][1]) if len(chart.metrics) == 1 else "")
        yield replace(chart, metrics=tuple(one for one in chart.metrics if one[1] in names), help=about)
    for section, title, begin, end in FAMILIES:
        family = [name for name in names if name.startswith(begin) and name.endswith(end)]
        labels = (name.removeprefix(begin).removesuffix(end) for name in family)
        yield Chart(section, title, tuple(zip(labels, family, strict=True)))


def evenly(items: Sequence[T], limit: int) -> list[T]:
    """Pick at most `limit` items, evenly spread, with the first and the last one; with a limit of 1, the last."""
    if len(items) <= limit:
        return list(items)
    if limit == 1:
        return [items[-1]]
    return [items[round(i * (len(items) - 1) / (limit - 1))] for i in range(limit)]


def peaks(values: Sequence[float], limit: int) -> list[int]:
    """Pick at most `limit` (4 or more) positions: first, lowest, highest and last of equal stretches, so that outliers
    of a single step stay visible."""
    if len(values) <= limit:
        return list(range(len(values)))
    bounds = evenly(range(len(values) + 1), limit // 4 + 1)
    stretches = [range(start, stop) for start, stop in pairwise(bounds)]
    return sorted(
        {i for r in stretches for i in (r[0], min(r, key=values.__getitem__), max(r, key=values.__getitem__), r[-1])}
    )
