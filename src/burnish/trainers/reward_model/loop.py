"""Reward models from comparisons: one optimizer step per batch of whole comparisons, and held-out accuracy."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from torch import Tensor

from burnish.algorithms.comparison_losses import best_lead, best_of, bradley_terry, share_of_first
from burnish.board.pictures import HISTOGRAM_FILE
from burnish.checkpointing.store import Pending
from burnish.config.schema import RmConfig
from burnish.config.schema_data import Sources
from burnish.config.schema_rm import ComparedFields, RmOptimizationConfig
from burnish.data.overlap import find_overlap
from burnish.data.preference_tokens import PreferenceExample
from burnish.data.preferences import PreferenceSet, load_preferences
from burnish.data.samplers import PromptSampler
from burnish.errors import ConfigError, DataError, DivergenceError
from burnish.forward.fast_paths import FastPaths
from burnish.forward.lanes import Lanes
from burnish.forward.matmul_choice import fast_float32
from burnish.models.loading import LoadedModel
from burnish.models.reward_learner import ComparedScores, Comparison, PreferenceLearner, RewardLearner
from burnish.models.reward_model import PromptResponse, Readout, new_reward_model
from burnish.models.roles import Learner, ObjectiveValue
from burnish.observability.atomic import write_text_atomically
from burnish.observability.console import say
from burnish.observability.metrics import MetricStore, Stopwatch, total
from burnish.trainers.outer_loop import OpenedModel, OpenLearner, Training, beginning, check_warmup, trained_on
from burnish.trainers.result import WEIGHTS_FOLDER, RunResult
from burnish.trainers.reward_model.normalization import Measure, check_measured, measured_pairs
from burnish.trainers.reward_model.preference_metrics import LengthRule, ScoredComparison, describe, histogram
from burnish.trainers.sft import opened_with, unheard_end
from burnish.types import Metric, Reduction, Tokenizer

ComparedT = TypeVar("ComparedT", bound=ComparedFields)


@dataclass(frozen=True, slots=True)
class PreferenceLoss:
    """Mean loss over the comparisons of the step; each micro-batch adds its share of it."""

    loss: str = "bradley_terry"
    margins: bool = False
    label_smoothing: float = 0.0
    center_coef: float = 0.0

    def __call__(self, compared: ComparedScores, num_comparisons: int) -> ObjectiveValue:
        per_comparison = self.per_comparison(compared)
        return ObjectiveValue(per_comparison.sum() / num_comparisons, _metrics(compared, per_comparison))

    def per_comparison(self, compared: ComparedScores) -> Tensor:
        """Compute the loss of each comparison, `[B]`."""
        scores, best = compared.scores_BK, compared.best_B
        if self.loss == "best_of":
            return best_of(scores, best, mask_BK=compared.mask_BK)
        chosen, rejected = (scores.gather(1, column[:, None]).squeeze(1) for column in (best, 1 - best))
        return bradley_terry(
            chosen,
            rejected,
            margin=compared.margin_B if self.margins else None,
            tie_B=compared.tie_B,
            center_coef=self.center_coef,
            label_smoothing=self.label_smoothing,
        )


def _metrics(compared: ComparedScores, per_comparison: Tensor) -> dict[str, Metric]:
    scores, best, mask = compared.scores_BK.detach(), compared.best_B, compared.mask_BK
    decided = ~compared.tie_B
    hits = share_of_first(scores, best, mask_BK=mask)
    lead = best_lead(scores, best, mask_BK=mask)
    return {
        "train/loss": Metric(Reduction.MEAN, per_comparison.detach().sum(), len(per_comparison)),
        "train/accuracy": Metric(Reduction.MEAN, hits[decided].sum(), decided.sum()),
        "rm/score_gap": Metric(Reduction.MEAN, lead[decided].sum(), decided.sum()),
        "rm/score_mean": Metric(Reduction.MEAN, scores[mask].sum(), mask.sum()),
    }


@dataclass(slots=True, kw_only=True)
class RmRun(Training):
    """The parts of a reward model's run."""

    config: RmConfig
    learner: PreferenceLearner
    train: tuple[Comparison, ...]
    heldout: tuple[PreferenceExample, ...]
    sampler: PromptSampler
    objective: PreferenceLoss
    length_rule: LengthRule
    measure: Measure | None

    def learners(self) -> dict[str, Learner]:
        return {WEIGHTS_FOLDER: self.learner}

    def before_first_step(self) -> None:
        """Normalise the scores of the untrained head, if the run file asks for it."""
        if self.measure is not None and self.measure.settings.before:
            self.normalise(self.measure)

    def train_step(self) -> dict[str, float]:
        """One optimizer step on whole comparisons."""
        progress, metrics, stopwatch = self.progress, MetricStore(), Stopwatch(self.journal.phase)
        count = self.config.optimization.comparisons_per_batch
        if not self.config.steps:  # it ends after a number of passes
            count = min(count, self.config.optimization.epochs * len(self.train) - progress.position)
        batch = [self.train[index] for index in self.sampler.take(count, progress.position)]
        with stopwatch.phase("update"):
            metrics.merge(self.learner.update(batch, self.objective))
        tokens = sum(len(prompt) + len(response) for comparison in batch for prompt, response in comparison.pairs())
        metrics.merge({"train/tokens": total(tokens), "train/comparisons": total(count)})
        return trained_on(tokens, progress, progress.position + count, metrics, stopwatch)

    def after_last_step(self, pending: Pending) -> bool:
        """Normalise the scores of the trained model, once. Returns whether it has done so now."""
        # A resume after an error passes here again. The weights then already hold the shift, so the flag is saved.
        due = self.measure is not None and self.measure.settings.after and not pending.normalised
        if self.measure is not None and due:
            self.normalise(self.measure)
        pending.normalised = True
        return due

    def normalise(self, measure: Measure) -> None:
        """Shift (and with `gain_bias` scale) the scores as measured on the pairs that the run file names."""
        measured = self.learner.score(measure.pairs())
        self.learner.normalise(measured, scale=measure.settings.kind == "gain_bias", measured_on=measure.name)

    def evaluate(self) -> dict[str, float]:
        """Accuracy with its interval, calibration, and the accuracy of length alone, on the held-out comparisons.
        Writes the histogram of their scores to `score_histogram.json` in the run's folder."""
        if not self.heldout:
            return {}
        scores = self.learner.compare(comparisons_of(self.heldout))
        if not all(math.isfinite(score) for row in scores for score in row):
            raise DivergenceError(
                f"after step {self.progress.step} held-out scores are not finite numbers",
                remedy="lower optimization.learning_rate, or set optimization.max_grad_norm",
            )
        scored = scored_comparisons(self.heldout, scores)
        content = {"step": self.progress.step, **histogram(scored)}
        write_text_atomically(Path(self.config.output) / HISTOGRAM_FILE, json.dumps(content) + "\n")
        return describe(scored, self.length_rule)


