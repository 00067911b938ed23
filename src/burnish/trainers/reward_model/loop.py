"""Reward models from comparisons: one optimizer step a batch of whole comparisons, held-out accuracy beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from burnish.checkpointing.encoding import read_state, restoring, write_state
from burnish.checkpointing.pending import Pending, read_pending, write_pending
from burnish.checkpointing.store import Checkpoint, CheckpointStore
from burnish.config.schema import RmConfig
from burnish.config.schema_data import Sources
from burnish.data.overlap import find_overlap
from burnish.data.preference_tokens import PreferenceExample
from burnish.data.preferences import PreferenceSet, load_preferences
from burnish.data.samplers import PromptSampler
from burnish.data.template import ChatFormat
from burnish.errors import ConfigError, DataError
from burnish.forward.allocator import keep_freed_memory
from burnish.forward.float32 import fast_float32
from burnish.models.loading import LoadedModel
from burnish.models.optimizers import OptimizerSettings
from burnish.models.reward_layout import Readout
from burnish.models.reward_learner import Comparison, RewardLearner
from burnish.models.reward_model import new_reward_model
from burnish.observability.atomic import write_text_atomically
from burnish.observability.console import say
from burnish.observability.metrics import MetricStore
from burnish.report.report import HISTOGRAM_FILE
from burnish.trainers.chaining import pinned
from burnish.trainers.interrupt import StopRequest, graceful_stop
from burnish.trainers.journal import Journal
from burnish.trainers.orderly import Finished, naming_memory_errors, saving_finished_steps
from burnish.trainers.path_record import record_paths, recorded_paths
from burnish.trainers.result import WEIGHTS_FOLDER, RunResult
from burnish.trainers.reward_model.normalization import Measure, measured_pairs
from burnish.trainers.reward_model.preference_metrics import LengthRule, ScoredComparison, describe, histogram
from burnish.trainers.reward_model.preference_objective import PreferenceLoss
from burnish.trainers.rl.setup import STATE_NAME, open_journal
from burnish.trainers.stopwatch import Stopwatch
from burnish.trainers.workplace import open_workplace
from burnish.types import Metric, Reduction

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(slots=True)
class RmRun:
    """The parts of a reward model's run."""

    config: RmConfig
    learner: RewardLearner
    train: tuple[Comparison, ...]
    heldout: tuple[PreferenceExample, ...]
    sampler: PromptSampler
    objective: PreferenceLoss
    length_rule: LengthRule
    measure: Measure | None
    total_steps: int
    last_position: int | None
    """Draws after which the run ends (a number of passes); None when it ends after a number of steps."""
    journal: Journal
    store: CheckpointStore
    step: int = 0
    position: int = 0
    """Comparisons drawn so far."""
    saved_step: int | None = None
    """Step of the newest checkpoint; None before the first."""
    pending: Pending | None = None
    """What is still to be done about the step: it has its weights, but no evaluation and no line of metrics yet."""
    version: int = 0
    """Optimizer steps that the weights of `step` have seen."""


def train_reward_model(config: RmConfig, *, console: Console, accept_changes: bool = False) -> RunResult:
    """Train and return where the run and its last checkpoint lie; goes on from the newest checkpoint.

    `accept_changes`: go on although files or versions that the run depends on have changed.
    Raises BurnishError for everything that a user can put right.
    """
    with (
        naming_memory_errors(),
        graceful_stop(lambda text: console.print(f"[yellow]{text}[/]")) as stop,
        open_rm_run(config, console, accept_changes=accept_changes) as run,
    ):
        run_rm_loop(run, stop)
        return RunResult.of(Path(config.output), run.step, stopped=run.step < run.total_steps)


def run_rm_loop(run: RmRun, stop: StopRequest) -> None:
    """Normalise, train to the last step or until asked to stop, normalise again; always leaves a checkpoint."""
    with saving_finished_steps(partial(finished_rm, run), run.journal.display.note):
        _run_steps(run, stop)


def _run_steps(run: RmRun, stop: StopRequest) -> None:
    # A run stopped before its first step has a checkpoint of step 0, and what comes before the first step is done.
    if run.saved_step is None:
        _normalise(run, before=True)
        if run.config.evaluation.begins and run.heldout:
            run.journal.write(0, evaluate_rm(run))
    close_rm_step(run)  # where an error stopped the run after its last update
    while run.step < run.total_steps and not stop:
        rm_step(run)
        close_rm_step(run)
    if run.saved_step != run.step:
        save_rm(run)


def close_rm_step(run: RmRun) -> None:
    """What follows an optimizer step: after the last one the normalisation; evaluation, metrics, a checkpoint."""
    pending = run.pending
    if pending is None:
        return
    config, row, last = run.config, pending.row, run.step == run.total_steps
    if last and not pending.normalised:
        _normalise(run, before=False)
        pending.normalised = True
    if config.evaluation.due(run.step, last=last):
        row = row | evaluate_rm(run)
    run.journal.write(run.step, row)
    run.pending = None
    if config.checkpoint.due(run.step, last=last) or run.journal.lacks_checkpoint(run.saved_step):
        save_rm(run)


