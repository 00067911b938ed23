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
"""Rule that merges the readings of a step into one number; "derived" is computed from other numbers of the step."""
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
        MetricName("reward/mean", "score", "mean", "higher", "Mean score of the step's responses, before clipping, KL and baseline."),
        MetricName("reward/std", "score", "derived", "", "Standard deviation of these scores."),
        MetricName("reward/min", "score", "min", "", "Lowest score of the step."),
        MetricName("reward/max", "score", "max", "", "Highest score of the step."),
        MetricName("reward/part/{label}", "score", "mean", "", "Mean of one reward, by its label, before its weight. A part that it reports is `label/part`."),
        MetricName("reward/domain/{domain}", "score", "mean", "higher", "Mean score in one domain, in a run with `domains` or with rows of several domains."),
        MetricName("reward/audit/{label}", "score", "mean", "higher", "Mean of a reward with `audit: true`, which is not trained on. If it falls while `reward/mean` rises, the policy games the other rewards."),
        MetricName("reward/audit_failed_fraction/{label}", "fraction", "mean", "lower", "Share of responses on which an audit failed (error or timeout). The run is not affected."),
        MetricName("reward/failed_fraction", "fraction", "mean", "lower", "Share of responses without a score because the reward failed."),
        MetricName("reward/failed_fraction/{domain}", "fraction", "mean", "lower", "The same in one domain."),
        MetricName("reward/timeout_fraction", "fraction", "mean", "lower", "Share of responses whose reward took too long."),
        MetricName("reward/error_fraction", "fraction", "mean", "lower", "Share of responses whose reward raised an error."),
        MetricName("reward/missing_fraction", "fraction", "mean", "lower", "Share of responses that the reward declined to judge."),
        MetricName("reward/not_mine_fraction/{label}", "fraction", "mean", "", "Share of responses outside a reward's scope: it returned None for every response to their prompts. At 1, the reward scores nothing."),
        MetricName("reward/incomplete_fraction", "fraction", "mean", "lower", "Share of responses without an end, if `scoring` asks for one. `incomplete_score`, if set, replaced their score."),
        MetricName("reward/overlong_penalty", "score", "mean", "higher", "Mean penalty of `algorithm.overlong_buffer` (0 to -1), which is part of the score."),
        MetricName("reward/clipped_fraction", "fraction", "mean", "", "Share of responses whose score was changed by `reward_clip`."),
        MetricName("reward/token_std", "score", "last", "", "Standard deviation of token rewards before `whiten_rewards`, for estimators that read token rewards."),
        MetricName("reward/score_std", "score", "last", "", "Standard deviation of scores before `whiten_rewards`, for estimators that read one score per response."),
        MetricName("groups/constant_fraction", "fraction", "mean", "lower", "Share of groups in which all responses scored the same and thus give no gradient."),
        MetricName("groups/shrunk_to_one", "groups", "sum", "lower", "Groups left with a single scored response, whose advantage is therefore 0."),
        MetricName("groups/sampled", "groups", "last", "", "Groups sampled in total, including the refills of dynamic sampling."),
        MetricName("groups/missing", "groups", "last", "lower", "Groups still missing after the last refill."),
    ),
    "Judges": (
        MetricName("judge/requests", "requests", "sum", "", "Requests sent by all judges of the run in a step, including failed attempts and repairs. For a model in this process: batches."),
        MetricName("judge/retries", "requests", "sum", "lower", "Requests sent again after a connection error, a timeout, 429 or 5xx."),
        MetricName("judge/cached_fraction", "fraction", "mean", "", "Share of verdicts that needed no request, because the answer was cached or the same question was already in flight."),
        MetricName("judge/repaired_fraction", "fraction", "mean", "lower", "Share of the other verdicts that could not be read at first, so the judge was asked again."),
        MetricName("judge/failed_fraction", "fraction", "mean", "lower", "Share of verdicts that are missing: no answer in time, or no readable one."),
        MetricName("judge/inconsistent_fraction", "fraction", "mean", "lower", "Share of comparisons whose winner changed with the order of the two responses. They count as ties."),
        MetricName("judge/tokens_in", "tokens", "sum", "lower", "Prompt tokens, as counted by the endpoints."),
        MetricName("judge/tokens_out", "tokens", "sum", "lower", "Answer tokens, as counted by the endpoints."),
        MetricName("judge/seconds", "seconds", "mean", "lower", "Mean duration of a request."),
        MetricName("judge/cost", "money", "sum", "lower", "Price of these tokens in the currency of `price_in` and `price_out`, if either is set."),
        MetricName("eval/judge/requests", "requests", "sum", "", "Requests during an evaluation. The total of a run is the sum of this and `judge/requests`; likewise for the metrics below."),
        MetricName("eval/judge/retries", "requests", "sum", "lower", "Requests sent again during an evaluation."),
        MetricName("eval/judge/tokens_in", "tokens", "sum", "lower", "Prompt tokens during an evaluation."),
        MetricName("eval/judge/tokens_out", "tokens", "sum", "lower", "Answer tokens during an evaluation."),
        MetricName("eval/judge/cost", "money", "sum", "lower", "Price of these tokens."),
    ),
    "Conversations": (
        MetricName("conversation/turns_mean", "turns", "mean", "", "Mean number of the policy's turns in a response."),
        MetricName("conversation/called_fraction", "fraction", "mean", "", "Share of responses that call a tool."),
        MetricName("conversation/sampled_tokens_mean", "tokens", "mean", "", "Mean number of sampled tokens in a response, over all its rows; `rollout/response_tokens_mean` is per row."),
        MetricName("conversation/rows_mean", "rows", "mean", "", "Mean number of rows of a response. Above 1, the chat template rewrites earlier turns (`conversation.trajectory: fork`), or agents edit the history."),
        MetricName("conversation/out_of_turns_fraction", "fraction", "mean", "lower", "Share of responses ended by `conversation.max_turns`."),
        MetricName("conversation/cut_turn_fraction", "fraction", "mean", "lower", "Share of responses whose last turn was cut at `conversation.max_turn_tokens`, if set."),
        MetricName("conversation/failed_fraction", "fraction", "mean", "lower", "Share of responses whose environment failed. They have no score."),
        MetricName("conversation/environment_reward_mean", "score", "mean", "higher", "Mean reward from the environment for a whole response."),
        MetricName("tool/calls", "calls", "sum", "", "Tool calls, including calls that could not be made."),
        MetricName("tool/calls_per_turn", "calls", "mean", "", "Calls per turn of the policy."),
        MetricName("tool/malformed_fraction", "fraction", "mean", "lower", "Share of calls that could not be parsed."),
        MetricName("tool/invalid_fraction", "fraction", "mean", "lower", "Share of calls to a tool that does not exist, or with arguments that it does not accept."),
        MetricName("tool/failed_fraction", "fraction", "mean", "lower", "Share of calls in which the tool raised an error or took too long."),
        MetricName("tool/timed_out_fraction", "fraction", "mean", "lower", "Share of calls that took longer than `conversation.call_timeout_seconds`, or the tool's own `timeout_seconds`."),
        MetricName("tool/cut_fraction", "fraction", "mean", "", "Share of results longer than `conversation.max_result_characters`. The policy does not see the rest."),
        MetricName("agent/started", "agents", "sum", "", "Agents that were started (`conversation.agent`)."),
        MetricName("agent/failed_fraction", "fraction", "mean", "lower", "Share of agents that raised an error, exited, took too long or requested no turn. Their responses have no score."),
        MetricName("agent/timed_out_fraction", "fraction", "mean", "lower", "Share of agents that made no request, and did not end, within `conversation.call_timeout_seconds`."),
        MetricName("agent/turns", "turns", "sum", "", "Turns that agents requested and received."),
        MetricName("agent/refused", "requests", "sum", "lower", "Agent requests that were refused because they were malformed or exceeded a limit."),
        MetricName("agent/branches_mean", "rows", "mean", "", "Mean number of rows of a trajectory. Above 1, agents edit the history or send several requests at once."),
        MetricName("environment/opened", "environments", "sum", "", "Environments that were started."),
        MetricName("environment/failed_fraction", "fraction", "mean", "lower", "Share of environments that raised an error, took too long or exited. Their responses have no score."),
        MetricName("time/answers_seconds", "s", "sum", "lower", "Time in which nothing was sampled because all conversations were waiting for tools or environments."),
        MetricName("environment/timed_out_fraction", "fraction", "mean", "lower", "Share of environments that took longer than `conversation.call_timeout_seconds` or `open_timeout_seconds`."),
        MetricName("environment/cut_fraction", "fraction", "mean", "", "Share of the environments' answers longer than `conversation.max_result_characters`. The policy does not see the rest."),
        MetricName("conversation/restarts", "restarts", "sum", "lower", "Number of times that the process that starts tools and environments was lost and restarted."),
        MetricName("eval/conversation/restarts", "restarts", "sum", "lower", "The same during an evaluation."),
        MetricName("eval/conversation/turns_mean", "turns", "mean", "", "Mean number of the policy's turns in a greedy response."),
        MetricName("eval/conversation/called_fraction", "fraction", "mean", "", "Share of greedy responses that call a tool."),
        MetricName("eval/conversation/sampled_tokens_mean", "tokens", "mean", "", "Mean number of tokens in a greedy response that come from the policy."),
        MetricName("eval/conversation/out_of_turns_fraction", "fraction", "mean", "lower", "Share of greedy responses ended by `conversation.max_turns`."),
        MetricName("eval/conversation/failed_fraction", "fraction", "mean", "lower", "Share of greedy responses whose environment failed."),
        MetricName("eval/conversation/environment_reward_mean", "score", "mean", "higher", "Mean reward from the environment for a greedy response."),
    ),
    "Domains": (
        MetricName("domain/{domain}/prompts", "prompts", "last", "", "Prompts of the domain that the step trains on, if it has places for the domain."),
        MetricName("domain/{domain}/missing", "prompts", "last", "lower", "Prompts missing from the domain's share, if the step has places for the domain."),
        MetricName("domain/{domain}/left_out_fraction", "fraction", "mean", "lower", "Share of the domain's sampled groups that are not trained on, because they have no signal or the wrong difficulty."),
        MetricName("domain/{domain}/constant_fraction", "fraction", "mean", "lower", "Share of the domain's groups in which all responses scored the same."),
        MetricName("domain/{domain}/solved_fraction", "fraction", "mean", "higher", "Share of the domain's responses that are solved, judged as in its evaluation."),
        MetricName("domain/{domain}/response_tokens_mean", "tokens", "mean", "", "Mean length of the domain's responses, in sampled tokens."),
        MetricName("domain/{domain}/truncated_fraction", "fraction", "mean", "lower", "Share of the domain's responses cut at its limit."),
    ),
    "Advantages": (
        MetricName("advantage/mean", "advantage", "mean", "", "Mean advantage of the trained tokens, after whitening and clipping."),
        MetricName("advantage/std", "advantage", "derived", "", "Standard deviation of these advantages."),
        MetricName("advantage/absolute_max", "advantage", "max", "", "Largest absolute advantage."),
        MetricName("advantage/raw_mean", "advantage", "mean", "", "Mean advantage from the estimator, before whitening and clipping."),
        MetricName("advantage/raw_std", "advantage", "derived", "", "Standard deviation of the advantages from the estimator."),
        MetricName("advantage/clipped_fraction", "fraction", "mean", "", "Share of trained tokens whose advantage was changed by `advantage_clip`."),
    ),
    "Policy updates": (
        MetricName("policy/loss", "loss", "mean", "", "Total loss of the policy's updates: policy loss, KL term times its coefficient, and entropy bonus."),
        MetricName("policy/kl_loss", "nats", "mean", "", "KL term of the loss, before its coefficient."),
        MetricName("policy/entropy", "nats per token", "mean", "", "Entropy of the policy's next-token distribution over the trained tokens."),
        MetricName("policy/clip_fraction", "fraction", "mean", "", "Share of trained tokens whose ratio the loss clipped."),
        MetricName("policy/clip_fraction_low", "fraction", "mean", "", "Share of trained tokens clipped at the lower bound."),
        MetricName("policy/clip_fraction_high", "fraction", "mean", "", "Share of trained tokens clipped at the upper bound."),
        MetricName("policy/clip_fraction_dual", "fraction", "mean", "", "Share of trained tokens bounded by `dual_clip`."),
        MetricName("policy/selected_fraction", "fraction", "mean", "", "Share of trained tokens selected by `kl_cov` or `clip_cov`."),
        MetricName("policy/teacher_divergence", "nats per token", "mean", "lower", "`teacher.compare: vocabulary`: reverse KL of the policy to its teacher over all tokens, at the trained positions."),
        MetricName("policy/teacher_agreement", "fraction", "mean", "higher", "`teacher.compare: vocabulary`: share of trained positions at which the policy and the teacher have the same most likely token."),
        MetricName("policy/off_policy_fraction", "fraction", "mean", "lower", "Share of trained tokens dropped by `sequence_off_policy`."),
        MetricName("policy/ratio_mean", "ratio", "mean", "", "Mean probability ratio of the policy to the sampling policy."),
        MetricName("policy/ratio_min", "ratio", "min", "", "Smallest probability ratio."),
        MetricName("policy/ratio_max", "ratio", "max", "", "Largest probability ratio."),
        MetricName("policy/ratio_clamped_fraction", "fraction", "mean", "lower", "Share of trained tokens with a log-ratio beyond ±20 nats, where the ratio has no gradient."),
        MetricName("policy/approx_kl", "nats per token", "mean", "", "KL by which the updates moved the policy from the sampling policy (k3)."),
        MetricName("policy/first_ratio_deviation", "ratio", "max", "lower", "Largest distance of the ratio from 1 before the first update of the step. Above 1e-3, sampler and trainer are inconsistent."),
        MetricName("policy/grad_norm", "norm", "mean", "", "Gradient norm before clipping, averaged over the optimizer steps."),
        MetricName("policy/learning_rate", "rate", "last", "", "Learning rate of the last optimizer step."),
        MetricName("policy/optimizer_steps", "steps", "sum", "", "Optimizer steps of the policy in this step."),
        MetricName("policy/epochs", "epochs", "sum", "", "Passes over the batch; fewer than `optimization.epochs` if `algorithm.max_epoch_kl` stopped them."),
        MetricName("policy/skipped_fraction", "fraction", "mean", "", "Share of responses left out by `skip_zero_advantages`."),
        MetricName("policy/empty_updates", "steps", "sum", "lower", "Optimizer steps without any trained token, which change nothing."),
        MetricName("policy/router_aux_loss", "loss", "mean", "lower", "Load-balancing loss of the router (`model.router_aux_coef`), before its coefficient."),
    ),
    "KL to the reference": (
        MetricName("kl/reference", "nats per response", "mean", "", "KL of the policy to the reference (k1), summed over the response. `kl_target` controls it."),
        MetricName("kl/teacher", "nats per response", "mean", "", "Reverse KL of the policy to its teacher: log S - log T of the sampled tokens, summed over the response."),
        MetricName("kl/teacher_per_token", "nats per token", "mean", "", "The teacher's KL averaged over all trained tokens of the step."),
        MetricName("kl/reference_per_token", "nats per token", "mean", "", "KL of the policy to the reference per token (k3)."),
        MetricName("kl/coef", "coefficient", "last", "", "Coefficient of the KL penalty in this step."),
        MetricName("kl/target", "nats per response", "last", "", "Target of the adaptive coefficient."),
        MetricName("kl/clamped_fraction", "fraction", "mean", "lower", "`kl_estimator: k3`: share of trained tokens more than 20 nats from the reference, where k3 has no gradient."),
    ),
    "Critic": (
        MetricName("critic/loss", "loss", "mean", "lower", "Value loss of the critic's updates."),
        MetricName("critic/clip_fraction", "fraction", "mean", "", "Share of tokens for which the clipped error was used."),
        MetricName("critic/error_mean", "score", "mean", "", "Mean of value - return in the updates."),
        MetricName("critic/value_mean", "score", "mean", "", "Mean value of the trained tokens before the update."),
        MetricName("critic/return_mean", "score", "mean", "", "Mean return, the target of the values."),
        MetricName("critic/return_std", "score", "derived", "", "Standard deviation of the returns."),
        MetricName("critic/explained_variance", "fraction", "derived", "higher", "1 - Var(return - value) / Var(return), before the update: 1 is perfect, 0 is no better than a constant."),
        MetricName("critic/grad_norm", "norm", "mean", "", "Norm of the critic's gradient, before clipping."),
        MetricName("critic/learning_rate", "rate", "last", "", "Learning rate of the critic's last optimizer step."),
        MetricName("critic/optimizer_steps", "steps", "sum", "", "Optimizer steps of the critic, or of the head on a shared backbone."),
        MetricName("critic/empty_updates", "steps", "sum", "lower", "Optimizer steps of the critic without any trained token."),
    ),
    "Sampling": (
        MetricName("rollout/response_tokens_mean", "tokens", "mean", "", "Mean length of the responses, without the text of tools and environments."),
        MetricName("rollout/response_tokens_max", "tokens", "max", "", "Longest response."),
        MetricName("rollout/lost_workers", "number", "sum", "lower", "Rollout workers that were lost. Their prompts were sampled again."),
        MetricName("eval/rollout/lost_workers", "number", "sum", "lower", "The same during an evaluation."),
        MetricName("rollout/response_tokens_sum", "tokens", "sum", "", "Sampled tokens of all responses together."),
        MetricName("rollout/truncated_fraction", "fraction", "mean", "lower", "Share of responses cut at `rollout.max_response_tokens`."),
        MetricName("rollout/staleness", "steps", "mean", "", "Steps by which the weights that sampled a token lag behind the weights trained on it (with `max_staleness`). Without `partial`, equal for all tokens of a step."),
        MetricName("rollout/renewed_fraction", "fraction", "mean", "", "Share of responses during which the weights changed (with `partial`)."),
        MetricName("rollout/logprob_diff_mean", "nats per token", "mean", "lower", "Mean absolute difference between the sampler's and the trainer's log-probabilities of the same tokens. With `old_logprobs: sampler` it includes the updates of the step."),
        MetricName("rollout/logprob_diff_max", "nats", "max", "lower", "Largest such difference."),
        MetricName("rollout/logprob_k3", "nats per token", "mean", "lower", "KL of the sampler to the trainer (k3)."),
        MetricName("rollout/weight_mean", "ratio", "mean", "", "Mean probability ratio of trainer to sampler."),
        MetricName("rollout/effective_sample_size", "fraction", "derived", "higher", "Effective share of the tokens under these ratios; 1 means no mismatch."),
        MetricName("rollout/prefilled_tokens", "tokens", "sum", "", "Prompt tokens that the engine computed, counting each shared part once."),
        MetricName("rollout/reused_tokens", "tokens", "sum", "", "Tokens of conversations that the engine kept from an earlier turn and did not compute again."),
        MetricName("rollout/decoded_tokens", "tokens", "sum", "", "Response tokens that the engine computed."),
        MetricName("rollout/pushed_megabytes", "MB", "sum", "", "Weights sent to `rollout.engine: vllm`: all of them, or only the changed ones."),
        MetricName("rollout/engine_restarts", "restarts", "sum", "lower", "Number of times that the process of `rollout.engine: vllm` was lost and restarted."),
        MetricName("eval/rollout/engine_restarts", "restarts", "sum", "lower", "The same during an evaluation."),
    ),
    "Held-out data": (
        MetricName("eval/reward_mean", "score", "mean", "higher", "Mean score of the greedy responses to the held-out prompts."),
        MetricName("eval/accuracy", "fraction", "mean", "higher", "Share of held-out prompts whose greedy response is solved; `rm`: share of comparisons in which the better response scores highest."),
        MetricName("eval/accuracy_low", "fraction", "last", "higher", "Lower end of the 95 % interval of the accuracy over prompts or comparisons (Wilson)."),
        MetricName("eval/accuracy_high", "fraction", "last", "higher", "Upper end of that interval."),
        MetricName("eval/prompts", "prompts", "sum", "", "Held-out prompts."),
        MetricName("eval/part/{label}", "score", "mean", "", "Mean of one reward, by its label, over the greedy responses."),
        MetricName("eval/response_tokens_mean", "tokens", "mean", "", "Mean length of the greedy responses, in sampled tokens."),
        MetricName("eval/truncated_fraction", "fraction", "mean", "lower", "Share of greedy responses cut at the length limit."),
        MetricName("eval/failed_fraction", "fraction", "mean", "lower", "Share of greedy responses that could not be scored."),
        MetricName("eval/sampled_reward_mean", "score", "mean", "higher", "Mean score of the `evaluation.samples`."),
        MetricName("eval/pass@{k}", "fraction", "mean", "higher", "Chance that at least one of k samples is solved."),
        MetricName("eval/maj@{k}", "fraction", "mean", "higher", "Share of prompts whose most frequent answer among k samples is solved."),
        MetricName("eval/domain/{domain}/{metric}", "as the metric", "mean", "", "A held-out metric in one domain, if there are several."),
        MetricName("eval/value_mean", "score", "mean", "", "Mean value estimate of the critic before the first token of held-out responses."),
        MetricName("eval/explained_variance", "fraction", "last", "higher", "Share of the variance of held-out scores that these values explain."),
        MetricName("eval/loss", "nats", "mean", "lower", "`sft`, `distill`: negative log-likelihood per trained token; `rm`, `prefer`: loss per comparison."),
        MetricName("eval/perplexity", "perplexity", "derived", "lower", "Exponential of the loss per token."),
        MetricName("eval/token_accuracy", "fraction", "mean", "higher", "Share of trained tokens that are the model's most likely token."),
        MetricName("eval/divergence", "nats", "mean", "lower", "`distill`: divergence from the teacher per trained token."),
        MetricName("eval/agreement", "fraction", "mean", "higher", "`distill`: share of trained tokens at which the student and the teacher have the same most likely token."),
    ),
    "Preferences": (
        MetricName("preference/margin", "reward", "mean", "higher", "Mean lead of the better response's implied reward: log-probability relative to the reference, or mean per token without a reference, times `beta`."),
        MetricName("preference/chosen_reward", "reward", "mean", "", "Mean implied reward of the better (or good) responses."),
        MetricName("preference/rejected_reward", "reward", "mean", "", "Mean implied reward of the worse (or bad) responses."),
        MetricName("preference/chosen_logprob", "nats", "mean", "higher", "Mean log-probability of the better responses. If it falls together with `preference/rejected_logprob`, probability moves to responses outside the data."),
        MetricName("preference/rejected_logprob", "nats", "mean", "", "Mean log-probability of the worse responses."),
        MetricName("preference/chosen_tokens", "tokens", "mean", "", "Mean length of the better responses."),
        MetricName("preference/rejected_tokens", "tokens", "mean", "", "Mean length of the worse responses."),
        MetricName("preference/kl", "nats", "last", "", "`kto`: mean log ratio of responses to other prompts, at least 0."),
        MetricName("eval/margin", "reward", "derived", "higher", "Mean lead of the better response's implied reward on held-out comparisons."),
        MetricName("eval/chosen_logprob", "nats", "mean", "higher", "Mean log-probability of the better held-out responses."),
        MetricName("eval/rejected_logprob", "nats", "mean", "", "Mean log-probability of the worse held-out responses."),
    ),
    "Supervised fine-tuning and reward models": (
        MetricName("train/loss", "nats", "mean", "lower", "Loss of the step, per trained token (`sft`, `distill`) or per comparison (`rm`, `prefer`)."),
        MetricName("train/accuracy", "fraction", "mean", "higher", "`rm`, `prefer`: share of the step's comparisons in which the better response scored highest."),
        MetricName("train/divergence", "nats", "mean", "lower", "`distill`: divergence from the teacher per trained token."),
        MetricName("train/agreement", "fraction", "mean", "higher", "`distill`: share of trained tokens at which the student and the teacher have the same most likely token."),
        MetricName("train/cross_entropy", "nats", "mean", "lower", "`distill`, and `sft` with `token_loss: dft`: negative log-likelihood of the texts per trained token."),
        MetricName("train/tokens", "tokens", "sum", "", "Tokens that the step read."),
        MetricName("train/examples", "examples", "sum", "", "Examples that the step trained on."),
        MetricName("train/comparisons", "comparisons", "sum", "", "Comparisons that the step trained on."),
        MetricName("rm/score_gap", "score", "mean", "higher", "Mean lead of the better response over the best of the others, in training."),
        MetricName("rm/score_mean", "score", "mean", "", "Mean score of all responses of the step."),
        MetricName("rm/grad_norm", "norm", "mean", "", "Norm of the gradient before clipping."),
        MetricName("rm/learning_rate", "rate", "last", "", "Learning rate of the optimizer step."),
        MetricName("rm/gain", "factor", "last", "", "Gain of the scores, if it is trained."),
        MetricName("rm/bias", "score", "last", "", "Bias of the scores, if it is trained."),
        MetricName("eval/comparisons", "comparisons", "derived", "", "Held-out comparisons."),
        MetricName("eval/calibration_error", "fraction", "derived", "lower", "Expected calibration error: mean difference between confidence and accuracy."),
        MetricName("eval/score_mean", "score", "derived", "", "Mean score of the held-out responses."),
        MetricName("eval/score_std", "score", "derived", "", "Standard deviation of these scores."),
        MetricName("eval/score_gap", "score", "derived", "higher", "Mean lead of the better held-out response over the best of the others."),
        MetricName("eval/accuracy_by_gap/{range}", "fraction", "derived", "higher", "Accuracy on comparisons in which the model's lead is in this range."),
        MetricName("eval/accuracy_by_margin/{margin}", "fraction", "derived", "higher", "Accuracy on comparisons labelled with this margin."),
        MetricName("eval/length_rule_accuracy", "fraction", "derived", "", "Accuracy of judging by length alone."),
        MetricName("eval/length_correlation", "correlation", "derived", "", "Correlation between score and length within comparisons."),
    ),
    "Time and throughput": (
        MetricName("time/step_seconds", "seconds", "sum", "lower", "Time of the whole step, without its evaluation."),
        MetricName("time/{phase}_seconds", "seconds", "sum", "lower", "Time of one phase of the step: `sync` (new weights for the engine), `generate`, `reward`, `logprobs`, `values`, `update` or `record`; `wait` (for a batch sampled while the policy learns, in which case `sync`, `generate` and `reward` are not part of the step); or `evaluate` (the evaluation after the step)."),
        MetricName("time/reward_worker_seconds/{label}", "seconds", "sum", "lower", "Time that workers were busy with one reward, summed over the workers."),
        MetricName("time/prefill_seconds", "seconds", "sum", "lower", "Time that the engine spent on prompts, part of `generate`, summed over all rollout workers."),
        MetricName("time/decode_seconds", "seconds", "sum", "lower", "Time that the engine spent on responses, part of `generate`, summed over all rollout workers."),
        MetricName("time/engine_sleep_seconds", "seconds", "sum", "lower", "Time for putting `rollout.engine: vllm` to sleep and waking it (with `cluster.offload: [rollout_engine]`)."),
        MetricName("time/engine_start_seconds", "seconds", "sum", "lower", "Time for starting the process of `rollout.engine: vllm`."),
        MetricName("throughput/response_tokens_per_second", "tokens per second", "derived", "higher", "Sampled tokens divided by the time of the whole step."),
        MetricName("throughput/generate_tokens_per_second", "tokens per second", "derived", "higher", "Response tokens divided by the time of `generate`."),
        MetricName("throughput/update_tokens_per_second", "tokens per second", "derived", "higher", "Response tokens divided by the time of the updates."),
        MetricName("throughput/decoded_tokens_per_second", "tokens per second", "mean", "higher", "Response tokens divided by the time that the engine spent on responses; with several rollout workers, per worker."),
        MetricName("throughput/tokens_per_second", "tokens per second", "derived", "higher", "`sft` and `rm`: tokens read divided by the time of the updates."),
    ),
}  # fmt: skip
"""Sections of docs/metrics.md -> their rows."""


@cache
def find_metric(name: str) -> MetricName | None:
    """Find the row of a logged name, or else of its family. None for unknown names, such as metrics of your own losses
    and engines."""
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

Every number covers the whole step, over all its micro-batches: means are sums divided by counts, never means of means.
A metric that measured nothing in a step is missing from that line of `metrics.jsonl`. A number that is not finite stops
the run, and the error names it. Your own losses and engines may log further names, which reports chart too.

`{...}` in a name stands for a name or number from your run. *merged* says how the readings of a step become one number
(*derived*: computed from other numbers of the step), and *better* which direction is an improvement by itself.
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
