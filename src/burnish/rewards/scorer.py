"""The scorer of a run: its rewards, their workers, the failure policy and the metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from burnish.errors import ConfigError, OutageError, RewardError
from burnish.observability.timeline import WorkSpan
from burnish.outside.supervise import Closing
from burnish.rewards.calling import RewardCaller, TracebackInWorkerError, failed
from burnish.rewards.combining import (
    Counts,
    Weighted,
    combine,
    has_failed,
    is_lost,
    not_for_prompt,
    to_score,
    with_scores,
)
from burnish.rewards.endings import Ending
from burnish.rewards.in_workers import WorkerRewards
from burnish.rewards.inputs import Item, Signature
from burnish.rewards.loading import RewardSpec, function_named, load_reward
from burnish.rewards.outcome import failure
from burnish.rewards.pool import Outcomes, WorkerPool
from burnish.rewards.specs import Numbered, RunReward, asks_for_answers, check_rows, specs_of
from burnish.types import Metric, Prompt, Reduction, RewardStatus, Rollout, Tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from burnish.config.schema import RewardConfig, SandboxConfig, ScoringConfig
    from burnish.rewards.judging.judges import Judges
    from burnish.rewards.judging.local import OpenModel
    from burnish.rewards.model_reward import RewardModels
    from burnish.rewards.protocol import ScoringModels

MAX_REASON = 1000  # characters of the first failure in a message


class ProcessRewardScorer(Closing):
    """Scores rollouts with the rewards of a run file (the `RewardScorer` protocol).

    User code and built-ins that could hang run in killable worker processes. Cheap built-ins and reward models
    (`model:PATH`) run in this process, except with `models_elsewhere`: then `ask_models` says where the models are,
    before anything is scored. Judges are asked from a thread of this process; `open_model` loads judges that are models
    of this process, and without it they are only checked. `sandbox` is where programs run, unless a reward's options
    name another place. `say` is told what a user should know but no metric shows. Rewards are loaded in the
    constructor, so a wrong name or option raises RewardError or ConfigError before anything is sampled, and so does a
    parameter that `columns` does not provide.
    """

    def __init__(
        self,
        rewards: Sequence[RewardConfig],
        scoring: ScoringConfig,
        *,
        columns: Collection[str] | None = None,
        models_elsewhere: bool = False,
        may_be_unscored: bool = False,
        sandbox: SandboxConfig | None = None,
        open_model: OpenModel | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        if not (rewards or may_be_unscored):
            raise ConfigError("rewards is empty, so nothing scores responses", remedy="set rewards, for example: math")
        self._scoring = scoring
        self._may_be_unscored = may_be_unscored
        self._say = say
        self._told_of: set[str] = set()  # labels of audits whose first failure was told
        specs = specs_of(rewards, sandbox)
        self._inline = {spec.label: load_reward(spec) for spec in specs if spec.runs_inline}
        for spec in specs:
            if spec.is_in_memory:
                function_named(spec.name)  # refused here, before a process is forked to find out
        self._models = AskedModels(specs, elsewhere=models_elsewhere, open_model=open_model)
        in_workers = [spec for spec in specs if spec.runs_in_worker]
        self._pool = WorkerPool(in_workers, scoring.workers, start_timeout_seconds=scoring.start_timeout_seconds)
        signatures = self._pool.signatures() | {label: reward.signature for label, reward in self._inline.items()}
        self._rewards = [
            RunReward(number, config, spec, signatures.get(spec.label) or self._models.signature(spec))
            for number, (config, spec) in enumerate(zip(rewards, specs, strict=True))
        ]
        for signature in (reward.signature for reward in self._rewards):
            if signature.system:
                say(f"reward {signature.label!r} is called as in {signature.system}, whose parameters it has")
        self._in_workers = WorkerRewards([one for one in self._rewards if one.spec.runs_in_worker], self._pool)
        self._caller = RewardCaller()
        self._asking_for_answers: set[str] = set()  # labels
        self._ending: Ending | None = None
        self._counts = Counts()
        if columns is not None:
            self.check_columns(columns)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the rewards in `reward_parts`, in the order of the run file."""
        return tuple(reward.spec.label for reward in self._rewards)

    @property
    def answer_labels(self) -> tuple[str, ...]:
        """The rewards that compare with the answer, which can be tested on gold answers. Rewards that ask for the
        column of the answers by its name are known once `check_prompts` has seen the rows."""
        return tuple(
            reward.spec.label
            for reward in self._rewards
            if reward.signature.reads_answer or reward.spec.label in self._asking_for_answers
        )

    @property
    def token_labels(self) -> tuple[str, ...]:
        """The rewards that read the tokens of a response, so its text alone is not enough."""
        return tuple(reward.spec.label for reward in self._rewards if reward.signature.reads_tokens)

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the living workers."""
        return self._pool.pids

    def attach_policy(self, tokenizer: Tokenizer) -> list[str]:
        """Set the tokenizer of the rollouts, for reward models and for the rules on where responses end.

        Until then responses are scored unchanged. Returns a sentence for each reward model, to be shown to the user.
        Raises ConfigError if `scoring.truncate_token` is not a single token.
        """
        self._ending = Ending.of(self._scoring, tokenizer)
        if self._models.judges is not None:
            self._models.judges.attach_policy(tokenizer)
        return [] if self._models.here is None else self._models.here.attach_policy(tokenizer)

    def ask_models(self, models: ScoringModels) -> None:
        """From now on ask these reward models, which are in another process."""
        self._models.models = models

    def rest_models(self, folder: Path) -> None:
        """Let the reward models of this process rest while they score nothing; see `ModelReward.rest`."""
        if self._models.here is not None:
            self._models.here.rest(folder)

    def check_columns(self, columns: Collection[str]) -> None:
        """RewardError if a reward has a parameter that neither a rollout nor these columns provide."""
        for reward in self._rewards:
            reward.signature.check_columns(columns)

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """RewardError if a reward has a parameter that some of its prompts do not provide. Says which get the domain in
        place of the column that verl has."""
        check_rows(self._rewards, prompts, set.intersection)
        for one in self._rewards:
            lacks = any("data_source" not in prompt.columns for prompt in prompts if one.is_for(prompt))
            if lacks and one.signature.system == "verl":
                self._say(f"reward {one.spec.label!r} gets the domain as data_source where a row has no such column")
        self._asking_for_answers |= {one.spec.label for one in self._rewards if asks_for_answers(one, prompts)}

    @property
    def only_waits(self) -> bool:
        """True if a reward waits for others rather than compute: an asynchronous one, or a judge at an endpoint."""
        return any(reward.only_waits for reward in self._rewards)

    def begin(self, items: Sequence[Item], *, idle_cores: bool = True) -> None:
        """Send responses to the workers and to judges while others are still being sampled. `score` uses the results.
        Without idle cores only those are sent that a reward waits for (`only_waits`).

        These rewards wait for `score`: batched ones, which need all responses at once, rewards of this process,
        reward models, and judges that compare a group. Raises what `score` raises for a reward that breaks its
        contract.
        """
        begun = self._in_workers.begun
        items = [(prompt, rollout) for prompt, rollout in to_score(items) if not begun.has(rollout)]
        check_rows(self._rewards, [prompt for prompt, _ in items], set.union)
        numbered = list(zip(begun.begin(items), self._seen(items), strict=True))
        self._models.begin_early(self._rewards, numbered)
        self._in_workers.begin(numbered, idle_cores=idle_cores)

    def score(self, items: Sequence[Item]) -> list[Rollout]:
        """The rollouts in the same order, scored; see `RewardScorer`.

        Raises RewardError if a reward breaks its contract, or if more than `max_failure_fraction` of the responses
        could not be scored (missing scores count as well); OutageError if some of these are conversations with a
        failed environment. They are returned as they are, and all rows of a conversation have the score of the last.
        """
        own = to_score(items)
        scored = with_scores(items, self._score(own) if own else ())
        check_failures(items, scored, self._scoring.max_failure_fraction)
        return scored

    def _score(self, items: Sequence[Item]) -> list[Rollout]:
        check_rows(self._rewards, [prompt for prompt, _ in items], set.union)
        ending = self._ending
        seen = self._seen(items)
        results = weighted_results(self._rewards, items, self._outcomes(items, seen))
        pairs, unscored = zip(seen, results, strict=True), self._may_be_unscored
        scored = [combined(item, found, self._scoring, may_be_unscored=unscored) for item, found in pairs]
        if ending is not None:
            scored = [ending.judged(rollout, found) for (_, rollout), found in zip(items, scored, strict=True)]
            self._counts.incomplete += sum(not ending.is_complete(rollout) for _, rollout in items)
        tell_of_audits(self._say, self._told_of, items, results)
        self._counts.add(items, results, scored)
        return scored

    def _seen(self, items: Sequence[Item]) -> Sequence[Item]:
        """The responses as rewards see them."""
        ending = self._ending
        return items if ending is None else [(prompt, ending.seen(rollout)) for prompt, rollout in items]

    def _outcomes(self, items: Sequence[Item], seen: Sequence[Item]) -> Outcomes:
        """The outcome of every (reward, position). `seen` are the items as rewards see them. Judges and reward models
        of another process score while the rewards here do."""
        of_models = self._models.begin(self._rewards, seen)
        here = {
            (reward.number, position): self._caller.one(loaded, reward.signature.arguments(item))
            for reward in self._rewards
            if (loaded := self._inline.get(reward.spec.label)) is not None
            for position, item in reward.select(enumerate(seen))
        }
        return here | self._in_workers.outcomes(items, seen) | of_models()

    def take_metrics(self) -> dict[str, Metric]:
        """Failed fraction (total, by status, by domain), incomplete fraction, the share of responses that each reward
        leaves to the others, and the workers' seconds, since the last call."""
        metrics = self._counts.metrics()
        self._counts = Counts()
        if self._ending is None:
            del metrics["reward/incomplete_fraction"]
        for label, seconds in self._pool.take_seconds().items():
            metrics[f"time/reward_worker_seconds/{label}"] = Metric(Reduction.SUM, seconds)
        return metrics if self._models.judges is None else metrics | self._models.judges.take_metrics()

    def take_spans(self) -> list[WorkSpan]:
        """Return, and forget, when workers and judges were at work, and the reward that they scored."""
        judges = self._models.judges
        return [*self._pool.spans.take(), *(() if judges is None else judges.spans.take())]

    def close(self) -> None:
        """End the worker processes, and the thread of the judges. Idempotent."""
        if self._models.judges is not None:
            self._models.judges.close()
        self._pool.close()


