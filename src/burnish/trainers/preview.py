"""Preview of a run of `sft` or `rm` for `burnish plan`. It raises the errors that the run would raise before loading a
model, as `preflight` does for `rl`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from rich.console import Console

from burnish.config.schema import RmConfig, SftConfig
from burnish.config.schema_data import DataSource
from burnish.config.schema_run import ConfigT
from burnish.data.loaded_sources import load_sources
from burnish.data.overlap import find_overlap
from burnish.data.preferences import count_comparisons
from burnish.data.sources import needs_download
from burnish.models.loading import UNLIMITED_CONTEXT
from burnish.observability.sinks import find_sinks
from burnish.planning.model_facts import ModelFacts
from burnish.planning.plan import Preview
from burnish.trainers.chaining import with_weights
from burnish.trainers.outer_loop import check_warmup
from burnish.trainers.reward_model.loop import check_fits_loss, comparisons_of, load_comparisons, planned_steps
from burnish.trainers.reward_model.normalization import check_measured
from burnish.trainers.rl.setup.preflight import check_model_source, local_tokenizer, notes_on, preview_elsewhere
from burnish.trainers.sft import Schedule, load_examples
from burnish.types import Tokenizer


def preview_sft(config: SftConfig, facts: ModelFacts | None, *, here: bool) -> Preview:
    """Preview a run of `burnish sft` for `burnish plan`."""
    return preview_of_data(config, facts, count_examples, "examples", here=here)


def preview_rm(config: RmConfig, facts: ModelFacts | None, *, here: bool) -> Preview:
    """Like `preview_sft`, for `burnish rm`; also reads the data on which scores are normalised."""
    settings = config.normalization
    policy = {} if settings.policy is None else {"normalization.policy": settings.policy}
    sources = (*settings.prompts, *settings.references)
    return preview_of_data(config, facts, compared_rows, "comparisons", here=here, models=policy, sources=sources)


def preview_of_data(
    config: ConfigT,
    facts: ModelFacts | None,
    count: Callable[[ConfigT, int | None, Tokenizer | None], Preview],
    rows: str,
    *,
    here: bool,
    models: Mapping[str, str] | None = None,
    sources: Sequence[DataSource] = (),
) -> Preview:
    """Raise what a run that trains on given data would raise about its settings, model folders and local data
    (BurnishError); for another machine (not `here`) only what it would raise there. Loads no weights and downloads
    nothing. facts: of the model, if known. rows: what the rows are called. models, sources: further ones, models by
    field."""
    counting = partial(count, config, None if facts is None else facts.context_tokens)
    if not here:
        return preview_elsewhere(config, counting)
    find_sinks(config.logging.sinks)
    check_model_source(config.model)
    for field, path in (models or {}).items():
        check_model_source(with_weights(config.model, path), field=field)
    notes = notes_on(config)
    unknown = [one.path for one in (*config.data.train, *config.data.eval, *sources) if needs_download(one)]
    if unknown:
        return Preview(notes=(f"{unknown[0]!r} is a data set on the hub, so the number of {rows} is unknown", *notes))
    found = counting(local_tokenizer(config))
    return replace(found, notes=(*found.notes, *notes))


def count_examples(config: SftConfig, context_tokens: int | None, tokenizer: Tokenizer | None) -> Preview:
    """Count the examples of local data; without a tokenizer only rows are counted."""
    if tokenizer is None:
        tables = [
            len(loaded.table.rows) for loaded in load_sources((*config.data.train, *config.data.eval), "examples")
        ]
        return Preview(rows=sum(tables[: len(config.data.train)]))
    train = load_examples(config, tokenizer, context_tokens, "train")
    heldout = load_examples(config, tokenizer, context_tokens, "eval") if config.data.eval else None
    hints = [f"{one.source.path}: {hint}" for one in train.understandings for hint in one.hints]
    twice = find_overlap(train.asked(), () if heldout is None else heldout.asked()).lines()
    sampler = train.sampler(seed=config.seed, shuffle=config.data.shuffle)
    schedule = Schedule(train.lengths(), config.optimization.tokens_per_batch, sampler)
    steps = schedule.count(config.optimization.epochs)
    check_warmup(config.optimization.warmup_steps, config.steps or steps)
    return Preview(len(train), sum(train.lengths()), steps, (*hints, *twice))


def compared_rows(config: RmConfig, context_tokens: int | None, tokenizer: Tokenizer | None) -> Preview:
    """Count the comparisons of local data; without a tokenizer only rows are counted."""
    if tokenizer is None:
        counts = [count_comparisons(some, config) if some else 0 for some in (config.data.train, config.data.eval)]
        return Preview(rows=counts[0])
    context = UNLIMITED_CONTEXT if context_tokens is None else context_tokens
    train, heldout = load_comparisons(
        config, tokenizer, min(config.max_tokens, context), Console(quiet=True), check_fits_loss
    )
    check_measured(config, tokenizer, context, train)
    planned_steps(config.steps, config.optimization, len(train))
    twice = find_overlap(train.asked(), () if heldout is None else heldout.asked()).lines()
    tokens = sum(comparison.num_tokens() for comparison in comparisons_of(train.examples))
    return Preview(len(train), tokens, notes=tuple(twice))
