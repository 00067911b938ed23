"""The domains of a run at work: how each is sampled, and which of its prompts and groups teach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from burnish.config.domains import ALL, DomainSettings
from burnish.data.feeds import DomainFeeds, Drawn, Positions
from burnish.rollouts.engine import Sampling
from burnish.trainers.rl.difficulty import Filter, PassRates
from burnish.types import Prompt, RolloutGroup


@dataclass(frozen=True, slots=True)
class Domain:
    settings: DomainSettings
    sampling: Sampling
    filter: Filter


@dataclass(frozen=True, slots=True)
class Domains:
    """All domains of a run, by name. A run without a `domains` section has one, named ALL."""

    by_name: Mapping[str, Domain]
    feeds: DomainFeeds
    rates: PassRates

    def of(self, prompt: Prompt) -> Domain:
        return self.by_name[ALL] if ALL in self.by_name else self.by_name[prompt.domain]

    def draw(self, counts: Mapping[str, int], positions: Positions, step: int) -> tuple[list[Drawn], Positions]:
        """So many prompts of each domain that are worth sampling, from these positions on, and the positions after."""

        def asks_for(name: str, prompt: Prompt) -> bool:
            return self.by_name[name].filter.asks_for(self.rates.of(name, prompt.id), step)

        return self.feeds.draw(counts, positions, asks_for if self.rates.windows else None)

    def why_left_out(self, group: RolloutGroup, step: int) -> str:
        return self.of(group.prompt).filter.why_left_out(group, step)

    def lacking(self, wanted: Mapping[str, int], kept: Sequence[RolloutGroup]) -> dict[str, int]:
        """Groups that are still to be sampled, of the domains that replace those that do not teach."""
        found = [self.of(group.prompt).settings.name for group in kept]
        refilled = {name: domain.settings.refills for name, domain in self.by_name.items()}
        return {name: count - found.count(name) if refilled[name] else 0 for name, count in wanted.items()}

    def observe(self, step: int, groups: Sequence[RolloutGroup]) -> None:
        """These groups were collected for this step."""
        for group in groups if self.rates.windows else ():
            domain = self.of(group.prompt)
            self.rates.observe(step, domain.settings.name, group.prompt.id, domain.filter.solved(group))
