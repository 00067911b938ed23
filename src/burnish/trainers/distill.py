"""Distillation: supervised fine-tuning in which a student learns a teacher's token distributions on given texts, or on
texts that it samples itself (generalised knowledge distillation, https://arxiv.org/abs/2306.13649)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from burnish.checkpointing.fingerprints import contents_of
from burnish.checkpointing.run import RunDirectory
from burnish.config.schema_data import ModelConfig
from burnish.config.schema_distill import SAMPLED_ROWS, DistillConfig
from burnish.data.sft import SftExample
from burnish.errors import ConfigError, ModelError
from burnish.forward.batch import Batch, Text, TokenScores
from burnish.forward.divergences import Likeliest, comparison, divergence
from burnish.forward.fast_paths import FastPaths
from burnish.forward.lanes import Lanes
from burnish.models.distillation import Student, Teacher, check_same_tokens
from burnish.models.endpoint_teacher import endpoint_teacher
from burnish.models.folders import resolve_source
from burnish.models.loading import LoadedModel, load_model, load_outline
from burnish.models.reference import PromptScorer
from burnish.models.roles import DistilledPolicy, Objective, Policy
from burnish.models.tokenizers import load_tokenizer
from burnish.observability.console import say
from burnish.observability.metrics import MetricStore, Stopwatch
from burnish.planning.model_facts import ModelFacts
from burnish.planning.plan import Preview
from burnish.rollouts.engine import RolloutEngine, Sampling
from burnish.rollouts.registry import engine_of
from burnish.trainers.chaining import pinned, with_weights
from burnish.trainers.held_out import evaluate_sft_run
from burnish.trainers.outer_loop import OpenedModel, OpenLearner
from burnish.trainers.preview import count_examples, preview_of_data
from burnish.trainers.result import EvalReport, RunResult
from burnish.trainers.rl.objective import DistillObjective
from burnish.trainers.run_folder import record_paths, recorded_paths
from burnish.trainers.sft import SftRun, build_sft_batch, open_policy, open_sft_run, texts_of
from burnish.trainers.teacher_cache import KeptTeacher, ScoreTexts, keep
from burnish.types import RolloutRequest, Tokenizer


@dataclass(slots=True, kw_only=True)
class DistillRun(SftRun):
    """The parts of a distillation. `engine`: samples from the student; None if no step does."""

    config: DistillConfig
    policy: DistilledPolicy
    engine: RolloutEngine | None = None

    def lesson(
        self, examples: Sequence[SftExample], metrics: MetricStore, stopwatch: Stopwatch
    ) -> tuple[Batch, Objective]:
        """The texts, or in a sampled step the student's own continuations of their prompts."""
        step, pad = self.progress.step + 1, self.loaded.pad_token_id
        objective = DistillObjective(self.config.hard_weight)
        if self.engine is None or not is_sampled(step, self.config.sampled_share):
            return build_sft_batch(examples, pad_token_id=pad), objective
        with stopwatch.phase("generate"):
            own = self._continued(self.engine, examples, step)
        metrics.merge(self.engine.take_metrics())
        return build_sft_batch(own, pad_token_id=pad), replace(objective, own_texts=True)

    def score(self, batch: Batch) -> TokenScores:
        return self.policy.compare(batch)

    def _continued(self, engine: RolloutEngine, examples: Sequence[SftExample], step: int) -> list[SftExample]:
        """The prompt of each example with a response of the student. Its noise is of seed, step, prompt and row: in a
        batch that ends a pass, an example may come twice."""
        engine.sync(self.policy.publish())
        prompts = [example.tokens[: example.loss_mask.index(True)] for example in examples]
        requests = [
            RolloutRequest.of(example.id, row, prompt, (row,))
            for row, (example, prompt) in enumerate(zip(examples, prompts, strict=True))
        ]
        sampling = Sampling(max_response_tokens=self.config.max_tokens)
        rollouts = engine.generate(requests, sampling, seed=self.config.seed, step=step)
        responses = [rollout.response_tokens for rollout in rollouts]
        return [
            SftExample(
                example.id,
                (*prompt, *response),
                (False,) * len(prompt) + (True,) * len(response),
                weight=example.weight,
            )
            for example, prompt, response in zip(examples, prompts, responses, strict=True)
        ]


