"""The optimizer of a role (policy, critic, reward model): it counts its steps, and makes none that diverges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor, nn

from burnish.errors import DivergenceError
from burnish.forward.lanes import Lanes
from burnish.machine.memory import return_freed_memory
from burnish.models.cut import CutModel
from burnish.models.optimizers import OptimizerSettings
from burnish.models.roles import TrainingState
from burnish.models.sharded_optimizer import optimizer_for
from burnish.types import Metric, Reduction


@dataclass(frozen=True, slots=True)
class Owner:
    """Role of an optimizer, for its metrics (prefix) and messages (name). diverged: message about a number that is not
    finite, with `loss` as the word for a loss; remedy: what to do about it."""

    prefix: str
    name: str
    remedy: str
    diverged: str = "{what} is {number} at optimizer step {step}; the weights have not been changed"
    loss: str = "loss"


class RoleOptimizer:
    """Steps of these parameters, with their count, learning rate and gradient clipping."""

    def __init__(
        self, owner: Owner, parameters: Sequence[tuple[str, nn.Parameter]], settings: OptimizerSettings, lanes: Lanes
    ) -> None:
        self._owner = owner
        self._settings = settings
        self.weights = optimizer_for(parameters, settings, lanes)
        self.parameters = [parameter for _, parameter in parameters]
        self.version = 0

    def let_go(self) -> None:
        """Drop the references to the parameters, so that cutting can free their memory. Call `share` afterwards."""
        del self.weights, self.parameters

    def share(self, shared: CutModel, parameters: Sequence[tuple[str, nn.Parameter]]) -> None:
        """Go on with these parameters, which are slices now."""
        self.weights = shared.optimizer(parameters, self._settings)
        self.parameters = [parameter for _, parameter in parameters]

    def rest(self, folder: Path) -> None:
        """Offload moments and masters between optimizer steps from now on: to pinned host memory or, for a model on the
        CPU, to a file in `folder`. OffloadError if there is no room."""
        self.weights.rest(f"{self._owner.name}'s optimizer", folder)

    def checked_norm(self, losses: Sequence[Tensor] = (), num_tokens: int = 0) -> Tensor:
        """Euclidean norm of the gradient. Raises DivergenceError, with the gradients cleared, if it or one of the
        `losses` (over `num_tokens` tokens) is not finite. Waits for the device, once for all losses."""
        # Losses first: one that is not finite explains the gradient that it has spoilt.
        numbers = torch.stack([loss.double() for loss in losses]).tolist() if losses else []
        for number in numbers:
            if not math.isfinite(number):
                self._refuse(self._owner.loss.format(tokens=num_tokens), number)
        norm = self.weights.grad_norm()
        if not math.isfinite(float(norm)):
            self._refuse("gradient norm", float(norm))
        return norm

    def _refuse(self, what: str, number: float) -> NoReturn:
        self.weights.clear()
        message = self._owner.diverged.format(what=what, number=number, step=self.version)
        raise DivergenceError(message, remedy=self._owner.remedy)

    def step(self, grad_norm: Tensor, planned_step: int | None = None) -> dict[str, Metric]:
        """Clip, step and count. Returns grad_norm (before clipping) and learning_rate, which follows `planned_step` as
        in `roles.Policy.update`."""
        self.version += 1  # before the weights change, so that the old version never names changed weights
        rate = self.weights.step(self._settings.own_step(planned_step, self.version - 1), grad_norm)
        return {
            f"{self._owner.prefix}/grad_norm": Metric(Reduction.MEAN, float(grad_norm)),
            f"{self._owner.prefix}/learning_rate": Metric(Reduction.LAST, rate),
        }

    def skip(self) -> dict[str, Metric]:
        """Count a step that had nothing to learn from and changed nothing."""
        self.version += 1
        return {f"{self._owner.prefix}/empty_updates": Metric(Reduction.SUM, 1.0)}

    def state(self) -> TrainingState:
        """Version and optimizer state (nested dictionaries of tensors by parameter name). The learning rate has no
        state: it is a pure function of the planned step (or the version). Of a team every process makes this call, and
        the first one gets the optimizer state. The next update changes its tensors."""
        return_freed_memory()  # of the updates: a copy of the state takes as much again
        return {"version": self.version, "optimizer": self.weights.state()}

    def load_state(self, state: TrainingState) -> None:
        """The inverse of `state`. Load the weights first."""
        self.weights.load_state(state["optimizer"])
        self.version = int(state["version"])
