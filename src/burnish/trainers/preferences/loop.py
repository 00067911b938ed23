"""Learning from preferences (DPO and kin): one optimizer step per batch of comparisons, and held-out accuracy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from rich.console import Console
from torch import Tensor

from burnish.config.names import RATED_LOSS
from burnish.config.schema_prefer import START, PreferConfig
from burnish.data.overlap import find_overlap
from burnish.data.preference_tokens import PreferenceExample
from burnish.data.preferences import PreferenceSet
from burnish.data.samplers import PromptSampler
from burnish.errors import DataError
from burnish.forward.batch import Batch
from burnish.forward.lanes import Lanes
from burnish.models.folders import resolve_source
from burnish.models.roles import Learner, Policy
from burnish.models.saved import SavedPolicy
from burnish.models.tokenizers import require_same_tokens
from burnish.observability.console import say
from burnish.observability.metrics import MetricStore, Stopwatch, total
from burnish.trainers.chaining import with_weights
from burnish.trainers.outer_loop import Beginning, OpenLearner, Training, beginning, trained_on
from burnish.trainers.preferences.batches import build_batch, mismatched, plain_batch, responses_of
from burnish.trainers.preferences.objective import PreferenceObjective, matched, objective_of
from burnish.trainers.preferences.reference import KeptReference, Text
from burnish.trainers.preferences.scores import HeldOutPreferences, are_pairs
from burnish.trainers.result import WEIGHTS_FOLDER, RunResult
from burnish.trainers.reward_model.loop import evaluated_comparisons, length_rule, load_comparisons, planned_steps
from burnish.trainers.reward_model.preference_metrics import LengthRule
from burnish.trainers.sft import open_policy, response_ends, unheard_end
from burnish.trainers.telemetry.divergence import keeping_batch
from burnish.types import Metric, Reduction


@dataclass(slots=True, kw_only=True)
class PreferRun(Training):
    """The parts of a run on preferences."""

    config: PreferConfig
    policy: Policy
    train: tuple[PreferenceExample, ...]
    others: list[Text]
    """Each training prompt with a response to another one, where the loss needs it (`kto`)."""
    heldout: HeldOutPreferences
    sampler: PromptSampler
    objective: PreferenceObjective
    reference: KeptReference | None
    length_rule: LengthRule | None
    pad_token_id: int

    def learners(self) -> dict[str, Learner]:
        return {WEIGHTS_FOLDER: self.policy}

    def train_step(self) -> dict[str, float]:
        """One optimizer step on whole comparisons."""
        progress, metrics, stopwatch = self.progress, MetricStore(), Stopwatch(self.journal.phase)
        count = self.config.optimization.comparisons_per_batch
        if not self.config.steps:  # it ends after a number of passes
            count = min(count, self.config.optimization.epochs * len(self.train) - progress.position)
        drawn = self.sampler.take(count, progress.position)
        responses = responses_of([self.train[index] for index in drawn])
        in_pairs = not self.objective.rates_responses
        batch = build_batch(responses, self.reference, pad_token_id=self.pad_token_id, in_pairs=in_pairs)
        objective = replace(self.objective, count=len(responses) // 2 if in_pairs else len(responses))
        if self.others:
            with stopwatch.phase("reference"):
                objective = replace(objective, kl=self._mismatched_kl(drawn))
            metrics.merge({"preference/kl": Metric(Reduction.LAST, objective.kl)})
        sorting = objective.sorts
        if sorting is not None:
            with stopwatch.phase("reference"):
                batch = matched(batch, self.score(batch), sorting)
        with stopwatch.phase("update"), keeping_batch(Path(self.config.output), progress.step + 1, batch):
            metrics.merge(self.policy.update(batch, objective).metrics)
        tokens = batch.num_tokens
        metrics.merge({"train/tokens": total(tokens), "train/comparisons": total(count)})
        return trained_on(tokens, progress, progress.position + count, metrics, stopwatch)

    def _mismatched_kl(self, drawn: Sequence[int]) -> float:
        batch = plain_batch([self.others[index] for index in drawn], self.reference, pad_token_id=self.pad_token_id)
        return self.objective.mismatched_kl(self.score(batch), batch)

    def score(self, batch: Batch) -> Tensor:
        """(B, T) log-probabilities of the responses under the policy."""
        return self.policy.logprobs(batch).logprobs_BT

    def evaluate(self) -> dict[str, float]:
        """Accuracy with its interval, margin and loss on the held-out comparisons, and the accuracy of length alone."""
        if not self.heldout.examples:
            return {}
        return self.heldout.measure(
            self.score, self.reference, self.objective, self.length_rule, pad_token_id=self.pad_token_id
        )


def train_preferences(config: PreferConfig, *, console: Console, accept_changes: bool = False) -> RunResult:
    """Train, and return where the run and its last checkpoint are. Continues from the newest checkpoint.

    `accept_changes`: continue even if files or versions that the run depends on have changed. Raises BurnishError for
    everything that a user can fix.
    """
    from burnish.distributed.handles import RemotePolicy
    from burnish.trainers.cluster import train_on_data  # which no plan needs

    return train_on_data(
        config, open_prefer_run, open_policy, RemotePolicy, console=console, accept_changes=accept_changes
    )


@contextmanager
def open_prefer_run(
    config: PreferConfig,
    console: Console,
    *,
    accept_changes: bool = False,
    open_learner: OpenLearner[PreferConfig, Policy] = open_policy,
) -> Iterator[PreferRun]:
    """Open everything that the loop uses."""
    with beginning(config, console, open_learner, accept_changes=accept_changes) as begun:
        config, loaded = begun.config, begun.opened.loaded
        objective = preference_objective(config)
        limit = min(config.max_tokens, loaded.context_length)
        train, heldout = load_comparisons(config, loaded.tokenizer, limit, console, check_fits_losses)
        say(console, unheard_end(train.last_tokens(), loaded))
        say(console, find_overlap(train.asked(), () if heldout is None else heldout.asked()).lines())
        total_steps = planned_steps(config.steps, config.optimization, len(train))
        others = mismatched(train.examples) if objective.rates_responses else []
        evaluated = HeldOutPreferences.of(evaluated_comparisons(config, heldout), objective)
        texts = [*(one.text for one in responses_of(train.examples)), *others, *evaluated.texts()]
        reference = None
        if objective.has_reference and config.reference != START:
            reference = other_reference(begun, open_learner, texts)
        policy = begun.opened.learner(total_steps)
        if objective.has_reference and config.reference == START:  # the policy, as no checkpoint is loaded yet
            reference = kept_reference(begun, texts, lambda: policy)
        run = PreferRun(
            config=config,
            policy=policy,
            train=train.examples,
            others=others,
            heldout=evaluated,
            sampler=train.sampler(seed=config.seed, shuffle=config.data.shuffle),
            objective=objective,
            reference=reference,
            length_rule=length_rule(train) if are_pairs(train.examples) else None,
            pad_token_id=loaded.pad_token_id,
            total_steps=total_steps,
            journal=begun.journal(total_steps),
            store=begun.workplace.store,
            saved=SavedPolicy(config.model, loaded, policy, response_ends(train.last_tokens(), loaded.tokenizer)),
        )
        yield begun.restored(run)


def preference_objective(config: PreferConfig) -> PreferenceObjective:
    """The objective of the run file. ConfigError for options that its losses do not have."""
    shared = {name: value for name, value in config.shared_options.items() if value is not None}
    losses = [(loss.name, loss.weight, loss.options) for loss in config.losses]
    return objective_of(losses, shared, length_normalised=config.length_normalised)


def check_fits_losses(config: PreferConfig, found: PreferenceSet) -> None:
    """Raise DataError for a single response where the losses compare two."""
    rated = next((example for example in found.examples if example.good is not None), None)
    if rated is not None and not config.rates_responses:
        raise DataError(
            f"{rated.where}: the row rates a single response, but the losses compare two",
            remedy=f"set losses: {RATED_LOSS}, or give chosen and rejected responses",
        )


def other_reference(
    begun: Beginning[PreferConfig, Policy], open_learner: OpenLearner[PreferConfig, Policy], texts: Sequence[Text]
) -> KeptReference:
    """The log-probabilities of the model that `reference` names. If they are not kept yet, the model is opened as the
    policy will be, and closed before the policy gets its optimizer."""
    config = begun.config
    named = config.model_copy(update={"model": with_weights(config.model, config.reference)})
    with ExitStack() as stack:

        def policy() -> Policy:
            resolve_source(config.reference, field="reference")
            lanes = Lanes(config.cluster.num_lanes)
            other = stack.enter_context(open_learner(named, begun.paths, begun.console, lanes))
            its, ours = other.loaded.tokenizer, begun.opened.loaded.tokenizer
            remedy = "name a model with the policy's tokenizer, or set reference: start"
            require_same_tokens("reference", config.reference, its, ours, remedy=remedy)
            return other.learner(1)

        return kept_reference(begun, texts, policy)


def kept_reference(
    begun: Beginning[PreferConfig, Policy], texts: Sequence[Text], model: Callable[[], Policy]
) -> KeptReference:
    """The log-probabilities of the texts under a frozen model, which is requested only if they are not kept yet."""
    config, pad = begun.config, begun.opened.loaded.pad_token_id
    opened = cache(model)

    def score(some: Sequence[Text]) -> Tensor:
        return opened().logprobs(plain_batch(some, None, pad_token_id=pad)).logprobs_BT

    return KeptReference.computed_once(
        texts, Path(config.output), config.reference, score, lambda line: say(begun.console, [line])
    )
