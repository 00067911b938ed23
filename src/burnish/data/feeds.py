"""Endless prompts of one or several domains. The prompts of a step are a pure function of step and positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from burnish.data.prompts import PromptSet
from burnish.data.samplers import PromptSampler
from burnish.data.shares import Shares
from burnish.types import Prompt

Positions = Mapping[str, int]
"""Number of prompts drawn from each domain."""
Asks = Callable[[str, Prompt], bool]
"""True for a prompt of a domain that is to be sampled."""


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt and the tokens that the policy is given for it."""

    prompt: Prompt
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SampledPrompts:
    """Endless draws from a prompt set, a pure function of the position, which the loop keeps. Its length: one pass."""

    prompts: PromptSet
    sampler: PromptSampler

    def take(self, count: int, position: int) -> list[EncodedPrompt]:
        return [encoded(self.prompts, index) for index in self.sampler.take(count, position)]

    def __len__(self) -> int:
        return len(self.prompts)


def encoded(prompts: PromptSet, index: int) -> EncodedPrompt:
    """One row of a prompt set."""
    return EncodedPrompt(prompts.prompts[index], prompts.prompt_tokens[index])


@dataclass(frozen=True, slots=True)
class Drawn:
    """A prompt that a step samples. place: its number in the endless order of its domain."""

    domain: str
    place: int
    encoded: EncodedPrompt


@dataclass(frozen=True, slots=True)
class DomainFeeds:
    """The prompts of all domains. names: the domains in the order of `shares`; a domain that is never trained on needs
    no feed."""

    names: Sequence[str]
    by_name: Mapping[str, SampledPrompts]
    shares: Shares

    def counts(self, step: int) -> dict[str, int]:
        """Number of prompts of each domain that a step trains on."""
        return dict(zip(self.names, self.shares.counts(step), strict=True))

    def draw(
        self, counts: Mapping[str, int], positions: Positions, asks_for: Asks | None = None
    ) -> tuple[list[Drawn], Positions]:
        """Draw `counts` prompts from each domain at these positions, evenly mixed, and return the positions after them.
        Prompts that `asks_for` rejects are skipped; after one whole pass over a domain, fewer are returned."""
        after, drawn = dict(positions), []
        for name in (name for name, count in counts.items() if count):
            found, after[name] = self._draw(name, counts[name], positions.get(name, 0), asks_for)
            drawn.append(found)
        return evenly_mixed(drawn), after

    def at(self, name: str, place: int) -> Drawn:
        """The prompt at this place of a domain's order."""
        return self._take(name, 1, place)[0]

    def _draw(self, name: str, count: int, position: int, asks_for: Asks | None) -> tuple[list[Drawn], int]:
        found: list[Drawn] = []
        end = position + count + len(self.by_name[name])
        while len(found) < count and position < end:
            some = self._take(name, min(count - len(found), end - position), position)
            position += len(some)
            found += [one for one in some if asks_for is None or asks_for(name, one.encoded.prompt)]
        return found, position

    def _take(self, name: str, count: int, position: int) -> list[Drawn]:
        prompts = self.by_name[name].take(count, position)
        return [Drawn(name, place, prompt) for place, prompt in enumerate(prompts, start=position)]


def evenly_mixed(parts: Sequence[Sequence[Drawn]]) -> list[Drawn]:
    """The items of all parts in one list, each part spread over its whole length and in its own order."""
    placed = [
        ((number + 0.5) / len(part), index, item)
        for index, part in enumerate(parts)
        for number, item in enumerate(part)
    ]
    return [item for _, _, item in sorted(placed, key=lambda entry: entry[:2])]


def evaluation_prompts(prompts: PromptSet, limit: int | None, *, seed: int) -> list[EncodedPrompt]:
    """The same prompts at every evaluation: all, or `limit` drawn from the sources by weight."""
    if limit is None or limit >= len(prompts):
        return [encoded(prompts, index) for index in range(len(prompts))]
    return [encoded(prompts, index) for index in sorted(set(prompts.sampler(seed=seed).take(limit, 0)))]
