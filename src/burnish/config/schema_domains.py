"""Rewards, and the `domains` section of a run file of `burnish rl`; see `burnish.config.schema`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from burnish.config import names
from burnish.config.schema_data import Sources
from burnish.config.schema_rollout import ConversationConfig
from burnish.config.schema_teacher import Teacher
from burnish.config.section import (
    Count,
    Fraction,
    NamedPlace,
    NonNegativeInt,
    PathText,
    PositiveInt,
    Seconds,
    Section,
    Temperature,
    VariableName,
    as_list,
    shorthand,
)
from burnish.errors import ConfigError


class RewardConfig(Section):
    """One reward. Several rewards are added up with their weights."""

    name: PathText
    """Built-in name (`burnish check --list`), `path/to/file.py:function`, `package.module:function`, or `model:PATH`
    for a reward model, where PATH is a folder or a run (`model:runs/rm@best`; its options are device, dtype and
    tokens_per_microbatch)."""
    weight: float = 1.0
    """Weight of this reward in the sum."""
    audit: bool = False
    """Watch this reward without training on it. It is logged as `reward/audit/LABEL`, and an alarm is raised when it
    falls while the trained rewards rise, a sign that the policy games them. Its failures do not affect the run."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the reward. A misspelt one is an error."""
    timeout_seconds: Seconds = 10.0
    """Time limit for one response (or one call of a batched reward), after which the worker is killed."""
    concurrency: Count | None = None
    """Most responses to score at once, over all `scoring.workers`. `null`: one per worker, or 128 per worker for an
    asynchronous reward."""
    label: str | None = None
    """Name in the logs. Required if the same reward is used twice."""
    environment: Annotated[tuple[VariableName, ...], BeforeValidator(as_list)] = ()
    """Environment variables that this reward can read, for example `[JUDGE_API_KEY]`, in addition to the harmless ones
    that all rewards can read (docs/rewards.md). Their values are never written anywhere."""

    domains: Annotated[tuple[str, ...], BeforeValidator(as_list)] = ()
    """Names of the domains whose responses this reward scores. Empty: all. A domain can also list its own rewards
    (`domains.NAME.rewards`)."""

    @property
    def log_label(self) -> str:
        """The `label`. Without one: `model` for a reward model, else the name of the function or built-in."""
        if self.label:
            return self.label
        return "model" if self.is_model else self.name.rpartition(":")[2]

    @property
    def is_model(self) -> bool:
        """True for a reward model (`model:PATH`)."""
        return self.name.startswith(names.MODEL_REWARD)

    def named_places(self, field: str) -> Iterator[NamedPlace]:
        """Its model or code, and options, each of which may name a file."""
        if self.is_model:
            yield NamedPlace(field, self.name.removeprefix(names.MODEL_REWARD), "model", "reward")
        elif self.name.startswith(names.IN_MEMORY):
            yield NamedPlace(field, self.name, "function")
        else:
            yield NamedPlace(field, self.name, "code")
        for name, value in self.options.items():
            if isinstance(value, str):
                of_judge = self.name == "judge" and name == "model_path"
                yield NamedPlace(f"{field}.options.{name}", value, "model" if of_judge else "option")

    @property
    def trained_weight(self) -> float:
        """The weight in the sum that is trained on: 0 for an audit."""
        return 0.0 if self.audit else self.weight

    def scores(self, domain: str) -> bool:
        """Return whether the reward is for responses of this domain."""
        return not self.domains or domain in self.domains

    def weighted(self, weight: float) -> RewardConfig:
        """The same reward with another weight. ConfigError if that is not a finite number."""
        try:
            return RewardConfig.model_validate({**self.model_dump(exclude_unset=True), "weight": weight})
        except ValidationError as error:
            raise ConfigError(
                f"the weight of the reward {self.log_label!r} is {weight!r:.80}", remedy="give a finite number"
            ) from error


Reward = Annotated[RewardConfig, shorthand("name")]


Share = Annotated[float, Field(ge=0)]
Bounds = tuple[Fraction, Fraction]


