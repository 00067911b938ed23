"""Combinations of fields that cannot work in an RL run file; see `burnish.config.checks`."""

from __future__ import annotations

from collections.abc import Iterator

from burnish.config import names
from burnish.config.checks import check_any, offload, warmup_too_long
from burnish.config.checks_algorithm import check_adaptive_kl, check_algorithm
from burnish.config.checks_domains import check_conversations, check_domains, judging_reward
from burnish.config.checks_teachers import check_teachers
from burnish.config.domains import DomainSettings, domain_settings, sources_of
from burnish.config.engines import ENGINES, FALLBACK, EngineTraits, traits_of
from burnish.config.problems import Problem
from burnish.config.schema_rl import RlFields, SandboxConfig, ScoringConfig
from burnish.config.schema_teacher import OWN_POLICY
from burnish.outside.plugins import is_outside


def check_rl(config: RlFields) -> list[Problem]:
    """List the contradictions in a run file of `burnish rl`."""
    of_domains = [*check_domains(config)]
    return [
        *check_algorithm(config),
        *([] if of_domains else check_adaptive_kl(config)),
        *_sampling(config),
        *_engine_settings(config),
        *([] if is_outside(config.rollout.engine) else check_engine(config)),
        *_arithmetic(config),
        *_staleness(config),
        *_timing(config),
        *_scoring(config.scoring),
        *_sandbox(config.sandbox),
        *_cuts(config),
        *_endings(config),
        *_labels(config),
        *_judging_reward(config),
        *of_domains,
        *check_conversations(config),
        *_full_sharding(config),
        *check_teachers(config),
        *_own_process(config),
        *offload(config.cluster, _absent(config) | _alone(config)),
        *check_any(config),
        *_unsound_puzzles(config),
    ]


def _sampling(config: RlFields) -> Iterator[Problem]:
    for field, off in {"top_k": 0, "top_p": 1, "min_p": 0}.items():
        value = getattr(config.rollout, field)
        if value == off or config.algorithm.weights_mismatch:
            continue
        message = f"is {value:g}: it truncates the sampled distribution but not the trained one, so updates are biased"
        remedy = f"set it to {off}, or set algorithm.mismatch_correction (token_truncate is a good start)"
        yield Problem(f"rollout.{field}", message, remedy)


def _engine_settings(config: RlFields) -> Iterator[Problem]:
    """Refuse settings of other engines than the one that samples."""
    rollout = config.rollout
    for name in ENGINES.keys() & vars(rollout).keys() - {rollout.engine}:
        settings = vars(rollout)[name]
        defaults = type(settings)()
        for field in (field for field in vars(defaults) if vars(settings)[field] != vars(defaults)[field]):
            message = f"is {vars(settings)[field]!r}, but rollout.engine is {rollout.engine!r}"
            yield Problem(f"rollout.{name}.{field}", message, f"set rollout.engine: {name}, or remove it")
    if rollout.engine_options and not is_outside(rollout.engine):
        message = f"is set, but rollout.engine is {rollout.engine!r}"
        yield Problem("rollout.engine_options", message, "remove it: it is for an engine of your own")


def check_engine(config: RlFields) -> Iterator[Problem]:
    """Refuse settings that the engine cannot follow, by its traits. Runs the file of a user's engine."""
    rollout, traits = config.rollout, config.engine.traits
    yield from traits.check(rollout, config.model)
    for option in config.engine.options:
        if option in traits.reserved:
            message = f"is set, but {traits.reserved[option]}"
            yield Problem(f"{traits.options_field}.{option}", message, "remove it")
    yield from _several_gpus(config, traits)
    temperatures = {"rollout.temperature": rollout.temperature}
    for domain in domain_settings(config):
        if domain.evaluation.samples:
            own = domain.own.evaluation.temperature is not None
            place = f"domains.{domain.name}.evaluation" if own else "evaluation"
            temperatures[f"{place}.temperature"] = domain.evaluation.temperature
    for field, temperature in temperatures.items():
        if temperature < traits.lowest_temperature:
            message = f"is {temperature:g}, but {traits.label} samples at {traits.lowest_temperature:g} or above"
            yield Problem(field, message, f"raise it, or use rollout.engine: {FALLBACK}")
    if not traits.takes_stop_texts:
        for field in sorted({domain.place("rollout.stop") for domain in domain_settings(config) if domain.stop}):
            remedy = f"use rollout.stop_token_ids, or rollout.engine: {FALLBACK}"
            yield Problem(field, f"is set, but {traits.label} takes no stop texts", remedy)
    if "rollout_engine" in config.cluster.offload and (why := _awake(config, traits)):
        yield Problem("cluster.offload", f"names rollout_engine, but {why}", "remove rollout_engine from it")


