"""The prompts of a domain, as its run file says."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping

from burnish.config.domains import DomainSettings, Split, sources_of
from burnish.config.schema import RlConfig
from burnish.data.chat import uses_template
from burnish.data.prompts import ELSEWHERE, DomainRows, PromptSet, check_golds, load_prompts
from burnish.data.template import ChatFormat, refuse_unused_options
from burnish.errors import ConfigError
from burnish.models.tokenizers import chat_template_for
from burnish.types import Json, Tokenizer


def load_prompt_set(
    config: RlConfig,
    domain: DomainSettings,
    tokenizer: Tokenizer,
    context_tokens: int | None,
    split: Split,
    offered: tuple[Mapping[str, Json], ...] = (),
) -> PromptSet:
    """The prompts of a domain, encoded and cut as the run file says. They offer these tools, by their schemas.
    ConfigError if the domain has none to train on, or none at all."""
    sources = sources_of(config, domain, split)
    if not sources:
        field = domain.title(f"data.{split}")
        raise ConfigError(f"{field} is empty", remedy=f"name at least one data set in {field}")
    found = load_prompts(
        sources,
        tokenizer=with_template(tokenizer, domain.chat_template),
        max_prompt_tokens=domain.max_prompt_tokens,
        over_long=config.data.over_long,
        chat=ChatFormat(domain.chat, domain.template_options),
        context_tokens=context_tokens,
        room=domain.max_response_tokens if config.rollout.ignore_eos else 1,
        query=config.data.query,
        rows=DomainRows.of(config, domain, split),
        offered=offered,
    )
    check_golds(domain, sources, found.prompts)
    has_own = domain.conversation is None and (domain.name is None or domain.own.template_options)
    if split == "train" and found and has_own:
        chat = ChatFormat(domain.chat, domain.template_options)
        applied = sum(uses_template(prompt, chat) for prompt in found.prompts)
        refuse_unused_options(chat, applied=applied, field=domain.place("data.template_options"))
    if not found and (split == "train" or not domain.is_trained):
        purpose = "trained" if split == "train" else "evaluated"
        raise ConfigError(
            f"data.{split} has no row for the domain {domain.name!r}, which is to be {purpose}{_left_out(found)}",
            remedy=f"set domains.{domain.name}.{split}, or check the domains of the rows"
            + (" and the limits on them" if found.understandings else ""),
        )
    return found


def _left_out(prompts: PromptSet) -> str:
    """Count the rows of the domain that were left out, by reason."""
    skipped = sum((Counter(understanding.skipped) for understanding in prompts.understandings), Counter[str]())
    del skipped[ELSEWHERE]
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in skipped.items())
    return f" (left out: {reasons})" if reasons else ""


def with_template(tokenizer: Tokenizer, template: str | None) -> Tokenizer:
    """The tokenizer with this chat template, if one is given."""
    if template is None:
        return tokenizer
    other = copy.copy(tokenizer)
    other.chat_template = chat_template_for(tokenizer, template)
    return other
