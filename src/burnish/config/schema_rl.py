"""The sections of a run file of `burnish rl` as types; see `burnish.config.schema`."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from burnish.config import names
from burnish.config.schema_evaluation import RlEvaluationConfig
from burnish.config.schema_optimization import RlOptimizationConfig
from burnish.config.schema_run import RlLoggingConfig, RunConfig
from burnish.config.section import (
    Count,
    Fraction,
    NonNegativeInt,
    PathText,
    PositiveInt,
    Seconds,
    Section,
    Temperature,
    as_list,
    name_shorthand,
    preset_shorthand,
)

VariableName = Annotated[str, Field(pattern=r"^[^=\s\x00]+$")]


class RewardConfig(Section):
    """One reward; several are summed with their weights."""

    name: PathText
    """Built-in name (`burnish check --list`), `path/to/file.py:function`, `package.module:function`, or `model:PATH`
    for a reward model, a folder or a run (`model:runs/rm@best`; options: device, dtype, tokens_per_microbatch)."""
    weight: float = 1.0
    """Factor of this reward in the sum."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the reward; a misspelt one is an error."""
    timeout_seconds: Seconds = 10.0
    """Time for one response (for a batched reward: for one call); past it the worker is killed."""
    label: str | None = None
    """Name in the logs, when the same reward is used twice."""
    environment: Annotated[tuple[VariableName, ...], BeforeValidator(as_list)] = ()
    """Names of environment variables that this reward sees as well as the harmless ones that all rewards see, for
    example `[JUDGE_API_KEY]` (docs/rewards.md describes the others). Their values are written nowhere."""

    @property
    def log_label(self) -> str:
        """The `label`, or else a name that suits the logs: `model` for a reward model, the function's name, the
        built-in's name."""
        if self.label:
            return self.label
        return "model" if self.name.startswith(names.MODEL_REWARD) else self.name.rpartition(":")[2]

    def weighted(self, weight: float) -> RewardConfig:
        """The same reward with another weight in the sum."""
        return RewardConfig.model_validate({**self.model_dump(), "weight": weight})


Reward = Annotated[RewardConfig, BeforeValidator(name_shorthand)]


class ScoringConfig(Section):
    """How rewards are run and what happens when one fails."""

    workers: Annotated[int, Field(ge=1, le=1_024)] = 2
    """Worker processes for rewards."""
    start_timeout_seconds: Seconds = 60.0
    """Longest wait for a worker to import the rewards' files and construct their classes; raise it for a reward that
    loads a model."""
    on_failure: Literal["exclude", "score"] = "exclude"
    """A response whose reward failed: leave it out of its group, or give it `failure_score`."""
    failure_score: float | None = None
    """The stated score of a failed reward (needs `on_failure: score`)."""
    max_failure_fraction: Fraction = 0.1
    """Stop the run when more than this fraction of a step's responses could not be scored."""
    truncate_token: str | None = None
    """Score each response cut after the first such token at or after position `truncate_after`; the token stays, and
    the loss still covers all of the response (2019 style: `.` and 16, https://arxiv.org/abs/1909.08593). A token as
    the vocabulary spells it, or a text that is one token; none scores responses as they are."""
    truncate_after: NonNegativeInt = 0
    """First position, counted from 0, at which `truncate_token` is looked for."""
    incomplete_score: float | None = None
    """Score that replaces that of an incomplete response: one without such a `truncate_token`, or, when none is set,
    one cut at max_response_tokens before its end. -1 in both styles (https://arxiv.org/abs/1909.08593, section 3.1.1;
    the EOS trick of https://arxiv.org/abs/2403.17031). None scores incomplete responses as the others."""


