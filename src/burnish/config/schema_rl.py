"""The sections of a run file of `burnish rl`; see `burnish.config.schema`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from burnish.config import names
from burnish.config.engines import EngineUse, traits_of
from burnish.config.presets import PRESETS, Preset
from burnish.config.problems import Problem
from burnish.config.schema_cluster import ClusterConfig
from burnish.config.schema_data import DataSource
from burnish.config.schema_domains import DomainConfig, Reward, RewardConfig
from burnish.config.schema_evaluation import RlEvaluationConfig
from burnish.config.schema_optimization import RlOptimizationConfig
from burnish.config.schema_rollout import ConversationConfig, RolloutConfig
from burnish.config.schema_run import RlLoggingConfig, RunConfig
from burnish.config.schema_teacher import OWN_POLICY, Teacher, TeacherConfig
from burnish.config.section import (
    Fraction,
    NamedPlace,
    NonNegativeInt,
    PathText,
    PositiveInt,
    Seconds,
    Section,
    VariableName,
    as_list,
    refused_word,
    shorthand,
)


class ScoringConfig(Section):
    """Reward workers, time limits, failures, and truncation of responses for scoring."""

    workers: Annotated[int, Field(ge=1, le=1_024)] = 2
    """Worker processes for rewards."""
    start_timeout_seconds: Seconds = 60.0
    """Time limit for a worker to import the rewards' files and construct their classes. Raise it for a reward that
    loads a model."""
    on_failure: Literal["exclude", "score"] = "exclude"
    """Handling of a response whose reward failed: leave it out of its group, or give it `failure_score`."""
    failure_score: float | None = None
    """Score of a response whose reward failed (needs `on_failure: score`)."""
    max_failure_fraction: Fraction = 0.1
    """Stop the run if, for more than this fraction of a step's responses, a reward or environment failed and left no
    score, or a tool failed on every call."""
    retry_seconds: Annotated[float, Field(ge=0.0, le=1_000_000)] = 60.0
    """Seconds for which to retry a step, with growing pauses, if environments or tools failed too often or no response
    has a score. After that the run saves and stops. The first step is not retried."""
    truncate_token: str | None = None
    """For scoring, cut each response after the first such token at or after position `truncate_after`. The token is
    kept, and the loss still covers the complete response (2019 style: `.` and 16, https://arxiv.org/abs/1909.08593).
    Write the token as the vocabulary spells it, or as a text that is one token. `null`: score responses as they are."""
    truncate_after: NonNegativeInt = 0
    """First position, counted from 0, at which to look for `truncate_token`."""
    incomplete_score: float | None = None
    """Score of an incomplete response, in place of its reward. A response is incomplete if it has no such
    `truncate_token` or, if no `truncate_token` is set, was cut off at max_response_tokens. Both lineage styles use -1
    (https://arxiv.org/abs/1909.08593, section 3.1.1; the EOS trick of https://arxiv.org/abs/2403.17031). `null`: score
    incomplete responses like all others."""


class SandboxConfig(Section):
    """Sandbox for programs that the policy writes: defaults for options that the reward `code` does not set itself."""

    tier: Literal["auto", "namespaces", "landlock", "process"] = "auto"
    """Confinement of programs on this machine (docs/sandbox.md). `auto` takes the strongest tier that holds; `process`
    confines nothing."""
    seconds: Annotated[float, Field(gt=0)] = 6.0
    """Time limit for all tests of a response together. It must be less than two thirds of the reward's
    `timeout_seconds`."""
    memory_mb: PositiveInt = 512
    """Memory limit of a program, beyond Python's own use."""
    url: str | None = None
    """Server that runs programs instead of this machine: `burnish sandbox serve`, or one with SandboxFusion's
    schema."""
    token_variable: VariableName | None = None
    """Environment variable that holds the server's token."""
    grade: Literal["split", "shared"] = "split"
    """`shared` allows a server that can only run programs to test functions and assertions in the program's own
    process, where the program can cheat. Each score then says so in its part `shared`."""


class AlgorithmConfig(Section):
    """From rewards to a gradient. `preset` sets the other fields; values in the run file override it."""

    preset: str = "grpo"
    """Name of the algorithm (`burnish algorithms` lists them)."""
    estimator: str = "grpo"
    """Advantage estimator: built-in name, `package.module:function` or `path/to/file.py:function`."""
    estimator_options: dict[str, Any] = Field(default_factory=dict)
    """Further parameters of the estimator, by name."""
    loss: Annotated[str, BeforeValidator(names.own_name)] = "ppo_clip"
    """Policy loss: built-in name, `package.module:function` or `path/to/file.py:function`."""
    loss_options: dict[str, Any] = Field(default_factory=dict)
    """Further parameters of the loss, by name (for example `dual_clip: 3.0`)."""
    clip_low: Annotated[float, Field(gt=0)] | None = 0.2
    """Lower clip: the gradient stops at ratios below 1 - clip_low. `null` for a loss that does not clip."""
    clip_high: Annotated[float, Field(gt=0)] | None = 0.2
    """Upper clip: the gradient stops at ratios above 1 + clip_high. `null` for a loss that does not clip."""
    aggregation: Annotated[
        Literal[
            "token_mean",
            "sequence_mean_token_mean",
            "sequence_mean_token_sum",
            "sequence_mean_token_sum_norm",
            "turn_mean_token_mean",
        ],
        refused_word("bnpo", "its mean is over a micro-batch, so memory would decide the gradient; use token_mean"),
    ] = "token_mean"
    """Reduction of the losses of all tokens to one number."""
    gamma: Fraction = 1.0
    """Discount per token, or per turn of a conversation (`discount`)."""
    discount: Literal["token", "turn"] = "token"
    """Unit that `gamma` discounts: each token, or each turn of the policy, whatever its length. Estimators that compare
    turns (`turn_grpo`, `gigpo`) always discount turns."""
    lam: Fraction = 0.95
    """Lambda of generalised advantage estimation."""
    kl_in: Literal["none", "reward", "loss"] = "none"
    """Use of the KL to the reference: none, in the reward or in the loss. `none` loads no reference model."""
    kl_coef: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the KL to the reference."""
    kl_estimator: Literal["k1", "k2", "k3", "abs", "k1+", "k2+", "k3+", "abs+"] | None = None
    """KL estimator per token; `+` keeps the value but takes k2's gradient. `null`: k1 in the reward, k3 in the loss."""
    kl_times_ratio: bool = False
    """KL in the loss: weight each token by its ratio, which corrects the estimate on tokens from an older policy."""
    kl_target: Annotated[float, Field(gt=0)] | None = None
    """Adaptive KL: target for the KL summed over a response; `kl_coef` is adapted to reach it. `null`: `kl_coef` stays
    fixed."""
    kl_horizon: PositiveInt = 10_000
    """Adaptive KL: number of responses over which the coefficient reacts."""
    reward_clip: Annotated[float, Field(gt=0)] | None = None
    """Clip scores to plus or minus this, before anything else."""
    whiten_rewards: bool = False
    """Scale rewards to standard deviation 1 without shifting their mean: token rewards for an estimator that reads
    them (`gae`), one score per response for the others, so that equal scores stay equal."""
    whiten_advantages: bool = False
    """Shift and scale advantages to mean 0 and standard deviation 1 over the trained tokens."""
    whiten_over: Literal["step", "minibatch"] = "step"
    """Scope of the mean and standard deviation in `whiten_rewards` and `whiten_advantages`: the step, or each minibatch
    separately (2019 style, https://arxiv.org/abs/1909.08593). Micro-batches never change them."""
    advantage_clip: Annotated[float, Field(gt=0)] | None = None
    """Clip advantages to plus or minus this, after everything else."""
    entropy_coef: Annotated[float, Field(ge=0)] = 0.0
    """Weight of an entropy bonus."""
    top_entropy: Annotated[float, Field(gt=0, le=1)] | None = None
    """Train the policy only on this share of the step's tokens, the ones with the highest entropy at the start of the
    step (https://arxiv.org/abs/2506.01939 uses 0.2). The others still count in means, and in a KL loss or an entropy
    bonus. `null`: all tokens."""
    max_epoch_kl: Annotated[float, Field(gt=0)] | None = None
    """Skip the remaining epochs of a step after an epoch in which the mean KL (k3, nats per token) between the policy
    at sampling time and the updated policy is above this. `null`: never skip."""
    dynamic_sampling: bool = False
    """Replace groups in which all scores are equal with groups for new prompts (DAPO)."""
    skip_zero_advantages: bool = False
    """Leave responses whose advantages are all 0 (from groups with equal scores) out of the update. They have no
    gradient, so the step does not change, but the policy's metrics are then means over the other responses only."""
    max_refills: NonNegativeInt = 4
    """Dynamic sampling: most rounds of sampling after the first. After that the step continues with the groups it has,
    and says so."""
    overlong_buffer: Annotated[float, Field(gt=0, le=1)] | None = None
    """Soft penalty for long responses: over this last fraction of max_response_tokens it falls linearly from 0 to -1
    (DAPO)."""
    mask_truncated: bool = False
    """Leave responses cut off at max_response_tokens out of the loss (they still count in their group's baseline)."""
    old_logprobs: Literal["auto", "trainer", "sampler"] = "auto"
    """Denominator of the probability ratio in the loss: `trainer`, the policy at the start of the step, or `sampler`,
    the log-probabilities recorded while sampling. `auto`: `sampler` for stale responses (max_staleness above 0) unless
    mismatch_correction weights them, else `trainer`."""
    mismatch_correction: Annotated[
        Literal[
            "none",
            "token_truncate",
            "token_mask",
            "turn_truncate",
            "turn_mask",
            "sequence_truncate",
            "sequence_mask",
            "sequence_mask_mean",
            "sequence_mask_max",
            "sequence_off_policy",
        ],
        BeforeValidator(names.own_name),
    ] = "none"
    """Importance weight trainer/sampler per token, turn of a conversation or sequence: clamped to the bounds
    (truncate), or 0 outside them (mask). `sequence_mask_mean` and `sequence_mask_max` weight tokens, and drop responses
    whose geometric mean, or any token, is outside the bounds. `sequence_off_policy` applies no weights, and drops bad
    responses that the policy has moved away from (`mismatch_delta`)."""
    mismatch_low: Annotated[float, Field(ge=0)] = 0.5
    """Lower bound of the importance weight."""
    mismatch_high: Annotated[float, Field(gt=0)] = 2.0
    """Upper bound of the importance weight."""
    mismatch_delta: Annotated[float, Field(gt=0)] | None = None
    """`sequence_off_policy`: drop responses with a negative advantage whose mean log-probability per token was higher
    at the sampler than at the trainer by more than this, in nats."""

    @property
    def weights_mismatch(self) -> bool:
        """True if a correction weighs tokens by trainer/sampler, which makes up for staleness too."""
        return self.mismatch_correction not in ("none", "sequence_off_policy")

    @property
    def whitens(self) -> bool:
        """True if anything is whitened before or after the estimator."""
        return self.whiten_rewards or self.whiten_advantages

    @property
    def kl_function(self) -> str:
        """Name of the KL estimator to use: the one that is set, or the default for where the KL is used."""
        return self.kl_estimator or ("k1" if self.kl_in == "reward" else "k3")

    @property
    def may_use_critic(self) -> bool:
        """True if the estimator asks for values, or is a plugin, because only loading it can tell."""
        return self.estimator in names.CRITIC_ESTIMATORS or self.estimator not in names.ESTIMATOR_NAMES


class CriticConfig(Section):
    """The critic, built only for estimators that ask for values (`gae`).

    Schedule, warm-up, betas, weight decay and gradient clipping come from `optimization`. The critic's schedule spans
    all planned steps of the run, including its `warmup_steps`. The value loss is aggregated like the policy loss
    (`algorithm.aggregation`).
    """

    kind: Literal["separate", "shared"] = "separate"
    """A separate model with all weights trained, or a value head on the policy's backbone (one backward pass for
    both)."""
    init: PathText = "policy"
    """Initial weights of a separate critic: `policy` (a copy of the policy's backbone and a new head); the folder of a
    sequence classifier with `num_labels` 1 (a reward model), whose backbone and head are used; a run (`runs/rm`,
    `runs/ppo@500`: its reward model, or the separate critic it trained); or `reward_model`, the folder of the run's
    only `model:PATH` reward (2020 style, https://arxiv.org/abs/2009.01325)."""
    head_init_std: Annotated[float, Field(ge=0)] = 0.0
    """Standard deviation of a new head's weights. With 0, all values are 0 at first (2019 style)."""
    learning_rate: Annotated[float, Field(gt=0)] | None = 1e-5
    """Peak learning rate of a separate critic, or of the head on a shared backbone. `null`: the rate in `optimization`,
    which without gradient clipping is the same as one optimizer for policy and critic (2019 and 2020 style)."""
    clip: Annotated[float, Field(gt=0)] | None = 0.2
    """Value clipping: nothing is gained by moving a value further than this from its estimate at sampling time. `null`:
    no clipping."""
    coef: Annotated[float, Field(gt=0)] | None = None
    """Weight of the value loss. `null`: 0.1 on a backbone shared with the policy, 1 for a separate critic (where a
    constant factor changes Adam's steps only through `eps` and gradient clipping)."""
    warmup_steps: NonNegativeInt = 0
    """Number of steps at the start of the run in which only the critic is trained."""

    @property
    def loss_weight(self) -> float:
        """The `coef` to use."""
        return self.coef if self.coef is not None else {"shared": 0.1, "separate": 1.0}[self.kind]


DomainName = Annotated[str, Field(pattern=r"^[^.\s\x00]+$")]
"""Part of a dotted path and of the names of metrics."""


class RlFields(RunConfig):
    """Fields of a run file of `burnish rl`."""

    kind: ClassVar[str] = "rl"
    preset_field: ClassVar[str] = "algorithm.preset"
    presets: ClassVar[Mapping[str, Preset]] = PRESETS

    steps: PositiveInt = 100
    """Steps of the loop. Each samples, scores and updates."""
    max_staleness: NonNegativeInt = 0
    """Steps by which sampling runs ahead of training: the batch of step s is sampled with the weights after step max(0,
    s - 1 - max_staleness), regardless of timing. 0 is synchronous. It saves time only if `cluster.rollout_workers`
    sample while the policy learns."""
    partial: bool = False
    """Let unfinished responses continue with new weights as soon as they are available. `max_staleness` is then an
    upper bound, and the numbers of a run depend on the speed of its processes. Needs `cluster.rollout_workers`."""
    rewards: Annotated[tuple[Reward, ...], BeforeValidator(as_list)] = ()
    """Rewards: a name, a section, or a list of them."""
    domains: dict[DomainName, DomainConfig] = Field(default_factory=dict)
    """Domains to train together, by name, each with its own data and rewards (docs/domains.md). Empty: all prompts are
    treated alike."""
    conversation: ConversationConfig | None = None
    """Tools and environments, for responses of several turns. `null`: a response is one turn."""
    scoring: ScoringConfig = ScoringConfig()
    sandbox: SandboxConfig = SandboxConfig()
    algorithm: Annotated[AlgorithmConfig, shorthand("preset")] = AlgorithmConfig()
    rollout: RolloutConfig = RolloutConfig()
    cluster: ClusterConfig = ClusterConfig()
    teacher: Teacher = None
    """Model whose log-probabilities of the responses are read by the estimator `opd`. `null`: none."""
    critic: CriticConfig = CriticConfig()
    optimization: RlOptimizationConfig = RlOptimizationConfig()
    evaluation: RlEvaluationConfig = RlEvaluationConfig()
    logging: RlLoggingConfig = RlLoggingConfig()

    @property
    def named_rewards(self) -> dict[str, RewardConfig]:
        """Each reward by its path in the run file, `rewards.0` or `domains.math.rewards.0`. Rewards in a domain's
        section are for that domain only."""
        found = {f"rewards.{index}": reward for index, reward in enumerate(self.rewards)}
        for name, domain in self.domains.items():
            own = (reward.model_copy(update={"domains": (name,)}) for reward in domain.rewards)
            found |= {f"domains.{name}.rewards.{index}": reward for index, reward in enumerate(own)}
        return found

    @property
    def all_rewards(self) -> tuple[RewardConfig, ...]:
        """The rewards of all domains, entries of `rewards` first. A reward that several domains name with the same
        settings appears once, with all their names."""
        bound: dict[str, RewardConfig] = {}
        for name, domain in self.domains.items():
            for reward in domain.rewards:
                key = reward.model_dump_json(exclude={"domains"})
                before = bound[key].domains if key in bound else ()
                bound[key] = reward.model_copy(update={"domains": (*before, name)})
        return (*self.rewards, *bound.values())

    @property
    def reward_weights(self) -> dict[str, float]:
        """The weights of the rewards that are added up, by label."""
        return {reward.log_label: reward.weight for reward in self.all_rewards if not reward.audit}

    def named_sources(self, split: Literal["train", "eval"]) -> dict[str, DataSource]:
        found = super().named_sources(split)
        for name, domain in self.domains.items():
            own = domain.train if split == "train" else domain.eval
            found |= {f"domains.{name}.{split}.{index}": source for index, source in enumerate(own)}
        return found

    @property
    def longest_text(self) -> int:
        return self.rollout.max_prompt_tokens + self.rollout.max_response_tokens

    @property
    def small_processes(self) -> int:
        return self.scoring.workers

    @property
    def engine(self) -> EngineUse:
        rollout, traits = self.rollout, traits_of(self.rollout.engine)
        stays = not self.cluster.rollout_workers and "rollout_engine" not in self.cluster.offload
        return EngineUse(traits, traits.options(rollout), rollout.max_batch_rows, stays)

    @property
    def has_reference(self) -> bool:
        """True if the run compares the policy with a frozen reference."""
        return self.algorithm.kl_in != "none" or self.algorithm.estimator in names.REFERENCE_ESTIMATORS

    @property
    def named_teachers(self) -> dict[str, TeacherConfig]:
        """Each teacher by its path in the run file."""
        own = {f"domains.{name}.teacher": domain.teacher for name, domain in self.domains.items()}
        return {field: one for field, one in {"teacher": self.teacher, **own}.items() if one is not None}

    @property
    def teaches_alone(self) -> bool:
        """True if responses need no rewards, because a teacher judges them."""
        return self.algorithm.estimator in names.TEACHER_ESTIMATORS

    @property
    def has_scores(self) -> bool:
        """False if no reward scores a response, not even beside the teacher."""
        return bool(self.all_rewards) or not self.teaches_alone

    @property
    def compares_vocabulary(self) -> bool:
        """True if the loss is the divergence from a teacher over the vocabulary."""
        return any(teacher.compare == "vocabulary" for teacher in self.named_teachers.values())

    @property
    def teacher_paths(self) -> tuple[str, ...]:
        """The models that teach in processes of the run, each once."""
        return tuple(dict.fromkeys(one.path for one in self.named_teachers.values() if one.path is not None))

    @property
    def teacher_endpoints(self) -> tuple[TeacherConfig, ...]:
        """The models that teach from endpoints, each once."""
        models = dict.fromkeys(teacher.model for teacher in self.named_teachers.values())
        return tuple(model for model in models if isinstance(model, TeacherConfig))

    @property
    def teacher_sources(self) -> tuple[str, ...]:
        return tuple(path for path in self.teacher_paths if path != OWN_POLICY)

    @property
    def named_teacher_paths(self) -> dict[str, str]:
        """Each path of a teacher other than the policy, by its place in the run file."""
        found = {f"{field}.path": teacher.path for field, teacher in self.named_teachers.items()}
        return {field: path for field, path in found.items() if path is not None and path != OWN_POLICY}

    @property
    def has_separate_critic(self) -> bool:
        """True if the run trains a critic with its own backbone."""
        return self.algorithm.estimator in names.CRITIC_ESTIMATORS and self.critic.kind == "separate"

    @property
    def critic_source(self) -> str | None:
        init = self.critic.init
        if init == "reward_model":  # the run file has been checked to have exactly one
            (init,) = (one.name.removeprefix(names.MODEL_REWARD) for one in self.all_rewards if one.is_model)
        return init if self.has_separate_critic and init != "policy" else None

    def domains_with_own(self, field: str) -> Iterator[str]:
        return (name for name, domain in self.domains.items() if vars(domain)[field])

    def missing(self) -> Iterator[Problem]:
        if not self.all_rewards and not self.teaches_alone:
            remedy = "name at least one, for example `rewards: math` or `rewards: my_reward.py:score`"
            yield Problem("rewards", "is empty, but responses need at least one reward", remedy)

    def named_places(self) -> Iterator[NamedPlace]:
        yield from super().named_places()
        if self.critic.init not in ("policy", "reward_model"):
            yield NamedPlace("critic.init", self.critic.init, "model", "critic")
        for field, path in self.named_teacher_paths.items():
            yield NamedPlace(field, path, "model", "weights")
        for field, teacher in self.named_teachers.items():
            if teacher.tokenizer is not None:
                yield NamedPlace(f"{field}.tokenizer", teacher.tokenizer, "settings", "weights")
        for field, reward in self.named_rewards.items():
            yield from reward.named_places(field)
        yield NamedPlace("algorithm.estimator", self.algorithm.estimator, "code")
        yield NamedPlace("algorithm.loss", self.algorithm.loss, "code")
        yield NamedPlace("rollout.engine", self.rollout.engine, "code")
        if self.conversation is not None:
            yield from self.conversation.named_places("conversation")
        for name, domain in self.domains.items():
            if domain.conversation is not None:
                yield from domain.conversation.named_places(f"domains.{name}.conversation")
            if names.is_template_file(domain.chat_template):
                yield NamedPlace(f"domains.{name}.chat_template", domain.chat_template, "settings")

    @property
    def whitens_minibatches(self) -> bool:
        """True if whitening uses the statistics of minibatches. A single minibatch is the step."""
        algorithm, minibatches = self.algorithm, self.optimization.minibatches
        return algorithm.whiten_over == "minibatch" and algorithm.whitens and minibatches > 1

    @property
    def old_logprobs_of_sampler(self) -> bool:
        """True if the ratio of the loss is relative to the sampler's log-probabilities."""
        algorithm = self.algorithm
        if algorithm.old_logprobs == "auto":
            return self.max_staleness > 0 and not algorithm.weights_mismatch
        return algorithm.old_logprobs == "sampler"

    @property
    def planned_updates(self) -> int:
        """Optimizer steps of the run if no epoch is skipped (`algorithm.max_epoch_kl`)."""
        return self.steps * self.optimization.epochs * self.optimization.minibatches

    @property
    def sends_adapters(self) -> bool:
        """True if rollout workers, which have the policy's base, get only its adapters."""
        trains_adapters, apart = self.model.lora is not None, self.cluster.rollout_workers > 0
        return trains_adapters and apart and self.engine.traits.takes_adapters

    @property
    def policy_updates(self) -> int:
        """The planned updates that change the policy: all except the critic's warm-up."""
        warmup_steps = self.critic.warmup_steps if self.algorithm.may_use_critic else 0
        return self.planned_updates - warmup_steps * self.optimization.epochs * self.optimization.minibatches
