"""The loss of a step on preferences, from the log-probabilities of whole responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from burnish.algorithms.masking import as_float, fill_masked
from burnish.algorithms.pair_losses import PairLoss, Pairs, kto, kto_z, resolve_pair_loss
from burnish.config.names import RATED_LOSS, SORTS_REFERENCE
from burnish.errors import ConfigError
from burnish.forward.batch import Batch, TokenScores, present
from burnish.models.roles import Denominators, ObjectiveValue
from burnish.observability.metrics import mean
from burnish.types import Metric


@dataclass(frozen=True, slots=True)
class PairTerm:
    """One loss of the sum: its name, its weight, and its options."""

    name: str
    weight: float
    options: Mapping[str, Any]


class Responses(NamedTuple):
    """Sums over the tokens of B responses: log-probabilities under policy and reference (0 without one), and the number
    of trained tokens. preferred: True for the better or good ones. weight: of the row's loss. All (B,)."""

    logprobs: Tensor
    ref_logprobs: Tensor
    tokens: Tensor
    preferred: Tensor
    weight: Tensor

    @staticmethod
    def of(logprobs_BT: Tensor, batch: Batch) -> Responses:
        """Add up the log-probabilities of the trained tokens of a batch."""
        mask = batch.loss_mask
        logprobs = fill_masked(as_float(logprobs_BT), mask).sum(1)
        reference = torch.zeros_like(logprobs)
        if batch.ref_logprobs is not None:
            reference = fill_masked(as_float(batch.ref_logprobs), mask).sum(1)
        weight = present(batch.weights, "weights")[:, 0]
        return Responses(logprobs, reference, mask.sum(1), present(batch.preferred, "preferred"), weight)

    def select(self, rows: Tensor) -> Responses:
        """Select rows, in the order given."""
        return Responses(*(column[rows] for column in self))


@dataclass(frozen=True, slots=True)
class PreferenceObjective:
    """Mean loss over the comparisons of the step (or its rated responses); each micro-batch adds its share of it.

    scale, per_token: what turns a response's log-probability into its reward, for metrics alone. count: comparisons of
    the step; kl: nats by which the policy is above the reference on responses to other prompts (`kto`).
    """

    terms: tuple[PairTerm, ...]
    rates_responses: bool = False
    length_normalised: bool = False
    scale: float = 1.0
    has_reference: bool = True
    count: int = 1
    kl: float = 0.0
    needs_entropy: bool = False

    @property
    def sorts(self) -> PairLoss | None:
        """The loss that forms new pairs from the whole step, if there is one."""
        rows = (resolve_pair_loss(term.name) for term in self.terms)
        return next((row for row in rows if row.order), None)

    def __call__(self, scores: TokenScores, batch: Batch, denominators: Denominators) -> ObjectiveValue:
        responses = Responses.of(scores.logprobs_BT, batch)
        losses, weight = self.losses(responses, batch)
        loss = (losses * weight).sum()
        metrics = {"train/loss": mean(loss.detach(), len(losses))} | self._metrics(responses, batch)
        return ObjectiveValue(loss / self.count, metrics)

    def losses(self, responses: Responses, batch: Batch) -> tuple[Tensor, Tensor]:
        """Compute the loss of each comparison or rated response, and its weight."""
        if self.rates_responses:
            (term,) = self.terms
            ratio = self._ratio(responses)
            losses = kto(ratio, responses.preferred, ratio.new_tensor(self.kl), **term.options)
            return term.weight * losses, responses.weight
        better, worse = (responses.select(rows) for rows in pair_rows(batch))
        pairs = as_pairs(better, worse)
        if self.length_normalised:
            pairs = pairs.per_token()
        found = [term.weight * resolve_pair_loss(term.name).function(pairs, **term.options) for term in self.terms]
        return torch.stack(found).sum(0), better.weight

    def _ratio(self, responses: Responses) -> Tensor:
        ratio = responses.logprobs - responses.ref_logprobs
        return ratio / responses.tokens if self.length_normalised else ratio

    def mismatched_kl(self, logprobs_BT: Tensor, batch: Batch) -> float:
        """Estimate of the policy's KL from the reference, from responses to other prompts (`kto_z`)."""
        return float(kto_z(self._ratio(Responses.of(logprobs_BT, batch))))

    def rewards(self, responses: Responses) -> Tensor:
        """Rewards that the policy implies, (B,): log-probabilities relative to the reference, as the losses see them
        (means over tokens without one), times `beta`."""
        without = responses.logprobs / responses.tokens
        return self.scale * (self._ratio(responses) if self.has_reference else without).detach()

    def _metrics(self, responses: Responses, batch: Batch) -> dict[str, Metric]:
        rewards, good = self.rewards(responses), responses.preferred
        logprobs, bad, tokens = responses.logprobs.detach(), ~good, responses.tokens
        metrics = {
            "preference/chosen_reward": mean(rewards[good].sum(), good.sum()),
            "preference/rejected_reward": mean(rewards[bad].sum(), bad.sum()),
            "preference/chosen_logprob": mean(logprobs[good].sum(), good.sum()),
            "preference/rejected_logprob": mean(logprobs[bad].sum(), bad.sum()),
            "preference/chosen_tokens": mean(tokens[good].sum(), good.sum()),
            "preference/rejected_tokens": mean(tokens[bad].sum(), bad.sum()),
        }
        if not self.rates_responses:
            better, worse = (responses.select(rows) for rows in pair_rows(batch))
            margin = self.rewards(better) - self.rewards(worse)
            metrics["preference/margin"] = mean(margin.sum(), len(margin))
            metrics["train/accuracy"] = mean(((margin > 0) + 0.5 * (margin == 0)).sum(), len(margin))
        return metrics


