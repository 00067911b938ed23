"""The rewards of a run file: as plain specifications, checked as far as that needs no loaded reward, and then with the
signatures of the loaded ones."""

from __future__ import annotations

import inspect
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from burnish.config.secrets import hidden_name
from burnish.errors import ConfigError
from burnish.rewards.inputs import Item, Signature
from burnish.rewards.loading import RewardSpec, find_reward
from burnish.sandbox.sandbox import START_SHARE
from burnish.types import Prompt

if TYPE_CHECKING:
    from burnish.config.schema import RewardConfig, SandboxConfig

_LIMITED = {"code": 1.0 + START_SHARE, "command": 1.0}
"""Built-in rewards that stop a program after their option `seconds` -> the multiple of it that they may take."""

Numbered = tuple[int, Item]
"""A response and its number: its position, or its number in the tasks of the worker pool."""


@dataclass(frozen=True, slots=True)
class RunReward:
    """A loaded reward of a run file. `number` is its place there."""

    number: int
    config: RewardConfig
    spec: RewardSpec
    signature: Signature

    def is_for(self, prompt: Prompt) -> bool:
        """Return whether the reward scores responses to this prompt."""
        return self.config.scores(prompt.domain)

    def select(self, numbered: Iterable[Numbered]) -> list[Numbered]:
        """Select the responses that the reward is for."""
        return [(number, item) for number, item in numbered if self.is_for(item[0])]

    @property
    def only_waits(self) -> bool:
        """True if the reward waits for others rather than computes: an asynchronous one, or a judge."""
        return self.spec.is_judge or self.signature.asynchronous

    def can_begin(self, *, idle_cores: bool) -> bool:
        """Return whether workers may score a response while others are being sampled. Batched rewards need all of them
        and, without idle cores, rewards that compute would slow down sampling."""
        return not self.signature.batched and (idle_cores or self.only_waits)


def spec_of(reward: RewardConfig) -> RewardSpec:
    """The specification of a reward. Its label is the given one, else the name of the built-in or function, or
    `model`."""
    limits = (reward.timeout_seconds, reward.environment, reward.concurrency)
    return RewardSpec(reward.name, reward.log_label, dict(reward.options), *limits, reward.audit)


def in_sandbox(spec: RewardSpec, sandbox: SandboxConfig) -> RewardSpec:
    """Add the run's sandbox to a specification; its own options take precedence, and it can read the token. Unchanged
    for a reward that runs no programs."""
    if spec.name != "code":
        return spec
    # Defaults come from the reward, not from the run file, so that a reward built in Python has the same ones.
    options = {**sandbox.model_dump(exclude_defaults=True), **spec.options}
    token = options.get("token_variable")
    variables = (*spec.environment, *((token,) if token is not None and token not in spec.environment else ()))
    return replace(spec, options=options, environment=variables)


def specs_of(rewards: Sequence[RewardConfig], sandbox: SandboxConfig | None = None) -> list[RewardSpec]:
    """Make one specification for each reward, with the run's sandbox. ConfigError for a repeated label, an
    `environment` that has no effect or names a variable that is not set, and `seconds` that `timeout_seconds` does not
    allow."""
    labels = [reward.log_label for reward in rewards]
    for label, count in Counter(labels).items():
        if count > 1:
            raise ConfigError(
                f"two rewards have the label {label!r}", remedy="give each its own label: under rewards, label: ..."
            )
    specs = [spec_of(reward) for reward in rewards]
    if sandbox is not None:
        specs = [in_sandbox(spec, sandbox) for spec in specs]
    for spec in specs:
        _check_environment(spec)
        _check_seconds(spec)
    return specs


def _check_seconds(spec: RewardSpec) -> None:
    """Check that the program times out before its reward: then the response has failed, and not the reward."""
    if spec.name not in _LIMITED:
        return
    seconds = spec.options.get("seconds", inspect.signature(find_reward(spec.name)).parameters["seconds"].default)
    if not isinstance(seconds, (int, float)):
        return  # refused with the reward's other options
    most = seconds * _LIMITED[spec.name]
    if most >= spec.timeout_seconds:
        where = "seconds (sandbox.seconds)" if spec.name == "code" else "seconds"
        raise ConfigError(
            f"reward {spec.label!r} may take up to {most:g} s for a response, and is stopped after "
            f"{spec.timeout_seconds:g} s, so a response that never ends would have no score",
            remedy=f"give the reward a timeout_seconds above {most:g}, or lower {where}",
        )


def _check_environment(spec: RewardSpec) -> None:
    if spec.concurrency is not None and not spec.runs_in_worker:
        where = "has a concurrency among its options" if spec.is_judge else "does not run in workers"
        raise ConfigError(f"reward {spec.label!r} sets `concurrency`, but it {where}", remedy="remove it")
    if spec.environment and not spec.runs_in_worker:
        raise ConfigError(
            f"reward {spec.label!r} sets `environment`, but it runs in the training process and sees all variables",
            remedy="name the variable with its key in the option key_variable"
            if spec.is_judge
            else "remove `environment` from it",
        )
    missing = [name for name in spec.environment if name not in os.environ]
    if missing:
        raise ConfigError(
            f"reward {spec.label!r} needs the environment variable {hidden_name(missing[0])}, which is not set",
            remedy="set it where the run is started, or remove it from the reward's `environment`, which holds names",
        )


def check_rows(rewards: Iterable[RunReward], prompts: Sequence[Prompt], provided: Callable[..., set[str]]) -> None:
    """Raise RewardError if a reward has a parameter that its prompts do not provide. `provided` makes one set of their
    columns: `set.union` the columns of any prompt, `set.intersection` the columns of all."""
    for reward in rewards:
        columns = [set(prompt.columns) for prompt in prompts if reward.is_for(prompt)]
        if columns:
            reward.signature.check_columns(provided(*columns))


def asks_for_answers(reward: RunReward, prompts: Iterable[Prompt]) -> bool:
    """Return whether a parameter is a column that holds the answer of each of the reward's prompts."""
    answered = [prompt for prompt in prompts if reward.is_for(prompt) and prompt.answer is not None]
    names = set(answered[0].columns).intersection(reward.signature.names) if answered else ()
    return any(all(prompt.columns.get(name) == prompt.answer for prompt in answered) for name in names)