def finished_rm(run: RmRun) -> Finished:
    """How far the run has come, as it can be saved when something ends the loop."""
    moved = run.learner.version != run.version
    return Finished(run.step, run.saved_step, moved, run.pending, partial(save_rm, run))


def rm_step(run: RmRun) -> dict[str, float]:
    """One optimizer step on whole comparisons."""
    stopwatch, metrics = Stopwatch(run.journal.display.phase), MetricStore()
    count = run.config.optimization.comparisons_per_batch
    if run.last_position is not None:
        count = min(count, run.last_position - run.position)
    batch = [run.train[index] for index in run.sampler.take(count, run.position)]
    run.version = run.learner.version
    with stopwatch.phase("update"):
        metrics.merge(run.learner.update(batch, run.objective))
    run.step, run.position, run.version = run.step + 1, run.position + count, run.learner.version
    tokens = sum(len(prompt) + len(response) for comparison in batch for prompt, response in comparison.pairs())
    metrics.add("train/tokens", Metric(Reduction.SUM, tokens))
    metrics.add("train/comparisons", Metric(Reduction.SUM, count))
    metrics.merge(stopwatch.metrics())
    row = metrics.row()
    row["throughput/tokens_per_second"] = tokens / max(stopwatch.seconds("update"), 1e-9)
    run.pending = Pending(row)
    return row


def evaluate_rm(run: RmRun) -> dict[str, float]:
    """Accuracy with its interval, calibration, and what length alone explains, on the held-out comparisons; the
    histogram of their scores goes to `score_histogram.json` in the run's folder."""
    if not run.heldout:
        return {}
    stopwatch = Stopwatch()
    with stopwatch.phase("evaluate"):
        scores = run.learner.compare([_comparison(example) for example in run.heldout])
    scored = scored_comparisons(run.heldout, scores)
    content = {"step": run.step, **histogram(scored)}
    write_text_atomically(Path(run.config.output) / HISTOGRAM_FILE, json.dumps(content) + "\n")
    return describe(scored, run.length_rule) | {"time/evaluate_seconds": stopwatch.seconds("evaluate")}


def scored_comparisons(
    examples: Sequence[PreferenceExample], scores: Sequence[Sequence[float]]
) -> list[ScoredComparison]:
    """Examples with the scores of their candidates, as evaluations are worked out from them."""
    return [
        ScoredComparison(tuple(row), tuple(len(tokens) for tokens in e.responses_tokens), e.best, e.margin)
        for e, row in zip(examples, scores, strict=True)
    ]


