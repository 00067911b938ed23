"""Supervised fine-tuning: whole examples in batches of limited tokens, one optimizer step per batch, held-out loss."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console
from torch import Tensor

from burnish.config.schema import RunConfig, SftConfig
from burnish.data.overlap import find_overlap
from burnish.data.samplers import PromptSampler, next_batch
from burnish.data.sft import SftExample, SftSet, load_sft_examples
from burnish.data.template import ChatFormat
from burnish.errors import ConfigError
from burnish.forward.batch import Batch, Text, TokenScores
from burnish.forward.embedding_noise import NoisyTrunkRunner
from burnish.forward.fast_paths import FastPaths
from burnish.forward.lanes import Lanes
from burnish.forward.matmul_choice import fast_float32
from burnish.machine.memory import keep_freed_memory
from burnish.models.loading import LoadedModel, load_model
from burnish.models.optimizers import OptimizerSettings
from burnish.models.policy import LocalPolicy
from burnish.models.reward_learner import RewardLearner
from burnish.models.roles import Learner, Objective, Policy
from burnish.models.saved import SavedPolicy
from burnish.observability.console import say
from burnish.observability.metrics import MetricStore, Stopwatch, mean, total
from burnish.rollouts.noise import sample_key
from burnish.trainers.microbatch import settle_microbatch
from burnish.trainers.outer_loop import OpenedModel, OpenLearner, Training, beginning, check_warmup, trained_on
from burnish.trainers.result import WEIGHTS_FOLDER, RunResult
from burnish.trainers.rl.batching import padded
from burnish.trainers.rl.objective import LikelihoodObjective
from burnish.trainers.telemetry.divergence import keeping_batch
from burnish.types import Tokenizer

OpenedPolicy = AbstractContextManager[OpenedModel[Policy]]
LocalT = TypeVar("LocalT", LocalPolicy, RewardLearner)
EVALUATION_ROWS = 64
"""Held-out examples scored at once."""
RARE_END = 50
"""A token that ends fewer than one in this many examples does not count as an end of responses."""
LARGEST_EXPONENT = 700.0
"""Above this loss the perplexity overflows a float."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Assignment of examples to optimizer steps: a pure function of the number of examples drawn before a step."""

    lengths: Sequence[int]
    tokens_per_batch: int
    sampler: PromptSampler

    def batch_at(self, position: int, end: int | None = None) -> tuple[list[int], int]:
        """Return the examples of the step that begins after `position` draws, and the position after it, at most
        `end`."""
        examples, after = next_batch(self.lengths, self.tokens_per_batch, self.sampler, position)
        return (examples, after) if end is None else (examples[: end - position], min(after, end))

    def count(self, epochs: int) -> int:
        """Optimizer steps of this many passes over the data."""
        position, steps, end = 0, 0, epochs * len(self.sampler)
        while position < end:
            _, position = self.batch_at(position, end)
            steps += 1
        return steps


@dataclass(slots=True, kw_only=True)
class SftRun(Training):
    """The parts of a supervised run."""

    config: SftConfig
    policy: Policy
    train: SftSet
    heldout: SftSet | None
    schedule: Schedule
    loaded: LoadedModel
    objective: LikelihoodObjective

    def learners(self) -> dict[str, Learner]:
        return {WEIGHTS_FOLDER: self.policy}

    def train_step(self) -> dict[str, float]:
        """One optimizer step on whole examples."""
        progress, metrics, stopwatch = self.progress, MetricStore(), Stopwatch(self.journal.phase)
        end = None if self.config.steps else self.config.optimization.epochs * len(self.train)
        examples, position = self.schedule.batch_at(progress.position, end)
        batch, objective = self.lesson([self.train.examples[i] for i in examples], metrics, stopwatch)
        with stopwatch.phase("update"), keeping_batch(Path(self.config.output), progress.step + 1, batch):
            metrics.merge(self.policy.update(batch, objective).metrics)
        tokens = int(batch.prompt_lengths.sum() + batch.response_lengths.sum())
        metrics.merge({"train/tokens": total(tokens), "train/examples": total(len(batch))})
        return trained_on(tokens, progress, position, metrics, stopwatch)

    def lesson(
        self, examples: Sequence[SftExample], metrics: MetricStore, stopwatch: Stopwatch
    ) -> tuple[Batch, Objective]:
        """The batch of a step and the objective on it; metrics and times of making it are added to the step's."""
        batch = build_sft_batch(examples, pad_token_id=self.loaded.pad_token_id)
        if self.config.neftune_alpha is not None:
            seed, step = self.config.seed, self.progress.step + 1
            keys = [sample_key(seed, step, "embedding noise", row) for row in range(len(batch))]
            batch = batch.with_noise(torch.tensor(keys))
        return batch, self.objective

    def score(self, batch: Batch) -> TokenScores:
        """Score held-out examples."""
        return self.policy.logprobs(batch, correct=True)

    def evaluate(self) -> dict[str, float]:
        """`held_out_loss` of the current policy."""
        if self.heldout is None:
            return {}
        examples = heldout_examples(self.heldout, self.config.evaluation.max_prompts, seed=self.config.seed)
        return held_out_loss(self.score, examples, pad_token_id=self.loaded.pad_token_id)


