"""Supervised fine-tuning: whole examples in token-budget batches, one optimizer step a batch, held-out loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.console import Console

from burnish.checkpointing.encoding import read_state, restoring, write_state
from burnish.checkpointing.pending import Pending, read_pending, write_pending
from burnish.checkpointing.store import Checkpoint, CheckpointStore
from burnish.config.schema import SftConfig
from burnish.data.batching import next_batch
from burnish.data.overlap import find_overlap
from burnish.data.samplers import PromptSampler
from burnish.data.sft import SftExample, SftSet, load_sft_examples
from burnish.data.template import ChatFormat
from burnish.errors import ConfigError
from burnish.forward.allocator import keep_freed_memory
from burnish.forward.batch import Batch
from burnish.forward.float32 import fast_float32
from burnish.forward.token_scores import TokenScores
from burnish.models.loading import load_model
from burnish.models.optimizers import OptimizerSettings
from burnish.models.policy import LocalPolicy
from burnish.observability.console import say
from burnish.observability.metrics import MetricStore, mean
from burnish.trainers.chaining import pinned
from burnish.trainers.divergence import keeping_batch
from burnish.trainers.interrupt import StopRequest, graceful_stop
from burnish.trainers.journal import Journal
from burnish.trainers.orderly import Finished, naming_memory_errors, saving_finished_steps
from burnish.trainers.path_record import record_paths, recorded_paths
from burnish.trainers.result import WEIGHTS_FOLDER, RunResult
from burnish.trainers.rl.objective import LikelihoodObjective
from burnish.trainers.rl.setup import STATE_NAME, open_journal
from burnish.trainers.stopwatch import Stopwatch
from burnish.trainers.workplace import open_workplace
from burnish.types import Metric, Reduction

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

EVALUATION_ROWS = 64
"""Examples scored at once when the loss on held-out ones is measured."""
LARGEST_EXPONENT = 700.0
"""Above it the perplexity has no float."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Which examples each optimizer step trains on: a pure function of the examples drawn before it."""

    lengths: Sequence[int]
    tokens_per_batch: int
    sampler: PromptSampler

    def batch_at(self, position: int, end: int | None = None) -> tuple[list[int], int]:
        """Examples of the step that begins after `position` draws, and the position after it; no draw passes `end`."""
        examples, after = next_batch(self.lengths, self.tokens_per_batch, self.sampler, position)
        return (examples, after) if end is None else (examples[: end - position], min(after, end))

    def count(self, epochs: int) -> int:
        """Optimizer steps of that many passes over the data."""
        position, steps, end = 0, 0, epochs * len(self.sampler)
        while position < end:
            _, position = self.batch_at(position, end)
            steps += 1
        return steps


@dataclass(slots=True)
class SftRun:
    """The parts of a supervised run."""

    config: SftConfig
    policy: LocalPolicy
    train: SftSet
    heldout: SftSet | None
    schedule: Schedule
    total_steps: int
    pad_token_id: int
    journal: Journal
    store: CheckpointStore
    last_position: int | None
    """Draws after which the run ends (a number of passes); None when it ends after a number of steps."""
    step: int = 0
    position: int = 0
    """Examples drawn so far."""
    saved_step: int | None = None
    """Step of the newest checkpoint; None before the first."""
    pending: Pending | None = None
    """What is still to be done about the step: it has its weights, but no held-out loss and no line of metrics yet."""
    version: int = 0
    """Optimizer steps that the weights of `step` have seen."""
    objective: LikelihoodObjective = field(default_factory=LikelihoodObjective)


def train_sft(config: SftConfig, *, console: Console, accept_changes: bool = False) -> RunResult:
    """Fine-tune and return where the run and its last checkpoint lie. `accept_changes`: go on although files or
    versions that the run depends on have changed."""
    with (
        naming_memory_errors(),
        graceful_stop(lambda text: console.print(f"[yellow]{text}[/]")) as stop,
        open_sft_run(config, console, accept_changes=accept_changes) as run,
    ):
        run_sft_loop(run, stop)
        return RunResult.of(Path(config.output), run.step, stopped=run.step < run.total_steps)


def run_sft_loop(run: SftRun, stop: StopRequest) -> None:
    """Train to the last step, or until asked to stop; always leaves a checkpoint."""
    with saving_finished_steps(partial(finished_sft, run), run.journal.display.note):
        _run_steps(run, stop)


def _run_steps(run: SftRun, stop: StopRequest) -> None:
    # A run stopped before its first step has a checkpoint of step 0, and its evaluation is written.
    if run.saved_step is None and run.config.evaluation.begins and run.heldout is not None:
        run.journal.write(0, evaluate_sft(run))
    if run.pending is not None:  # an error stopped the run after its last update
        close_sft_step(run, run.pending.row)
    while run.step < run.total_steps and not stop:
        close_sft_step(run, sft_step(run))
    if run.saved_step != run.step:
        save_sft(run)