def _several_gpus(config: RlFields, traits: EngineTraits) -> Iterator[Problem]:
    """Refuse an engine on several GPUs if its process cannot have them."""
    if traits.gpus_option is None:
        return
    field, cluster = f"{traits.options_field}.{traits.gpus_option}", config.cluster
    size = config.engine.options.get(traits.gpus_option, 1)
    if type(size) is not int or size < 1:
        yield Problem(field, f"is {size!r}, which is not a number of GPUs", "set it to 1, 2, 4 ...")
    elif size > 1 and not cluster.rollout_workers:
        message = f"is {size}, but without rollout workers {traits.label} shares the single GPU of the training process"
        yield Problem(field, message, "set cluster.rollout_workers to 1 or more; each has its own GPUs")
    elif size > 1 and cluster.runs_on == "torchrun":
        message = f"is {size}, but torchrun gives each process one GPU"
        yield Problem(field, message, "set cluster.backend to processes or ray")
    elif size > 1 and cluster.gpus_per_worker not in (None, 1, size):
        message = f"is {cluster.gpus_per_worker:g}, but a rollout worker needs exactly {size} GPUs ({field})"
        yield Problem("cluster.gpus_per_worker", message, "leave it out; other processes then have one GPU each")


def _awake(config: RlFields, traits: EngineTraits) -> str:
    """Why the engine cannot sleep, or would make room for nobody; empty if it can."""
    if traits.sleeps == "never":
        others = [name for name in ENGINES if traits_of(name).sleeps != "never"]
        return f"rollout.engine is {config.rollout.engine!r}, which cannot sleep ({' and '.join(others)} can)"
    if config.cluster.rollout_workers:
        return "rollout workers have their own GPUs, on which nothing trains (cluster.rollout_workers)"
    if config.model.device == "cpu" and traits.sleeps == "on GPUs":
        return f"model.device is cpu, and {traits.label} sleeps on GPUs only"
    return ""


def _arithmetic(config: RlFields) -> Iterator[Problem]:
    rollout, optimization = config.rollout, config.optimization
    trained = [domain for domain in domain_settings(config) if domain.is_trained]
    smallest = min(trained, key=lambda domain: domain.group_size, default=None)  # without any, `check_domains` objects
    responses = 0 if smallest is None else rollout.prompts_per_step * smallest.group_size
    if smallest is not None and optimization.minibatches > responses:
        size = f"{smallest.place('rollout.group_size')} {smallest.group_size}"
        product = f"rollout.prompts_per_step {rollout.prompts_per_step} x {size}"
        message = f"is {optimization.minibatches}, but a step may have only {responses} responses ({product})"
        yield Problem("optimization.minibatches", message, f"set it to at most {responses}")
    per_step = optimization.epochs * optimization.minibatches
    by_step = optimization.schedule_unit == "step"
    steps = config.steps - (config.critic.warmup_steps if config.algorithm.may_use_critic else 0)
    total = max(steps, 0) * (1 if by_step else per_step)  # in which the policy learns
    if config.algorithm.max_epoch_kl is not None and optimization.epochs == 1:
        message = f"is {config.algorithm.max_epoch_kl:g}, but it is not used: there is only one epoch"
        yield Problem("algorithm.max_epoch_kl", message, "set optimization.epochs to 2 or more, or remove it")
    if optimization.warmup_steps > total:
        product = "steps" if by_step else "steps x optimization.epochs x optimization.minibatches"
        if steps < config.steps:
            product += ", without the steps in which only the critic learns"
        yield warmup_too_long(optimization.warmup_steps, total, product)


def _full_sharding(config: RlFields) -> Iterator[Problem]:
    cluster = config.cluster
    if cluster.sharding == "full" and cluster.trainers > 1 and cluster.rollout_workers == 0:
        message = "is full, but without rollout workers the trainers sample, which needs whole weights"
        yield Problem("cluster.sharding", message, "set cluster.rollout_workers to at least 1")


def _own_process(config: RlFields) -> Iterator[Problem]:
    """Refuse `own_process` for models that the run does not have, or only as a part of the policy, and reward models
    that name a GPU although their process sees only one."""
    asked, absent = config.cluster.own_process, _absent(config)
    for index, name in enumerate(asked):
        if name in asked[:index]:
            yield Problem(f"cluster.own_process.{index}", f"{name} is named twice", "keep one of the two")
        elif name in absent:
            yield Problem(f"cluster.own_process.{index}", f"is {name}, but {absent[name]}", "remove it")
    for field, reward in config.named_rewards.items() if "reward_model" in asked else ():
        device = reward.options.get("device")
        if reward.is_model and str(device).startswith("cuda:"):
            message = f"is {device}, but reward models run in a separate process, which sees one GPU"
            yield Problem(f"{field}.options.device", message, "set it to cuda, or remove it")


