"""Plan of a run of `burnish rl`, and the time of its steps; its memory is in `rl_processes`."""

from __future__ import annotations

from collections.abc import Iterator

from burnish.config import names
from burnish.config.domains import at_step, domain_settings, responses_per_step
from burnish.config.schema import RlConfig
from burnish.config.schema_run import RunConfig
from burnish.config.schema_teacher import OWN_POLICY
from burnish.planning.model_facts import ModelFacts
from burnish.planning.plan import NOTHING_KNOWN, ModelRole, Plan, PlanLine, Preview, context_warning, count_in_words
from burnish.planning.timing import ALLOWED, Lengths, PhaseTime, StepTimes, forward_operations

_LONGEST = 2.0
"""Longest response of a batch, relative to the mean one."""


def plan_rl(config: RlConfig, data: Preview = NOTHING_KNOWN, facts: ModelFacts | None = None) -> Plan:
    """The plan of `burnish rl`."""
    num_prompts = data.rows
    passes = None if not num_prompts else config.steps * config.rollout.prompts_per_step / num_prompts
    evaluations = num_evaluations(config)
    return Plan(
        steps=config.steps,
        optimizer_steps=config.planned_updates,
        passes_over_data=passes,
        evaluations=evaluations,
        models=tuple(_models(config)),
        lines=(
            *_sampling_lines(config, num_prompts, passes),
            *_update_lines(config),
            *_other_lines(config, evaluations),
        ),
        warnings=tuple(_warnings(config, num_prompts, facts)),
    )


def split_evenly(total: int, parts: int) -> tuple[int, ...]:
    """The sizes of `parts` parts that differ by at most one, larger ones first."""
    size, larger = divmod(total, parts)
    return (size + 1,) * larger + (size,) * (parts - larger)


def num_evaluations(config: RlConfig) -> int:
    """Number of evaluations in the whole run: at the start, every `every_steps` steps, and after the last step."""
    if not config.named_sources("eval"):
        return 0
    after = [step for step in range(1, config.steps + 1) if config.evaluation.due(step, last=step == config.steps)]
    return len(after) + int(config.evaluation.begins)


def _models(config: RlConfig) -> Iterator[ModelRole]:
    algorithm = config.algorithm
    for reward in config.all_rewards:
        if reward.is_model:
            path = reward.name.removeprefix(names.MODEL_REWARD)
            yield ModelRole("reward_model", f"rewards names {path}; it scores with weight {reward.weight:g}")
    what = "its adapters are trained" if config.model.lora else "is trained"
    yield ModelRole("policy", f"{what}; {_sampler(config)}")
    yield from _critic(config)
    endpoints = (f"{one.name} at {one.url} (which a plan does not ask)" for one in config.teacher_endpoints)
    for model in (*config.teacher_paths, *endpoints):
        yield ModelRole("teacher", f"the estimator {algorithm.estimator} asks {model} about the policy's responses")
    if not config.has_reference:
        return
    because = f"algorithm.kl_in is {algorithm.kl_in} with kl_coef {algorithm.kl_coef:g}"
    if algorithm.kl_in == "none":
        because = f"the estimator {algorithm.estimator} reads its log-probabilities"
    if config.model.lora:
        because += "; it is the policy with its adapters off, not a second copy"
    yield ModelRole("reference", because)


def _sampler(config: RlConfig) -> str:
    traits = config.engine.traits
    weights = f"a second copy{traits.place(config.rollout)}" if traits.copies else "it"
    return f"the {config.rollout.engine} engine samples from {weights}"


def teacher_facts(config: RlConfig, facts: ModelFacts) -> Iterator[ModelFacts | None]:
    """The sizes of each teacher, in the order of `teacher_paths`; None where they are not known."""
    others = dict(zip(config.teacher_sources, facts.teachers, strict=False))
    return (facts if path == OWN_POLICY else others.get(path) for path in config.teacher_paths)


def _critic(config: RlConfig) -> Iterator[ModelRole]:
    critic, estimator = config.critic, config.algorithm.estimator
    if estimator not in names.CRITIC_ESTIMATORS:
        return
    needs = f"the estimator {estimator} needs values"
    if critic.kind == "shared":
        yield ModelRole("critic", f"{needs}; a head on the policy's backbone (critic.kind shared), not a second model")
        return
    start = "a copy of the policy" if critic.init == "policy" else critic.init
    yield ModelRole("critic", f"{needs}; all weights of its own backbone are trained, starting from {start}")