def close_sft_step(run: SftRun, row: dict[str, float]) -> None:
    """What follows an optimizer step: held-out loss, the line of metrics, a checkpoint."""
    config, last = run.config, run.step == run.total_steps
    if config.evaluation.due(run.step, last=last):
        row = row | evaluate_sft(run)
    run.journal.write(run.step, row)
    run.pending = None
    if config.checkpoint.due(run.step, last=last) or run.journal.lacks_checkpoint(run.saved_step):
        save_sft(run)


def finished_sft(run: SftRun) -> Finished:
    """How far the run has come, as it can be saved when something ends the loop."""
    moved = run.policy.version != run.version
    return Finished(run.step, run.saved_step, moved, run.pending, partial(save_sft, run))


def sft_step(run: SftRun) -> dict[str, float]:
    """One optimizer step on whole examples."""
    stopwatch, metrics = Stopwatch(run.journal.display.phase), MetricStore()
    run.version = run.policy.version
    examples, position = run.schedule.batch_at(run.position, run.last_position)
    batch = build_sft_batch([run.train.examples[i] for i in examples], pad_token_id=run.pad_token_id)
    with stopwatch.phase("update"), keeping_batch(Path(run.config.output), run.step + 1, batch):
        metrics.merge(run.policy.update(batch, run.objective).metrics)
    run.step, run.position, run.version = run.step + 1, position, run.policy.version
    tokens = int(batch.prompt_lengths.sum() + batch.response_lengths.sum())
    metrics.add("train/tokens", Metric(Reduction.SUM, tokens))
    metrics.add("train/examples", Metric(Reduction.SUM, len(batch)))
    metrics.merge(stopwatch.metrics())
    row = metrics.row()
    row["throughput/tokens_per_second"] = tokens / max(stopwatch.seconds("update"), 1e-9)
    run.pending = Pending(row)
    return row


def evaluate_sft(run: SftRun) -> dict[str, float]:
    """What `held_out_loss` says of the policy as it is now, and how long it took."""
    if run.heldout is None:
        return {}
    stopwatch = Stopwatch()
    examples = heldout_examples(run.heldout, run.config.evaluation.max_prompts, seed=run.config.seed)
    with stopwatch.phase("evaluate"):
        row = held_out_loss(partial(run.policy.logprobs, correct=True), examples, pad_token_id=run.pad_token_id)
    return row | {"time/evaluate_seconds": stopwatch.seconds("evaluate")}


def held_out_loss(
    score: Callable[[Batch], TokenScores], examples: Sequence[SftExample], *, pad_token_id: int
) -> dict[str, float]:
    """Loss in nats per trained token, its exponential (perplexity), and the share of those tokens that the model finds
    likeliest; by domain as well where there are several.

    `score` gives the log-probabilities of a batch's response tokens, and which of them are the likeliest.
    """
    metrics = MetricStore()
    domains = {example.domain for example in examples}
    for start in range(0, len(examples), EVALUATION_ROWS):
        part = examples[start : start + EVALUATION_ROWS]
        batch = build_sft_batch(part, pad_token_id=pad_token_id)
        scores = score(batch)
        loss_B = -scores.logprobs_BT.cpu().double().where(batch.loss_mask, 0.0).sum(dim=1)
        right_B = None if scores.correct_BT is None else (scores.correct_BT.cpu() & batch.loss_mask).sum(dim=1)
        for row, (example, count) in enumerate(zip(part, batch.loss_mask.sum(dim=1).tolist(), strict=True)):
            for prefix in ("eval", *([f"eval/domain/{example.domain}"] if len(domains) > 1 else [])):
                metrics.add(f"{prefix}/loss", mean(loss_B[row], count))
                if right_B is not None:
                    metrics.add(f"{prefix}/token_accuracy", mean(right_B[row], count))
    row_of = metrics.row()
    return row_of | {
        f"{name.removesuffix('loss')}perplexity": math.exp(loss)
        for name, loss in row_of.items()
        if name.endswith("/loss") and loss < LARGEST_EXPONENT
    }


def heldout_examples(heldout: SftSet, limit: int | None, *, seed: int) -> list[SftExample]:
    """The same examples at every evaluation: all of them, or `limit` drawn from all sources by weight."""
    if limit is None or limit >= len(heldout):
        return list(heldout.examples)
    return [heldout.examples[i] for i in sorted(set(heldout.sampler(seed=seed).take(limit, 0)))]