def _alone(config: RlFields) -> dict[str, str]:
    """The roles with a process of their own, in which there is no other role to make room for."""
    own = zip(config.cluster.own_process, config.cluster.own_names, strict=True)
    return {model: f"the {name} runs in a separate process (own_process)" for model, name in own}


def _absent(config: RlFields) -> dict[str, str]:
    """The roles with weights of their own that this run does not have, and why."""
    algorithm, absent = config.algorithm, {}
    if not config.has_reference:
        absent["reference"] = "algorithm.kl_in is none, so there is no reference"
    elif config.model.lora is not None:
        absent["reference"] = "with model.lora the reference is the policy with its adapters off"
    if not config.named_teachers:
        absent["teacher"] = "the run file has no teacher"
    elif not config.teacher_paths:
        absent["teacher"] = "the teacher is at an endpoint"
    elif config.teacher_paths == (OWN_POLICY,) and config.model.lora is not None:
        absent["teacher"] = "with model.lora the teacher `policy` is the policy with its adapters off"
    if not algorithm.may_use_critic:
        absent["critic"] = f"the estimator {algorithm.estimator!r} has no critic"
    elif config.critic.kind == "shared":
        absent["critic"] = "critic.kind is shared: a head on the policy's own backbone"
    if config.all_rewards and not any(reward.is_model for reward in config.all_rewards):
        absent["reward_model"] = "no reward is a reward model (model:PATH)"
    return absent


def _staleness(config: RlFields) -> Iterator[Problem]:
    """Refuse old log-probabilities that would ignore the staleness of responses, and a correction without effect."""
    algorithm, path = config.algorithm, "algorithm.old_logprobs"
    corrects = algorithm.weights_mismatch
    if algorithm.old_logprobs == "trainer" and config.max_staleness and not corrects:
        message = f"is trainer, which ignores that responses are {config.max_staleness} steps old (max_staleness)"
        remedy = "remove it, or set algorithm.mismatch_correction (token_truncate is a good start)"
        yield Problem(path, message, remedy)
    if algorithm.old_logprobs == "sampler" and corrects:
        message = f"is sampler, so algorithm.mismatch_correction {algorithm.mismatch_correction} has nothing to correct"
        yield Problem(path, message, "set one of the two to its default")


def _timing(config: RlFields) -> Iterator[Problem]:
    """Refuse new weights within a response if nothing is sampled ahead."""
    if config.partial and config.max_staleness == 0:
        message = "is true, but max_staleness is 0: nothing is sampled ahead of training"
        yield Problem("partial", message, "set max_staleness to at least 1, or remove partial")
    if config.partial and config.cluster.rollout_workers == 0:
        message = "is true, but cluster.rollout_workers is 0: nothing is sampled while the policy learns"
        yield Problem("partial", message, "set cluster.rollout_workers to at least 1, or remove partial")


def _scoring(scoring: ScoringConfig) -> Iterator[Problem]:
    if scoring.on_failure == "score" and scoring.failure_score is None:
        message = "is not set, but scoring.on_failure is score"
        yield Problem("scoring.failure_score", message, "set the score of a failed reward, or set on_failure: exclude")
    if scoring.on_failure != "score" and scoring.failure_score is not None:
        message = f"is {scoring.failure_score:g}, but scoring.on_failure is {scoring.on_failure}"
        yield Problem("scoring.failure_score", message, "set scoring.on_failure to score, or remove failure_score")


def _sandbox(sandbox: SandboxConfig) -> Iterator[Problem]:
    """Refuse a tier for a remote sandbox, which has its own, and settings of a server for the sandbox of this
    machine."""
    if sandbox.url is None:
        for name, value in (("token_variable", sandbox.token_variable), ("grade", sandbox.grade)):
            if value != SandboxConfig.model_fields[name].default:
                yield Problem(f"sandbox.{name}", "is for a sandbox on another machine", "set sandbox.url, or remove it")
        return
    if not sandbox.url.startswith(("http://", "https://")):
        yield Problem("sandbox.url", f"is {sandbox.url!r}", "give http://HOST:PORT or https://HOST")
    if sandbox.tier != "auto":
        message = f"is {sandbox.tier}, but programs run at sandbox.url, whose server sets its own tier"
        yield Problem("sandbox.tier", message, "remove it")