def open_tuned(config: SftConfig, paths: FastPaths, console: Console, lanes: Lanes) -> OpenedPolicy:
    """The model of a supervised run, in this process: a policy, with noise on its embeddings if the run file asks."""
    build: Callable[..., LocalPolicy] = LocalPolicy
    if config.neftune_alpha is not None:
        build = partial(LocalPolicy, runner=partial(NoisyTrunkRunner, alpha=config.neftune_alpha))
    return open_policy(config, paths, console, lanes, build)


def open_policy(
    config: RunConfig, paths: FastPaths, console: Console, lanes: Lanes, build: Callable[..., LocalPolicy] = LocalPolicy
) -> OpenedPolicy:
    """The model of the run file, in this process. `build` has the arguments of `LocalPolicy`."""
    loaded = load_model(config.model, seed=config.seed, plain=config.debug.plain, paths=paths)
    build = partial(build, loaded, lora=config.model.lora, seed=config.seed, lanes=lanes)
    return opened_with(build, config, loaded, paths, console)


@contextmanager
def opened_with(
    build: Callable[..., LocalT], config: RunConfig, loaded: LoadedModel, paths: FastPaths, console: Console
) -> Iterator[OpenedModel[LocalT]]:
    """A loaded model, in this process. `build` makes its learner of optimizer settings and `tokens_per_microbatch`."""
    keep_freed_memory(loaded.model.device.type)
    config = settle_microbatch(config, paths, loaded)

    def learner(total_steps: int) -> LocalT:
        settings = OptimizerSettings.from_config(config.optimization, total_steps=total_steps)
        built = build(settings, tokens_per_microbatch=config.optimization.microbatch_tokens)
        if "optimizer" in config.cluster.offload:
            built.rest_optimizer(Path(config.output))
        return built

    with fast_float32(loaded.model, plain=config.debug.plain, paths=paths):
        say(console, (*loaded.notes, *paths.lines(verbose=config.logging.verbose)))
        yield OpenedModel(loaded, learner)


def train_sft(config: SftConfig, *, console: Console, accept_changes: bool = False) -> RunResult:
    """Fine-tune, and return where the run and its last checkpoint are. `accept_changes`: continue even if files or
    versions that the run depends on have changed."""
    from burnish.distributed.handles import RemotePolicy
    from burnish.trainers.cluster import train_on_data  # which no plan needs

    return train_on_data(config, open_sft_run, open_tuned, RemotePolicy, console=console, accept_changes=accept_changes)


def held_out_loss(
    score: Callable[[Batch], TokenScores], examples: Sequence[SftExample], *, pad_token_id: int
) -> dict[str, float]:
    """Compute the loss in nats per trained token, its exponential (perplexity), and the fraction of these tokens that
    are the model's most likely ones; also by domain, if there are several. Tokens count by the weights of their rows.

    `score` gives the log-probabilities of a batch's response tokens, and whether each is the most likely one. If it
    compares with a teacher, the mean divergence and the fraction of equal most likely tokens are there, too.
    """
    metrics = MetricStore()
    domains = {example.domain for example in examples}
    for start in range(0, len(examples), EVALUATION_ROWS):
        part = examples[start : start + EVALUATION_ROWS]
        batch = build_sft_batch(part, pad_token_id=pad_token_id)
        scores = score(batch)
        measured = {
            "loss": -scores.logprobs_BT,
            "token_accuracy": scores.correct_BT,
            "divergence": scores.divergence_BT,
            "agreement": scores.agrees_BT,
        }
        # Summed per example in float64, so that a loss by domain needs no further pass.
        sums = {
            name: values_BT.cpu().double().where(batch.loss_mask, 0.0).sum(dim=1)
            for name, values_BT in measured.items()
            if values_BT is not None
        }
        for row, (example, count) in enumerate(zip(part, batch.loss_mask.sum(dim=1).tolist(), strict=True)):
            for prefix in ("eval", *([f"eval/domain/{example.domain}"] if len(domains) > 1 else [])):
                for name, sum_B in sums.items():
                    metrics.add(f"{prefix}/{name}", mean(sum_B[row] * example.weight, count * example.weight))
    row_of = metrics.row()
    return row_of | {
        f"{name.removesuffix('loss')}perplexity": math.exp(loss)
        for name, loss in row_of.items()
        if name.endswith("/loss") and loss < LARGEST_EXPONENT
    }