def build_sft_batch(examples: Sequence[SftExample], *, pad_token_id: int) -> Batch:
    """Examples as rows: what stands before the first trained token is the prompt, the rest up to the last one the
    response, in which the loss mask picks the trained tokens."""
    spans = [_trained_span(example) for example in examples]
    prompts = [example.tokens[:first] for example, (first, _) in zip(examples, spans, strict=True)]
    responses = [example.tokens[first:end] for example, (first, end) in zip(examples, spans, strict=True)]
    masks = [example.loss_mask[first:end] for example, (first, end) in zip(examples, spans, strict=True)]
    return Batch(
        prompt_tokens=_padded(prompts, pad_token_id),
        prompt_lengths=torch.tensor([len(row) for row in prompts]),
        response_tokens=_padded(responses, pad_token_id),
        response_lengths=torch.tensor([len(row) for row in responses]),
        loss_mask=_padded(masks, 0).bool(),
        group_ids=torch.arange(len(examples)),
    )


@contextmanager
def open_sft_run(config: SftConfig, console: Console, *, accept_changes: bool = False) -> Iterator[SftRun]:
    """Everything that the loop talks to."""
    config, chained = pinned(config)
    say(console, chained)
    with ExitStack() as stack:
        workplace = stack.enter_context(open_workplace(config, console, accept_changes=accept_changes))
        paths = recorded_paths(workplace.path)
        loaded = load_model(config.model, seed=config.seed, plain=config.debug.plain, paths=paths)
        keep_freed_memory(loaded.model.device.type)
        stack.enter_context(fast_float32(loaded.model, plain=config.debug.plain, paths=paths))
        say(console, (*loaded.notes, *paths.lines()))
        train = load_examples(config, loaded.tokenizer, loaded.context_length, "train")
        say(console, train.lines())
        heldout = None
        if config.data.eval and config.evaluation.happens:
            heldout = load_examples(config, loaded.tokenizer, loaded.context_length, "eval")
            say(console, heldout.lines())
        say(console, find_overlap(train.asked(), () if heldout is None else heldout.asked()).lines())
        schedule = Schedule(
            train.lengths(),
            config.optimization.tokens_per_batch,
            train.sampler(seed=config.seed, shuffle=config.data.shuffle),
        )
        total_steps = config.steps or schedule.count(config.optimization.epochs)
        settings = OptimizerSettings.from_config(config.optimization, total_steps=total_steps)
        policy = LocalPolicy(
            loaded,
            settings,
            tokens_per_microbatch=config.optimization.tokens_per_microbatch,
            lora=config.model.lora,
            seed=config.seed,
        )
        run = SftRun(
            config=config,
            policy=policy,
            train=train,
            heldout=heldout,
            schedule=schedule,
            total_steps=total_steps,
            pad_token_id=loaded.pad_token_id,
            journal=stack.enter_context(open_journal(config, workplace, loaded, console, total_steps=total_steps)),
            store=workplace.store,
            last_position=None if config.steps else config.optimization.epochs * len(train),
        )
        record_paths(workplace.path, paths)
        if workplace.checkpoint is not None:
            restore_sft(run, workplace.checkpoint)
        yield run


def save_sft(run: SftRun) -> None:
    """Weights, optimizer and step."""

    def write(folder: Path) -> None:
        run.policy.save_weights(folder / WEIGHTS_FOLDER)
        state = {
            "step": run.step,
            "position": run.position,
            "alarms": run.journal.alarms.state(),
            "policy": run.policy.training_state(),
        }
        write_state(folder, STATE_NAME, state)
        write_pending(folder, run.pending)

    run.journal.check_place()
    run.store.save(run.step, write)
    run.saved_step = run.step


def restore_sft(run: SftRun, checkpoint: Checkpoint) -> None:
    """Put a fresh run where the checkpoint left off."""
    with restoring(checkpoint.folder):
        state = read_state(checkpoint.folder, STATE_NAME)
        run.policy.load_weights(checkpoint.folder / WEIGHTS_FOLDER)
        run.policy.load_training_state(state["policy"])
        run.journal.alarms.load_state(state["alarms"])
        run.step, run.position, run.saved_step = state["step"], state["position"], state["step"]
        run.version, run.pending = run.policy.version, read_pending(checkpoint.folder)


def load_examples(
    config: SftConfig, tokenizer: PreTrainedTokenizerBase, context_length: int | None, split: str
) -> SftSet:
    """The examples of data.train or data.eval (`split`), within the limits of the run. `context_length`: of the model,
    if known."""
    sources = config.data.train if split == "train" else config.data.eval
    if not sources:
        raise ConfigError(f"data.{split} is empty", remedy=f"name at least one data set in data.{split}")
    limits = (config.max_tokens, config.optimization.tokens_per_batch, context_length)
    return load_sft_examples(
        sources,
        tokenizer=tokenizer,
        max_tokens=min(limit for limit in limits if limit is not None),
        over_long=config.data.over_long,
        chat=ChatFormat.of(config.data),
    )


def _trained_span(example: SftExample) -> tuple[int, int]:
    trained = [index for index, on in enumerate(example.loss_mask) if on]
    return trained[0], trained[-1] + 1


def _padded(rows: Sequence[Sequence[int]], fill: int) -> torch.Tensor:
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *([fill] * (width - len(row)))] for row in rows], dtype=torch.int64)
