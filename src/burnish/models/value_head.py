"""The value head: one number read from the hidden state before each response token, with an optimizer of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from burnish.errors import CheckpointError, DivergenceError, ModelError
from burnish.forward.batch import Batch
from burnish.forward.lanes import ONE_LANE, Lanes
from burnish.forward.scoring import ResponsePositions, TrunkRunner, put_back
from burnish.models.optimizers import OptimizerSettings, WeightOptimizer
from burnish.models.roles import TrainingState
from burnish.types import Metric, Reduction

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HEAD_FILE = "value_head.safetensors"


class ValueHead(nn.Module):
    """Linear read-out of a hidden state (..., H) to a value (...), float32 whatever the trunk computes in.

    Weight and bias start at 0, so that a fresh critic says 0 everywhere and the first advantages are plain returns
    (https://arxiv.org/abs/1909.08593); `init_value_head` starts it otherwise.
    """

    def __init__(self, hidden_size: int, *, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, hidden_size, device=device))
        self.bias = nn.Parameter(torch.zeros(1, device=device))

    def forward(self, hidden: Tensor) -> Tensor:
        return nn.functional.linear(hidden.float(), self.weight, self.bias).squeeze(-1)

    @torch.no_grad()
    def take(self, weight: Tensor, bias: Tensor) -> None:
        """Start from a trained read-out: weight (1, H), bias (1)."""
        self.weight.copy_(weight)
        self.bias.copy_(bias)

    def save(self, folder: Path) -> None:
        """Write the head beside the trunk's weights."""
        folder.mkdir(parents=True, exist_ok=True)
        state = {name: value.detach().cpu().contiguous() for name, value in self.state_dict().items()}
        save_file(state, folder / HEAD_FILE)

    def load(self, folder: Path) -> None:
        """Take over what `save` wrote. Raises CheckpointError when it is absent or of another width."""
        file = folder / HEAD_FILE
        if not file.is_file():
            raise CheckpointError(
                f"checkpoint {folder} has no value head", remedy="resume with critic.kind it was made with"
            )
        saved: Mapping[str, Tensor] = load_file(file)
        if saved["weight"].shape != self.weight.shape:
            raise CheckpointError(
                f"the value head in {folder} reads {saved['weight'].shape[1]} numbers, the model gives "
                f"{self.weight.shape[1]}",
                remedy="resume with the model that the checkpoint was made with",
            )
        self.take(saved["weight"], saved["bias"])


@torch.no_grad()
def init_value_head(head: ValueHead, *, std: float, seed: int) -> None:
    """Weights from N(0, std), bias 0. A function of the seed alone; std 0 leaves a fresh head as it is."""
    generator = torch.Generator().manual_seed(seed)
    head.weight.copy_(torch.randn(head.weight.shape, generator=generator) * std)
    head.bias.zero_()


class ValueScorer:
    """Values of the states before the response tokens: a trunk (a model without its output head) and a value head.
    `plain` as in `TrunkRunner`."""

    def __init__(self, trunk: PreTrainedModel, head: ValueHead, *, plain: bool = False) -> None:
        self.head = head
        self._runner = TrunkRunner(trunk, plain=plain)

    @property
    def device(self) -> torch.device:
        """Where trunk and head live."""
        return self.head.weight.device

    def score(self, batch: Batch, *, only_trained: bool = False, train_trunk: bool = True) -> Tensor:
        """(B, T) float32 at every response token (`only_trained`: at those in the loss mask), 0 elsewhere.

        Differentiable. With `train_trunk` False the gradient reaches the head only.
        """
        batch = batch.to(self.device)
        positions = ResponsePositions.of(batch, only_trained=only_trained)
        with torch.set_grad_enabled(train_trunk and torch.is_grad_enabled()):
            hidden_N = self._runner.hidden(batch, positions)
        return positions.scatter(self.head(hidden_N))

    def split(self, batch: Batch, tokens_per_microbatch: int) -> Iterator[tuple[list[int], Batch]]:
        """(row numbers, those rows) of each micro-batch, cut as suits the way the trunk reads them."""
        return self._runner.split(batch, tokens_per_microbatch)

    @torch.no_grad()
    def score_in_microbatches(self, batch: Batch, tokens_per_microbatch: int, *, lanes: Lanes = ONE_LANE) -> Tensor:
        """Values of all rows without gradient, in the rows' order and the batch's width, on the batch's device."""
        cut = list(self.split(batch, lanes.budget(batch.num_tokens, tokens_per_microbatch)))
        values = lanes.map([part for _, part in cut], [part.num_tokens for _, part in cut], self.score)
        return put_back(
            [(rows, value) for (rows, _), value in zip(cut, values, strict=True)],
            tuple(batch.response_tokens.shape),
            batch.device,
        )


def trunk_of(model: PreTrainedModel) -> PreTrainedModel:
    """The model without its output head. ModelError when it has no part of that kind."""
    trunk = model.base_model
    if trunk is model:
        raise ModelError(
            f"{type(model).__name__} has no trunk apart from its output head, so a critic has nothing to read from",
            remedy="use a model of another architecture, or an estimator without a critic",
        )
    return trunk


@torch.no_grad()
def hidden_size(trunk: PreTrainedModel) -> int:
    """Width of the last hidden state, found by running one token: configs name it differently."""
    token = torch.zeros((1, 1), dtype=torch.int64, device=trunk.device)
    return int(trunk(input_ids=token, use_cache=False)[0].shape[-1])


class CriticOptimizer:
    """Optimizer of a critic's weights with its own count of steps, learning rate and gradient clipping."""

    def __init__(self, parameters: Sequence[tuple[str, nn.Parameter]], settings: OptimizerSettings) -> None:
        self._optimizer = WeightOptimizer(parameters, settings)
        self.parameters = [parameter for _, parameter in parameters]
        self.version = 0

    def clear(self) -> None:
        """Forget the gradients."""
        self._optimizer.clear()

    def checked_norm(self) -> Tensor:
        """Euclidean norm of the gradient. Raises DivergenceError when it is not finite."""
        norm = self._optimizer.grad_norm()
        self.check_finite("gradient norm", float(norm))
        return norm

    def check_finite(self, what: str, number: float | None) -> None:
        """Raise DivergenceError, with the gradients cleared, for a number that is not finite."""
        if number is None or math.isfinite(number):
            return
        self.clear()
        raise DivergenceError(
            f"the critic's {what} is {number} at its optimizer step {self.version}; its weights have not been changed",
            remedy="lower critic.learning_rate, check rewards for extremes, or use float32",
        )

    def step(self, grad_norm: Tensor, planned_step: int | None = None) -> dict[str, Metric]:
        """Clip, step, count; returns critic/grad_norm (before clipping) and critic/learning_rate, which follows
        `planned_step` as in `roles.Policy.update`."""
        self.version += 1  # before the weights move: with the old number they are certainly the old ones
        rate = self._optimizer.step(self._optimizer.settings.own_step(planned_step, self.version - 1), grad_norm)
        return {
            "critic/grad_norm": Metric(Reduction.MEAN, float(grad_norm)),
            "critic/learning_rate": Metric(Reduction.LAST, rate),
        }

    def skip(self) -> dict[str, Metric]:
        """Count a step that had nothing to learn from and moved nothing."""
        self.version += 1
        return {"critic/empty_updates": Metric(Reduction.SUM, 1.0)}

    def refresh(self) -> None:
        """Take the weights as they are now (after loading)."""
        self._optimizer.refresh()

    def state(self) -> TrainingState:
        return {"version": self.version, "optimizer": self._optimizer.state()}

    def load_state(self, state: TrainingState) -> None:
        self._optimizer.load_state(state["optimizer"])
        self.version = int(state["version"])