def _cuts(config: RlFields) -> Iterator[Problem]:
    """Check the settings that cut responses for scoring."""
    after, token = config.scoring.truncate_after, config.scoring.truncate_token
    if token is None and after:
        message = f"is {after}, but scoring.truncate_token is not set"
        yield Problem("scoring.truncate_after", message, "set scoring.truncate_token, or remove it")
    shortest = min(domain_settings(config), key=lambda domain: domain.max_response_tokens)
    most = shortest.max_response_tokens
    if token is not None and after >= most:
        message = f"is {after}, but a response{_of_domain(shortest)} has at most {most} tokens"
        limit = shortest.place("rollout.max_response_tokens")
        yield Problem("scoring.truncate_after", message, f"set it below {limit}")


def _endings(config: RlFields) -> Iterator[Problem]:
    """Refuse responses of a fixed length if a setting depends on how they end."""
    scoring, rollout, algorithm = config.scoring, config.rollout, config.algorithm
    trained = (domain for domain in domain_settings(config) if domain.is_trained)
    endless = next((domain for domain in trained if not (domain.stop or rollout.stop_token_ids)), None)
    if not rollout.ignore_eos or endless is None:
        return
    domain, stop = _of_domain(endless), endless.place("rollout.stop")
    if scoring.incomplete_score is not None and scoring.truncate_token is None:
        score = f"{scoring.incomplete_score:g}"
        message = f"is {score}, but with rollout.ignore_eos no response{domain} ends, so all would get it"
        remedy = f"set scoring.truncate_token, {stop}, or rollout.ignore_eos: false"
        yield Problem("scoring.incomplete_score", message, remedy)
    for field, is_on in (
        ("mask_truncated", algorithm.mask_truncated),
        ("overlong_buffer", algorithm.overlong_buffer is not None),
    ):
        if is_on:
            message = f"is set, but with rollout.ignore_eos every response{domain} has max_response_tokens tokens"
            yield Problem(f"algorithm.{field}", message, f"remove {field}, or set {stop}, or rollout.ignore_eos: false")


def _of_domain(domain: DomainSettings) -> str:
    return f" of the domain {domain.name}" if domain.name is not None else ""


def _labels(config: RlFields) -> Iterator[Problem]:
    named = config.named_rewards
    for index, (field, reward) in enumerate(named.items()):
        alike = [other for other in list(named)[:index] if named[other].log_label == reward.log_label]
        clash = next((other for other in alike if not _are_one(config, other, field)), None)
        if clash is not None:
            message = f"{reward.log_label!r} is also the label of {clash}, so the logs could not tell them apart"
            yield Problem(f"{field}.label", message, "give each its own label")
        if reward.audit and reward.weight not in (1.0, 0.0):
            message = f"is {reward.weight:g}, but an audit is not part of the sum"
            yield Problem(f"{field}.weight", message, "remove it, or audit: true")
    rewards = () if config.domains or config.teaches_alone else config.rewards  # `check_domains` looks at each domain's
    if rewards and all(reward.audit for reward in rewards):
        yield Problem("rewards.0.audit", "is true for all rewards, so nothing is trained on", "set another reward")
    elif rewards and all(reward.trained_weight == 0 for reward in rewards):
        yield Problem("rewards.0.weight", "is 0, like all others, so every score would be 0", "give one a weight")


def _are_one(config: RlFields, first: str, second: str) -> bool:
    """Return whether the two are the same reward, named by different domains with the same settings."""
    one, other = config.named_rewards[first], config.named_rewards[second]
    between_domains = first.startswith("domains.") and second.startswith("domains.") and one.domains != other.domains
    return between_domains and one == other.model_copy(update={"domains": one.domains})


def _judging_reward(config: RlFields) -> Iterator[Problem]:
    """Check the reward that decides whether a response is solved, unless code passes rewards itself."""
    if config.all_rewards:
        yield from judging_reward(config.evaluation, config.all_rewards, "evaluation", "a reward")
    elif config.teaches_alone and config.evaluation.success is not None:
        yield Problem("evaluation.success", f"is {config.evaluation.success}, but there are no rewards", "remove it")


def _unsound_puzzles(config: RlFields) -> Iterator[Problem]:
    """Refuse tasks that reward answers which solve nothing, unless the reward for them allows it."""
    for domain in domain_settings(config):
        sources = (*sources_of(config, domain, "train"), *sources_of(config, domain, "eval"))
        tasks = {task for source in sources for task in source.reasoning_gym or ()}
        for field, reward in config.named_rewards.items():
            if reward.name != names.PUZZLES or reward not in domain.rewards:
                continue
            allowed = reward.options.get("allow") or ()
            for task in sorted(tasks & names.UNSOUND_PUZZLES.keys() - set(allowed)):
                message = (
                    f"does not name {task}, a task of the data whose scores are unsound: {names.UNSOUND_PUZZLES[task]}"
                )
                remedy = f"remove the task, or accept it with options: {{allow: [{task}]}}"
                yield Problem(f"{field}.options.allow", message, remedy)
