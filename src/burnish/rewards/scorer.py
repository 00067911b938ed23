"""The scorer of a run: its rewards, their workers, the failure policy and the metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from burnish.errors import ConfigError, OutageError, RewardError
from burnish.rewards.begun import BegunResponses, Numbered
from burnish.rewards.calling import RewardCaller, TracebackInWorkerError, broken_contract
from burnish.rewards.combining import Weighted, combine, not_for_prompt
from burnish.rewards.counts import Counts, has_failed
from burnish.rewards.endings import Ending
from burnish.rewards.in_memory import function_named
from burnish.rewards.inputs import Item, Signature
from burnish.rewards.loading import RewardSpec, load_reward
from burnish.rewards.outcome import Outcome, failure
from burnish.rewards.pool import MAX_CONCURRENT, Outcomes, WorkerPool
from burnish.rewards.specs import specs_of
from burnish.rewards.tasks import Task
from burnish.rewards.trajectories import is_lost, to_score, with_scores
from burnish.types import Metric, Prompt, Reduction, RewardStatus, Rollout

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedTokenizerBase

    from burnish.config.schema import RewardConfig, SandboxConfig, ScoringConfig
    from burnish.rewards.judging.judges import Judges
    from burnish.rewards.judging.local import OpenModel
    from burnish.rewards.model_reward import RewardModels
    from burnish.rewards.protocol import ScoringModels

MAX_CHUNK = 32  # responses per message to a worker
MAX_REASON = 1000  # characters of the first failure in the message


class ProcessRewardScorer(AbstractContextManager["ProcessRewardScorer"]):
    """Scores rollouts with the rewards of a run file (the `RewardScorer` protocol).

    User code and built-ins that could hang run in killable worker processes. Cheap built-ins and reward models
    (`model:PATH`) run in this process, except with `models_elsewhere`: then `ask_models` says where the models are,
    before anything is scored. Judges are asked from a thread of this process; `open_model` loads judges that are models
    of this process, and without it they are only checked. `sandbox` is where programs run, for rewards that do not say
    it in their options. `say` is told what a user should know and no number says. Rewards are loaded in the
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
        sandbox: SandboxConfig | None = None,
        open_model: OpenModel | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        if not rewards:
            raise ConfigError("rewards is empty, so nothing scores responses", remedy="set rewards, for example: math")
        self._scoring = scoring
        self._say = say
        self._told_of: set[str] = set()  # labels of audits whose first failure was told
        self._rewards = tuple(rewards)
        self._specs = specs_of(rewards, sandbox)
        here = [index for index, spec in enumerate(self._specs) if spec.runs_inline or spec.is_model or spec.is_judge]
        self._remote = [index for index in range(len(self._specs)) if index not in here]
        self._inline = {index: load_reward(spec) for index, spec in enumerate(self._specs) if spec.runs_inline}
        for spec in self._specs:
            if spec.is_in_memory:
                function_named(spec.name)  # refused here, before a process is forked to find out
        self._models_here = _load_models(self._specs, elsewhere=models_elsewhere)
        self._models: ScoringModels | None = self._models_here
        self._judges = _open_judges(self._specs, open_model)
        self._pool = WorkerPool(
            [self._specs[index] for index in self._remote],
            scoring.workers,
            start_timeout_seconds=scoring.start_timeout_seconds,
        )
        self._begun = BegunResponses()
        self._caller = RewardCaller()
        self._signatures = self._read_signatures()
        for signature in self._signatures:
            if signature.system and say is not None:
                say(f"reward {signature.label!r} has the parameters of {signature.system}, and is called as there")
        self._asks_for_answers: set[int] = set()
        self._ending: Ending | None = None
        self._counts = Counts()
        if columns is not None:
            self.check_columns(columns)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the rewards in `reward_parts`, in the order of the run file."""
        return tuple(spec.label for spec in self._specs)

    @property
    def answer_labels(self) -> tuple[str, ...]:
        """The rewards that compare with the answer, which can be tested on gold answers. Rewards that ask for the
        column of the answers by its name are known once `check_prompts` has seen the rows."""
        return tuple(
            signature.label
            for index, signature in enumerate(self._signatures)
            if signature.reads_answer or index in self._asks_for_answers
        )

    @property
    def token_labels(self) -> tuple[str, ...]:
        """The rewards that read the tokens of a response, so its text alone is not enough."""
        return tuple(signature.label for signature in self._signatures if signature.reads_tokens)

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the living workers."""
        return self._pool.pids

    def attach_policy(self, tokenizer: PreTrainedTokenizerBase) -> list[str]:
        """Set the tokenizer of the rollouts, for reward models and for the rules on where responses end.

        Until then responses are scored unchanged. Returns a sentence for each reward model, to be shown to the user.
        Raises ConfigError if `scoring.truncate_token` is not a single token.
        """
        self._ending = Ending.of(self._scoring, tokenizer)
        if self._judges is not None:
            self._judges.attach_policy(tokenizer)
        return [] if self._models_here is None else self._models_here.attach_policy(tokenizer)

    def ask_models(self, models: ScoringModels) -> None:
        """From now on ask these reward models, which are in another process."""
        self._models = models

    def rest_models(self, folder: Path) -> None:
        """Let the reward models of this process rest while they score nothing; see `ModelReward.rest`."""
        if self._models_here is not None:
            self._models_here.rest(folder)

    def check_columns(self, columns: Collection[str]) -> None:
        """RewardError if a reward has a parameter that neither a rollout nor these columns provide."""
        for signature in self._signatures:
            signature.check_columns(columns)

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """RewardError if a reward has a parameter that not all prompts which it is for provide."""
        self._check_rows(prompts, set.intersection)
        for index, signature in enumerate(self._signatures):
            answers = _answer_columns([prompt for prompt in prompts if self._is_for(index, prompt)])
            if not answers.isdisjoint((*signature.required, *signature.optional)):
                self._asks_for_answers.add(index)

    def _is_for(self, index: int, prompt: Prompt) -> bool:
        """Return whether this reward scores responses to this prompt."""
        return self._rewards[index].scores(prompt.domain)

    def _check_items(self, items: Sequence[Item]) -> None:
        """RewardError if a reward has a parameter that no row which it is for provides."""
        self._check_rows([prompt for prompt, _ in items], set.union)

    def _check_rows(self, prompts: Sequence[Prompt], provided: Callable[..., set[str]]) -> None:
        for index, signature in enumerate(self._signatures):
            columns = [set(prompt.columns) for prompt in prompts if self._is_for(index, prompt)]
            if columns:
                signature.check_columns(provided(*columns))

    @property
    def only_waits(self) -> bool:
        """True if a reward waits for others rather than compute: an asynchronous one, or a judge at an endpoint."""
        return any(self._only_waits(index) for index in range(len(self._specs)))

    def begin(self, items: Sequence[Item], *, idle_cores: bool = True) -> None:
        """Send responses to the workers and to judges while others are still being sampled. `score` uses the results.
        Without idle cores only those are sent that a reward waits for (`only_waits`).

        These rewards wait for `score`: batched ones, which need all responses at once, rewards of this process,
        reward models, and judges that compare a group. Raises what `score` raises for a reward that breaks its
        contract.
        """
        items = [(prompt, rollout) for prompt, rollout in to_score(items) if not self._begun.has(rollout)]
        self._check_items(items)
        numbered = list(zip(self._begun.begin(items), self._seen(items), strict=True))
        self._begin_judging(numbered)
        early = [index for index in self._remote if self._can_begin(index) and (idle_cores or self._only_waits(index))]
        try:
            self._pool.begin(self._tasks_not_begun(early, self._begun, numbered))
        except BaseException:
            self._begun = BegunResponses()
            raise

    def score(self, items: Sequence[Item]) -> list[Rollout]:
        """The rollouts in the same order, scored; see `RewardScorer`.

        Raises RewardError if a reward breaks its contract, or if more than `max_failure_fraction` of the responses
        could not be scored (missing scores count as well); OutageError if conversations whose environment has failed
        are among these. They are returned as they are, and all rows of a conversation have the score of the last one.
        """
        own = to_score(items)
        scored = with_scores(items, self._score(own) if own else ())
        self._check_failures(items, scored)
        return scored

    def _score(self, items: Sequence[Item]) -> list[Rollout]:
        self._check_items(items)
        ending = self._ending
        seen = self._seen(items)
        outcomes = self._outcomes(items, seen)
        # Prompt and group, because the gold check gives all responses one group, and a prompt can be drawn twice.
        elsewhere = not_for_prompt(outcomes, [(prompt.id, rollout.group_id) for prompt, rollout in items])
        results = [self._results(position, outcomes, elsewhere) for position in range(len(items))]
        scored = [self._combined(item, found) for item, found in zip(seen, results, strict=True)]
        if ending is not None:
            scored = [ending.judged(rollout, found) for (_, rollout), found in zip(items, scored, strict=True)]
            self._counts.incomplete += sum(not ending.is_complete(rollout) for _, rollout in items)
        self._tell_of_audits(items, results)
        self._counts.add(items, results, scored)
        return scored

    def take_metrics(self) -> dict[str, Metric]:
        """Failed fraction (total, by status, by domain), incomplete fraction, the share of responses that each reward
        leaves to the others, and the workers' seconds, since the last call."""
        metrics = self._counts.metrics()
        self._counts = Counts()
        if self._ending is None:
            del metrics["reward/incomplete_fraction"]
        for position, index in enumerate(self._remote):
            name = f"time/reward_worker_seconds/{self._specs[index].label}"
            metrics[name] = Metric(Reduction.SUM, self._pool.seconds[position])
            self._pool.seconds[position] = 0.0
        return metrics if self._judges is None else metrics | self._judges.take_metrics()

    def close(self) -> None:
        """End the worker processes, and the thread of the judges. Idempotent."""
        if self._judges is not None:
            self._judges.close()
        self._pool.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_signatures(self) -> list[Signature]:
        found = dict(zip(self._remote, self._pool.signatures(), strict=True))
        found.update({index: reward.signature for index, reward in self._inline.items()})
        for index, spec in self._of_models():
            judges = self._judges if spec.is_judge else None
            found[index] = Signature(spec.label, ("response",)) if judges is None else judges.signature(spec.label)
        return [found[index] for index in range(len(self._specs))]

    def _seen(self, items: Sequence[Item]) -> Sequence[Item]:
        """The responses as rewards see them."""
        ending = self._ending
        return items if ending is None else [(prompt, ending.seen(rollout)) for prompt, rollout in items]

    def _outcomes(self, items: Sequence[Item], seen: Sequence[Item]) -> Outcomes:
        """The outcome of every (reward, position). `seen` are the items as rewards see them. Judges and reward models
        of another process score while the rewards here do."""
        outcomes: Outcomes = {}
        begun = {index: self._begin_model(index, seen) for index, _ in self._of_models()}
        for index, reward in self._inline.items():
            for position, item in self._for(index, enumerate(seen)):
                outcomes[index, position] = self._caller.one(reward, reward.signature.arguments(item))
        outcomes.update(self._remote_outcomes(items, seen))
        for index, (positions, scored) in begun.items():
            found = self._awaited(index, scored, len(positions))
            outcomes.update({(index, place): outcome for place, outcome in zip(positions, found, strict=True)})
        return outcomes

    def _for(self, index: int, numbered: Iterable[Numbered]) -> list[Numbered]:
        """Select the responses that the reward is for."""
        return [(number, item) for number, item in numbered if self._is_for(index, item[0])]

    def _of_models(self) -> list[tuple[int, RewardSpec]]:
        """Reward models and judges, which score all responses of a step in one call."""
        return [(index, spec) for index, spec in enumerate(self._specs) if spec.is_model or spec.is_judge]

    def _begin_judging(self, numbered: Sequence[Numbered]) -> None:
        for index, spec in enumerate(self._specs):
            if self._judges is not None and spec.is_judge:
                self._judges.begin_early(spec.label, [item for _, item in self._for(index, numbered)])

    def _begin_model(self, index: int, seen: Sequence[Item]) -> tuple[list[int], Callable[[], list[Outcome]]]:
        """The positions of the responses that the model or judge scores, and what waits for their outcomes."""
        spec = self._specs[index]
        models = self._judges if spec.is_judge else self._models
        assert models is not None, "`ask_models` says where models that are elsewhere can be asked"
        ours = self._for(index, enumerate(seen))
        scored = models.begin(spec.label, [item for _, item in ours]) if ours else list
        return [position for position, _ in ours], scored

    def _awaited(self, index: int, scored: Callable[[], list[Outcome]], count: int) -> list[Outcome]:
        """Return the outcomes of a model or judge; for an audit, also its refusal of all responses."""
        try:
            return scored()
        except RewardError as error:
            return [broken_contract(error, self._specs[index])] * count

    def _remote_outcomes(self, items: Sequence[Item], seen: Sequence[Item]) -> Outcomes:
        """The outcomes of the rewards that run in workers, of responses begun before and of others."""
        begun, self._begun = self._begun, BegunResponses()
        numbers = begun.finish(items)
        tasks = self._tasks_not_begun(self._remote, begun, list(zip(numbers, seen, strict=True)))
        position_of = {number: position for position, number in enumerate(numbers)}
        return {
            (self._remote[place], position_of[number]): outcome
            for (place, number), outcome in self._pool.run(tasks).items()
            if number in position_of  # a response may have been begun and then dropped by the caller
        }

    def _tasks_not_begun(
        self, indices: Sequence[int], begun: BegunResponses, numbered: Sequence[Numbered]
    ) -> list[Task]:
        """Return tasks for the responses that these rewards score and have not been given yet."""
        return [
            task for index in indices for task in self._tasks(index, begun.to_give(index, self._for(index, numbered)))
        ]

    def _can_begin(self, index: int) -> bool:
        return not self._signatures[index].batched

    def _only_waits(self, index: int) -> bool:
        return self._specs[index].is_judge or (self._can_begin(index) and self._signatures[index].asynchronous)

    def _tasks(self, index: int, items: Sequence[Numbered]) -> list[Task]:
        """The calls of one reward for numbered responses. In tasks it has its place among the rewards in workers."""
        if not items:
            return []
        place, signature = self._remote.index(index), self._signatures[index]
        if signature.batched:
            arguments = signature.batch_arguments([item for _, item in items])
            return [Task(place, tuple(number for number, _ in items), (arguments,), batched=True)]
        # Several tasks per worker, so that one with slow responses does not delay the end. An asynchronous reward
        # instead gets as many responses as it may await at once.
        share = -(-len(items) // self._scoring.workers)
        size = min(MAX_CONCURRENT, share) if signature.asynchronous else max(1, min(MAX_CHUNK, share // 4))
        return [
            Task(
                place,
                tuple(number for number, _ in items[start : start + size]),
                tuple(signature.arguments(item) for _, item in items[start : start + size]),
            )
            for start in range(0, len(items), size)
        ]

    def _results(self, position: int, outcomes: Outcomes, elsewhere: Collection[tuple[int, int]]) -> Sequence[Weighted]:
        """Return the outcomes of a response, by the rewards that were asked. `elsewhere`: outcomes of rewards that are
        not for its prompt."""
        return [
            Weighted(spec.label, reward.weight, outcomes[key], reward.audit, applies=key not in elsewhere)
            for index, (spec, reward) in enumerate(zip(self._specs, self._rewards, strict=True))
            if (key := (index, position)) in outcomes
        ]

    def _tell_of_audits(self, items: Sequence[Item], results: Sequence[Sequence[Weighted]]) -> None:
        """The first failure of each audit in a sentence, because no status of a response tells of it."""
        for (_, rollout), found in zip(items, results, strict=True):
            for label, outcome in ((one.label, one.outcome) for one in found if one.is_failed_audit):
                if self._say is None or label in self._told_of:
                    continue
                self._told_of.add(label)
                reason = outcome.detail.partition("\n")[0][:MAX_REASON]
                self._say(
                    f"the audit {label!r} failed, which changes no score (prompt {rollout.prompt_id!r}, sample "
                    f"{rollout.sample_index}, {outcome.status.value}): {reason}. Further failures are only counted: "
                    f"reward/audit_failed_fraction/{label}"
                )

    def _combined(self, item: Item, results: Sequence[Weighted]) -> Rollout:
        prompt, rollout = item
        if all(result.audit for result in results):
            nothing = failure(RewardStatus.MISSING, f"no reward is for the domain {prompt.domain!r}")
            results = [*results, Weighted("", 0.0, nothing, applies=False)]
        return combine(rollout, results, self._scoring.failure_score)

    def _check_failures(self, items: Sequence[Item], scored: Sequence[Rollout]) -> None:
        """RewardError if more of a step's responses could not be scored than `scoring.max_failure_fraction` allows, or
        OutageError if the environments of some have failed."""
        ends = [(prompt, one) for (prompt, _), one in zip(items, scored, strict=True) if one.ends_in is None]
        failed = [(prompt, rollout) for prompt, rollout in ends if has_failed(rollout)]
        if len(failed) <= self._scoring.max_failure_fraction * len(ends):
            return
        lost = [(prompt, rollout) for prompt, rollout in failed if is_lost(rollout)]
        prompt, first = (lost or failed)[0]
        domains = Counter(prompt.domain for prompt, _ in failed)
        counts = ", ".join(f"{domain}: {count}" for domain, count in sorted(domains.items()))
        reason, _, traceback = first.status_detail.partition("\n")
        fix = f"fix the reward{' (--debug shows the whole traceback)' if traceback else ''}"
        if lost:
            fix = "mend or restart the environment, then give the same command again, which goes on"
        raise (OutageError if lost else RewardError)(
            f"{len(failed)} of {len(ends)} responses could not be scored (by domain: {counts}), more than"
            f" scoring.max_failure_fraction {self._scoring.max_failure_fraction:g} allows."
            f" The first one: prompt {prompt.id!r}, sample {first.sample_index}, {first.status.value}:"
            f" {reason[:MAX_REASON]}",
            remedy=f"{fix}, or raise scoring.max_failure_fraction if these failures are expected",
        ) from (TracebackInWorkerError(traceback) if traceback else None)


def _load_models(specs: Sequence[RewardSpec], *, elsewhere: bool) -> RewardModels | None:
    """The reward models among the rewards, None without any. Torch is imported only if there is one. Models that are
    `elsewhere` are checked as far as that can be done without loading them."""
    of_models = [spec for spec in specs if spec.is_model]
    if not of_models:
        return None
    from burnish.rewards.model_reward import RewardModels, check_model_reward

    if not elsewhere:
        return RewardModels.load(of_models)
    for spec in of_models:
        check_model_reward(spec)
    return None


def _open_judges(specs: Sequence[RewardSpec], open_model: OpenModel | None) -> Judges | None:
    """The judges among the rewards, None without any. An HTTP client is imported only if there is one."""
    of_judges = [spec for spec in specs if spec.is_judge]
    if not of_judges:
        return None
    from burnish.rewards.judging.judges import Judges

    return Judges(of_judges, open_model)


def _answer_columns(prompts: Sequence[Prompt]) -> set[str]:
    """Names of the columns that hold the answer of every prompt, whatever they are called."""
    answered = [prompt for prompt in prompts if prompt.answer is not None]
    names = set(answered[0].columns) if answered else set()
    return {name for name in names if all(prompt.columns.get(name) == prompt.answer for prompt in answered)}
