"""The metrics that runs log: name, unit, reduction, direction and meaning.

Charts, alarms and the live table use these names, and a test compares the metrics of runs with this table.
`python -m burnish.observability.metric_names docs/metrics.md` writes the page of the documentation.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

HowMerged = Literal["mean", "sum", "max", "min", "last", "derived"]
"""Rule that makes one number of the readings of a step; "derived" is computed from other numbers of the step."""
Better = Literal["higher", "lower", ""]


@dataclass(frozen=True, slots=True)
class MetricName:
    """A metric, or a family of metrics: `{word}` in the name stands for any text."""

    name: str
    unit: str
    merged: HowMerged
    better: Better
    """Direction that is an improvement by itself; "" if neither is."""
    meaning: str

    @property
    def is_family(self) -> bool:
        return "{" in self.name

    def matches(self, name: str) -> bool:
        """Return whether the name is this metric, or one of the family."""
        return re.fullmatch(_pattern(self.name), name) is not None


METRICS: Mapping[str, tuple[MetricName, ...]] = {
    "Rewards and groups": (
        MetricName("reward/mean", "score", "mean", "higher", "Mean score of the step's responses, before clipping, KL and baselines."),
        MetricName("reward/std", "score", "derived", "", "Standard deviation of these scores."),
        MetricName("reward/min", "score", "min", "", "Lowest score of the step."),
        MetricName("reward/max", "score", "max", "", "Highest score of the step."),
        MetricName("reward/part/{label}", "score", "mean", "", "Mean of one reward, by its label, before its weight; a part that it reports is `label/part`."),
        MetricName("reward/domain/{domain}", "score", "mean", "higher", "Mean score in one domain, in a run with `domains` or with rows of several domains."),
        MetricName("reward/audit/{label}", "score", "mean", "higher", "Mean of a reward with `audit: true`, which nothing learns from: where it falls while `reward/mean` rises, the policy games the others."),
        MetricName("reward/audit_failed_fraction/{label}", "fraction", "mean", "lower", "Share of responses on which an audit failed (error or timeout), which fails nothing else."),
        MetricName("reward/failed_fraction", "fraction", "mean", "lower", "Share of responses that have no score because the reward failed."),
        MetricName("reward/failed_fraction/{domain}", "fraction", "mean", "lower", "The same in one domain."),
        MetricName("reward/timeout_fraction", "fraction", "mean", "lower", "Share of responses whose reward took too long."),
        MetricName("reward/error_fraction", "fraction", "mean", "lower", "Share of responses whose reward raised an error."),
        MetricName("reward/missing_fraction", "fraction", "mean", "lower", "Share of responses that the reward said it cannot judge."),
        MetricName("reward/not_mine_fraction/{label}", "fraction", "mean", "", "Share of the responses that a reward was asked about and is not for, because it returned None for every response to their prompts. At 1 it scores nothing."),
        MetricName("reward/incomplete_fraction", "fraction", "mean", "lower", "Share of responses without an end, where `scoring` asks for one: with `incomplete_score` that replaced their score."),
        MetricName("reward/overlong_penalty", "score", "mean", "higher", "Mean penalty of `algorithm.overlong_buffer` (0 to -1), which is part of the score."),
        MetricName("reward/clipped_fraction", "fraction", "mean", "", "Share of responses whose score `reward_clip` changed."),
        MetricName("reward/token_std", "score", "last", "", "Standard deviation of token rewards before `whiten_rewards`, for estimators that read tokens."),
        MetricName("reward/score_std", "score", "last", "", "Standard deviation of scores before `whiten_rewards`, for estimators that read whole responses."),
        MetricName("groups/constant_fraction", "fraction", "mean", "lower", "Share of groups in which all responses scored the same, so that they carry no gradient."),
        MetricName("groups/shrunk_to_one", "groups", "sum", "lower", "Groups that kept a single scored response, whose advantage is then 0."),
        MetricName("groups/sampled", "groups", "last", "", "Groups sampled in all; dynamic sampling refills those without a signal."),
        MetricName("groups/missing", "groups", "last", "lower", "Groups that are short of the plan after the last refill."),
    ),
    "Judges": (
        MetricName("judge/requests", "requests", "sum", "", "Requests that all judges of the run sent for a step, tries that failed and repairs included; batches of a model of this process."),
        MetricName("judge/retries", "requests", "sum", "lower", "Those that were sent again after a connection error, a timeout, 429 or 5xx."),
        MetricName("judge/cached_fraction", "fraction", "mean", "", "Share of verdicts that needed no request: from the cache, or the same question was on its way."),
        MetricName("judge/repaired_fraction", "fraction", "mean", "lower", "Share of the other verdicts that could not be read at first, so that the judge was asked once more."),
        MetricName("judge/failed_fraction", "fraction", "mean", "lower", "Share of verdicts that there are not: no answer in time, or none that could be read."),
        MetricName("judge/inconsistent_fraction", "fraction", "mean", "lower", "Share of comparisons whose winner changed with the order of the two responses, which makes them ties."),
        MetricName("judge/tokens_in", "tokens", "sum", "lower", "Tokens of prompts, as the endpoints count them."),
        MetricName("judge/tokens_out", "tokens", "sum", "lower", "Tokens of answers, as the endpoints count them."),
        MetricName("judge/seconds", "seconds", "mean", "lower", "Mean duration of a request."),
        MetricName("judge/cost", "money", "sum", "lower", "Price of these tokens, where `price_in` or `price_out` is set; in their currency."),
        MetricName("eval/judge/requests", "requests", "sum", "", "Those of an evaluation; a run's total is the sum of these and of `judge/requests`, and so on for the others."),
        MetricName("eval/judge/retries", "requests", "sum", "lower", "Those of an evaluation."),
        MetricName("eval/judge/tokens_in", "tokens", "sum", "lower", "Those of an evaluation."),
        MetricName("eval/judge/tokens_out", "tokens", "sum", "lower", "Those of an evaluation."),
        MetricName("eval/judge/cost", "money", "sum", "lower", "That of an evaluation."),
    ),
    "Conversations": (
        MetricName("conversation/turns_mean", "turns", "mean", "", "Turns of the policy in a response, on average."),
        MetricName("conversation/called_fraction", "fraction", "mean", "", "Share of responses that call a tool."),
        MetricName("conversation/sampled_tokens_mean", "tokens", "mean", "", "Tokens of a response that the policy sampled, in all its rows; `rollout/response_tokens_mean` is per row."),
        MetricName("conversation/rows_mean", "rows", "mean", "", "Rows of a response. More than 1: the chat template writes earlier turns anew (`conversation.trajectory: fork`), or agents edit the history."),
        MetricName("conversation/out_of_turns_fraction", "fraction", "mean", "lower", "Share of responses that `conversation.max_turns` ended."),
        MetricName("conversation/cut_turn_fraction", "fraction", "mean", "lower", "Share of responses whose last turn was cut at `conversation.max_turn_tokens`, where that is set."),
        MetricName("conversation/failed_fraction", "fraction", "mean", "lower", "Share of responses whose environment failed, which have no score."),
        MetricName("conversation/environment_reward_mean", "score", "mean", "higher", "Mean of what the environment pays for a whole response."),
        MetricName("tool/calls", "calls", "sum", "", "Calls of tools, also those that could not be made."),
        MetricName("tool/calls_per_turn", "calls", "mean", "", "Calls per turn of the policy."),
        MetricName("tool/malformed_fraction", "fraction", "mean", "lower", "Share of calls that cannot be read."),
        MetricName("tool/invalid_fraction", "fraction", "mean", "lower", "Share of calls of a tool that does not exist, or with other arguments than it takes."),
        MetricName("tool/failed_fraction", "fraction", "mean", "lower", "Share of calls whose result is an error that the tool raised, or that took too long."),
        MetricName("tool/timed_out_fraction", "fraction", "mean", "lower", "Share of calls that took longer than `conversation.call_timeout_seconds`, or the tool's own `timeout_seconds`."),
        MetricName("tool/cut_fraction", "fraction", "mean", "", "Share of results longer than `conversation.max_result_characters`, whose rest the policy does not see."),
        MetricName("agent/started", "agents", "sum", "", "Agents that were started (`conversation.agent`)."),
        MetricName("agent/failed_fraction", "fraction", "mean", "lower", "Share of agents that raised an error, ended, took too long or asked for no turn. Their responses have no score."),
        MetricName("agent/timed_out_fraction", "fraction", "mean", "lower", "Share of agents that made no request, and did not end, within `conversation.call_timeout_seconds`."),
        MetricName("agent/turns", "turns", "sum", "", "Turns that agents asked for and got."),
        MetricName("agent/refused", "requests", "sum", "lower", "Requests of agents that got no turn: malformed ones, and those beyond a limit."),
        MetricName("agent/branches_mean", "rows", "mean", "", "Rows of a trajectory. More than 1: agents edit the history, or ask several things at a time."),
        MetricName("environment/opened", "environments", "sum", "", "Environments that were started."),
        MetricName("environment/failed_fraction", "fraction", "mean", "lower", "Share of environments that raised an error, took too long or ended. Their responses have no score."),
        MetricName("time/answers_seconds", "s", "sum", "lower", "Time in which nothing was sampled, because all conversations waited for tools or environments."),
        MetricName("environment/timed_out_fraction", "fraction", "mean", "lower", "Share of environments that took longer than `conversation.call_timeout_seconds` or `open_timeout_seconds`."),
        MetricName("environment/cut_fraction", "fraction", "mean", "", "Share of the environments' answers longer than `conversation.max_result_characters`, whose rest the policy does not see."),
        MetricName("conversation/restarts", "restarts", "sum", "lower", "How often the process that starts tools and environments had ended and was started again."),
        MetricName("eval/conversation/restarts", "restarts", "sum", "lower", "The same during an evaluation."),
        MetricName("eval/conversation/turns_mean", "turns", "mean", "", "Turns of the policy in a greedy response, on average."),
        MetricName("eval/conversation/called_fraction", "fraction", "mean", "", "Share of greedy responses that call a tool."),
        MetricName("eval/conversation/sampled_tokens_mean", "tokens", "mean", "", "Tokens of a greedy response that the policy sampled."),
        MetricName("eval/conversation/out_of_turns_fraction", "fraction", "mean", "lower", "Share of greedy responses that `conversation.max_turns` ended."),
        MetricName("eval/conversation/failed_fraction", "fraction", "mean", "lower", "Share of greedy responses whose environment failed."),
        MetricName("eval/conversation/environment_reward_mean", "score", "mean", "higher", "Mean of what the environment pays for a greedy response."),
    ),
    "Domains": (
        MetricName("domain/{domain}/prompts", "prompts", "last", "", "Prompts of the domain that the step trains on, if it has places for it."),
        MetricName("domain/{domain}/missing", "prompts", "last", "lower", "Prompts that the step lacks of the domain's share, if it has places for it."),
        MetricName("domain/{domain}/left_out_fraction", "fraction", "mean", "lower", "Share of the domain's sampled groups that are not trained on: without a signal, or not of the difficulty that is asked for."),
        MetricName("domain/{domain}/constant_fraction", "fraction", "mean", "lower", "Share of the domain's groups in which all responses scored the same."),
        MetricName("domain/{domain}/solved_fraction", "fraction", "mean", "higher", "Share of the domain's responses that are solved, as its evaluation would judge them."),
        MetricName("domain/{domain}/response_tokens_mean", "tokens", "mean", "", "Mean length of the domain's responses, in sampled tokens."),
        MetricName("domain/{domain}/truncated_fraction", "fraction", "mean", "lower", "Share of the domain's responses cut at its limit."),
    ),
    "Advantages": (
        MetricName("advantage/mean", "advantage", "mean", "", "Mean advantage of the trained tokens, after whitening and clipping."),
        MetricName("advantage/std", "advantage", "derived", "", "Standard deviation of these advantages."),
        MetricName("advantage/absolute_max", "advantage", "max", "", "Largest distance of one of them from 0."),
        MetricName("advantage/raw_mean", "advantage", "mean", "", "Mean advantage as the estimator gave it, before whitening and clipping."),
        MetricName("advantage/raw_std", "advantage", "derived", "", "Standard deviation of the advantages as the estimator gave them."),
        MetricName("advantage/clipped_fraction", "fraction", "mean", "", "Share of trained tokens whose advantage `advantage_clip` changed."),
    ),
    "Policy updates": (
        MetricName("policy/loss", "loss", "mean", "", "What the policy's updates minimise: policy loss, KL in the loss times its coefficient and entropy bonus together."),
        MetricName("policy/kl_loss", "nats", "mean", "", "KL term of the loss, before its coefficient."),
        MetricName("policy/entropy", "nats per token", "mean", "", "Entropy of the policy's next-token distribution over the trained tokens."),
        MetricName("policy/clip_fraction", "fraction", "mean", "", "Share of trained tokens whose ratio the loss clipped."),
        MetricName("policy/clip_fraction_low", "fraction", "mean", "", "Share of trained tokens clipped at the lower bound."),
        MetricName("policy/clip_fraction_high", "fraction", "mean", "", "Share of trained tokens clipped at the upper bound."),
        MetricName("policy/clip_fraction_dual", "fraction", "mean", "", "Share of trained tokens that `dual_clip` bounded."),
        MetricName("policy/selected_fraction", "fraction", "mean", "", "Share of trained tokens that `kl_cov` or `clip_cov` treats specially."),
        MetricName("policy/teacher_divergence", "nats per token", "mean", "lower", "`teacher.compare: vocabulary`: reverse KL of the policy to its teacher over all tokens, at the trained positions."),
        MetricName("policy/teacher_agreement", "fraction", "mean", "higher", "`teacher.compare: vocabulary`: share of trained positions at which policy and teacher find the same token most likely."),
        MetricName("policy/off_policy_fraction", "fraction", "mean", "lower", "Share of trained tokens that `sequence_off_policy` dropped."),
        MetricName("policy/ratio_mean", "ratio", "mean", "", "Mean probability ratio of the policy to the one that sampled."),
        MetricName("policy/ratio_min", "ratio", "min", "", "Smallest probability ratio."),
        MetricName("policy/ratio_max", "ratio", "max", "", "Largest probability ratio."),
        MetricName("policy/ratio_clamped_fraction", "fraction", "mean", "lower", "Share of trained tokens whose log-ratio is beyond 20 nats, where the ratio has no gradient."),
        MetricName("policy/approx_kl", "nats per token", "mean", "", "How far the updates moved the policy from the one that sampled (k3)."),
        MetricName("policy/first_ratio_deviation", "ratio", "max", "lower", "Largest distance of the ratio from 1 before any update of the step; above 1e-3, sampler and trainer are inconsistent."),
        MetricName("policy/grad_norm", "norm", "mean", "", "Norm of the gradient before clipping, mean over the optimizer steps."),
        MetricName("policy/learning_rate", "rate", "last", "", "Learning rate of the last optimizer step."),
        MetricName("policy/optimizer_steps", "steps", "sum", "", "Optimizer steps of the policy in this step."),
        MetricName("policy/epochs", "epochs", "sum", "", "Passes over the batch; fewer than `optimization.epochs` when `algorithm.max_epoch_kl` ended them."),
        MetricName("policy/skipped_fraction", "fraction", "mean", "", "Share of responses left out by `skip_zero_advantages`."),
        MetricName("policy/empty_updates", "steps", "sum", "lower", "Optimizer steps without any trained token, which move nothing."),
        MetricName("policy/router_aux_loss", "loss", "mean", "lower", "Load-balancing loss of the router before its coefficient, with `model.router_aux_coef`."),
    ),
    "KL to the reference": (
        MetricName("kl/reference", "nats per response", "mean", "", "KL of the policy to the reference, k1 summed over the response: what `kl_target` steers."),
        MetricName("kl/teacher", "nats per response", "mean", "", "Reverse KL of the policy to its teacher: log S - log T of the sampled tokens, summed over the response."),
        MetricName("kl/teacher_per_token", "nats per token", "mean", "", "The same, averaged over all trained tokens of the step."),
        MetricName("kl/reference_per_token", "nats per token", "mean", "", "The same per token (k3)."),
        MetricName("kl/coef", "coefficient", "last", "", "Coefficient of the KL penalty that this step used."),
        MetricName("kl/target", "nats per response", "last", "", "Target of the adaptive coefficient."),
        MetricName("kl/clamped_fraction", "fraction", "mean", "lower", "With `kl_estimator: k3`, share of trained tokens more than 20 nats from the reference, where k3 has no gradient."),
    ),
    "Critic": (
        MetricName("critic/loss", "loss", "mean", "lower", "Value loss that the critic's updates minimise."),
        MetricName("critic/clip_fraction", "fraction", "mean", "", "Share of tokens whose clipped error counted."),
        MetricName("critic/error_mean", "score", "mean", "", "Mean of value - return in the updates."),
        MetricName("critic/value_mean", "score", "mean", "", "Mean value of the trained tokens before the update."),
        MetricName("critic/return_mean", "score", "mean", "", "Mean return that the values are compared with."),
        MetricName("critic/return_std", "score", "derived", "", "Standard deviation of the returns."),
        MetricName("critic/explained_variance", "fraction", "derived", "higher", "1 - Var(return - value) / Var(return), before the update: 1 is perfect, 0 is no better than a constant."),
        MetricName("critic/grad_norm", "norm", "mean", "", "Norm of the critic's gradient before clipping."),
        MetricName("critic/learning_rate", "rate", "last", "", "Learning rate of the critic's last optimizer step."),
        MetricName("critic/optimizer_steps", "steps", "sum", "", "Optimizer steps of the critic, or of the head on a shared backbone."),
        MetricName("critic/empty_updates", "steps", "sum", "lower", "Optimizer steps of the critic without any trained token."),
    ),
    "Sampling": (
        MetricName("rollout/response_tokens_mean", "tokens", "mean", "", "Mean length of the responses, without what tools and environments said."),
        MetricName("rollout/response_tokens_max", "tokens", "max", "", "Longest response."),
        MetricName("rollout/lost_workers", "number", "sum", "lower", "Rollout workers that were lost; their prompts were sampled again."),
        MetricName("eval/rollout/lost_workers", "number", "sum", "lower", "The same during an evaluation."),
        MetricName("rollout/response_tokens_sum", "tokens", "sum", "", "Sampled tokens of all responses together."),
        MetricName("rollout/truncated_fraction", "fraction", "mean", "lower", "Share of responses cut at `rollout.max_response_tokens`."),
        MetricName("rollout/staleness", "steps", "mean", "", "Steps between the weights that sampled a token and those that learn from it (with `max_staleness`). Without `partial` it is the same for all tokens of a step."),
        MetricName("rollout/renewed_fraction", "fraction", "mean", "", "Share of responses within which the weights changed (with `partial`)."),
        MetricName("rollout/logprob_diff_mean", "nats per token", "mean", "lower", "Mean distance of the sampler's from the trainer's log-probabilities of the same tokens. With `old_logprobs: sampler` it includes the updates of the step."),
        MetricName("rollout/logprob_diff_max", "nats", "max", "lower", "Largest such distance."),
        MetricName("rollout/logprob_k3", "nats per token", "mean", "lower", "KL of the sampler to the trainer (k3)."),
        MetricName("rollout/weight_mean", "ratio", "mean", "", "Mean of the ratios trainer / sampler."),
        MetricName("rollout/effective_sample_size", "fraction", "derived", "higher", "Effective share of the tokens under these ratios; 1 means no mismatch."),
        MetricName("rollout/prefilled_tokens", "tokens", "sum", "", "Prompt tokens that the engine computed, each shared part once."),
        MetricName("rollout/reused_tokens", "tokens", "sum", "", "Tokens of conversations that the engine had kept from an earlier turn and did not compute again."),
        MetricName("rollout/decoded_tokens", "tokens", "sum", "", "Response tokens that the engine computed."),
        MetricName("rollout/pushed_megabytes", "MB", "sum", "", "Weights that `rollout.engine: vllm` was sent: all of them, or what has changed."),
        MetricName("rollout/engine_restarts", "restarts", "sum", "lower", "How often the process of `rollout.engine: vllm` was lost and started again."),
        MetricName("eval/rollout/engine_restarts", "restarts", "sum", "lower", "The same during an evaluation."),
    ),
    "Held-out data": (
        MetricName("eval/reward_mean", "score", "mean", "higher", "Mean score of the greedy responses to the held-out prompts."),
        MetricName("eval/accuracy", "fraction", "mean", "higher", "Share of held-out prompts whose greedy response is solved; `rm`: share of comparisons in which the better response scores highest."),
        MetricName("eval/accuracy_low", "fraction", "last", "higher", "Lower end of the 95 % interval of that share over prompts or comparisons (Wilson)."),
        MetricName("eval/accuracy_high", "fraction", "last", "higher", "Upper end of that interval."),
        MetricName("eval/prompts", "prompts", "sum", "", "Held-out prompts."),
        MetricName("eval/part/{label}", "score", "mean", "", "Mean of one reward, by its label, over the greedy responses."),
        MetricName("eval/response_tokens_mean", "tokens", "mean", "", "Mean length of the greedy responses, in sampled tokens."),
        MetricName("eval/truncated_fraction", "fraction", "mean", "lower", "Share of greedy responses cut at the length limit."),
        MetricName("eval/failed_fraction", "fraction", "mean", "lower", "Share of greedy responses that could not be scored."),
        MetricName("eval/sampled_reward_mean", "score", "mean", "higher", "Mean score of the `evaluation.samples`."),
        MetricName("eval/pass@{k}", "fraction", "mean", "higher", "Chance that at least one of k samples is solved."),
        MetricName("eval/maj@{k}", "fraction", "mean", "higher", "Share of prompts whose most frequent answer among k samples is solved."),
        MetricName("eval/domain/{domain}/{metric}", "as the metric", "mean", "", "One of the held-out metrics in one domain, where there are several."),
        MetricName("eval/value_mean", "score", "mean", "", "Mean value that the critic gives before the first token of held-out responses."),
        MetricName("eval/explained_variance", "fraction", "last", "higher", "How much of the variance of held-out scores that value explains."),
        MetricName("eval/loss", "nats", "mean", "lower", "`sft`, `distill`: negative log-likelihood per trained token; `rm`, `prefer`: loss per comparison."),
        MetricName("eval/perplexity", "perplexity", "derived", "lower", "Exponential of the loss per token."),
        MetricName("eval/token_accuracy", "fraction", "mean", "higher", "Share of trained tokens that the model finds most likely."),
        MetricName("eval/divergence", "nats", "mean", "lower", "`distill`: divergence from the teacher per trained token."),
        MetricName("eval/agreement", "fraction", "mean", "higher", "`distill`: share of trained tokens at which student and teacher find the same token most likely."),
    ),
    "Preferences": (
        MetricName("preference/margin", "reward", "mean", "higher", "Mean lead of the better response's implied reward: log-probability relative to the reference (mean per token without one), times `beta`."),
        MetricName("preference/chosen_reward", "reward", "mean", "", "Mean implied reward of the better (or good) responses."),
        MetricName("preference/rejected_reward", "reward", "mean", "", "Mean implied reward of the worse (or bad) responses."),
        MetricName("preference/chosen_logprob", "nats", "mean", "higher", "Mean log-probability of the better responses. Where it falls with that of the worse ones, probability goes to responses that are in no row."),
        MetricName("preference/rejected_logprob", "nats", "mean", "", "Mean log-probability of the worse responses."),
        MetricName("preference/chosen_tokens", "tokens", "mean", "", "Mean length of the better responses."),
        MetricName("preference/rejected_tokens", "tokens", "mean", "", "Mean length of the worse responses."),
        MetricName("preference/kl", "nats", "last", "", "`kto`: mean log ratio of responses to other prompts, at least 0."),
        MetricName("eval/margin", "reward", "derived", "higher", "Mean lead of the better response's implied reward on held-out comparisons."),
        MetricName("eval/chosen_logprob", "nats", "mean", "higher", "Mean log-probability of the better held-out responses."),
        MetricName("eval/rejected_logprob", "nats", "mean", "", "Mean log-probability of the worse ones."),
    ),
    "Supervised fine-tuning and reward models": (
        MetricName("train/loss", "nats", "mean", "lower", "Loss of the step, per trained token of `sft` and `distill` or per comparison of `rm` and `prefer`."),
        MetricName("train/accuracy", "fraction", "mean", "higher", "`rm`, `prefer`: share of the step's comparisons in which the better response scored highest."),
        MetricName("train/divergence", "nats", "mean", "lower", "`distill`: divergence from the teacher per trained token."),
        MetricName("train/agreement", "fraction", "mean", "higher", "`distill`: share of trained tokens at which student and teacher find the same token most likely."),
        MetricName("train/cross_entropy", "nats", "mean", "lower", "`distill`, and `sft` with `token_loss: dft`: negative log-likelihood of the texts per trained token."),
        MetricName("train/tokens", "tokens", "sum", "", "Tokens that the step read."),
        MetricName("train/examples", "examples", "sum", "", "Examples that the step was trained on."),
        MetricName("train/comparisons", "comparisons", "sum", "", "Comparisons that the step was trained on."),
        MetricName("rm/score_gap", "score", "mean", "higher", "Mean lead of the better response over the best of the others, in training."),
        MetricName("rm/score_mean", "score", "mean", "", "Mean score of all responses of the step."),
        MetricName("rm/grad_norm", "norm", "mean", "", "Norm of the gradient before clipping."),
        MetricName("rm/learning_rate", "rate", "last", "", "Learning rate of the optimizer step."),
        MetricName("rm/gain", "factor", "last", "", "Gain of the scores, where it is trained."),
        MetricName("rm/bias", "score", "last", "", "Bias of the scores, where it is trained."),
        MetricName("eval/comparisons", "comparisons", "derived", "", "Held-out comparisons."),
        MetricName("eval/calibration_error", "fraction", "derived", "lower", "Expected calibration error: mean distance of confidence and accuracy."),
        MetricName("eval/score_mean", "score", "derived", "", "Mean score of the held-out responses."),
        MetricName("eval/score_std", "score", "derived", "", "Standard deviation of these scores."),
        MetricName("eval/score_gap", "score", "derived", "higher", "Mean lead of the better held-out response over the best of the others."),
        MetricName("eval/accuracy_by_gap/{range}", "fraction", "derived", "higher", "Accuracy where the model's lead is in this range."),
        MetricName("eval/accuracy_by_margin/{margin}", "fraction", "derived", "higher", "Accuracy where the label gives this margin."),
        MetricName("eval/length_rule_accuracy", "fraction", "derived", "", "Accuracy of judging by length alone."),
        MetricName("eval/length_correlation", "correlation", "derived", "", "Correlation of score and length within comparisons."),
    ),
    "Time and throughput": (
        MetricName("time/step_seconds", "seconds", "sum", "lower", "The whole step, without its evaluation."),
        MetricName("time/{phase}_seconds", "seconds", "sum", "lower", "One phase of the step: sync (new weights for the engine), generate, reward, logprobs, values, update, record; wait (for a batch that is sampled while the policy learns: then sync, generate and reward are not parts of the step); or the evaluation after it (evaluate)."),
        MetricName("time/reward_worker_seconds/{label}", "seconds", "sum", "lower", "Time that workers were busy with one reward, summed over the workers."),
        MetricName("time/prefill_seconds", "seconds", "sum", "lower", "The engine's time for prompts, a part of generating; the sum of all rollout workers."),
        MetricName("time/decode_seconds", "seconds", "sum", "lower", "The engine's time for responses, a part of generating; the sum of all rollout workers."),
        MetricName("time/engine_sleep_seconds", "seconds", "sum", "lower", "Falling asleep and waking of `rollout.engine: vllm` (with `cluster.offload: [rollout_engine]`)."),
        MetricName("time/engine_start_seconds", "seconds", "sum", "lower", "Starting the process of `rollout.engine: vllm`."),
        MetricName("throughput/response_tokens_per_second", "tokens per second", "derived", "higher", "Sampled tokens divided by the time of the whole step."),
        MetricName("throughput/generate_tokens_per_second", "tokens per second", "derived", "higher", "Response tokens divided by the time of generating."),
        MetricName("throughput/update_tokens_per_second", "tokens per second", "derived", "higher", "Response tokens divided by the time of the updates."),
        MetricName("throughput/decoded_tokens_per_second", "tokens per second", "mean", "higher", "Response tokens divided by the engine's own time for responses: of one rollout worker, where there are several."),
        MetricName("throughput/tokens_per_second", "tokens per second", "derived", "higher", "`sft` and `rm`: tokens read, divided by the time of the updates."),
    ),
}  # fmt: skip
"""Sections of docs/metrics.md -> their rows."""


@cache
def find_metric(name: str) -> MetricName | None:
    """Find the row of a logged name: its own, or else its family's. None for unknown names, such as metrics of your own
    losses and engines."""
    rows = [row for section in METRICS.values() for row in section]
    own = next((row for row in rows if row.name == name), None)
    return own or next((row for row in rows if row.is_family and row.matches(name)), None)


def explain(name: str) -> str:
    """Meaning and unit of a metric; empty for an unknown name."""
    row = find_metric(name)
    return "" if row is None else f"{row.meaning.rstrip('.')} ({row.unit})".replace("`", "")


def _pattern(name: str) -> str:
    return re.sub(r"\\{\w+\\}", ".+", re.escape(name))


_INTRODUCTION = """# Metrics

<!-- Written by `make docs` from src/burnish/observability/metric_names.py. Change the table there, not this page. -->

Every number is that of the whole step, over all its micro-batches: means are sums divided by counts, never means of
means. A metric that measured nothing in a step is missing from that line of `metrics.jsonl`. One that is not finite
stops the run with its name. Losses and engines of your own may log further names, which reports chart like the others.

`{...}` in a name is for a name or number of yours. *merged* says how the readings of a step become one number
(*derived*: computed from other numbers of the step), *better* which direction is an improvement by itself.
"""


def metrics_page() -> str:
    """docs/metrics.md as Markdown."""
    parts = [_INTRODUCTION.strip()]
    for section, rows in METRICS.items():
        lines = ["| metric | unit | merged | better | meaning |", "|---|---|---|---|---|"]
        lines += [f"| `{row.name}` | {row.unit} | {row.merged} | {row.better} | {row.meaning} |" for row in rows]
        parts += [f"## {section}", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(metrics_page(), encoding="utf-8")
