"""Checks of `burnish rl` before it loads a model. `burnish plan` makes the same ones, so it promises no more than the
run.

What only runs with teachers or reward models need is imported for them, because it imports everything that computes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from burnish.algorithms.advantages import Estimator
from burnish.checkpointing.run import RunDirectory
from burnish.checkpointing.sources import path_of, read_places
from burnish.checkpointing.store import CheckpointStore
from burnish.config.checks_rl import check_engine
from burnish.config.domains import DomainSettings, Split, domain_settings, sources_of, used_domains
from burnish.config.engines import FALLBACK
from burnish.config.names import MODEL_REWARD
from burnish.config.problems import named, raise_problems
from burnish.config.schema import RlConfig, RunConfig
from burnish.config.schema_data import DataSource, ModelConfig, places_of_sources
from burnish.config.schema_teacher import OWN_POLICY
from burnish.config.section import NamedPlace
from burnish.data.overlap import Asked, find_overlap
from burnish.data.prompts import DomainRows, PromptSet, check_bound_rewards, read_prompts
from burnish.data.sources import needs_download
from burnish.errors import CheckpointError, ConfigError, ModelError
from burnish.machine.resources import resolve_device
from burnish.models.folders import check_model_folder, resolve_source
from burnish.models.tokenizers import load_tokenizer
from burnish.models.weight_checks import check_token_ids
from burnish.observability.sinks import find_sinks
from burnish.outside.plugins import is_outside
from burnish.planning.model_facts import ModelFacts
from burnish.planning.plan import Preview
from burnish.planning.rl import teacher_facts
from burnish.rewards.loading import RewardSpec
from burnish.rewards.scorer import ProcessRewardScorer
from burnish.rewards.specs import spec_of
from burnish.rewards.success import success_of_domain, why_not_measured
from burnish.rollouts.registry import can_stop
from burnish.trainers.rl.algorithm import AlgorithmParts, reads_responses_alone, resolve_algorithm
from burnish.trainers.rl.difficulty import recorded_files_of
from burnish.trainers.rl.setup.agents import open_host
from burnish.trainers.rl.setup.conversations import Conversations, load_domains, open_conversations
from burnish.types import Prompt, Tokenizer

SPLITS: tuple[Split, Split] = ("train", "eval")
Prompts = PromptSet | Sequence[Prompt]
"""Prompts of a domain, with their tokens if there is a tokenizer."""


def check_settings(config: RlConfig, parts: AlgorithmParts, *, here: bool = True) -> None:
    """Raise ConfigError for settings that the run file, and the classes and functions that it names, already show to
    be unusable. Loads no model and writes nothing. Unless it will run `here`, the packages of engine and sinks may be
    missing."""
    check_estimator(config, parts.estimator)
    if config.algorithm.skip_zero_advantages and not parts.loss.zero_at_zero_advantage:
        raise ConfigError(
            f"algorithm.skip_zero_advantages is true, but the loss {parts.loss.name!r} may have a gradient at "
            "advantage 0",
            remedy="set it to false, or choose another algorithm.loss",
        )
    name = config.rollout.engine
    stops = can_stop(name)  # refuses what is not an engine
    if is_outside(name):  # the others were checked when the run file was read
        raise_problems(named(check_engine(config)), source=f"rollout.engine {name!r}")
    if config.partial and not stops:
        raise ConfigError(
            f"partial is true, but rollout.engine {name!r} cannot stop in the middle of a response "
            "and go on with it later",
            remedy=f"remove partial, use rollout.engine: {FALLBACK}, or derive the class from "
            "burnish.rollouts.engine.StoppableEngine",
        )
    if here:
        config.engine.traits.check_here(config.rollout)
        find_sinks(config.logging.sinks)


def check_fit(config: RlConfig, context_tokens: int | None, sampled_ids: int) -> None:
    """Raise ConfigError or ModelError for responses that can never fit into the model's context (`context_tokens` of
    prompt and response together, None if unlimited), and for stop ids that are never sampled."""
    longest = config.rollout.max_response_tokens
    if context_tokens is not None and longest >= context_tokens:
        raise ConfigError(
            f"rollout.max_response_tokens is {longest:,}, but the model's context is {context_tokens:,} tokens, which "
            "leaves no room for a prompt",
            remedy=f"set it below {context_tokens:,}, or use a model with a longer context",
        )
    check_token_ids(config.rollout.stop_token_ids, sampled_ids, "rollout.stop_token_ids names")


def preview_rl(config: RlConfig, facts: ModelFacts | None, *, here: bool) -> Preview:
    """Preview a run for `burnish plan`, on this machine or for another one. facts: of the model, if known."""
    context = None if facts is None else facts.context_tokens
    if facts is not None:
        check_fit(config, context, facts.vocabulary_size)
    if not here:
        return preview_elsewhere(config, partial(local_rows, config, facts), partial(_check_elsewhere, config))
    return preview(config, facts)


def _check_elsewhere(config: RlConfig, absent: Collection[str]) -> None:
    """The settings of a run for another machine, if no field that names code that they depend on is `absent` here."""
    if not {"algorithm.estimator", "algorithm.loss", "rollout.engine"}.intersection(absent):
        check_settings(config, resolve_algorithm(config.algorithm), here=False)


def preview(config: RlConfig, facts: ModelFacts | None) -> Preview:
    """Preview a run on this machine.

    Raises what a run would raise about its settings, model folder, rewards and local data (BurnishError). Loads no
    weights and downloads nothing, so what only these show is left to the run. facts: of the model, if known.
    """
    check_settings(config, resolve_algorithm(config.algorithm))
    check_model_source(config.model)
    tokenizer = local_tokenizer(config)
    if config.named_teachers:
        _check_teachers(config, tokenizer)
    with _conversations(config, tokenizer) as conversations:
        train, heldout = _local_splits(config, tokenizer, facts, conversations)
    prompts = [[prompt for some in found for prompt in _prompts_of(some)] for found in (train, heldout)]
    _check_rewards(config, prompts)
    if train:
        check_bound_rewards(config, prompts[0])
    twice = find_overlap(*([asked for some in found for asked in _asked(some)] for found in (train, heldout)))
    told = (*conversations.lines, *timing_lines(config), *precision_lines(config), *no_overlap_lines(config))
    unknown = () if train else ("data.train names a data set on the hub, so the number of prompts is unknown",)
    notes = [*unknown, *twice.lines(), *told, *notes_on(config)]
    return count_prompts(train, heldout, notes)


def preview_elsewhere(
    config: RunConfig,
    count: Callable[[Tokenizer | None], Preview],
    check: Callable[[Collection[str]], None] | None = None,
) -> Preview:
    """Preview a run for another machine. Files that are not here are left out and noted, and rewards are not tried.
    count: counts the data, if they are here, with the tokenizer, if it is. check: refuses settings, given the fields
    that name absent files."""
    sources = {**config.named_sources("train"), **config.named_sources("eval")}
    places = [*read_places(config), *places_of_sources(config.named_sources("eval"))]
    absent = [place for place in places if _is_absent(place, sources.get(place.field))]
    notes = [f"{place.field}: {place.text!r} is not on this machine" for place in absent]
    if check is not None:
        check({place.field for place in absent})
    if any(place.kind == "data" for place in absent) or any(needs_download(source) for source in sources.values()):
        return Preview(notes=(*notes, "the data are not counted"))
    try:
        tokenizer = local_tokenizer(config)
    except ModelError as error:
        notes.append(f"{error.message}; lengths of texts are unknown")
        tokenizer = None
    found = count(tokenizer)
    return replace(found, notes=(*found.notes, *notes))


def _is_absent(place: NamedPlace, source: DataSource | None) -> bool:
    """Return whether the place is missing on this machine. Built-in names and data sets on the hub never are."""
    if place.kind == "option" or path_of(place) is not None:
        return False
    if place.kind == "code":
        return place.text.rpartition(":")[0].endswith(".py")
    return source is None or not needs_download(source)


def local_rows(config: RlConfig, facts: ModelFacts | None, tokenizer: Tokenizer | None) -> Preview:
    """Count the prompts of data on this machine."""
    train, heldout = _local_splits(config, tokenizer, facts, Conversations())
    return count_prompts(train, heldout, ())


def _local_splits(
    config: RlConfig, tokenizer: Tokenizer | None, facts: ModelFacts | None, conversations: Conversations
) -> tuple[list[Prompts], list[Prompts]]:
    """Prompts of both splits (`local_prompts`), tried on the teachers' templates and contexts."""
    context = None if facts is None else facts.context_tokens
    train, heldout = (local_prompts(config, split, tokenizer, context, conversations) for split in SPLITS)
    if not config.named_teachers:
        return train, heldout
    from burnish.trainers.rl.setup.teachers import check_contexts, check_teacher_prompts

    contexts: dict[str, int | None] = dict.fromkeys(config.teacher_paths)
    if facts is not None:
        known = zip(config.teacher_paths, teacher_facts(config, facts), strict=True)
        contexts |= {OWN_POLICY: context} | {path: one.context_tokens for path, one in known if one is not None}
    check_contexts(config, contexts)
    if tokenizer is not None:
        check_teacher_prompts(config, (one for found in train for one in _prompts_of(found)), tokenizer, contexts)
    return train, heldout


