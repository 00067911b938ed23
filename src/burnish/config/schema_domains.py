"""The `domains` section of a run file of `burnish rl`; see `burnish.config.schema`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from burnish.config.schema_data import Sources
from burnish.config.schema_reward import Reward
from burnish.config.schema_rollout import ConversationConfig
from burnish.config.schema_teacher import Teacher
from burnish.config.section import Count, Fraction, NonNegativeInt, PathText, PositiveInt, Section, Temperature, as_list

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