class AskedModels:
    """The reward models and judges of a run; None where it has none.

    `here` are the reward models of this process. `models` are the same, or are set to the models of another process
    before anything is scored.
    """

    def __init__(self, specs: Sequence[RewardSpec], *, elsewhere: bool, open_model: OpenModel | None) -> None:
        """Load the reward models, or check them as far as that can be done without loading if they are `elsewhere`, and
        open the judges. Torch is imported only for a reward model, and an HTTP client only for a judge."""
        models, judges = [spec for spec in specs if spec.is_model], [spec for spec in specs if spec.is_judge]
        self.here: RewardModels | None = None
        self.judges: Judges | None = None
        if models:
            from burnish.rewards.model_reward import RewardModels, check_model_reward

            self.here = None if elsewhere else RewardModels.load(models)
            for spec in models if elsewhere else ():
                check_model_reward(spec)
        if judges:
            from burnish.rewards.judging.judges import Judges

            self.judges = Judges(judges, open_model)
        self.models: ScoringModels | None = self.here

    def signature(self, spec: RewardSpec) -> Signature:
        """The signature of one of these rewards."""
        judges = self.judges if spec.is_judge else None
        return Signature(spec.label, ("response",)) if judges is None else judges.signature(spec.label)

    def begin_early(self, rewards: Iterable[RunReward], numbered: Sequence[Numbered]) -> None:
        """Ask judges about these responses while others are still being sampled; see `Judges.begin_early`."""
        for reward in rewards:
            if self.judges is not None and reward.spec.is_judge:
                self.judges.begin_early(reward.spec.label, [item for _, item in reward.select(numbered)])

    def begin(self, rewards: Iterable[RunReward], items: Sequence[Item]) -> Callable[[], Outcomes]:
        """Start scoring with the rewards that are models or judges. The returned function waits for the outcome of
        every (reward, position)."""
        begun = [self._begin(reward, items) for reward in rewards if reward.spec.is_model or reward.spec.is_judge]
        return lambda: {key: outcome for scored in begun for key, outcome in scored().items()}

    def _begin(self, reward: RunReward, items: Sequence[Item]) -> Callable[[], Outcomes]:
        models = self.judges if reward.spec.is_judge else self.models
        assert models is not None, "`ask_models` says where models that are elsewhere can be asked"
        ours = reward.select(enumerate(items))
        scored = models.begin(reward.spec.label, [item for _, item in ours]) if ours else list

        def outcomes() -> Outcomes:
            try:
                found = scored()
            except RewardError as error:  # an audit's refusal is its outcome for all responses
                found = [failed(error, reward.spec)] * len(ours)
            return {(reward.number, position): one for (position, _), one in zip(ours, found, strict=True)}

        return outcomes


