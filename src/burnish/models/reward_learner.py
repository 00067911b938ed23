"""The optimizer step of a reward model: micro-batches of whole comparisons, one denominator for the step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from burnish.errors import CheckpointError
from burnish.forward.lanes import ONE_LANE, Lanes
from burnish.forward.microbatches import microbatches_by_tokens
from burnish.forward.recomputing import recomputing
from burnish.models.cut import Cut
from burnish.models.optimizers import OptimizerSettings
from burnish.models.reward_model import PromptResponse, RewardModel, find_reward_file, read_reward_file
from burnish.models.role_optimizer import Owner, RoleOptimizer
from burnish.models.roles import Learner, ObjectiveValue, TrainingState
from burnish.models.weights import load_folder
from burnish.observability.metrics import MetricStore
from burnish.types import Metric, Reduction


@dataclass(frozen=True, slots=True)
class Comparison:
    """Token ids of a prompt and its candidate responses. `responses[best]` is the best, unless it is a tie."""

    prompt: tuple[int, ...]
    responses: tuple[tuple[int, ...], ...]
    best: int
    margin: float | None = None
    tie: bool = False

    def pairs(self) -> list[PromptResponse]:
        return [(self.prompt, response) for response in self.responses]

    def num_tokens(self) -> int:
        """Tokens in a forward pass over all candidates, including padding."""
        return len(self.responses) * (len(self.prompt) + max(len(response) for response in self.responses))


@dataclass(frozen=True, slots=True)
class ComparedScores:
    """Scores `[B, K]` of the candidates of B comparisons. `mask_BK` is False where a comparison has fewer than K.

    best_B int64; margin_B float32 (0 if none is given); tie_B bool.
    """

    scores_BK: Tensor
    mask_BK: Tensor
    best_B: Tensor
    margin_B: Tensor
    tie_B: Tensor


PreferenceObjective = Callable[[ComparedScores, int], ObjectiveValue]
"""(scores of a micro-batch, number of comparisons in the step) to the micro-batch's share of the loss."""


class PreferenceLearner(Learner, Protocol):
    """A reward model with its optimizer, as the loop sees it: in this process, or a handle to others."""

    def update(self, comparisons: Sequence[Comparison], objective: PreferenceObjective) -> dict[str, Metric]:
        """One optimizer step on the comparisons. Raises DivergenceError if loss or gradient is not finite, with the
        weights untouched."""

    def compare(self, comparisons: Sequence[Comparison]) -> list[list[float]]:
        """Scores of every candidate of every comparison, without gradient."""

    def score(self, pairs: Sequence[PromptResponse]) -> list[float]:
        """Rewards of the responses, without gradient."""

    def normalise(self, measured: Sequence[float], *, scale: bool, measured_on: str) -> None:
        """Shift rewards so that those `measured` have mean 0 and, with `scale`, standard deviation 1."""


REWARD_MODEL = Owner("rm", "reward model", "lower optimization.learning_rate, or use model.dtype: float32")