class AlgorithmConfig(Section):
    """How rewards become a gradient. `preset` sets the other fields; what the run file says wins over the preset."""

    preset: str = "grpo"
    """Name of the algorithm (`burnish algorithms` lists them)."""
    estimator: str = "grpo"
    """Advantage estimator: built-in name, `package.module:function` or `path/to/file.py:function`."""
    estimator_options: dict[str, Any] = Field(default_factory=dict)
    """Further numbers of the estimator, by parameter name."""
    loss: str = "ppo_clip"
    """Policy loss: built-in name, `package.module:function` or `path/to/file.py:function`."""
    loss_options: dict[str, Any] = Field(default_factory=dict)
    """Further numbers of the loss, by parameter name (for example `dual_clip: 3.0`)."""
    clip_low: Annotated[float, Field(gt=0)] | None = 0.2
    """Lower clip: ratios below 1 - clip_low stop the gradient. None for a loss that does not clip."""
    clip_high: Annotated[float, Field(gt=0)] | None = 0.2
    """Upper clip: ratios above 1 + clip_high stop the gradient. None for a loss that does not clip."""
    aggregation: Literal[
        "token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum", "sequence_mean_token_sum_norm"
    ] = "token_mean"
    """How per-token losses become one number."""
    gamma: Fraction = 1.0
    """Discount per token."""
    lam: Fraction = 0.95
    """Lambda of generalised advantage estimation."""
    kl_in: Literal["none", "reward", "loss"] = "none"
    """Where the KL to the reference enters. `none` loads no reference model."""
    kl_coef: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the KL to the reference."""
    kl_estimator: Literal["k1", "k2", "k3", "abs", "k1+", "k2+", "k3+", "abs+"] | None = None
    """Per-token estimator; `+` keeps the value and takes k2's gradient. None is k1 in the reward and k3 in the loss."""
    kl_times_ratio: bool = False
    """KL in the loss: weight each token by its ratio, which makes the estimate right on tokens of an older policy."""
    kl_target: Annotated[float, Field(gt=0)] | None = None
    """Adaptive KL: the summed KL per response that the coefficient steers to. None keeps the coefficient fixed."""
    kl_horizon: PositiveInt = 10_000
    """Adaptive KL: responses over which the coefficient reacts."""
    reward_clip: Annotated[float, Field(gt=0)] | None = None
    """Clip scores to +- this, before anything else."""
    whiten_rewards: bool = False
    """Scale rewards to unit standard deviation, without shifting their mean: token rewards for an estimator that reads
    them (`gae`), one score a response for the others, so that equal scores stay equal."""
    whiten_advantages: bool = False
    """Move advantages to mean 0 and standard deviation 1 over the trained tokens."""
    whiten_over: Literal["step", "minibatch"] = "step"
    """Whose mean and standard deviation `whiten_rewards` and `whiten_advantages` use: those of the whole step, or those
    of each minibatch by itself (2019 style, https://arxiv.org/abs/1909.08593). Micro-batches never change them."""
    advantage_clip: Annotated[float, Field(gt=0)] | None = None
    """Clip advantages to +- this, last."""
    entropy_coef: Annotated[float, Field(ge=0)] = 0.0
    """Weight of an entropy bonus."""
    max_epoch_kl: Annotated[float, Field(gt=0)] | None = None
    """Skip a step's remaining epochs after one in which the mean KL (k3, nats per token) between the policy at sampling
    time and the one being updated was above this. None makes all epochs."""
    dynamic_sampling: bool = False
    """Refill groups whose scores are all equal with fresh prompts (DAPO)."""
    skip_zero_advantages: bool = False
    """Leave responses whose advantages are all 0 (those of groups with equal scores) out of the update: they have no
    gradient, and the step is the same without them. The policy's metrics are then means over the others alone."""
    max_refills: NonNegativeInt = 4
    """Dynamic sampling: generation rounds after the first; past them the step goes on with what it has, and says so."""
    overlong_buffer: Annotated[float, Field(gt=0, le=1)] | None = None
    """Soft over-long penalty: this last fraction of max_response_tokens costs from 0 to -1 linearly (DAPO)."""
    mask_truncated: bool = False
    """Leave responses cut at max_response_tokens out of the loss (they still count in their group's baseline)."""
    mismatch_correction: Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = "none"
    """Importance weight trainer/sampler: clamped to the bounds (truncate) or zero outside of them (mask)."""
    mismatch_low: Annotated[float, Field(ge=0)] = 0.5
    """Lower bound of the importance weight."""
    mismatch_high: Annotated[float, Field(gt=0)] = 2.0
    """Upper bound of the importance weight."""

    @property
    def whitens(self) -> bool:
        """Whether anything is whitened around the estimator."""
        return self.whiten_rewards or self.whiten_advantages

    @property
    def kl_function(self) -> str:
        """Name of the KL estimator that is used: the one set, or the one that suits the place."""
        return self.kl_estimator or ("k1" if self.kl_in == "reward" else "k3")

    @property
    def may_use_critic(self) -> bool:
        """Whether the estimator asks for values; True for one from outside, which only loading it can tell."""
        return self.estimator in names.CRITIC_ESTIMATORS or self.estimator not in names.ESTIMATOR_NAMES


class VllmConfig(Section):
    """The process that `rollout.engine: vllm` samples in."""

    python: PathText | None = None
    """Interpreter that has vLLM, for example `envs/vllm/bin/python`; none is the one that runs Burnish."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Arguments of `vllm.LLM` other than those that Burnish sets, for example `{gpu_memory_utilization: 0.4}` where
    training needs the same GPU's memory, `{enforce_eager: true}`, or a `dtype` other than the model's."""
    start_timeout_seconds: Seconds = 600.0
    """Longest wait for vLLM to set itself up, and for it to take a piece of the weights."""
    call_timeout_seconds: Seconds = 1800.0
    """Longest wait for the responses of one call; then the process is taken for dead and started again."""

    @property
    def interpreter(self) -> str:
        return self.python or sys.executable


