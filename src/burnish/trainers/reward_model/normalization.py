"""The responses on which a reward model's scores are normalised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

import torch
from rich.console import Console

from burnish.config.schema import RmConfig
from burnish.config.schema_data import ModelConfig
from burnish.config.schema_rm import NormalizationConfig
from burnish.data.preferences import PreferenceSet
from burnish.data.prompts import load_prompts
from burnish.data.samplers import permutation
from burnish.data.sft import load_sft_examples
from burnish.data.template import ChatFormat
from burnish.errors import ConfigError
from burnish.models.folders import check_model_folder, resolve_source
from burnish.models.loading import LoadedModel, load_model
from burnish.models.reward_model import PromptResponse
from burnish.models.tokenizers import load_tokenizer
from burnish.observability.console import say
from burnish.rollouts.engine import Sampling
from burnish.rollouts.registry import engine_of
from burnish.trainers.chaining import with_weights
from burnish.types import RolloutRequest, Tokenizer

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Measure:
    """Settings of the normalisation of scores, with its responses (made when first needed) and a name for them."""

    settings: NormalizationConfig
    pairs: Callable[[], list[PromptResponse]]

    @property
    def name(self) -> str:
        if self.settings.on == "policy":
            return f"{self.settings.responses} responses of the policy"
        return f"at most {self.settings.responses} reference responses"


def measured_pairs(
    config: RmConfig, loaded: LoadedModel, train: PreferenceSet, console: Console
) -> list[PromptResponse]:
    """Prompts with the responses on which scores are normalised. They depend only on the run file, so they are the same
    before training, after it and in a resumed run."""
    if config.normalization.on == "policy":
        return _policy_responses(config, loaded, train, console)
    return _references(config, loaded.tokenizer, loaded.context_length, train)


def check_measured(config: RmConfig, tokenizer: Tokenizer, context_length: int, train: PreferenceSet) -> None:
    """Raise errors of the normalisation now, instead of after the last step of the run; samples nothing."""
    if config.normalization.kind == "none":
        return
    if config.normalization.on != "policy":
        _references(config, tokenizer, context_length, train)
        return
    policy = config.normalization.policy
    if policy is not None:
        folder = resolve_source(policy, field="normalization.policy")
        check_model_folder(folder, needs_weights=True)
        if Path(folder).is_dir():  # a model on the hub is checked when it is loaded
            _check_vocabulary(policy, load_tokenizer(_policy_model(config)), tokenizer)
    _prompts(config, tokenizer, context_length, train)


def _policy_model(config: RmConfig) -> ModelConfig:
    own, policy = config.model.model_copy(update={"lora": None, "quantization": None}), config.normalization.policy
    if policy is None:
        return own
    has_its_own = any(Path(resolve_source(policy, field="normalization.policy")).glob("tokenizer*"))
    return with_weights(own.model_copy(update={"tokenizer": None}) if has_its_own else own, policy)


def _check_vocabulary(policy: str, its: Tokenizer, ours: Tokenizer) -> None:
    if its.get_vocab() != ours.get_vocab():
        raise ConfigError(
            f"normalization.policy {policy!r} and the reward model have different tokenizers",
            remedy="name a policy with the same tokenizer, or set normalization.on: references",
        )


def _references(
    config: RmConfig, tokenizer: Tokenizer, context_length: int, train: PreferenceSet
) -> list[PromptResponse]:
    """Read completions from `normalization.references`, or else take the best responses of the training comparisons."""
    settings = config.normalization
    if settings.references:
        examples = load_sft_examples(
            settings.references,
            tokenizer=tokenizer,
            max_tokens=min(config.max_tokens, context_length),
            over_long=config.data.over_long,
            chat=ChatFormat.of(config.data),
        ).examples
        firsts = [example.loss_mask.index(True) for example in examples]
        pairs = [(e.tokens[:first], e.tokens[first:]) for e, first in zip(examples, firsts, strict=True)]
    else:
        pairs = [(e.prompt_tokens, e.responses_tokens[e.best]) for e in train.examples if not e.tie]
    return [pairs[index] for index in permutation(len(pairs), config.seed, 0)[: settings.responses]]


def _policy_responses(
    config: RmConfig, loaded: LoadedModel, train: PreferenceSet, console: Console
) -> list[PromptResponse]:
    settings = config.normalization
    prompts = _prompts(config, loaded.tokenizer, loaded.context_length, train)
    path = settings.policy or config.model.path
    policy = load_model(_policy_model(config), seed=config.seed, plain=config.debug.plain)
    _check_vocabulary(path, policy.tokenizer, loaded.tokenizer)
    say(console, policy.notes)
    console.print(f"sampling {settings.responses} responses of {path} to normalise on", highlight=False)
    engine = engine_of(policy, max_batch_rows=64)
    say(console, policy.paths.lines(verbose=config.logging.verbose))
    limit = config.response_length or settings.max_response_tokens
    sampling = Sampling(
        min(limit, settings.max_response_tokens), temperature=settings.temperature, ignore_eos=settings.ignore_eos
    )
    order = cycle(permutation(len(prompts), config.seed, 0))  # pass after pass
    requests = [
        RolloutRequest.of(f"normalization:{number}", number, prompts[index], (0,))
        for number, index in enumerate(islice(order, settings.responses))
    ]
    with torch.no_grad():
        rollouts = engine.generate(requests, sampling, seed=config.seed, step=0)
    return [(rollout.prompt_tokens, rollout.response_tokens) for rollout in rollouts]


def _prompts(config: RmConfig, tokenizer: Tokenizer, context_length: int, train: PreferenceSet) -> Sequence[Tokens]:
    """Load the prompts that leave room for a response. ConfigError if there are none."""
    settings = config.normalization
    room = min(config.max_tokens, context_length) - settings.max_response_tokens
    if settings.prompts:
        found: Sequence[Tokens] = load_prompts(
            settings.prompts,
            tokenizer=tokenizer,
            max_prompt_tokens=max(room, 1),
            over_long=config.data.over_long,
            chat=ChatFormat.of(config.data),
            query=config.data.query,
        ).prompt_tokens
    else:
        found = [e.prompt_tokens for e in train.examples if 0 < len(e.prompt_tokens) <= room]
    if not found:
        raise ConfigError(
            f"no prompt leaves room for normalization.max_response_tokens {settings.max_response_tokens}",
            remedy="lower normalization.max_response_tokens, or name shorter normalization.prompts",
        )
    return found