def _sampling_lines(config: RlConfig, num_prompts: int | None, passes: float | None) -> Iterator[PlanLine]:
    rollout = config.rollout
    prompts, responses = rollout.prompts_per_step, responses_per_step(config)
    yield PlanLine("one step", "prompts", f"{prompts:,}", "rollout.prompts_per_step")
    if config.domains:
        yield PlanLine("one step", "responses, at most", f"{responses:,}", "each domain's prompts x its group_size")
        yield from _domain_lines(config)
    else:
        product = f"{prompts} prompts x {rollout.group_size} (rollout.group_size)"
        yield PlanLine("one step", "responses", f"{responses:,}", product)
    if config.algorithm.estimator in names.GREEDY_ESTIMATORS:
        because = f"the estimator {config.algorithm.estimator} needs one per prompt; they are not trained on"
        yield PlanLine("one step", "greedy responses", f"{prompts:,}", because)
    most = responses * rollout.max_response_tokens
    because = f"{responses} responses x {rollout.max_response_tokens} (rollout.max_response_tokens)"
    yield PlanLine("one step", "response tokens, at most", f"{most:,}", because)
    if any(domain.refills for domain in domain_settings(config)):
        rounds = config.algorithm.max_refills
        because = f"groups that do not teach are refilled in up to {rounds} more rounds (algorithm.max_refills)"
        yield PlanLine("one step", "responses with refills, at most", f"{responses * (rounds + 1):,}", because)
    whole = config.steps * prompts
    yield PlanLine("whole run", "steps", f"{config.steps:,}", "steps")
    yield PlanLine("whole run", "responses", f"{config.steps * responses:,}", f"{config.steps} steps x {responses}")
    because = f"{whole:,} prompts drawn / {count_in_words(num_prompts)} in data.train"
    if config.data.query is not None:
        because += ", including those without a query (data.query)"
    yield PlanLine("whole run", "passes over the data", count_in_words(passes, 2), because)


def _domain_lines(config: RlConfig) -> Iterator[PlanLine]:
    """The part of each domain in a step."""
    domains = domain_settings(config)
    for domain in domains:
        parts = []
        for first in sorted({first for other in domains for first in other.shares}):
            share = at_step(domain.shares, first) / sum(at_step(other.shares, first) for other in domains)
            since = f" from step {first}" if first else ""
            parts.append(f"{config.rollout.prompts_per_step * share:.3g}{since}")
        rewards = ", ".join(reward.log_label for reward in domain.rewards)
        because = f"x {domain.group_size} responses; rewards: {rewards}"
        yield PlanLine("one step", f"prompts of {domain.name}", ", ".join(parts), because)


def _update_lines(config: RlConfig) -> Iterator[PlanLine]:
    optimization = config.optimization
    sizes = split_evenly(responses_per_step(config), optimization.minibatches)
    shown = f"{sizes[0]:,}" if len(set(sizes)) == 1 else f"{sizes[-1]:,} or {sizes[0]:,}"
    because = f"responses / {optimization.minibatches} (optimization.minibatches)"
    yield PlanLine("one step", "responses per minibatch", shown, because)
    per_step = optimization.epochs * optimization.minibatches
    because = f"{optimization.epochs} (optimization.epochs) x {optimization.minibatches} (optimization.minibatches)"
    yield PlanLine("one step", "optimizer steps", f"{per_step:,}", because)
    total = config.steps * per_step
    yield PlanLine("whole run", "optimizer steps", f"{total:,}", f"{config.steps} steps x {per_step}")
    if config.algorithm.estimator in names.CRITIC_ESTIMATORS:
        yield from _critic_lines(config, total)
    rate = _learning_rate(config, config.policy_updates)
    yield PlanLine("whole run", "learning rate", rate, "optimization.schedule, warmup_steps")
    old = "needed: more than one update per step" if per_step > 1 else "not needed: one update per step"
    if per_step == 1 and config.algorithm.kl_in == "reward":
        old = "needed: the KL in the reward reads them"
    elif per_step == 1 and config.algorithm.estimator in names.OLD_ESTIMATORS:
        old = f"needed: the estimator {config.algorithm.estimator} reads them"
    yield PlanLine("one step", "pass for old log-probabilities", old.partition(":")[0], old.partition(": ")[2])


def _critic_lines(config: RlConfig, total: int) -> Iterator[PlanLine]:
    critic, bound = config.critic, config.algorithm.max_epoch_kl
    alone = total - config.policy_updates
    because = f"all of them; the first {alone:,} without the policy" if alone else "one with each of the policy's"
    yield PlanLine("whole run", "optimizer steps of the critic", f"{total:,}", because)
    rate = _critic_rate(config)
    because = "optimization.learning_rate" if critic.learning_rate is None else "critic.learning_rate"
    yield PlanLine(
        "whole run", "learning rate of the critic", f"{rate:g}", f"{because}, {config.optimization.schedule}"
    )
    if bound is not None:
        because = f"after an epoch with a KL above {bound:g} (algorithm.max_epoch_kl) the rest are skipped"
        yield PlanLine("one step", "epochs, at most", f"{config.optimization.epochs}", because)


