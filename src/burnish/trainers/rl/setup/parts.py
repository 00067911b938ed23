"""From a run file to the parts of a run: only what the algorithm needs is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from rich.console import Console

from burnish.algorithms.kl import AdaptiveKL, KLController
from burnish.config.domains import domain_settings
from burnish.config.schema import AlgorithmConfig, RlConfig
from burnish.data.overlap import find_overlap
from burnish.data.prompts import PromptSet, check_bound_rewards
from burnish.forward.fast_paths import FastPaths
from burnish.forward.scoring import hidden_width
from burnish.models.loading import LoadedModel, choose_pages
from burnish.models.saved import SavedPolicy
from burnish.models.weights import Weights
from burnish.observability.console import say
from burnish.planning.rl import slow_critic
from burnish.rewards.scorer import ProcessRewardScorer
from burnish.rewards.success import success_of_domain
from burnish.rollouts.answering import open_model as open_judge
from burnish.rollouts.engine import RolloutEngine
from burnish.rollouts.outages import Patience
from burnish.rollouts.stop import check_rotation
from burnish.trainers.chaining import pinned
from burnish.trainers.microbatch import settle_microbatch
from burnish.trainers.outer_loop import Progress, restore
from burnish.trainers.rl.algorithm import resolve_algorithm
from burnish.trainers.rl.collection import Collector, Overlaps
from burnish.trainers.rl.credit.by_domain import DomainCredit
from burnish.trainers.rl.domains import asked_by, build_domains, prompts_of
from burnish.trainers.rl.evaluation import build_evaluator
from burnish.trainers.rl.lessons import Lessons
from burnish.trainers.rl.loop import RlRun
from burnish.trainers.rl.setup.conversations import Conversations, load_domains, open_conversations
from burnish.trainers.rl.setup.critic import build_value_objective
from burnish.trainers.rl.setup.objective import objectives
from burnish.trainers.rl.setup.opened_models import OpenPlayers, longest_text, open_model, open_players, outline_of
from burnish.trainers.rl.setup.preflight import check_difficulty, check_settings, precision_lines, timing_lines
from burnish.trainers.rl.setup.teachers import check_teacher_prompts, check_teachers, read_lessons, with_endpoints
from burnish.trainers.rl.supply import Supply, SupplyAhead
from burnish.trainers.rl.supply.threaded import AsideEngine, SupplyAside, SupplyPartial
from burnish.trainers.run_folder import Workplace, open_workplace, recorded_paths
from burnish.trainers.telemetry.journal import open_journal


@dataclass(frozen=True, slots=True)
class RlInputs:
    """Inputs of a run, opened and checked: its folder, rewards, model, conversations and training prompts."""

    config: RlConfig  # with the tokens of a micro-batch settled
    workplace: Workplace
    paths: FastPaths
    scorer: ProcessRewardScorer
    loaded: LoadedModel
    conversations: Conversations
    train: dict[str, PromptSet]


@contextmanager
def open_rl_run(
    config: RlConfig, console: Console, *, accept_changes: bool = False, opener: OpenPlayers = open_players
) -> Iterator[RlRun]:
    """Open everything that `run_loop` uses; workers, sinks and the lock are released at the end."""
    parts = resolve_algorithm(config.algorithm)
    check_settings(config, parts)
    say(console, (*timing_lines(config), *precision_lines(config)))
    estimator, loss, numbers = parts
    with ExitStack() as stack:
        given = open_inputs(config, console, stack, accept_changes=accept_changes)
        config, loaded, scorer, workplace = given.config, given.loaded, given.scorer, given.workplace
        players = stack.enter_context(opener(config, loaded, given.paths, console))
        roles, longest, progress = players.roles, longest_text(config, loaded), Progress()
        if players.reward_models is not None:
            scorer.ask_models(players.reward_models)
        collector = build_collector(given, given.conversations.around(players.engine, longest), progress, console)
        evaluator, talks, train = None, given.conversations, given.train
        if config.evaluation.happens:
            evaluator = build_evaluator(config, loaded, collector.engine, scorer, console, talks, train=train)
        if evaluator is None:
            say(console, find_overlap(asked_by(train)).lines())
        steps, processes, scoring = config.steps, players.processes, scorer.take_spans
        journal = stack.enter_context(
            open_journal(config, workplace, loaded, console, total_steps=steps, processes=processes, scoring=scoring)
        )
        teachers, sampling = with_endpoints(config, roles.teacher), config.rollout
        supply = stack.enter_context(open_supply(config, collector, progress, roles.policy.publish(), players.aside))
        run = RlRun(
            config=config,
            policy=roles.policy,
            reference=roles.reference,
            supply=supply,
            evaluator=evaluator,
            estimator=estimator,
            objective=players.objective or objectives(config, parts),
            select_tokens=partial(loss.select, options=numbers) if loss.selection else None,
            kl=build_kl(config.algorithm),
            lessons=None if teachers is None else Lessons(teachers, read_lessons(config, loaded.tokenizer)),
            domain_credit=DomainCredit(collector.domains) if config.domains else None,
            pad_token_id=loaded.pad_token_id,
            journal=journal,
            progress=progress,
            store=workplace.store,
            total_steps=config.steps,
            critic=roles.critic,
            value_objective=None if roles.critic is None else build_value_objective(config),
            beside=players.beside,
            saved=SavedPolicy(config.model, loaded, roles.policy, sampling.stop_token_ids, sampling.temperature),
        )
        if workplace.checkpoint is not None:
            restore(run, workplace.checkpoint)
            say(console, supply.lines())
            supply.publish(roles.policy.publish(), progress.step)
        yield run


def open_inputs(config: RlConfig, console: Console, stack: ExitStack, *, accept_changes: bool) -> RlInputs:
    """Open the inputs of a run, which `stack` closes: cheap ones first, so that a mistake in them costs no wait."""
    config, chained = pinned(config)
    say(console, chained)
    workplace = stack.enter_context(open_workplace(config, console, accept_changes=accept_changes))
    paths = recorded_paths(workplace.path)
    models_elsewhere = "reward_model" in config.cluster.own_process
    scorer = stack.enter_context(open_scorer(config, console, paths, models_elsewhere=models_elsewhere))
    settings, has_weights = domain_settings(config), config.cluster.trains_here
    loaded = stack.enter_context(open_model(config, paths, console)) if has_weights else outline_of(config)
    config = settle_microbatch(config, paths, loaded if has_weights else None)
    say(console, slow_critic(config, hidden_width(loaded.model)))
    contexts = check_teachers(config, loaded)
    say(console, scorer.attach_policy(loaded.tokenizer))
    if "reward_model" in config.cluster.offload:
        scorer.rest_models(workplace.path)
    check_rotation(loaded.model.config, longest_text(config, loaded))
    tokenizer, ends = loaded.tokenizer, loaded.eos_token_ids
    conversations = stack.enter_context(open_conversations(config, settings, tokenizer, ends))
    say(console, conversations.lines)
    train = load_domains(config, settings, tokenizer, loaded.context_length, "train", conversations)
    for prompts in train.values():
        say(console, prompts.lines())
    scorer.check_prompts(prompts_of(train))
    check_difficulty(settings, scorer.answer_labels, begins=workplace.checkpoint is None)
    check_bound_rewards(config, prompts_of(train))
    check_teacher_prompts(config, prompts_of(train), tokenizer, contexts)
    return RlInputs(config, workplace, paths, scorer, loaded, conversations, train)


def build_collector(given: RlInputs, engine: RolloutEngine, progress: Progress, console: Console) -> Collector:
    """Build the first half of a step, which draws prompts, asks the engine and has the responses scored."""
    config, scorer, begins = given.config, given.scorer, given.workplace.checkpoint is None
    # On a CPU, workers that score would slow down sampling by more than they save (see `Collector`).
    idle_cores = given.loaded.model.device.type != "cpu" or config.cluster.uses_processes
    overlaps: Overlaps = "all" if idle_cores else "waiting" if scorer.only_waits else "none"
    domains = build_domains(config, domain_settings(config), given.train, scorer, progress, begins=begins)
    patience = Patience(config.scoring.retry_seconds, lambda line: say(console, (line,)))
    return Collector(config, domains, engine, scorer, overlaps, patience)


@contextmanager
def open_supply(
    config: RlConfig, collector: Collector, progress: Progress, beginning: Weights, aside: AsideEngine | None
) -> Iterator[Supply]:
    """Batches as `max_staleness` says. `aside`: the collector's engine, if it can sample while the policy learns."""
    if config.max_staleness == 0:
        yield Supply(collector, progress, beginning)
    elif aside is None:
        yield SupplyAhead(collector, progress, beginning)
    else:
        ahead = SupplyPartial if config.partial else SupplyAside
        with ahead(collector, progress, beginning, aside) as supply:
            yield supply


def build_kl(algorithm: AlgorithmConfig) -> KLController:
    if algorithm.kl_target is None:
        return KLController(algorithm.kl_coef)
    return AdaptiveKL(algorithm.kl_coef, algorithm.kl_target, algorithm.kl_horizon)


@contextmanager
def open_scorer(
    config: RlConfig, console: Console, paths: FastPaths, *, models_elsewhere: bool = False
) -> Iterator[ProcessRewardScorer]:
    """The rewards of the run file, loaded first, so that a wrong name or option stops the run before its model loads.
    `paths` chooses for judges that are models of this process."""
    choose_pages(config.model)  # before a smaller model of a reward has memory
    with ProcessRewardScorer(
        config.all_rewards,
        config.scoring,
        models_elsewhere=models_elsewhere,
        may_be_unscored=config.teaches_alone,
        sandbox=config.sandbox,
        open_model=partial(open_judge, paths=paths),
        say=lambda line: say(console, (line,)),
    ) as scorer:
        for domain in domain_settings(config):  # refuses a threshold out of reach
            success_of_domain(domain, scorer.answer_labels)
        yield scorer
