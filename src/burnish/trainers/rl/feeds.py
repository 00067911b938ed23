"""Prompt sets that the loop draws from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from burnish.config.schema import RlConfig
from burnish.data.prompts import PromptSet, load_prompts
from burnish.data.samplers import PromptSampler
from burnish.data.template import ChatFormat
from burnish.errors import ConfigError
from burnish.trainers.rl.collection import EncodedPrompt
from burnish.types import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class SampledPrompts:
    """Endless draws from a prompt set. Their position is one integer, which the loop keeps."""

    prompts: PromptSet
    sampler: PromptSampler

    def take(self, count: int, position: int) -> list[EncodedPrompt]:
        return [encoded(self.prompts, index) for index in self.sampler.take(count, position)]


def encoded(prompts: PromptSet, index: int) -> EncodedPrompt:
    """One row of a prompt set."""
    return EncodedPrompt(prompts.prompts[index], prompts.prompt_tokens[index])


def evaluation_prompts(prompts: PromptSet, limit: int | None, *, seed: int) -> list[EncodedPrompt]:
    """The same prompts at every evaluation: all, or `limit` drawn from the sources by weight."""
    if limit is None or limit >= len(prompts):
        return [encoded(prompts, index) for index in range(len(prompts))]
    return [encoded(prompts, index) for index in sorted(set(prompts.sampler(seed=seed).take(limit, 0)))]


def load_prompt_set(
    config: RlConfig, tokenizer: PreTrainedTokenizerBase, context_tokens: int | None, split: str
) -> PromptSet:
    """The prompts of data.train or data.eval (`split`), encoded and cut as the run file says."""
    sources = config.data.train if split == "train" else config.data.eval
    if not sources:
        raise ConfigError(f"data.{split} is empty", remedy=f"name at least one data set in data.{split}")
    return load_prompts(
        sources,
        tokenizer=tokenizer,
        max_prompt_tokens=config.rollout.max_prompt_tokens,
        over_long=config.data.over_long,
        chat=ChatFormat.of(config.data),
        context_tokens=context_tokens,
        query=config.data.query,
    )


def shared_columns(prompts: Sequence[Prompt]) -> set[str]:
    """Columns that every row has, which a reward may ask for by name."""
    return set.intersection(*(set(prompt.columns) for prompt in prompts))