class DifficultyConfig(Section):
    """Selection of a domain's prompts by difficulty, measured by how often they are solved."""

    keep: Bounds | dict[NonNegativeInt, Bounds] = (0.0, 1.0)
    """Lowest and highest share of solved responses. Groups outside these bounds are not trained on, and prompts known
    to be outside are not sampled. To change the bounds at later steps: `{0: [0.3, 0.9], 500: [0.1, 0.7]}`."""
    min_spread: Annotated[float, Field(ge=0)] | None = None
    """Lowest standard deviation of the rewards in a group. Groups below it are not trained on."""
    outside: Literal["refill", "drop"] = "refill"
    """Handling of groups that are not trained on: replace them with groups for other prompts, in up to
    `algorithm.max_refills` rounds, or leave their places in the step empty."""
    window: PositiveInt = 64
    """Number of most recent responses to a prompt over which its share of solved responses is measured."""
    again_after: PositiveInt | None = 200
    """Steps after which a prompt outside the bounds is sampled again, because the policy has changed. `null`: never."""
    recorded: PathText | None = None
    """Folder of a run whose recorded training rollouts show how often prompts are solved before the first step."""


class DomainEvaluationConfig(Section):
    """Evaluation of one domain. `null` takes the value from `evaluation`."""

    samples: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """Samples per prompt, in addition to the greedy response."""
    temperature: Temperature | None = None
    """Temperature of those samples."""
    max_prompts: PositiveInt | Literal["all"] | None = None
    """Evaluate at most this many prompts of the domain, or `all`."""
    success: str | None = None
    """Label of the reward that decides whether a response is solved, or `label/part`. `null`: every reward of the
    domain that compares the response with the answer."""
    success_score: float | None = None
    """Score of that reward, before its weight, at which a response counts as solved."""


class DomainConfig(Section):
    """One domain: its data, its rewards, and any settings that differ from the run's. `null` takes the run's value."""

    share: Share | dict[NonNegativeInt, Share] = 1.0
    """Share of `rollout.prompts_per_step`; shares need not add up to 1. The domain's number of prompts is its share
    rounded up or down, both in every step and summed over all steps. To change the share at later steps: `{0: 0.8, 500:
    0.2}`. 0 leaves the domain out of training."""
    train: Sources = ()
    """Training data: a path, a source, or a list of them. Without it, the rows of `data.train` whose domain has this
    name."""
    eval: Sources = ()
    """Held-out data. Without it, the rows of `data.eval` whose domain has this name, if there are any."""
    rewards: Annotated[tuple[Reward, ...], BeforeValidator(as_list)] = ()
    """Rewards for this domain only, in addition to entries of `rewards` that apply to all domains or name this one."""
    group_size: Count | None = None
    """Responses per prompt (`rollout.group_size`)."""
    max_prompt_tokens: PositiveInt | None = None
    """Longest prompt (`rollout.max_prompt_tokens`)."""
    max_response_tokens: PositiveInt | None = None
    """Longest response (`rollout.max_response_tokens`)."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] | None = None
    """Texts that end a response (`rollout.stop`)."""
    chat: Literal["auto", "always", "never"] | None = None
    """Use of the chat template (`data.chat`)."""
    chat_template: str | None = None
    """Jinja chat template (`model.chat_template`)."""
    template_options: dict[str, Any] | None = None
    """Arguments of the chat template (`data.template_options`)."""
    conversation: ConversationConfig | None = None
    """Tools and environment of the domain, instead of `conversation`."""
    teacher: Teacher = None
    """Teacher of the domain, instead of `teacher`."""
    dynamic_sampling: bool | None = None
    """Replace groups in which all scores are equal (`algorithm.dynamic_sampling`)."""
    difficulty: DifficultyConfig | None = None
    """Train only on prompts of a certain difficulty."""
    normalize: Literal["none", "group", "domain", "running"] = "none"
    """Shift and scale the domain's scores to mean 0 and standard deviation 1 before the estimator sees them: over each
    group, over the domain's responses in the step, or over all its responses in the run so far. Use it for domains
    whose scores differ in scale, with an estimator that does not divide by a group's deviation."""
    reward_clip: Annotated[float, Field(gt=0)] | None = None
    """Clip the domain's scores to plus or minus this, after `normalize`."""
    loss_weight: Annotated[float, Field(gt=0)] = 1.0
    """Weight of the domain's advantages, and thus of its part of the policy loss."""
    difficulty_weight: Annotated[float, Field(ge=0)] = 0.0
    """Emphasis on hard prompts: advantages are multiplied by (1 - solved share of the group + 1 / group size) to this
    power, divided by the mean of these factors over the domain's responses in the step. 0 is off."""
    length_weight: Annotated[float, Field(ge=0)] = 0.0
    """Emphasis on short responses: advantages are multiplied by (1 / tokens of the response) to this power, divided by
    the mean of these factors over the domain's responses in the step. 0 is off."""
    evaluation: DomainEvaluationConfig = DomainEvaluationConfig()
