"""`burnish eval` on runs of `sft` and `rm`: the measurements of training, on saved weights and any held-out data."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from burnish.algorithms.statistics import wilson_interval
from burnish.board.pictures import HISTOGRAM_FILE
from burnish.config.schema import RmConfig, SftConfig
from burnish.data.preferences import PreferenceSet
from burnish.errors import ConfigError, DataError
from burnish.forward.fast_paths import FastPaths
from burnish.forward.matmul_choice import fast_float32
from burnish.forward.scoring import ResponseScorer
from burnish.machine.memory import keep_freed_memory
from burnish.models.distillation import Tutor
from burnish.models.loading import load_model
from burnish.models.reward_learner import compare
from burnish.models.reward_model import RewardModel, load_reward_model
from burnish.observability.atomic import write_text_atomically
from burnish.observability.console import say
from burnish.trainers.chaining import measured
from burnish.trainers.result import EvalReport, new_eval_folder, write_eval_metrics
from burnish.trainers.reward_model.loop import (
    check_fits_loss,
    comparisons_of,
    evaluated_comparisons,
    length_rule,
    load_comparisons,
    load_set,
    scored_comparisons,
)
from burnish.trainers.reward_model.preference_metrics import LengthRule, ScoredComparison, accuracy, describe
from burnish.trainers.reward_model.preference_metrics import histogram as score_histogram
from burnish.trainers.run_folder import recorded_paths
from burnish.trainers.sft import held_out_loss, heldout_examples, load_examples
from burnish.types import Tokenizer

SftConfigT = TypeVar("SftConfigT", bound=SftConfig)


def evaluate_sft_run(
    config: SftConfigT,
    *,
    console: Console,
    weights: Path | None = None,
    open_teacher: Callable[[SftConfigT, FastPaths], Tutor] | None = None,
) -> EvalReport:
    """Held-out loss, perplexity and token accuracy of the run file's model, or of saved weights, on data.eval. With a
    teacher also the divergence from it.

    Writes `metrics.json` and `config.yaml` to a new folder `eval/NNN` in the run's folder. Raises ConfigError if the
    run file names no held-out data.
    """
    if not config.data.eval:
        raise ConfigError("data.eval is empty", remedy="name the held-out data in data.eval")
    config = measured(config, weights, console)
    paths = recorded_paths(Path(config.output))
    loaded = load_model(config.model, seed=config.seed, plain=config.debug.plain, paths=paths)
    keep_freed_memory(loaded.model.device.type)
    heldout = load_examples(config, loaded.tokenizer, loaded.context_length, "eval")
    scorer = ResponseScorer(loaded.model, plain=loaded.plain, vocabulary=loaded.vocabulary)
    score = partial(
        scorer.score_in_microbatches,
        tokens_per_microbatch=config.optimization.microbatch_tokens,
        correct=True,
        compare=None if open_teacher is None else open_teacher(config, paths).compare,
    )
    examples = heldout_examples(heldout, config.evaluation.max_prompts, seed=config.seed)
    with fast_float32(loaded.model, plain=config.debug.plain, paths=paths):  # as in training
        say(console, (*loaded.notes, *paths.lines(verbose=config.logging.verbose), *heldout.lines()))
        metrics = held_out_loss(score, examples, pad_token_id=loaded.pad_token_id)
    folder = new_eval_folder(Path(config.output))
    return EvalReport(metrics, write_eval_metrics(folder, config, metrics))


def evaluate_rm_run(config: RmConfig, *, console: Console, weights: Path | None = None) -> EvalReport:
    """Accuracy of a saved reward model with its interval, calibration, and the accuracy of length alone, on data.eval
    or on the comparisons set aside by `held_out_fraction`.

    Writes `metrics.json`, `config.yaml` and `score_histogram.json` to a new folder `eval/NNN` in the run's folder.
    Raises ConfigError if nothing is held out, ModelError if the model is not a reward model.
    """
    if not config.data.eval and config.held_out_fraction == 0:
        raise ConfigError(
            "data.eval is empty and held_out_fraction is 0", remedy="name the held-out comparisons in data.eval"
        )
    config = measured(config, weights, console)
    model = load_reward_model(config.model)
    keep_freed_memory(model.loaded.model.device.type)
    say(console, model.loaded.notes)
    rule, heldout = _comparisons(config, model, console)
    decided = evaluated_comparisons(config, heldout)
    if not decided:
        raise DataError("the held-out comparisons are all ties", remedy="name comparisons with a best response")
    score = partial(model.score, tokens_per_microbatch=config.optimization.microbatch_tokens)
    with fast_float32(model.loaded.model, paths=recorded_paths(Path(config.output))):  # as in training
        scored = scored_comparisons(decided, compare(score, comparisons_of(decided)))
    metrics = describe(scored, rule) | _by_domain([example.domain for example in decided], scored)
    folder = new_eval_folder(Path(config.output))
    write_text_atomically(folder / HISTOGRAM_FILE, json.dumps(score_histogram(scored)) + "\n")
    return EvalReport(metrics, write_eval_metrics(folder, config, metrics))


def _comparisons(config: RmConfig, model: RewardModel, console: Console) -> tuple[LengthRule | None, PreferenceSet]:
    """The length rule of the training comparisons (None if they can no longer be read), and the held-out ones."""
    tokenizer: Tokenizer = model.loaded.tokenizer
    limit = min(config.max_tokens, model.loaded.context_length)
    if not config.data.eval:
        train, heldout = load_comparisons(config, tokenizer, limit, console, check_fits_loss)
        assert heldout is not None, "checked above"
        return length_rule(train), heldout
    heldout = load_set(config, config.data.eval, tokenizer, limit, console, check_fits_loss)
    try:
        train = load_set(config, config.data.train, tokenizer, limit, Console(quiet=True), check_fits_loss)
    except DataError as error:
        say(console, [f"eval/length_rule_accuracy needs the training data and is not measured: {error.message}"])
        return None, heldout
    return length_rule(train), heldout


def _by_domain(domains: list[str], scored: list[ScoredComparison]) -> dict[str, float]:
    """Accuracy and its interval per domain, if there are several."""
    members: dict[str, list[ScoredComparison]] = defaultdict(list)
    for domain, comparison in zip(domains, scored, strict=True):
        members[domain].append(comparison)
    if len(members) < 2:
        return {}
    row: dict[str, float] = {}
    for domain, own in sorted(members.items()):
        low, high = wilson_interval(accuracy(own), len(own))
        named = {"comparisons": float(len(own)), "accuracy": accuracy(own), "accuracy_low": low, "accuracy_high": high}
        row |= {f"eval/domain/{domain}/{name}": value for name, value in named.items()}
    return row