def is_sampled(step: int, share: float) -> bool:
    """Return whether the student samples the responses of this step (from 1 on), of a share spread evenly."""
    return math.floor(step * share) > math.floor((step - 1) * share)


def open_teacher(config: DistillConfig, paths: FastPaths) -> Teacher | KeptTeacher:
    """The teacher of the run file, awake, or what `keep_teacher` has kept of it."""
    formula = partial(
        divergence, name=config.divergence, temperature=config.temperature, beta=config.beta, top_k=config.top_k
    )
    if config.teacher.cache is not None:
        return KeptTeacher(Path(config.teacher.cache).expanduser(), comparison(formula, plain=config.debug.plain))
    return Teacher(load_model(teacher_model(config), plain=config.debug.plain, paths=paths), formula)


def keep_teacher(config: DistillConfig, console: Console, *splits: str) -> None:
    """Let the teacher score the texts of these splits that `teacher.cache` lacks. Nothing else is loaded meanwhile."""
    if config.teacher.cache is None or config.top_k is None:
        return
    k, folder = config.top_k, Path(config.teacher.cache).expanduser()
    config, _ = pinned(config)
    student = load_outline(config.model)
    texts = [text for split in splits for text in texts_of(config, student, split)]
    about: dict[str, object] = {"top_k": k, "temperature": config.temperature}
    if config.teacher.url is None:
        model = teacher_model(config)
        check_teacher(config, load_outline(model), student)
        about |= {"dtype": model.dtype, "files": contents_of(config, "teacher.path") or {"hub": model.path}}
        open_scores = partial(_load_teacher, config, k)
    else:
        about |= {"dtype": None, "files": {"url": config.teacher.url, "name": config.teacher.name}}
        open_scores = partial(_reach_teacher, config, student, texts, k)
    keep(folder, about, texts, open_scores, lambda line: say(console, (line,)))


def _load_teacher(config: DistillConfig, k: int) -> ScoreTexts:
    paths = recorded_paths(Path(config.output))
    loaded = load_model(teacher_model(config), plain=config.debug.plain, paths=paths)
    scorer = PromptScorer(loaded, config.optimization.microbatch_tokens, temperature=config.temperature)
    return lambda texts: [scores.likeliest for scores in scorer.score(texts, k)]


def _reach_teacher(config: DistillConfig, student: LoadedModel, texts: Sequence[Text], k: int) -> ScoreTexts:
    """The teacher at its endpoint, once it is known to have the student's vocabulary and room for the longest text."""
    asked, path = endpoint_teacher(config.teacher), config.teacher.tokenizer
    if path is not None:
        theirs = load_tokenizer(teacher_model(config, path, "teacher.tokenizer"))
        check_same_tokens(theirs, student.tokenizer, path, "teacher.tokenizer")
    longest = max(len(prompt) + len(response) for prompt, response in texts)
    asked.check(student.tokenizer, longest, compare_texts=path is None)

    def score(some: Sequence[Text]) -> Sequence[Likeliest]:
        found = asked.likeliest(some, k=k)
        most = max(int(one.ids_NK.max()) for one in found)
        if most >= _vocabulary_of(student):
            message = f"the teacher at {asked.url} finds the token {most} likely, which the student does not have"
            raise ModelError(message, remedy="use a teacher with the student's vocabulary")
        return found

    return score


def _vocabulary_of(loaded: LoadedModel) -> int:
    return loaded.vocabulary or int(loaded.model.config.get_text_config().vocab_size)