def open_reward(
    config: RmConfig, paths: FastPaths, console: Console, lanes: Lanes
) -> AbstractContextManager[OpenedModel[PreferenceLearner]]:
    """The reward model of the run file, in this process."""
    readout = Readout(config.score_at, config.response_length)
    model = new_reward_model(config.model, readout, seed=config.seed, head_init_std=config.head_init_std)
    if config.normalization.trainable:
        model.train_gain_and_bias()
    checkpointing = config.model.gradient_checkpointing
    build = partial(RewardLearner, model, gradient_checkpointing=checkpointing, lanes=lanes)
    return opened_with(build, config, model.loaded, paths, console)


def train_reward_model(config: RmConfig, *, console: Console, accept_changes: bool = False) -> RunResult:
    """Train, and return where the run and its last checkpoint are. Continues from the newest checkpoint.

    `accept_changes`: continue even if files or versions that the run depends on have changed. Raises BurnishError for
    everything that a user can fix.
    """
    from burnish.distributed.handles import RemoteRewardLearner
    from burnish.trainers.cluster import train_on_data  # which no plan needs

    return train_on_data(
        config, open_rm_run, open_reward, RemoteRewardLearner, console=console, accept_changes=accept_changes
    )


def scored_comparisons(
    examples: Sequence[PreferenceExample], scores: Sequence[Sequence[float]]
) -> list[ScoredComparison]:
    """Join examples with the scores of their candidates, for evaluations."""
    return [
        ScoredComparison(tuple(row), tuple(len(tokens) for tokens in e.responses_tokens), e.best, e.margin)
        for e, row in zip(examples, scores, strict=True)
    ]


@contextmanager
def open_rm_run(
    config: RmConfig,
    console: Console,
    *,
    accept_changes: bool = False,
    open_learner: OpenLearner[RmConfig, PreferenceLearner] = open_reward,
) -> Iterator[RmRun]:
    """Open everything that the loop uses."""
    with beginning(config, console, open_learner, accept_changes=accept_changes) as begun:
        config, loaded = begun.config, begun.opened.loaded
        limit = min(config.max_tokens, loaded.context_length)
        train, heldout = load_comparisons(config, loaded.tokenizer, limit, console, check_fits_loss)
        if config.append_eos:
            say(console, unheard_end(train.last_tokens(), loaded))
        say(console, find_overlap(train.asked(), () if heldout is None else heldout.asked()).lines())
        check_measured(config, loaded.tokenizer, loaded.context_length, train)
        total_steps = planned_steps(config.steps, config.optimization, len(train))
        run = RmRun(
            config=config,
            learner=begun.opened.learner(total_steps),
            train=comparisons_of(train.examples),
            heldout=evaluated_comparisons(config, heldout),
            sampler=train.sampler(seed=config.seed, shuffle=config.data.shuffle),
            objective=PreferenceLoss(config.loss, config.margins, config.label_smoothing, config.center_coef),
            length_rule=length_rule(train),
            measure=_measure(config, loaded, begun.paths, train, console),
            total_steps=total_steps,
            journal=begun.journal(total_steps),
            store=begun.workplace.store,
        )
        yield begun.restored(run)