class RolloutConfig(Section):
    """What is sampled in one step."""

    prompts_per_step: Count = 32
    """Prompts (not responses) in one step, over all workers."""
    group_size: Count = 8
    """Responses per prompt. A step has prompts_per_step x group_size responses."""
    max_prompt_tokens: PositiveInt = 512
    """Longest prompt; see `data.over_long`."""
    max_response_tokens: PositiveInt = 512
    """Longest response."""
    temperature: Temperature = 1.0
    """Sampling temperature; the trainer's log-probabilities use the same."""
    top_k: NonNegativeInt = 0
    """Sample among the k likeliest tokens; 0 is off."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample from the smallest set of tokens with this mass; 1 is off."""
    min_p: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Drop tokens below this fraction of the likeliest one; 0 is off."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Texts that end a response (the text stays in the response)."""
    stop_token_ids: tuple[NonNegativeInt, ...] = ()
    """Token ids that end a response, as well as the model's own end-of-sequence ids."""
    ignore_eos: bool = False
    """Go on through the model's end-of-sequence tokens, so that every response has exactly max_response_tokens tokens
    (2019 style, https://arxiv.org/abs/1909.08593); only `stop` and `stop_token_ids` still end one."""
    engine: str = "local"
    """`local` (the training weights themselves), `vllm` (a process of its own, see docs/engines.md) or
    `package.module:Class` (or `path/to/file.py:Class`)."""
    max_batch_rows: PositiveInt = 256
    """Responses decoded side by side; more wait their turn."""
    vllm: VllmConfig = VllmConfig()
    """Read with `engine: vllm` only."""


class CriticConfig(Section):
    """The critic of estimators that ask for values (`gae`); for all others none is built.

    Schedule, warm-up, betas, weight decay and gradient clipping are those of `optimization`; its rate follows all
    planned steps of the run, those of `warmup_steps` among them.
    The value loss is aggregated like the policy loss (`algorithm.aggregation`).
    """

    kind: Literal["separate", "shared"] = "separate"
    """A model of its own, all of whose weights train, or a value head on the policy's trunk (one backward for both)."""
    init: PathText = "policy"
    """Start of a separate critic: `policy` (a copy of its trunk and a new head), the folder of a sequence classifier
    with `num_labels` 1 (a reward model), whose trunk and read-out it takes over, a run (`runs/rm`, `runs/ppo@500`: its
    reward model, or the separate critic that it trained), or `reward_model`, the folder of the run's one `model:PATH`
    reward (2020 style, https://arxiv.org/abs/2009.01325)."""
    head_init_std: Annotated[float, Field(ge=0)] = 0.0
    """Standard deviation of a new head's weights. 0 makes all first values 0 (2019 style)."""
    learning_rate: Annotated[float, Field(gt=0)] | None = 1e-5
    """Peak learning rate of a separate critic, or of the head on a shared trunk. None takes that of `optimization`:
    without gradient clipping policy and critic are then stepped as by one optimizer over both (2019 and 2020 style)."""
    clip: Annotated[float, Field(gt=0)] | None = 0.2
    """Value clipping: a value further than this from the one at sampling time earns no gradient. None does not clip."""
    coef: Annotated[float, Field(gt=0)] | None = None
    """Weight of the value loss. None is 0.1 on a trunk shared with the policy and 1 for a separate critic (whose
    Adam steps a constant factor changes only through `eps` and gradient clipping)."""
    warmup_steps: NonNegativeInt = 0
    """First steps of the run in which the critic alone is trained and the policy stays as it is."""

    @property
    def loss_weight(self) -> float:
        """The `coef` that is used."""
        return self.coef if self.coef is not None else {"shared": 0.1, "separate": 1.0}[self.kind]


class RlFields(RunConfig):
    """Fields of a run file of `burnish rl`."""

    steps: PositiveInt = 100
    """Steps of the loop: each samples, scores and updates."""
    max_staleness: NonNegativeInt = 0
    """Optimizer steps by which rollouts may lag behind the policy; 0 is synchronous (the only value yet)."""
    rewards: Annotated[tuple[Reward, ...], BeforeValidator(as_list)] = ()
    """Rewards; a name, a section or a list of them."""
    scoring: ScoringConfig = ScoringConfig()
    algorithm: Annotated[AlgorithmConfig, BeforeValidator(preset_shorthand)] = AlgorithmConfig()
    rollout: RolloutConfig = RolloutConfig()
    critic: CriticConfig = CriticConfig()
    optimization: RlOptimizationConfig = RlOptimizationConfig()
    evaluation: RlEvaluationConfig = RlEvaluationConfig()
    logging: RlLoggingConfig = RlLoggingConfig()

    @property
    def whitens_minibatches(self) -> bool:
        """Whether whitening waits for the minibatches. A single one is the step."""
        return (
            self.algorithm.whiten_over == "minibatch" and self.algorithm.whitens and self.optimization.minibatches > 1
        )

    @property
    def planned_updates(self) -> int:
        """Optimizer steps of the whole run, when no epoch is skipped (`algorithm.max_epoch_kl`)."""
        return self.steps * self.optimization.epochs * self.optimization.minibatches

    @property
    def policy_updates(self) -> int:
        """Those of them that move the policy: all but the ones in which a critic warms up."""
        warmup_steps = self.critic.warmup_steps if self.algorithm.may_use_critic else 0
        return self.planned_updates - warmup_steps * self.optimization.epochs * self.optimization.minibatches