def count_prompts(train: Sequence[Prompts], heldout: Sequence[Prompts], notes: Sequence[str]) -> Preview:
    """Add up the rows, tokens and held-out prompts of all domains."""
    tokens = [len(one) for found in train if isinstance(found, PromptSet) for one in found.prompt_tokens]
    rows, others = (sum(map(len, found)) if found else None for found in (train, heldout))
    return Preview(rows, sum(tokens) or None, notes=tuple(notes), heldout=others)


def timing_lines(config: RlConfig) -> tuple[str, ...]:
    """Warning of a run whose numbers depend on how fast its processes are."""
    if not config.partial:
        return ()
    return (
        "partial: responses go on with new weights as soon as there are any, so the curve depends on timing, and the "
        "same run file gives different numbers each time",
    )


def precision_lines(config: RlConfig) -> tuple[str, ...]:
    """Note on float32 precision, for a run in which two models may compute at once in one process."""
    if not computes_twice_at_once(config):
        return ()
    return (
        "float32 products take PyTorch's highest precision, which may be slower: models compute in two threads of one "
        "process, and a faster precision of one would change the last bits of the other",
    )


def computes_twice_at_once(config: RlConfig) -> bool:
    """Return whether models may compute in two threads of the command's process: a judge beside a reward model, or one
    of these while the policy trains on an earlier batch. PyTorch's precision of float32 products is the whole
    process's, and attention changes it for a moment (`burnish.machine.matmul_precision.usual_float32`)."""
    judges = any(spec.is_judge and spec.options.get("model_path") for spec in map(spec_of, config.all_rewards))
    elsewhere = "reward_model" in config.cluster.own_process
    scores = any(reward.is_model for reward in config.all_rewards) and not elsewhere
    samples_aside = config.cluster.rollout_workers > 0 and config.max_staleness > 0
    return (judges and scores) or ((judges or scores) and samples_aside and config.cluster.trains_here)