def weighted_results(rewards: Sequence[RunReward], items: Sequence[Item], outcomes: Outcomes) -> list[list[Weighted]]:
    """Return the outcomes of each response, by the rewards that were asked."""
    # Prompt and group, because the gold check gives all responses one group, and a prompt can be drawn twice.
    elsewhere = not_for_prompt(outcomes, [(prompt.id, rollout.group_id) for prompt, rollout in items])
    return [
        [
            Weighted(one.spec.label, one.config.weight, outcomes[key], one.config.audit, applies=key not in elsewhere)
            for one in rewards
            if (key := (one.number, position)) in outcomes
        ]
        for position in range(len(items))
    ]


def combined(item: Item, results: Sequence[Weighted], scoring: ScoringConfig, *, may_be_unscored: bool) -> Rollout:
    """Return the response with its reward; MISSING if no reward is for its domain, unless teachers alone train it."""
    prompt, rollout = item
    if all(result.audit for result in results) and not may_be_unscored:
        nothing = failure(RewardStatus.MISSING, f"no reward is for the domain {prompt.domain!r}")
        results = [*results, Weighted("", 0.0, nothing, applies=False)]
    return combine(rollout, results, scoring.failure_score)


def tell_of_audits(
    say: Callable[[str], None], told_of: set[str], items: Sequence[Item], results: Sequence[Sequence[Weighted]]
) -> None:
    """Say the first failure of each audit in a sentence, because no status of a response tells of it. `told_of` are
    the labels of audits whose failure was said."""
    for (_, rollout), found in zip(items, results, strict=True):
        for one in found:
            if one.is_failed_audit and one.label not in told_of:
                told_of.add(one.label)
                reason = one.outcome.detail.partition("\n")[0][:MAX_REASON]
                say(
                    f"the audit {one.label!r} failed, which changes no score (prompt {rollout.prompt_id!r}, sample "
                    f"{rollout.sample_index}, {one.outcome.status.value}): {reason}. Further failures are only "
                    f"counted: reward/audit_failed_fraction/{one.label}"
                )