def pair_rows(batch: Batch) -> tuple[Tensor, Tensor]:
    """Numbers of the rows of the better and the worse responses of each pair, in the order of the pairs' numbers."""
    order = (2 * present(batch.pairs, "pairs") + (~present(batch.preferred, "preferred")).long()).argsort()
    return order[0::2], order[1::2]


def as_pairs(better: Responses, worse: Responses) -> Pairs:
    """The sums of both responses of each pair, for the losses."""
    return Pairs(better.logprobs, worse.logprobs, better.ref_logprobs, worse.ref_logprobs, better.tokens, worse.tokens)


def matched(batch: Batch, logprobs_BT: Tensor, loss: PairLoss) -> Batch:
    """The whole step in new pairs, as a loss that sorts them needs: each chosen response with another rejected one, or
    (`aot`) each pair with the reference of another one."""
    assert loss.order is not None
    responses, (better, worse) = Responses.of(logprobs_BT, batch), pair_rows(batch)
    order = loss.order(as_pairs(responses.select(better), responses.select(worse)))
    if loss.name == SORTS_REFERENCE:
        sums = torch.zeros_like(logprobs_BT)  # only the sum over a row counts, so its first token carries it
        for rows in (better, worse):
            sums[rows, 0] = responses.ref_logprobs[rows[order]]
        return batch.replace(ref_logprobs=sums)
    pairs = present(batch.pairs, "pairs").clone()
    pairs[worse[order]] = pairs[better]
    return batch.replace(pairs=pairs)


def objective_of(
    losses: Sequence[tuple[str, float, Mapping[str, Any]]], shared: Mapping[str, Any], *, length_normalised: bool
) -> PreferenceObjective:
    """The objective for losses of these names, weights and options. `shared`: options for each loss that has them.

    Raises ConfigError for options that a loss does not have, and for shared options that no loss has.
    """
    rows = [resolve_pair_loss(name) for name, _, _ in losses]
    terms, used = [], set[str]()
    for number, (row, (name, weight, own)) in enumerate(zip(rows, losses, strict=True)):
        taken = {key: value for key, value in shared.items() if key in row.option_names}
        used |= taken.keys() - own.keys()
        options = taken | dict(own)
        row.check_options(options, f"losses.{number}: ")
        terms.append(PairTerm(name, weight, options))
    for key in shared.keys() - used:
        raise ConfigError(f"{key} is set, but no loss of the run takes it, or each sets its own", remedy="remove it")
    return PreferenceObjective(
        terms=tuple(terms),
        rates_responses=any(name == RATED_LOSS for name, _, _ in losses),
        length_normalised=length_normalised,
        scale=float(terms[0].options.get("beta", rows[0].options.get("beta", 1.0))),
        has_reference=any(row.needs_reference for row in rows),
    )