def planned_steps(steps: int | None, optimization: RmOptimizationConfig, comparisons: int) -> int:
    """The `steps` of the run file, or of its passes over this many comparisons. Raises like `check_warmup`."""
    total = steps or -(-optimization.epochs * comparisons // optimization.comparisons_per_batch)
    check_warmup(optimization.warmup_steps, total)
    return total


def load_comparisons(
    config: ComparedT,
    tokenizer: Tokenizer,
    max_tokens: int,
    console: Console,
    check: Callable[[ComparedT, PreferenceSet], None],
) -> tuple[PreferenceSet, PreferenceSet | None]:
    """Load training and held-out comparisons: two data sets, or one split by conversation. `check`: raises DataError
    or ConfigError for rows that the run's loss cannot use."""
    if not config.data.train:
        raise ConfigError("data.train is empty", remedy="name at least one data set in data.train")
    train = load_set(config, config.data.train, tokenizer, max_tokens, console, check)
    if config.data.eval:
        return train, load_set(config, config.data.eval, tokenizer, max_tokens, console, check)
    if config.held_out_fraction == 0:
        return train, None
    train, heldout = train.split(config.held_out_fraction, seed=config.seed)
    console.print(
        f"split by conversation: {len(train):,} comparisons to train on, {len(heldout):,} held out", highlight=False
    )
    return train, heldout


def load_set(
    config: ComparedT,
    sources: Sources,
    tokenizer: Tokenizer,
    max_tokens: int,
    console: Console,
    check: Callable[[ComparedT, PreferenceSet], None],
) -> PreferenceSet:
    """Load the comparisons of some sources as the run file says. DataError or ConfigError if one does not fit."""
    found = load_preferences(sources, config, tokenizer=tokenizer, max_tokens=max_tokens)
    say(console, found.lines())
    check(config, found)
    return found


def check_fits_loss(config: RmConfig, found: PreferenceSet) -> None:
    """Raise DataError or ConfigError for a row that the loss of a reward model cannot use."""
    for example in found.examples:
        count, longest = len(example.responses_tokens), max(map(len, example.responses_tokens))
        if config.response_length is not None and longest > config.response_length:
            raise DataError(
                f"{example.where}: a response has {longest} tokens, but scores are read at {config.response_length}",
                remedy="raise response_length, or use score_at: last",
            )
        if example.good is not None or example.weight != 1:
            what = "rates a single response" if example.good is not None else f"has the weight {example.weight:g}"
            raise DataError(
                f"{example.where}: the row {what}, which `burnish rm` does not take",
                remedy="train on such rows with `burnish prefer`, or remove the column",
            )
        if config.loss == "bradley_terry" and count != 2:
            raise ConfigError(
                f"{example.where}: {count} candidates, but the loss bradley_terry compares two",
                remedy="set loss: best_of",
            )
        if config.margins and example.margin is None and not example.tie:
            raise DataError(
                f"{example.where}: the comparison has no margin, but margins is true",
                remedy="fill the margin in (columns: {margin: ...} names its column), or set margins: false",
            )


def comparisons_of(examples: tuple[PreferenceExample, ...]) -> tuple[Comparison, ...]:
    """Convert examples to the learner's form."""
    return tuple(Comparison(e.prompt_tokens, e.responses_tokens, e.best, e.margin, e.tie) for e in examples)


def evaluated_comparisons(config: ComparedFields, heldout: PreferenceSet | None) -> tuple[PreferenceExample, ...]:
    """Held-out comparisons that are not ties, at most `evaluation.max_prompts`, drawn from all data sets by weight."""
    if heldout is None:
        return ()
    most, examples = config.evaluation.max_prompts, heldout.examples
    decided = [index for index, example in enumerate(examples) if not example.tie]
    if most is not None and most < len(decided):
        drawn = heldout.sampler(seed=config.seed).take(len(examples), 0)
        order = dict.fromkeys([*drawn, *decided])  # a small data set of great weight may be drawn again and again
        decided = sorted([index for index in order if not examples[index].tie][:most])
    return tuple(examples[index] for index in decided)


def length_rule(train: PreferenceSet) -> LengthRule:
    """Learn whether longer or shorter responses are better in the training comparisons."""
    return LengthRule.learned(
        [([len(response) for response in e.responses_tokens], e.best) for e in train.examples if not e.tie]
    )


def _measure(
    config: RmConfig, loaded: LoadedModel, paths: FastPaths, train: PreferenceSet, console: Console
) -> Measure | None:
    if config.normalization.kind == "none":
        return None

    def pairs() -> list[PromptResponse]:
        # A policy samples in this process even if trainers hold the model, so it uses the same float32 products.
        with fast_float32(loaded.model, paths=paths):
            return measured_pairs(config, loaded, train, console)

    return Measure(config.normalization, cache(pairs))
