"""From a run file to the parts of a run: only what the algorithm needs is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console

from burnish.algorithms.advantages import resolve_estimator
from burnish.algorithms.kl import AdaptiveKL, FixedKL, KLController
from burnish.algorithms.policy_losses import PolicyLossSpec
from burnish.config.schema import AlgorithmConfig, RlConfig
from burnish.data.overlap import find_overlap
from burnish.data.prompts import PromptSet
from burnish.forward.allocator import keep_freed_memory
from burnish.forward.fast_paths import FastPaths
from burnish.forward.float32 import fast_float32
from burnish.models.loading import LoadedModel, load_model, num_embeddings
from burnish.observability.console import say
from burnish.plugins import is_outside
from burnish.rewards.scorer import ProcessRewardScorer
from burnish.rewards.success import success_of, why_not_measured
from burnish.rollouts.engine import RolloutEngine, Sampling
from burnish.rollouts.limits import check_rotation
from burnish.rollouts.outside_engine import OutsideEngine
from burnish.rollouts.registry import build_engine
from burnish.trainers.chaining import pinned
from burnish.trainers.outer_loop import restore
from burnish.trainers.path_record import record_paths, recorded_paths
from burnish.trainers.rl.algorithm import resolve_algorithm
from burnish.trainers.rl.collection import Collector
from burnish.trainers.rl.critic_setup import build_value_objective, with_value_loss
from burnish.trainers.rl.evaluation import Evaluator
from burnish.trainers.rl.feeds import SampledPrompts, evaluation_prompts, load_prompt_set, shared_columns
from burnish.trainers.rl.loop import RlRun, TokenSelection
from burnish.trainers.rl.objective import Correction, PolicyObjective
from burnish.trainers.rl.preflight import check_fit, check_settings
from burnish.trainers.rl.returned import CheckedLoss
from burnish.trainers.rl.roles import build_roles
from burnish.trainers.rl.value_objective import ActorCriticObjective
from burnish.trainers.telemetry.journal import open_journal
from burnish.trainers.workplace import open_workplace
from burnish.types import Rollout

if TYPE_CHECKING:
    from burnish.rollouts.local.engine import LocalEngine

ENGINE_LOG = "vllm.log"


@contextmanager
def open_rl_run(config: RlConfig, console: Console, *, accept_changes: bool = False) -> Iterator[RlRun]:
    """Open everything that `run_loop` uses; workers, sinks and the lock are released at the end."""
    parts = resolve_algorithm(config.algorithm)
    check_settings(config, parts)
    estimator, loss, numbers = parts
    config, chained = pinned(config)
    say(console, chained)
    with ExitStack() as stack:
        workplace = stack.enter_context(open_workplace(config, console, accept_changes=accept_changes))
        scorer = stack.enter_context(open_scorer(config))
        paths = recorded_paths(workplace.path)
        loaded = stack.enter_context(open_model(config, paths, console))
        say(console, scorer.attach_policy(loaded.tokenizer))
        check_rotation(loaded.model.config, longest_text(config, loaded))
        train = load_prompt_set(config, loaded.tokenizer, loaded.context_length, "train")
        say(console, train.lines())
        scorer.check_columns(shared_columns(train.prompts))
        roles = build_roles(config, loaded)
        engine = stack.enter_context(open_rl_engine(config, loaded, console))
        say(console, paths.lines())
        collector = Collector(
            config=config,
            feed=SampledPrompts(train, train.sampler(seed=config.seed, shuffle=config.data.shuffle)),
            engine=engine,
            scorer=scorer,
            sampling=build_sampling(config),
            needs_greedy=estimator.needs_greedy,
            # On a CPU, workers that score would slow down sampling by more than they save (see `Collector`).
            overlaps=loaded.model.device.type != "cpu",
        )
        evaluator = None
        if config.evaluation.happens:
            evaluator = build_evaluator(config, loaded, engine, scorer, console, train=train)
        if evaluator is None:
            say(console, find_overlap(train.asked()).lines())
        objective = build_objective(config, loss, numbers, config.algorithm.kl_coef)
        journal = stack.enter_context(open_journal(config, workplace, loaded, console, total_steps=config.steps))
        record_paths(workplace.path, paths)
        run = RlRun(
            config=config,
            policy=roles.policy,
            reference=roles.reference,
            engine=engine,
            collector=collector,
            evaluator=evaluator,
            estimator=estimator,
            objective=objective.with_kl_coef if config.algorithm.kl_in == "loss" else lambda kl_coef: objective,
            select_tokens=_selection(loss, numbers),
            kl=build_kl(config.algorithm),
            reward_weights=dict(zip(scorer.labels, (reward.weight for reward in config.rewards), strict=True)),
            pad_token_id=loaded.pad_token_id,
            journal=journal,
            store=workplace.store,
            total_steps=config.steps,
            critic=roles.critic,
            value_objective=None if roles.critic is None else build_value_objective(config),
        )
        if workplace.checkpoint is not None:
            restore(run, workplace.checkpoint)
            engine.sync(run.policy.publish())  # it was built with the weights that the run began with
        yield run


@contextmanager
def open_model(config: RlConfig, paths: FastPaths, console: Console) -> Iterator[LoadedModel]:
    """The model of the run file, checked to have room for the run's responses. Within this context, float32 products
    take the path that `paths` chose."""
    loaded = load_model(config.model, seed=config.seed, plain=config.debug.plain, paths=paths)
    check_fit(config, loaded.context_length, num_embeddings(loaded.model))
    keep_freed_memory(loaded.model.device.type)
    with fast_float32(loaded.model, plain=config.debug.plain, paths=paths):
        say(console, loaded.notes)
        yield loaded


def build_objective(
    config: RlConfig, loss: PolicyLossSpec, numbers: dict[str, Any], kl_coef: float
) -> PolicyObjective | ActorCriticObjective:
    """What an optimizer step of the policy minimises, with this KL coefficient."""
    algorithm = config.algorithm
    objective = PolicyObjective(
        policy_loss=CheckedLoss(loss.function, loss.name) if is_outside(loss.name) else loss.function,
        numbers=numbers,
        aggregation=algorithm.aggregation,
        length=config.rollout.max_response_tokens,
        kl_coef=kl_coef if algorithm.kl_in == "loss" else 0.0,
        kl_estimator=algorithm.kl_function,
        kl_times_ratio=algorithm.kl_times_ratio,
        entropy_coef=algorithm.entropy_coef,
        correction=_correction(algorithm),
        takes_selection=loss.needs_selection,
    )
    needs_values = resolve_estimator(algorithm.estimator).needs_values
    return with_value_loss(config, objective) if needs_values else objective


def build_kl(algorithm: AlgorithmConfig) -> KLController:
    if algorithm.kl_target is None:
        return FixedKL(algorithm.kl_coef)
    return AdaptiveKL(algorithm.kl_coef, algorithm.kl_target, algorithm.kl_horizon)


@contextmanager
def open_rl_engine(config: RlConfig, loaded: LoadedModel, console: Console) -> Iterator[RolloutEngine]:
    """The engine of the run file, released at the end. It gets the longest text that this run can have as its context:
    vLLM reserves memory for that much, and a sliding window that the texts fit into can be ignored."""
    rollout = config.rollout
    engine = build_engine(
        rollout.engine,
        loaded.model,
        tokenizer=loaded.tokenizer,
        eos_token_ids=loaded.eos_token_ids,
        pad_token_id=loaded.pad_token_id,
        context_length=longest_text(config, loaded),
        max_batch_rows=rollout.max_batch_rows,
        vllm=rollout.vllm,
        log=Path(config.output) / ENGINE_LOG,
        plain=loaded.plain,
        kernels=loaded.kernels,
        paths=loaded.paths,
    )
    if rollout.engine == "local":
        say(console, cast("LocalEngine", engine).notes)
    if is_outside(rollout.engine):
        engine = OutsideEngine(engine, rollout.engine)
    with engine if isinstance(engine, AbstractContextManager) else nullcontext():
        yield engine


def longest_text(config: RlConfig, loaded: LoadedModel) -> int:
    """Most tokens that prompt and response together can have in this run."""
    return min(loaded.context_length, config.rollout.max_prompt_tokens + config.rollout.max_response_tokens)


def build_sampling(config: RlConfig) -> Sampling:
    rollout = config.rollout
    return Sampling(
        max_response_tokens=rollout.max_response_tokens,
        temperature=rollout.temperature,
        top_k=rollout.top_k,
        top_p=rollout.top_p,
        min_p=rollout.min_p,
        stop_token_ids=rollout.stop_token_ids,
        stop=rollout.stop,
        ignore_eos=rollout.ignore_eos,
    )


def build_evaluator(
    config: RlConfig,
    loaded: LoadedModel,
    engine: RolloutEngine,
    scorer: ProcessRewardScorer,
    console: Console,
    *,
    train: PromptSet | None = None,
) -> Evaluator | None:
    """None without held-out data. Reports which of its prompts are also in `train`."""
    settings = config.evaluation
    if not config.data.eval:
        return None
    prompts = load_prompt_set(config, loaded.tokenizer, loaded.context_length, "eval")
    say(console, prompts.lines())
    say(console, find_overlap(() if train is None else train.asked(), prompts.asked()).lines())
    scorer.check_columns(shared_columns(prompts.prompts))
    success = success_of(config.rewards, scorer.answer_labels, settings)
    if success is None:
        say(console, (why_not_measured(settings),))
    return Evaluator(
        prompts=evaluation_prompts(prompts, settings.max_prompts, seed=config.seed),
        engine=engine,
        scorer=scorer,
        sampling=build_sampling(config),
        samples=settings.samples,
        temperature=settings.temperature,
        success=success,
        seed=config.seed,
        vote_key=vote_key(config) if settings.samples else _by_text,
    )


def vote_key(config: RlConfig) -> Callable[[Rollout], str]:
    """What counts as the same answer for maj@k: the extracted answer if a reward is `math`, else the text."""
    if not any(reward.name == "math" for reward in config.rewards):
        return _by_text
    from burnish.rewards.builtins.math_answer import MathAnswer, canonical  # slow to import, so only when needed

    reader = MathAnswer()
    return lambda rollout: canonical(reader.extract(rollout.response) or rollout.response)


def _by_text(rollout: Rollout) -> str:
    return rollout.response.strip()


@contextmanager
def open_scorer(config: RlConfig) -> Iterator[ProcessRewardScorer]:
    """The rewards of the run file, loaded first, so that a wrong name or option stops the run before a model loads."""
    scorer = ProcessRewardScorer(config.rewards, config.scoring)
    try:
        success_of(config.rewards, scorer.answer_labels, config.evaluation)  # refuses a threshold out of reach
        yield scorer
    finally:
        scorer.close()


def _correction(algorithm: AlgorithmConfig) -> Correction | None:
    if algorithm.mismatch_correction == "none":
        return None
    level, mode = algorithm.mismatch_correction.split("_")
    return Correction(level, mode, algorithm.mismatch_low, algorithm.mismatch_high)


def _selection(loss: PolicyLossSpec, numbers: dict[str, Any]) -> TokenSelection | None:
    if not loss.needs_selection:
        return None
    return partial(loss.select, options=numbers)
