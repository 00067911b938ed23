"""Training and evaluation of the kind of run in `counting_kind`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from counting_kind import CountingConfig, rows_of
from rich.console import Console

from burnish.data.samplers import PromptSampler
from burnish.data.sft import SftExample
from burnish.distributed.handles import RemotePolicy
from burnish.forward.scoring import ResponseScorer
from burnish.models.loading import load_model
from burnish.models.roles import Policy
from burnish.observability.metrics import MetricStore
from burnish.trainers.chaining import measured
from burnish.trainers.learning_cluster import train_on_data
from burnish.trainers.outer_loop import OpenLearner, Training, beginning
from burnish.trainers.result import WEIGHTS_FOLDER, EvalReport, RunResult, new_eval_folder, write_eval_metrics
from burnish.trainers.rl.objective import LikelihoodObjective
from burnish.trainers.sft import build_sft_batch, held_out_loss, open_policy


def examples_of(config: CountingConfig, tokenizer: Any, split: str) -> list[SftExample]:
    rows = [tuple(tokenizer.convert_tokens_to_ids([*map(str, row)])) for row in rows_of(config, split)]
    return [SftExample(str(n), row, (False, *[True] * (len(row) - 1))) for n, row in enumerate(rows)]


@dataclass(slots=True, kw_only=True)
class CountingRun(Training):
    config: CountingConfig
    policy: Policy
    train: list[SftExample]
    heldout: list[SftExample]
    pad: int

    @property
    def settings(self) -> CountingConfig:
        return self.config

    def learners(self) -> dict[str, Policy]:
        return {WEIGHTS_FOLDER: self.policy}

    def train_step(self) -> dict[str, float]:
        metrics, position, count = MetricStore(), self.progress.position, self.config.rows_per_step
        drawn = PromptSampler([len(self.train)], seed=self.config.seed).take(count, position)
        batch = build_sft_batch([self.train[index] for index in drawn], pad_token_id=self.pad)
        metrics.merge(self.policy.update(batch, LikelihoodObjective()).metrics)
        self.progress.advance(position + count, metrics.row())
        return metrics.row()

    def evaluate(self) -> dict[str, float]:
        return held_out_loss(partial(self.policy.logprobs, correct=True), self.heldout, pad_token_id=self.pad)


@contextmanager
def open_counting(
    config: CountingConfig, console: Console, *, accept_changes: bool, open_learner: OpenLearner[CountingConfig, Policy]
) -> Iterator[CountingRun]:
    with beginning(config, console, open_learner, accept_changes=accept_changes) as begun:
        train, heldout = (examples_of(config, begun.opened.loaded.tokenizer, split) for split in ("train", "eval"))
        yield begun.restored(
            CountingRun(
                config=begun.config,
                policy=begun.opened.learner(config.steps),
                train=train,
                heldout=heldout,
                pad=begun.opened.loaded.pad_token_id,
                journal=begun.journal(config.steps),
                store=begun.workplace.store,
                total_steps=config.steps,
            )
        )


def train_counting(config: CountingConfig, *, console: Console, accept_changes: bool = False) -> RunResult:
    return train_on_data(
        config, open_counting, open_policy, RemotePolicy, console=console, accept_changes=accept_changes
    )


def evaluate_counting(config: CountingConfig, *, console: Console, weights: Path | None = None) -> EvalReport:
    config = measured(config, weights, console)
    loaded = load_model(config.model, seed=config.seed)
    score = partial(ResponseScorer(loaded.model).score_in_microbatches, tokens_per_microbatch=2048, correct=True)
    metrics = held_out_loss(score, examples_of(config, loaded.tokenizer, "eval"), pad_token_id=loaded.pad_token_id)
    return EvalReport(metrics, write_eval_metrics(new_eval_folder(Path(config.output)), config, metrics))
