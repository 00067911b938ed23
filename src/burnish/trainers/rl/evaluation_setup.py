"""From a run file to what evaluates it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.console import Console

from burnish.config.domains import DomainSettings, domain_settings
from burnish.config.schema import RewardConfig, RlConfig
from burnish.data.feeds import evaluation_prompts
from burnish.data.overlap import find_overlap
from burnish.data.prompts import PromptSet
from burnish.models.loading import LoadedModel
from burnish.observability.console import say
from burnish.rewards.scorer import ProcessRewardScorer
from burnish.rewards.success import success_of_domain, why_not_measured
from burnish.rollouts.engine import RolloutEngine
from burnish.trainers.rl.conversations import Conversations
from burnish.trainers.rl.domain_setup import asked_by, build_sampling, load_domains, prompts_of
from burnish.trainers.rl.evaluation import Evaluator, HeldOut
from burnish.types import Rollout


def build_evaluator(
    config: RlConfig,
    loaded: LoadedModel,
    engine: RolloutEngine,
    scorer: ProcessRewardScorer,
    console: Console,
    conversations: Conversations,
    *,
    train: Mapping[str, PromptSet] | None = None,
) -> Evaluator | None:
    """None without held-out data. Reports which of its prompts are also in `train`."""
    settings = domain_settings(config)
    held_out = load_domains(config, settings, loaded, "eval", conversations)
    if not held_out:
        return None
    for prompts in held_out.values():
        say(console, prompts.lines())
    say(console, find_overlap(() if train is None else asked_by(train), asked_by(held_out)).lines())
    scorer.check_prompts(prompts_of(held_out))
    parts = {
        domain.name: build_held_out(config, domain, held_out[domain.name], scorer, console)
        for domain in settings
        if domain.name in held_out
    }
    return Evaluator(parts=parts, engine=engine, scorer=scorer, seed=config.seed)


def build_held_out(
    config: RlConfig, domain: DomainSettings, prompts: PromptSet, scorer: ProcessRewardScorer, console: Console
) -> HeldOut:
    settings = domain.evaluation
    success = success_of_domain(domain, scorer.answer_labels)
    if success is None:
        why = why_not_measured(settings)
        say(console, (f"{domain.name}: {why}" if domain.name else why,))
    return HeldOut(
        prompts=evaluation_prompts(prompts, settings.max_prompts, seed=config.seed),
        sampling=build_sampling(config, domain),
        samples=settings.samples,
        temperature=settings.temperature,
        success=success,
        vote_key=vote_key(domain.rewards) if settings.samples else _by_text,
    )


def vote_key(rewards: Sequence[RewardConfig]) -> Callable[[Rollout], str]:
    """What counts as the same answer for maj@k: the extracted answer if a reward is `math`, else the text."""
    if not any(reward.name == "math" for reward in rewards):
        return _by_text
    from burnish.rewards.builtins.math_answer import MathAnswer, canonical  # slow to import, so only when needed

    reader = MathAnswer()
    return lambda rollout: canonical(reader.extract(rollout.response) or rollout.response)


def _by_text(rollout: Rollout) -> str:
    return rollout.response.strip()