def no_overlap_lines(config: RlConfig) -> tuple[str, ...]:
    """Note that sampling ahead saves no time in the processes that train."""
    if config.max_staleness == 0 or config.cluster.rollout_workers:
        return ()
    value, because = config.max_staleness, "the same processes train and sample, in turn"
    return (f"max_staleness is {value}, which saves no time without cluster.rollout_workers: {because}",)


def check_estimator(config: RlConfig, estimator: Estimator) -> None:
    """Raise ConfigError for settings that the estimator cannot use: it would ignore them, or fail during the run."""
    for message, remedy in (*_conflicts_of_models(config, estimator), *_conflicts_of_rewards(config, estimator)):
        raise ConfigError(message, remedy=remedy)


def _conflicts_of_models(config: RlConfig, estimator: Estimator) -> Iterator[tuple[str, str]]:
    """Conflicts with the critic, the teacher and the reference: what is wrong, and what to do."""
    name, inputs = estimator.name, estimator.inputs
    if estimator.needs_values and not estimator.token_level:
        message = f"algorithm.estimator {name!r} asks for values but gives no returns to train a critic with"
        yield message, "let it ask for token_rewards_BT as well and return (advantages_BT, returns_BT)"
    no_values, ask = f"but the estimator {name!r} asks for no values", "or let the estimator ask for values_BT"
    if not estimator.needs_values:
        if "critic" in config.cluster.own_process:
            yield f"cluster.own_process names the critic, {no_values}", f"remove it, {ask}"
        for field, value in config.critic.model_dump(exclude_defaults=True).items():
            message = f"critic.{field} is {value!r}, {no_values}, so there is no critic"
            yield message, f"remove critic.{field}, {ask}"
    remedy = "name a model under `teacher`, or remove it and choose another estimator"
    if "teacher_logprobs_BT" in inputs and not config.named_teachers:
        yield f"the estimator {name!r} asks for teacher_logprobs_BT, but the run file has no teacher", remedy
    if "teacher_logprobs_BT" not in inputs and config.named_teachers:
        yield f"teacher is set, but the estimator {name!r} does not ask for teacher_logprobs_BT", remedy
    if "ref_logprobs_BT" in inputs and not config.has_reference:
        message = f"the estimator {name!r} asks for ref_logprobs_BT, but the run has no reference"
        yield message, "set algorithm.kl_in and kl_coef, which load one"