def _learning_rate(config: RlConfig, total: int) -> str:
    optimization = config.optimization
    words = f"{optimization.learning_rate:g}, {optimization.schedule}"
    if optimization.warmup_steps:
        words += f" after {optimization.warmup_steps} warm-up steps"
    if optimization.schedule_unit == "step":
        words += ", the same in all optimizer steps of a step"
    if optimization.schedule != "constant":
        end = optimization.learning_rate * optimization.final_learning_rate_fraction
        words += f", to {end:g} at optimizer step {total:,}"
    return words


def _other_lines(config: RlConfig, evaluations: int) -> Iterator[PlanLine]:
    yield PlanLine("whole run", "evaluations", str(evaluations), _when_evaluated(config))
    every = config.checkpoint.every_steps
    saves = -(-config.steps // every) if every is not None else 1
    because = f"every {every} steps and after the last" if every is not None else "after the last step"
    yield PlanLine("whole run", "checkpoints", str(saves), f"{because}; the newest {config.checkpoint.keep} are kept")


def _when_evaluated(config: RlConfig) -> str:
    if not config.named_sources("eval"):
        return "data.eval is empty"
    every = config.evaluation.every_steps
    times = ["before the first step"] if config.evaluation.begins else []
    since = f" from step {config.evaluation.start_step} on" if config.evaluation.start_step else ""
    times += [] if every is None else [f"every {every} steps{since} and after the last"]
    return ", ".join(times) or "evaluation.every_steps is null"


def _warnings(config: RlConfig, num_prompts: int | None, facts: ModelFacts | None) -> Iterator[str]:
    rollout = config.rollout
    if num_prompts is not None and num_prompts < rollout.prompts_per_step:
        yield (
            f"data.train has {num_prompts} prompts, fewer than rollout.prompts_per_step {rollout.prompts_per_step}, so "
            "a step draws some of them more than once"
        )
    longest = rollout.max_prompt_tokens + rollout.max_response_tokens
    yield from context_warning(longest, "rollout.max_prompt_tokens + max_response_tokens", facts)
    if facts is not None:
        yield from slow_critic(config, facts.hidden_size)
    for path, one in zip(config.teacher_paths, () if facts is None else teacher_facts(config, facts), strict=False):
        if one is None:
            yield f"the sizes of teacher {path!r} are unknown, so its memory is not counted"
    if rollout.group_size == 1 and config.algorithm.estimator == "raw" and config.algorithm.kl_in == "none":
        yield "plain REINFORCE without a baseline or KL learns slowly and may drift"


def _critic_rate(config: RlConfig) -> float:
    """The critic's own learning rate, or the policy's."""
    own = config.critic.learning_rate
    return config.optimization.learning_rate if own is None else own


def slow_critic(config: RlConfig, hidden_size: int) -> Iterator[str]:
    """A warning if the whole run is too short for a critic's values, which start at 0, to reach 1.

    An Adam step moves each of H weights by about the learning rate, and hidden states are about 1 in size, so a value
    moves by about learning rate x H per step. The scale of the rewards is not known here; most are around 1.
    """
    fresh = config.critic.kind == "shared" or config.critic.init == "policy"
    if not fresh or config.algorithm.estimator not in names.CRITIC_ESTIMATORS:
        return
    steps = config.planned_updates
    rate = _critic_rate(config)
    reach = rate * hidden_size * steps
    if reach < 1:
        yield (
            f"the critic's values start at 0 and move by about {reach:.2g} in the whole run (critic.learning_rate "
            f"{rate:g} x hidden size {hidden_size:,} x {steps:,} optimizer steps): too little "
            "for rewards of about 1; raise critic.learning_rate"
        )


class RlTimes(StepTimes):
    """Besides the update: pushes of weights, sampling, and passes without a gradient."""

    config: RlConfig

    @staticmethod
    def assumed(config: RunConfig, prompt: float | None, response: float | None) -> Lengths:
        """Half of what is allowed, where nothing else is known."""
        assert isinstance(config, RlConfig)
        most = config.rollout
        of_prompts = ALLOWED if prompt is None else "mean of data.train"
        prompt = most.max_prompt_tokens / 2 if prompt is None else prompt
        of_responses = ALLOWED if response is None else "stated or recorded"
        response = most.max_response_tokens / 2 if response is None else min(response, most.max_response_tokens)
        return Lengths(prompt, response, f"prompts: {of_prompts}; responses: {of_responses}")

    def sizes(self) -> tuple[float, float]:
        return float(responses_per_step(self.config)), float(self.config.rollout.prompts_per_step)

    def updates(self) -> tuple[int, int]:
        return self.config.optimization.epochs, self.config.optimization.minibatches

    @property
    def apart(self) -> bool:
        return super().apart or self.config.optimization.shuffle == "responses"

    @property
    def critic(self) -> ModelFacts | None:
        here = self.config.has_separate_critic and "critic" not in self.config.cluster.own_process
        return (self.facts.critic or self.facts) if here else None

    def before_update(self) -> Iterator[PhaseTime]:
        ahead, responses = self.workers > 0 and self.config.max_staleness > 0, responses_per_step(self.config)
        if self.workers:
            seconds = self.width * self.facts.num_parameters / self.link(self.trainers + self.workers)
            yield PhaseTime("push", seconds, "weights to the rollout workers", ahead)
        yield PhaseTime("rollout", self.rollout(responses), self._how_sampled(responses), ahead)
        if self.speed.step_seconds:
            yield PhaseTime("rewards", self.speed.step_seconds, "and logging, batching: as measured")
        yield from self._log_probs()

    def evaluation(self, heldout: int | None) -> float:
        if not heldout:
            return 0.0
        most, samples = self.config.evaluation.max_prompts, max(1, self.config.evaluation.samples)
        return self.rollout(samples * (heldout if most is None else min(most, heldout)))

    def rollout(self, responses: int) -> float:
        """Seconds of sampling: prompts once, then as many decoding steps as the rows need."""
        config = self.config
        prompt, mean = self.lengths.prompt, self.lengths.response
        engines, lanes = self.workers or self.trainers, config.cluster.num_lanes
        share, rounds = responses / engines, max(1, -(-lanes // engines))
        at_once = min(config.rollout.max_batch_rows, -(-responses // lanes))
        longest = min(config.rollout.max_response_tokens, _LONGEST * mean)
        steps = max(share * mean / at_once, rounds * longest)
        prefill = self.passes(self.facts, self.prompts * prompt / engines, 0)
        rows = share * mean / steps
        return prefill + steps * self.decoding_step(rows, prompt + mean / 2, config.engine.traits.step_seconds)

    def decoding_step(self, rows: float, context: float, fixed: float | None) -> float:
        """Seconds of one token for each of these rows, with so many tokens before it. fixed: of the step itself, if the
        engine says that."""
        facts, speed = self.facts, self.speed
        operations = forward_operations(facts, rows, rows, rows * context) / speed.decoding_operations
        kept = 2 * facts.num_layers * facts.num_key_value_heads * facts.head_size * rows * context
        read = (self._body_read(rows) + facts.vocabulary_size * facts.hidden_size + kept) * self.width
        fixed = speed.token_seconds + speed.layer_seconds * facts.num_layers if fixed is None else fixed
        return fixed + speed.row_seconds * rows + max(operations, read / speed.decoding_bytes)

    def _body_read(self, rows: float) -> float:
        """Numbers of the layers that some row needs; with experts more for more rows."""
        facts = self.facts
        everything = max(facts.body, facts.num_parameters - 2 * facts.vocabulary_size * facts.hidden_size)
        unread = (1 - facts.body / max(1, everything)) ** max(1.0, rows)
        return everything * (1 - unread)

    def _how_sampled(self, responses: int) -> str:
        engines = f"{self.workers} rollout workers" if self.workers > 1 else "1 rollout worker"
        engines = engines if self.workers else f"{self.trainers} trainer{'s' * (self.trainers > 1)}"
        return f"{responses:,} responses of {self.lengths.response:,.0f} tokens, {engines}"

    def _log_probs(self) -> Iterator[PhaseTime]:
        """Yield the passes without a gradient: of reward models, for old log-probabilities, reference and values."""
        config = self.config
        algorithm, own = config.algorithm, config.cluster.own_process
        several_updates = self.epochs * self.minibatches > 1
        reads_old = algorithm.kl_in == "reward" or algorithm.estimator in names.OLD_ESTIMATORS
        is_scored = several_updates or reads_old or algorithm.top_entropy is not None
        tokens, scored, found, seconds = self.read() / self.trainers, self.scored / self.trainers, [], 0.0
        for name, facts, is_made in (
            ("old log-probabilities", self.facts, is_scored),
            ("reference", self.facts, config.has_reference and "reference" not in own),
            *(("teacher", facts or self.facts, "teacher" not in own) for facts in teacher_facts(config, self.facts)),
            ("values", self.facts.critic or self.facts, config.has_separate_critic and "critic" not in own),
        ):
            if is_made:
                found.append(name)
                seconds += self.passes(facts, tokens, scored)
        for reward in self.rewards:
            if reward.facts is not None:
                found.append(f"reward {reward.label}")
                seconds += self.passes(reward.facts, self.tokens_per_step(), 0)
        if found:
            yield PhaseTime("log-probs", seconds, ", ".join(found))
