"""Training and evaluation of the kind of run in `counting_kind`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from counting_kind import CountingConfig, rows_of

from burnish.data.sft import SftExample
from burnish.distributed.handles import RemotePolicy
from burnish.forward.scoring import ResponseScorer
from burnish.models.loading import load_model
from burnish.models.roles import Policy
from burnish.observability.metrics import MetricStore
from burnish.trainers.chaining import measured
from burnish.trainers.cluster import train_on_data
from burnish.trainers.outer_loop import Training, beginning
from burnish.trainers.result import EvalReport, new_eval_folder, write_eval_metrics
from burnish.trainers.rl.objective import LikelihoodObjective
from burnish.trainers.sft import build_sft_batch, held_out_loss, open_policy


@dataclass(slots=True, kw_only=True)
class CountingRun(Training):
    config: CountingConfig
    policy: Policy
    train: list[SftExample]
    heldout: list[SftExample]

    def learners(self) -> dict[str, Policy]:
        return {"policy": self.policy}

    def train_step(self) -> dict[str, float]:
        after = self.progress.position + self.config.rows_per_step
        rows = [self.train[n % len(self.train)] for n in range(self.progress.position, after)]
        metrics = MetricStore()
        metrics.merge(self.policy.update(build_sft_batch(rows, pad_token_id=0), LikelihoodObjective()).metrics)
        self.progress.advance(after, metrics.row())
        return metrics.row()

    def evaluate(self) -> dict[str, float]:
        return held_out_loss(self.policy.logprobs, self.heldout, pad_token_id=0)


@contextmanager
def open_counting(config: CountingConfig, console: Any, **how: Any) -> Iterator[CountingRun]:
    with beginning(config, console, how["open_learner"], accept_changes=how["accept_changes"]) as begun:
        train, heldout = (examples_of(config, begun.opened.loaded.tokenizer, split) for split in ("train", "eval"))
        run = CountingRun(
            config=begun.config,
            policy=begun.opened.learner(config.steps),
            train=train,
            heldout=heldout,
            journal=begun.journal(config.steps),
            store=begun.workplace.store,
            total_steps=config.steps,
        )
        yield begun.restored(run)


def examples_of(config: CountingConfig, tokenizer: Any, split: str) -> list[SftExample]:
    rows = [tuple(tokenizer.convert_tokens_to_ids([*map(str, row)])) for row in rows_of(config, split)]
    return [SftExample(str(n), row, (False, *[True] * (len(row) - 1))) for n, row in enumerate(rows)]


def train_counting(config: CountingConfig, **how: Any) -> Any:
    return train_on_data(config, open_counting, open_policy, RemotePolicy, **how)


def evaluate_counting(config: CountingConfig, *, console: Any, weights: Path | None = None) -> EvalReport:
    config = measured(config, weights, console)
    loaded = load_model(config.model, seed=config.seed)
    score = partial(ResponseScorer(loaded.model).score_in_microbatches, tokens_per_microbatch=2048)
    metrics = held_out_loss(score, examples_of(config, loaded.tokenizer, "eval"), pad_token_id=0)
    return EvalReport(metrics, write_eval_metrics(new_eval_folder(Path(config.output)), config, metrics))