class RewardLearner:
    """`PreferenceLearner` in this process: the counterpart of `LocalPolicy` for comparisons."""

    def __init__(
        self,
        model: RewardModel,
        settings: OptimizerSettings,
        *,
        tokens_per_microbatch: int,
        gradient_checkpointing: bool = False,
        lanes: Lanes = ONE_LANE,
    ) -> None:
        self.model = model
        self._tokens_per_microbatch = tokens_per_microbatch
        self._lanes = lanes
        self._gradient_checkpointing = gradient_checkpointing
        self._optimizer = RoleOptimizer(REWARD_MODEL, model.named_parameters(), settings, lanes)

    def rest_optimizer(self, folder: Path) -> None:
        """See `RoleOptimizer.rest`."""
        self._optimizer.rest(folder)

    def share_weights(self, cut: Cut) -> None:
        """See `LocalPolicy.share_weights`."""
        self._optimizer.let_go()
        shared = self.model.share_weights(self._lanes, cut)
        self._lanes = shared.lanes
        self._optimizer.share(shared, self.model.named_parameters())

    def update(self, comparisons: Sequence[Comparison], objective: PreferenceObjective) -> dict[str, Metric]:
        """One optimizer step on the comparisons, the same however they are split into micro-batches.

        Raises DivergenceError if loss or gradient is not finite, with the weights untouched.
        """
        values: list[ObjectiveValue] = []
        self._optimizer.weights.clear()
        parts = self._parts(comparisons)
        costs = [sum(comparison.num_tokens() for comparison in part) for part in parts]
        self.model.check_common(_pairs(part) for part in parts)
        try:
            with (
                recomputing(self.model.loaded.model, on=self._gradient_checkpointing),
                self._lanes.adding(parts, costs, self._optimizer.parameters, values) as own_parts,
            ):
                for part in own_parts:
                    value = objective(compared_scores(self.model.scores(_pairs(part)), part), len(comparisons))
                    value.loss.backward()
                    values.append(replace(value, loss=value.loss.detach()))
                for part in self._lanes.fillers(parts, costs):
                    scores_B = self.model.scores(_pairs(part))
                    self._lanes.reaching([scores_B], scores_B.new_zeros(())).backward()
        except BaseException:
            self._optimizer.weights.clear()  # half a gradient must not become a step
            raise
        grad_norm = self._optimizer.checked_norm([value.loss for value in values])
        metrics = MetricStore.of(value.metrics for value in values).merged() | self._optimizer.step(grad_norm)
        if self.model.gain_bias is not None:
            metrics["rm/gain"] = Metric(Reduction.LAST, self.model.gain_bias.gain.detach().clone())
            metrics["rm/bias"] = Metric(Reduction.LAST, self.model.gain_bias.bias.detach().clone())
        return metrics

    @property
    def version(self) -> int:
        """Optimizer steps begun so far."""
        return self._optimizer.version

    def compare(self, comparisons: Sequence[Comparison]) -> list[list[float]]:
        """Scores of every candidate of every comparison, without gradient."""
        return compare(self.score, comparisons)

    def score(self, pairs: Sequence[PromptResponse]) -> list[float]:
        """Rewards of the responses, without gradient."""
        return self.model.score(pairs, self._tokens_per_microbatch, self._lanes)

    def normalise(self, measured: Sequence[float], *, scale: bool, measured_on: str) -> None:
        """`RewardModel.normalise`, after which the optimizer continues from the rescaled head."""
        self.model.normalise(measured, scale=scale, measured_on=measured_on)
        self._optimizer.weights.refresh()

    def save_weights(self, folder: Path) -> None:
        """Write a folder that `from_pretrained` loads as a sequence classifier, with read-out and normalisation. Of a
        team every process makes this call, and the first one writes."""
        if self._lanes.keeps_state or self.model.shared is not None:
            self.model.save(folder)

    @torch.no_grad()
    def load_weights(self, folder: Path) -> None:
        """Load what `RewardModel.save` wrote, bit for bit. Raises CheckpointError if it does not fit."""
        copy = Tensor.copy_ if self.model.shared is None else self.model.shared.copy
        head: dict[str, nn.Parameter] | None = None
        if self.model.adapter is not None:
            self.model.adapter.load(folder / "adapter", copy)
            head = dict(self.model.head.named_parameters(prefix=self.model.head_name))
        load_folder(folder, self.model.loaded.model, copy, only=head)
        self.model.normalization, self.model.readout = read_reward_file(find_reward_file(str(folder), None))
        self._optimizer.weights.refresh()

    def training_state(self) -> TrainingState:
        """Version and optimizer state. The learning rate is a function of the version. If gain and bias train, also
        these and the head, because on disk they are folded into it."""
        state: TrainingState = self._optimizer.state()
        if self.model.gain_bias is not None:
            whole = Tensor.detach if self.model.shared is None else self.model.shared.whole
            state["apart"] = {name: whole(parameter).clone() for name, parameter in self._apart().items()}
            state["earlier_gain"] = self.model.normalization.gain
        return state

    def _apart(self) -> dict[str, nn.Parameter]:
        gain_bias = self.model.gain_bias
        if gain_bias is None:
            return {}
        return {**dict(self.model.head.named_parameters(prefix="head")), **dict(gain_bias.named_parameters())}

    def load_training_state(self, state: TrainingState) -> None:
        """The inverse of `training_state`. Load the weights first."""
        apart = self._apart()
        if set(apart) != set(state.get("apart", {})):
            raise CheckpointError(
                "the checkpoint was made with a different normalization.trainable from this run's",
                remedy="resume with the run file that it was made with",
            )
        if apart:
            copy = Tensor.copy_ if self.model.shared is None else self.model.shared.copy
            with torch.no_grad():
                for name, parameter in apart.items():
                    copy(parameter, state["apart"][name])
            self.model.normalization = replace(self.model.normalization, gain=float(state["earlier_gain"]), bias=0.0)
            self._optimizer.weights.refresh()
        self._optimizer.load_state(state)

    def _parts(self, comparisons: Sequence[Comparison]) -> list[list[Comparison]]:
        lengths = [comparison.num_tokens() for comparison in comparisons]
        parts = microbatches_by_tokens(lengths, self._lanes.budget(sum(lengths), self._tokens_per_microbatch))
        return [[comparisons[index] for index in part] for part in parts]


def compared_scores(scores_N: Tensor, comparisons: Sequence[Comparison]) -> ComparedScores:
    """Scores of all candidates, one comparison after the other, as a row for each comparison."""
    device, counts = scores_N.device, [len(comparison.responses) for comparison in comparisons]
    mask_BK = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
    rows, columns = mask_BK.nonzero(as_tuple=True)
    index = (rows.to(device), columns.to(device))
    return ComparedScores(
        scores_BK=scores_N.new_zeros(mask_BK.shape).index_put(index, scores_N),
        mask_BK=mask_BK.to(device),
        best_B=torch.tensor([comparison.best for comparison in comparisons], device=device),
        margin_B=torch.tensor([comparison.margin or 0.0 for comparison in comparisons], device=device),
        tie_B=torch.tensor([comparison.tie for comparison in comparisons], device=device),
    )


def compare(
    score: Callable[[Sequence[PromptResponse]], list[float]], comparisons: Sequence[Comparison]
) -> list[list[float]]:
    """Scores of every candidate of every comparison. `score`: of responses."""
    numbers = iter(score(_pairs(comparisons)))
    return [[next(numbers) for _ in comparison.responses] for comparison in comparisons]


def _pairs(comparisons: Sequence[Comparison]) -> list[PromptResponse]:
    return [pair for comparison in comparisons for pair in comparison.pairs()]