def _conflicts_of_rewards(config: RlConfig, estimator: Estimator) -> Iterator[tuple[str, str]]:
    """Conflicts with rewards: an estimator that compares responses to one prompt, or reads no sum of rewards."""
    name, inputs, algorithm, scoring = estimator.name, set(estimator.inputs), config.algorithm, config.scoring
    trained = [domain for domain in domain_settings(config) if domain.is_trained]
    for field in (one.place("rollout.group_size") for one in trained if one.group_size == 1):
        if "group_ids_B" in inputs:
            message = f"{field} is 1, but the estimator {name!r} compares the responses to one prompt"
            yield message, f"set {field} to 2 or more"
    if config.whitens_minibatches and algorithm.whiten_rewards and not reads_responses_alone(estimator):
        message = f"algorithm.whiten_over is minibatch and whiten_rewards is true, but the estimator {name!r} reads "
        remedy = "set algorithm.whiten_over: step, or whiten_rewards: false, or use the estimator gae"
        yield message + "more than the token rewards and values of one response", remedy
    if inputs & {"scores_B", "token_rewards_BT"}:
        return
    for field, value, unused in (
        *((f"domains.{one.name}.normalize", one.own.normalize, one.own.normalize != "none") for one in trained),
        *((f"domains.{one.name}.reward_clip", one.own.reward_clip, one.own.reward_clip is not None) for one in trained),
        ("algorithm.kl_in", algorithm.kl_in, algorithm.kl_in == "reward"),
        ("algorithm.reward_clip", algorithm.reward_clip, algorithm.reward_clip is not None),
        ("algorithm.whiten_rewards", algorithm.whiten_rewards, algorithm.whiten_rewards),
        ("algorithm.overlong_buffer", algorithm.overlong_buffer, algorithm.overlong_buffer is not None),
        ("scoring.on_failure", scoring.on_failure, scoring.on_failure == "score"),
        ("scoring.incomplete_score", scoring.incomplete_score, scoring.incomplete_score is not None),
    ):
        if unused:
            message = f"{field} is {value!r}, but the estimator {name!r} reads each reward by itself and not their sum"
            yield message, f"remove {field} (a KL can be part of the loss, an over-long penalty one of the rewards)"


def check_model_source(model: ModelConfig, *, field: str = "model.path") -> None:
    """Raise ModelError for a folder that does not exist, or does not hold a model that can be loaded."""
    check_model_folder(resolve_source(model.path, field=field), needs_weights=not model.from_scratch)


def _check_teachers(config: RlConfig, ours: Tokenizer | None) -> None:
    """Check the folder of each teacher, and its vocabulary where neither has to be downloaded. Asks no endpoint."""
    from burnish.trainers.rl.setup.teachers import check_vocabulary, teacher_model

    for field, path in config.named_teacher_paths.items():
        model = teacher_model(config, path)
        check_model_source(model, field=field)
        if ours is not None and Path(path).expanduser().exists():
            check_vocabulary(field, path, load_tokenizer(model), ours)


def local_tokenizer(config: RunConfig) -> Tokenizer | None:
    """Load the tokenizer from its local folder. None if it would have to be downloaded."""
    folder = Path(config.model.tokenizer or config.model.path).expanduser()
    return load_tokenizer(config.model) if folder.exists() else None