@contextmanager
def open_rm_run(config: RmConfig, console: Console, *, accept_changes: bool = False) -> Iterator[RmRun]:
    """Everything that the loop talks to."""
    config, chained = pinned(config)
    say(console, chained)
    with ExitStack() as stack:
        workplace = stack.enter_context(open_workplace(config, console, accept_changes=accept_changes))
        model = new_reward_model(
            config.model,
            Readout(config.score_at, config.response_length),
            seed=config.seed,
            head_init_std=config.head_init_std,
        )
        if config.normalization.trainable:
            model.train_gain_and_bias()
        loaded = model.loaded
        keep_freed_memory(loaded.model.device.type)
        paths = recorded_paths(workplace.path)
        stack.enter_context(fast_float32(loaded.model, paths=paths))
        say(console, (*loaded.notes, *paths.lines()))
        limit = min(config.max_tokens, loaded.context_length)
        train, heldout = load_comparisons(config, loaded.tokenizer, limit, console)
        say(console, find_overlap(train.asked(), () if heldout is None else heldout.asked()).lines())
        size, epochs = config.optimization.comparisons_per_batch, config.optimization.epochs
        total_steps = config.steps or -(-epochs * len(train) // size)
        learner = RewardLearner(
            model,
            OptimizerSettings.from_config(config.optimization, total_steps=total_steps),
            tokens_per_microbatch=config.optimization.tokens_per_microbatch,
            gradient_checkpointing=config.model.gradient_checkpointing,
        )
        run = RmRun(
            config=config,
            learner=learner,
            train=comparisons_of(train.examples),
            heldout=evaluated_comparisons(config, heldout),
            sampler=train.sampler(seed=config.seed, shuffle=config.data.shuffle),
            objective=PreferenceLoss.from_config(config),
            length_rule=length_rule(train),
            measure=_measure(config, loaded, train, console),
            total_steps=total_steps,
            last_position=None if config.steps else epochs * len(train),
            journal=stack.enter_context(open_journal(config, workplace, loaded, console, total_steps=total_steps)),
            store=workplace.store,
        )
        record_paths(workplace.path, paths)
        if workplace.checkpoint is not None:
            restore_rm(run, workplace.checkpoint)
        yield run


def load_comparisons(
    config: RmConfig, tokenizer: PreTrainedTokenizerBase, max_tokens: int, console: Console
) -> tuple[PreferenceSet, PreferenceSet | None]:
    """Training and held-out comparisons: two data sets, or one split by conversation."""
    if not config.data.train:
        raise ConfigError("data.train is empty", remedy="name at least one data set in data.train")
    train = load_set(config, config.data.train, tokenizer, max_tokens, console)
    if config.data.eval:
        return train, load_set(config, config.data.eval, tokenizer, max_tokens, console)
    if config.held_out_fraction == 0:
        return train, None
    train, heldout = train.split(config.held_out_fraction, seed=config.seed)
    console.print(
        f"split by conversation: {len(train):,} comparisons to train on, {len(heldout):,} held out", highlight=False
    )
    return train, heldout


def load_set(
    config: RmConfig, sources: Sources, tokenizer: PreTrainedTokenizerBase, max_tokens: int, console: Console
) -> PreferenceSet:
    """The comparisons of some sources, read as the run file says. DataError or ConfigError for any that do not fit."""
    found = load_preferences(
        sources,
        tokenizer=tokenizer,
        max_tokens=max_tokens,
        over_long=config.data.over_long,
        chat=ChatFormat.of(config.data),
        candidates=config.candidates,
        ties=config.ties,
        bad_rows=config.bad_rows,
        append_eos=config.append_eos,
        label_pad_token_id=config.label_pad_token_id,
    )
    say(console, found.lines())
    _check_fits_loss(config, found)
    return found


def _check_fits_loss(config: RmConfig, found: PreferenceSet) -> None:
    for example in found.examples:
        count = len(example.responses_tokens)
        if config.loss == "bradley_terry" and count != 2:
            raise ConfigError(
                f"comparison {example.id} has {count} candidates, but the loss bradley_terry compares two",
                remedy="set loss: best_of",
            )
        if config.margins and example.margin is None and not example.tie:
            raise DataError(
                f"comparison {example.id} has no margin, but margins is true",
                remedy="add a margin column (columns: {margin: ...}), or set margins: false",
            )


def comparisons_of(examples: tuple[PreferenceExample, ...]) -> tuple[Comparison, ...]:
    """Examples as the model takes them."""
    return tuple(_comparison(example) for example in examples)


def _comparison(e: PreferenceExample) -> Comparison:
    return Comparison(e.prompt_tokens, e.responses_tokens, e.best, e.margin, e.tie)


def evaluated_comparisons(config: RmConfig, heldout: PreferenceSet | None) -> tuple[PreferenceExample, ...]:
    """Held-out comparisons that have a best one, at most `evaluation.max_prompts`."""
    if heldout is None:
        return ()
    decided = tuple(example for example in heldout.examples if not example.tie)
    return decided[: config.evaluation.max_prompts]


def length_rule(train: PreferenceSet) -> LengthRule:
    """Whether the longer or the shorter responses are the better ones in the training comparisons."""
    return LengthRule.learned(
        [([len(response) for response in e.responses_tokens], e.best) for e in train.examples if not e.tie]
    )


def _measure(config: RmConfig, loaded: LoadedModel, train: PreferenceSet, console: Console) -> Measure | None:
    if config.normalization.kind == "none":
        return None
    return Measure(config.normalization, cache(lambda: measured_pairs(config, loaded, train, console)))


def _normalise(run: RmRun, *, before: bool) -> None:
    measure = run.measure
    if measure is None or not (measure.settings.before if before else measure.settings.after):
        return
    measured = run.learner.score(measure.pairs())
    run.learner.normalise(measured, scale=measure.settings.kind == "gain_bias", measured_on=measure.name)


def save_rm(run: RmRun) -> None:
    """Weights with their normalisation, optimizer and step."""

    def write(folder: Path) -> None:
        run.learner.model.save(folder / WEIGHTS_FOLDER)
        state = {
            "step": run.step,
            "position": run.position,
            "alarms": run.journal.alarms.state(),
            "learner": run.learner.training_state(),
        }
        write_state(folder, STATE_NAME, state)
        write_pending(folder, run.pending)

    run.journal.check_place()
    run.store.save(run.step, write)
    run.saved_step = run.step


def restore_rm(run: RmRun, checkpoint: Checkpoint) -> None:
    """Put a fresh run where the checkpoint left off."""
    with restoring(checkpoint.folder):
        state = read_state(checkpoint.folder, STATE_NAME)
        run.learner.load_weights(checkpoint.folder / WEIGHTS_FOLDER)
        run.learner.load_training_state(state["learner"])
        run.journal.alarms.load_state(state["alarms"])
        run.step, run.position = state["step"], state["position"]
        run.saved_step = run.step
        run.version, run.pending = run.learner.version, read_pending(checkpoint.folder)