def check_failures(items: Sequence[Item], scored: Sequence[Rollout], most: float) -> None:
    """Raise RewardError if the share of responses that could not be scored is above `most`, the run's
    `scoring.max_failure_fraction`, or OutageError if the environments of some have failed."""
    ends = [(prompt, one) for (prompt, _), one in zip(items, scored, strict=True) if one.ends_in is None]
    failed = [(prompt, rollout) for prompt, rollout in ends if has_failed(rollout)]
    if len(failed) <= most * len(ends):
        return
    lost = [(prompt, rollout) for prompt, rollout in failed if is_lost(rollout)]
    prompt, first = (lost or failed)[0]
    domains = Counter(prompt.domain for prompt, _ in failed)
    counts = ", ".join(f"{domain}: {count}" for domain, count in sorted(domains.items()))
    reason, _, traceback = first.status_detail.partition("\n")
    fix = f"fix the reward{' (--debug shows the whole traceback)' if traceback else ''}"
    if lost:
        fix = "fix or restart the environment or agent, then give the same command again to continue"
    raise (OutageError if lost else RewardError)(
        f"{len(failed)} of {len(ends)} responses could not be scored (by domain: {counts}), more than"
        f" scoring.max_failure_fraction {most:g} allows."
        f" The first one: prompt {prompt.id!r}, sample {first.sample_index}, {first.status.value}:"
        f" {reason[:MAX_REASON]}",
        remedy=f"{fix}, or raise scoring.max_failure_fraction if these failures are expected",
    ) from (TracebackInWorkerError(traceback) if traceback else None)