def check_teacher(config: DistillConfig, teacher: LoadedModel, student: LoadedModel) -> None:
    """Raise ModelError for a teacher with another vocabulary than the student's, or a context shorter than the
    texts."""
    check_same_tokens(teacher.tokenizer, student.tokenizer, str(config.teacher.path))
    if config.top_k is not None and config.top_k > (size := _vocabulary_of(student)):
        raise ConfigError(f"top_k is {config.top_k}, but the student has {size:,} tokens", remedy="lower it")
    if teacher.context_length < min(config.max_tokens, student.context_length):
        raise ModelError(
            f"teacher.path {config.teacher.path!r} reads at most {teacher.context_length:,} tokens, but max_tokens is "
            f"{config.max_tokens:,}",
            remedy=f"set max_tokens to at most {teacher.context_length}",
        )


def teacher_model(config: DistillConfig, path: str | None = None, field: str = "teacher.path") -> ModelConfig:
    """The teacher (or another model's path) as a model section: on the student's device, with its own tokenizer."""
    path = path or config.teacher.path
    assert path is not None
    resolve_source(path, field=field)
    own = {"tokenizer": None, "chat_template": None, "gradient_checkpointing": False, "router_aux_coef": 0.0}
    dtype = config.teacher.dtype or config.model.dtype
    return with_weights(config.model, path).model_copy(update={**own, "dtype": dtype})


@contextmanager
def open_student(
    config: DistillConfig, paths: FastPaths, console: Console, lanes: Lanes
) -> Iterator[OpenedModel[Policy]]:
    """Student and teacher of the run file, in this process."""
    teacher = open_teacher(config, paths)
    with open_policy(config, paths, console, lanes, partial(Student, teacher=teacher)) as opened:
        if isinstance(teacher, Teacher):
            check_teacher(config, teacher.loaded, opened.loaded)
            if "teacher" in config.cluster.offload:
                teacher.rest(Path(config.output))
        yield opened


@contextmanager
def open_distill_run(
    config: DistillConfig,
    console: Console,
    *,
    accept_changes: bool = False,
    open_learner: OpenLearner[DistillConfig, Policy] = open_student,
) -> Iterator[DistillRun]:
    """Open everything that the loop uses."""
    opened = open_sft_run(config, console, accept_changes=accept_changes, open_learner=open_learner, run_of=DistillRun)
    with opened as run:
        assert isinstance(run, DistillRun)
        if config.sampled_share:
            longest = min(config.max_tokens, run.loaded.context_length)
            run.engine = engine_of(run.loaded, max_batch_rows=SAMPLED_ROWS, context_length=longest)
            record_paths(Path(config.output), run.loaded.paths)
        yield run


def preview_distill(config: DistillConfig, facts: ModelFacts | None, *, here: bool) -> Preview:
    """Like `preview_sft`; also refuses a teacher that is not there, or has another vocabulary."""
    teacher = {} if config.teacher.path is None else {"teacher.path": config.teacher.path}
    return preview_of_data(config, facts, _count_examples, "examples", here=here, models=teacher)


def _count_examples(config: DistillConfig, context_tokens: int | None, tokenizer: Tokenizer | None) -> Preview:
    path = config.teacher.path
    if tokenizer is not None and path is not None and Path(path).expanduser().exists():
        check_same_tokens(load_tokenizer(teacher_model(config)), tokenizer, path)
    return count_examples(config, context_tokens, tokenizer)


def train_distill(config: DistillConfig, *, console: Console, accept_changes: bool = False) -> RunResult:
    """Distill, and return where the run and its last checkpoint are. `accept_changes`: continue even if files or
    versions that the run depends on have changed."""
    from burnish.distributed.handles import RemoteStudent
    from burnish.trainers.cluster import train_on_data  # which no plan needs

    RunDirectory(Path(config.output)).admit(pinned(config)[0])  # before the teacher's work, which may take hours
    keep_teacher(config, console, "train", *(["eval"] if config.data.eval and config.evaluation.happens else []))
    return train_on_data(
        config, open_distill_run, open_student, RemoteStudent, console=console, accept_changes=accept_changes
    )


def evaluate_distill_run(config: DistillConfig, *, console: Console, weights: Path | None = None) -> EvalReport:
    """Like `evaluate_sft_run`, with the divergence from the teacher."""
    keep_teacher(config, console, "eval")
    return evaluate_sft_run(config, console=console, weights=weights, open_teacher=open_teacher)
