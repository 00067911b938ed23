"""A reward in a run file of `burnish rl`; see `burnish.config.schema`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError

from burnish.config import names
from burnish.config.section import Count, NamedPlace, PathText, Seconds, Section, as_list, shorthand
from burnish.errors import ConfigError

VariableName = Annotated[str, Field(pattern=r"^[^=\s\x00]+$")]


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