def local_prompts(
    config: RlConfig, split: Split, tokenizer: Tokenizer | None, context: int | None, conversations: Conversations
) -> list[Prompts]:
    """Prompts of each domain as the run would have them; without a tokenizer none is too long. Empty if any must be
    downloaded. context: the model's, in tokens, or None if it is unlimited."""
    if any(needs_download(source) for source in config.named_sources(split).values()):
        return []
    settings = domain_settings(config)
    if tokenizer is not None:
        return list(load_domains(config, settings, tokenizer, context, split, conversations).values())
    used = used_domains(config, settings, split)
    found = [read_prompts(sources_of(config, one, split), DomainRows.of(config, one, split))[0] for one in used]
    return [some for some in found if some]


@contextmanager
def _conversations(config: RlConfig, tokenizer: Tokenizer | None) -> Iterator[Conversations]:
    """Start what the domains converse with, as the run does; it is ended at the end. Without a tokenizer, templates and
    served tools are not tried."""
    settings = [one for one in domain_settings(config) if one.conversation is not None]
    if settings and tokenizer is not None:
        from burnish.models.loading import end_ids_of

        with open_conversations(config, settings, tokenizer, end_ids_of(config.model, tokenizer)) as found:
            yield found
        return
    with ExitStack() as stack:
        for domain in settings:
            open_host(domain, stack)
        yield Conversations()


def _prompts_of(found: Prompts) -> Sequence[Prompt]:
    return found.prompts if isinstance(found, PromptSet) else found


def _asked(found: Prompts) -> list[Asked]:
    """Contents of the prompts, to compare them: tokens, or text and tools if there is no tokenizer."""
    if isinstance(found, PromptSet):
        return found.asked()
    return [(prompt.id, repr((prompt.messages or prompt.text, prompt.tools))) for prompt in found]


def _check_rewards(config: RlConfig, prompt_sets: Sequence[Sequence[Prompt]]) -> None:
    functions = [reward for reward in config.all_rewards if not reward.name.startswith(MODEL_REWARD)]
    for reward in config.all_rewards:
        if reward not in functions:
            from burnish.rewards.model_reward import check_model_reward

            check_model_reward(RewardSpec(reward.name, reward.label or "model", reward.options))
    settings, begins = domain_settings(config), not CheckpointStore(Path(config.output)).steps()
    if not functions:
        return check_difficulty(settings, (), begins=begins)
    with ProcessRewardScorer(functions, config.scoring, sandbox=config.sandbox) as scorer:
        for prompts in prompt_sets:
            scorer.check_prompts(prompts)
        for domain in settings:
            success_of_domain(domain, scorer.answer_labels)
        check_difficulty(settings, scorer.answer_labels, begins=begins)
    return None


def check_difficulty(settings: Sequence[DomainSettings], answer_labels: Sequence[str], *, begins: bool) -> None:
    """Raise ConfigError for a trained domain that needs to know when a response is solved and has nothing to tell it,
    and for a missing run in `difficulty.recorded`. `begins`: a resumed run does not read it."""
    for domain in (domain for domain in settings if domain.is_trained):
        asking = domain.asks_what_is_solved
        if asking and success_of_domain(domain, answer_labels) is None:
            raise ConfigError(
                f"domains.{domain.name}.{asking[0]} is set, but nothing says when a response is solved: "
                f"{why_not_measured(domain.evaluation)}",
                remedy=f"set domains.{domain.name}.evaluation.success to the reward that decides",
            )
        if begins and domain.difficulty is not None and domain.difficulty.recorded is not None:
            recorded_files_of(domain.difficulty.recorded, f"domains.{domain.name}.difficulty.recorded")


def notes_on(config: RunConfig) -> list[str]:
    """Notes on what would work on another machine, or with `--fresh`."""
    notes = []
    try:
        resolve_device(config.model.device)
    except ModelError as error:
        notes.append(error.message)
    try:
        RunDirectory(Path(config.output)).admit(config)
    except CheckpointError as error:
        notes.append(f"{error.message}\nthe run would refuse to continue it; --fresh would start over")
    return notes