def heldout_examples(heldout: SftSet, limit: int | None, *, seed: int) -> list[SftExample]:
    """The same examples at every evaluation: all, or `limit` drawn from the sources by weight."""
    if limit is None or limit >= len(heldout):
        return list(heldout.examples)
    return [heldout.examples[i] for i in sorted(set(heldout.sampler(seed=seed).take(limit, 0)))]


def build_sft_batch(examples: Sequence[SftExample], *, pad_token_id: int) -> Batch:
    """Make rows of examples: the prompt ends before the first trained token, and the response goes from there to the
    last one. The loss mask picks the trained tokens of the response. Without weights other than 1, no row has one."""
    masks = [example.loss_mask[slice(*_trained_span(example))] for example in examples]
    mask_BT = padded(masks, False, torch.bool)
    weights_BT = token_weights([example.weight for example in examples], mask_BT)
    batch = Batch.of_texts([split_text(example) for example in examples], pad_token_id=pad_token_id)
    return batch.replace(loss_mask=mask_BT, weights=weights_BT)


def texts_of(config: SftConfig, loaded: LoadedModel, split: str) -> list[Text]:
    """Prompt and response of each example that a run on this model may read of data.train or data.eval (`split`)."""
    found = load_examples(config, loaded.tokenizer, loaded.context_length, split)
    limit = config.evaluation.max_prompts if split == "eval" else None
    return list(map(split_text, heldout_examples(found, limit, seed=config.seed)))


def split_text(example: SftExample) -> Text:
    """Prompt and response of an example as its row has them."""
    first, end = _trained_span(example)
    return example.tokens[:first], example.tokens[first:end]


def token_weights(weights: Sequence[float], mask_BT: Tensor) -> Tensor | None:
    """(B, T): the weight of each row at its tokens, scaled so that the trained ones have mean 1; None if all are 1."""
    if all(weight == 1 for weight in weights):
        return None
    weights_B = torch.tensor(weights, dtype=torch.float64)
    trained_B = mask_BT.sum(dim=1)
    scaled_B = weights_B * (trained_B.sum() / (weights_B * trained_B).sum())
    return scaled_B.float()[:, None].expand(mask_BT.shape)


@contextmanager
def open_sft_run(
    config: SftConfig,
    console: Console,
    *,
    accept_changes: bool = False,
    open_learner: OpenLearner[Any, Policy] = open_tuned,
    run_of: type[SftRun] = SftRun,
) -> Iterator[SftRun]:
    """Open everything that the loop uses."""
    with beginning(config, console, open_learner, accept_changes=accept_changes) as begun:
        config, loaded = begun.config, begun.opened.loaded
        train = load_examples(config, loaded.tokenizer, loaded.context_length, "train")
        say(console, (*train.lines(), *unheard_end(train.last_tokens(), loaded)))
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
        check_warmup(config.optimization.warmup_steps, total_steps)
        policy = begun.opened.learner(total_steps)
        run = run_of(
            config=config,
            policy=policy,
            train=train,
            heldout=heldout,
            schedule=schedule,
            total_steps=total_steps,
            loaded=loaded,
            journal=begun.journal(total_steps),
            store=begun.workplace.store,
            objective=LikelihoodObjective(dynamic=config.token_loss == "dft"),
            saved=SavedPolicy(config.model, loaded, policy, response_ends(train.last_tokens(), loaded.tokenizer)),
        )
        yield begun.restored(run)


def unheard_end(last: Counter[int], loaded: LoadedModel) -> list[str]:
    """A note if none of the examples' last tokens ends a response of the model."""
    ends, tokenizer = loaded.eos_token_ids, loaded.tokenizer
    if not ends or last.keys() & set(ends):
        return []
    ((token, _),) = last.most_common(1)
    return [
        f"no example ends with a token that ends a response of this model ({tokenizer.decode([*ends])!r}): most end "
        f"with {tokenizer.decode([token])!r} (id {token}), after which the model would go on; if it ends a turn, add "
        "that id to eos_token_id in the model's generation_config.json"
    ]


def load_examples(config: SftConfig, tokenizer: Tokenizer, context_length: int | None, split: str) -> SftSet:
    """The examples of data.train or data.eval (`split`), within the limits of the run. `context_length`: the model's,
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
        train_on=config.train_on,
    )


def response_ends(last: Counter[int], tokenizer: Tokenizer) -> list[int]:
    """Control tokens among the last ones of responses in training. A token that ends only a few comes from
    truncation."""
    control = tokenizer.added_tokens_decoder
    return [token for token, count in last.most_common() if token in control and count * RARE_END >= last.total()]


def _trained_span(example: SftExample) -> tuple[int, int]:
    trained = [index for index, on in enumerate(example.loss_mask) if on]
    return trained[0], trained[-1] + 1
