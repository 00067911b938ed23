"""Prompt sets as the loop draws from them."""

from __future__ import annotations

from dataclasses import dataclass

from burnish.data.prompts import PromptSet
from burnish.data.samplers import PromptSampler
from burnish.trainers.collection import EncodedPrompt


@dataclass(frozen=True, slots=True)
class SampledPrompts:
    """Endless draws from a prompt set; where they stand is one integer that the loop keeps."""

    prompts: PromptSet
    sampler: PromptSampler

    def take(self, count: int, position: int) -> list[EncodedPrompt]:
        return [encoded(self.prompts, index) for index in self.sampler.take(count, position)]


def encoded(prompts: PromptSet, index: int) -> EncodedPrompt:
    """One row of a prompt set."""
    return EncodedPrompt(prompts.prompts[index], prompts.prompt_tokens[index])


def evaluation_prompts(prompts: PromptSet, limit: int | None, *, seed: int) -> list[EncodedPrompt]:
    """The same prompts at every evaluation: all of them, or `limit` drawn evenly by source weight."""
    if limit is None or limit >= len(prompts):
        return [encoded(prompts, index) for index in range(len(prompts))]
    return [encoded(prompts, index) for index in sorted(set(prompts.sampler(seed=seed).take(limit, 0)))]
