"""The optimizer step: forms of Adam, Muon, learning rate by the step, float32 masters for bf16 weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from burnish.algorithms.masking import as_float
from burnish.config.schema_optimization import OptimizationConfig
from burnish.errors import CheckpointError
from burnish.forward.lanes import ONE_LANE, Lanes
from burnish.forward.team import ROW
from burnish.machine.matmul_precision import countable
from burnish.models.muon import Muon, is_layer_matrix
from burnish.models.resting import Resting, resting_place
from burnish.models.roles import TrainingState

SCHEDULES = ("constant", "linear", "cosine")
SAFE_NORMS = (1e-15, 1e18)
"""Between these, the squares in a float32 norm neither underflow nor overflow."""
WIDE_TYPES = (torch.float32, torch.float64)
"""Types of parameters that are their own masters."""
WIDE_PART = 1 << 20
"""Numbers converted to float64 at a time."""


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """Settings of the optimizer. `total_steps` is the number of optimizer steps in the run (for linear and cosine). The
    learning rate changes every `steps_per_rate` steps, and `warmup_steps` counts these changes. `first_step` is the
    planned step at which this optimizer begins: above 0 for a policy that waits for its critic to warm up."""

    learning_rate: float
    total_steps: int
    schedule: str = "constant"
    warmup_steps: int = 0
    final_learning_rate_fraction: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float | None = 1.0
    optimizer: str = "adamw"
    steps_per_rate: int = 1
    first_step: int = 0

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ValueError(f"unknown schedule {self.schedule!r}, expected one of {', '.join(SCHEDULES)}")

    @staticmethod
    def from_config(
        config: OptimizationConfig, *, total_steps: int, learning_rate: float | None = None, first_step: int = 0
    ) -> OptimizerSettings:
        """The run file's settings, with another peak learning rate if one is given."""
        return OptimizerSettings(
            learning_rate=config.learning_rate if learning_rate is None else learning_rate,
            total_steps=total_steps,
            schedule=config.schedule,
            warmup_steps=config.warmup_steps,
            final_learning_rate_fraction=config.final_learning_rate_fraction,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
            max_grad_norm=config.max_grad_norm,
            optimizer=config.optimizer,
            steps_per_rate=config.steps_per_rate,
            first_step=first_step,
        )

    def own_step(self, planned_step: int | None, made: int) -> int:
        """Return this optimizer's step (from 0) that sets the learning rate: counted from the run's planned step, or,
        without a plan, the number of steps made so far."""
        return made if planned_step is None else planned_step - self.first_step

    def learning_rate_at(self, step: int) -> float:
        """Learning rate of optimizer step `step`, counted from 0.

        Warm-up: peak (n + 1) / warmup_steps in the n-th change of the rate, so that none is wasted at 0. After that,
        (n - warmup_steps) / (changes - warmup_steps) runs from 0 to just below 1, and the rate falls from the peak
        towards its final fraction in a straight line (`linear`) or along half a cosine. Past total_steps it keeps its
        final value.
        """
        change, changes = step // self.steps_per_rate, self.total_steps // self.steps_per_rate
        if change < self.warmup_steps:
            return self.learning_rate * (change + 1) / self.warmup_steps
        if self.schedule == "constant":
            return self.learning_rate
        progress = min(1.0, (change - self.warmup_steps) / max(1, changes - self.warmup_steps))
        remaining = 1.0 - progress if self.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
        final = self.final_learning_rate_fraction
        return self.learning_rate * (final + (1.0 - final) * remaining)


@torch.no_grad()
def euclidean_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Norm of all numbers in the tensors together (0-d float32), the same bits for any number of threads.

    `torch.linalg.vector_norm` adds the squares of a float32 tensor into a few float32 sums. Past some millions of
    numbers most of each square is rounded away (16 M numbers: 7e-4 too small on one thread). The norm of the norms of
    short rows costs the same and is within 3e-7 of float64. If squares would leave float32's range, they are added in
    float64 instead.
    """
    if not tensors:
        return torch.zeros(())
    # Reading the norm waits for the device, once in a step; the check that it is finite would wait anyway.
    norm = norm_of_rows(torch.stack([_norm_of_rows(tensor) for tensor in tensors]))
    return norm.float() if SAFE_NORMS[0] < float(norm) < SAFE_NORMS[1] else wide_norm(tensors).float()


def wide_norm(tensors: Iterable[Tensor]) -> Tensor:
    """`euclidean_norm` with all squares in float64 (0-d float64)."""
    parts = (countable(part).double() for tensor in tensors for part in tensor.flatten().split(WIDE_PART))
    return norm_of_rows(torch.stack([_norm_of_rows(part) for part in parts]))


def _norm_of_rows(values: Tensor) -> Tensor:
    """Norm of one tensor (0-d float64): the norm of the norms of its rows of `ROW` numbers."""
    return norm_of_rows(row_norms(as_float(values.flatten())))


def norm_of_rows(norms: Tensor) -> Tensor:
    """Norm of all numbers (0-d float64), from the norms of the rows, or tensors, that hold them."""
    norms = countable(norms).double()
    while norms.numel() > ROW:
        norms = row_norms(norms)
    return torch.linalg.vector_norm(norms).double()


def row_norms(numbers: Tensor) -> Tensor:
    """Norms of the rows of `ROW` numbers, and of the rest, which may have none."""
    whole = numbers.numel() // ROW * ROW
    rows = torch.linalg.vector_norm(numbers[:whole].view(-1, ROW), dim=1)
    return torch.cat([rows, torch.linalg.vector_norm(numbers[whole:]).view(1)])


class AdamTF(torch.optim.Optimizer):
    """Adam as TensorFlow 1 computes it, which trained the RLHF models of 2019: epsilon is outside the bias correction,
    and weight decay is decoupled.

    With gradient g, m <- b1 m + (1 - b1) g and v <- b2 v + (1 - b2) g^2, step t (from 1) moves a weight by

        -lr * sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps)

    This is the efficient form given at the end of section 2 of https://arxiv.org/abs/1412.6980, whose epsilon stays
    outside the correction. `torch.optim.AdamW` divides by sqrt(v / (1 - b2^t)) + eps instead. It makes the same steps
    with eps / sqrt(1 - b2^t) in place of eps. Early in training a given epsilon therefore damps small gradients far
    more here: the first step equals AdamW's with an epsilon 31.6 times as large (b2 = 0.999). The policies of
    https://arxiv.org/abs/1909.08593 were trained this way, with eps 1e-5.

    State per weight: `step` (0-d float32), `exp_avg` and `exp_avg_sq`, the names of `torch.optim.AdamW`.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # closures, which other optimizers take, have no use here
        """One update of every weight that has a gradient."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._move(weight, weight.grad, group)

    def _move(self, weight: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
        (beta1, beta2), mean, square = group["betas"], state["exp_avg"], state["exp_avg_sq"]
        state["step"] += 1
        mean.lerp_(grad, 1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        made = int(state["step"])
        rate = group["lr"] * (math.sqrt(1 - beta2**made) / (1 - beta1**made))
        # Decay is decoupled: it uses the learning rate without the bias correction, as AdamW does.
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.addcdiv_(mean, square.sqrt().add_(group["eps"]), value=-rate)


OPTIMIZERS: dict[str, type[torch.optim.AdamW] | type[AdamTF]] = {
    "adamw": torch.optim.AdamW,
    "adam_tf": AdamTF,
    "muon": Muon,
}


class WeightOptimizer:
    """One of `OPTIMIZERS` over named parameters. Weight decay applies to matrices only, not to biases and norms.

    Parameters below float32 have float32 masters, and their gradients are summed over micro-batches in float32. bf16
    has 8 bits of mantissa, so an update of a thousandth of the weight, or the gradient of the thousandth micro-batch,
    would round to nothing.
    """

    def __init__(
        self, parameters: Sequence[tuple[str, nn.Parameter]], settings: OptimizerSettings, lanes: Lanes = ONE_LANE
    ) -> None:
        self.settings = settings
        self._lanes = lanes
        self._parameters = dict(parameters)
        self._masters = {name: self._master(parameter) for name, parameter in parameters}
        layers = [n for n, p in parameters if settings.optimizer == "muon" and is_layer_matrix(n, p)]
        matrices = [self._masters[n] for n, p in parameters if p.dim() >= 2 and n not in layers]
        vectors = [self._masters[name] for name, parameter in parameters if parameter.dim() < 2]
        groups: list[dict[str, Any]] = [
            {"params": matrices, "weight_decay": settings.weight_decay, "orthogonal": False},
            {"params": vectors, "weight_decay": 0.0, "orthogonal": False},
            {"params": [self._masters[n] for n in layers], "weight_decay": settings.weight_decay, "orthogonal": True},
        ]
        # The masters are stepped, not the parameters; a float32 parameter is its own master.
        self._adam = OPTIMIZERS[settings.optimizer](
            [group for group in groups if group["params"]],
            lr=settings.learning_rate,
            betas=settings.betas,
            eps=settings.eps,
            **_in_one_pass(settings, list(self._masters.values())),
        )
        self.resting: Resting | None = None
        self._awake: Callable[[], AbstractContextManager[None]] = nullcontext

    def rest(self, role: str, folder: Path) -> None:
        """Keep moments and masters awake only while a step is made, from now on: they rest during the passes too
        (`burnish.models.resting`). `role`: whose optimizer it is, for messages."""
        device = next(iter(self._masters.values())).device
        self.resting = Resting(role, resting_place(device, folder), self._state_tensors)
        self._awake = self.resting.awake

    def grad_norm(self) -> Tensor:
        """Euclidean norm of the gradient over all parameters (0-d float32)."""
        return euclidean_norm([p.grad for p in self._parameters.values() if p.grad is not None])

    def step(self, step: int, grad_norm: Tensor) -> float:
        """Clip, step and clear the gradients. Returns the learning rate used, from this optimizer's step `step`."""
        with self._awake():
            rate = self._move_masters(step, grad_norm)
            self._publish()
        self.clear()  # now rather than before the next pass: their memory is needed for sampling
        return rate

    def _move_masters(self, step: int, grad_norm: Tensor) -> float:
        rate = self.settings.learning_rate_at(step)
        for group in self._adam.param_groups:
            group["lr"] = rate
        for name, parameter in self._parameters.items():
            master = self._masters[name]
            if master is not parameter and parameter.grad is not None:
                master.grad, parameter.grad = parameter.grad, None  # float32 already (`grad_dtype`): nothing is copied
        if self.settings.max_grad_norm is not None:
            # The norm is passed in, because PyTorch's own is inexact for many parameters (see `euclidean_norm`).
            torch.nn.utils.clip_grads_with_norm_(self._masters.values(), self.settings.max_grad_norm, grad_norm)
        self._adam.step()
        return rate

    def _state_tensors(self) -> Iterator[Tensor]:
        """Yield tensors that only a step reads: moments, and masters that are not the weights themselves."""
        for name, master in self._masters.items():
            if self._parameters[name].dtype not in WIDE_TYPES:
                yield master
            yield from (moment for key, moment in self._adam.state.get(master, {}).items() if key != "step")

    def clear(self) -> None:
        """Drop the gradients."""
        for name, parameter in self._parameters.items():
            parameter.grad = None
            self._masters[name].grad = None

    def zero(self) -> None:
        """Set all gradients to 0. Adam then still applies momentum and decay; without gradients it would do nothing."""
        for parameter in self._parameters.values():
            parameter.grad = torch.zeros_like(parameter, dtype=parameter.grad_dtype)

    def refresh(self) -> None:
        """Set the masters to the current weights (after loading)."""
        with torch.no_grad(), self._awake():
            for name, parameter in self._parameters.items():
                if parameter.dtype not in WIDE_TYPES:
                    self._masters[name].copy_(self._own(parameter))

    def state(self) -> TrainingState:
        """Moments (and float32 masters, if any) by parameter name: tensors only, no pickled objects.

        They are the optimizer's own, not copies of them, so that saving takes no memory: the next step changes them.
        Only what rests again is copied. Every process of a team makes this call. The first one gets the state, the
        others nothing.
        """
        with self._awake():
            return self._state() if self.resting is None else self.resting.copied(self._state())

    def _state(self) -> TrainingState:
        if not self._lanes.keeps_state:
            return {}
        moments = {
            name: {
                key: value.cpu() if key == "step" else value.detach() for key, value in self._adam.state[master].items()
            }
            for name, master in self._masters.items()
            if master in self._adam.state
        }
        return {"moments": moments, "masters": {name: self._masters[name].detach() for name in self._copied()}}

    def load_state(self, state: TrainingState) -> None:
        """The inverse of `state`. Raises CheckpointError if it belongs to other parameters."""
        check_fits(state, {name: parameter.shape for name, parameter in self._parameters.items()})
        with torch.no_grad(), self._awake():
            for name, value in state["masters"].items():
                self._masters[name].copy_(self._own(value))
            self._adam.state.clear()
            for name, moments in state["moments"].items():
                master = self._masters[name]
                counts_on = master.device if self._adam.defaults.get("fused") else torch.device("cpu")  # as Adam does
                self._adam.state[master] = {
                    key: value.to(counts_on, copy=True)
                    if key == "step"
                    else self._own(value).to(master.device, copy=True)
                    for key, value in moments.items()
                }
            self._publish()

    def _copied(self) -> list[str]:
        """The weights that have masters of another type."""
        return [name for name, parameter in self._parameters.items() if parameter.dtype not in WIDE_TYPES]

    def _master(self, parameter: nn.Parameter) -> nn.Parameter:
        if parameter.dtype in WIDE_TYPES:
            return parameter
        parameter.grad_dtype = torch.float32
        return nn.Parameter(parameter.detach().to(torch.float32))

    def _own(self, whole: Tensor) -> Tensor:
        """The part of a whole tensor that belongs to this process' master or moment."""
        return whole

    @torch.no_grad()
    def _publish(self) -> None:
        for name in self._copied():
            self._parameters[name].copy_(self._masters[name])


def check_fits(state: TrainingState, shapes: Mapping[str, torch.Size]) -> None:
    """Raise CheckpointError for the optimizer state of weights other than these."""
    saved = {name: moments["exp_avg"].shape for name, moments in state["moments"].items()}
    odd = sorted(name for name, shape in saved.items() if shapes.get(name) != shape)
    if odd:
        raise CheckpointError(
            f"the optimizer state holds {len(odd)} weights that the model does not train in this shape,"
            f" for example {odd[0]!r} {tuple(saved[odd[0]])}",
            remedy="resume with the model and LoRA settings that the checkpoint was made with",
        )


def _in_one_pass(settings: OptimizerSettings, parameters: Sequence[nn.Parameter]) -> dict[str, bool]:
    """Use fused AdamW where all weights are on a CPU, or all on GPUs: each of its eight separate operations would read
    all of them from memory, and keep results of their size. Elsewhere PyTorch chooses (`foreach` where it can)."""
    places = {parameter.device.type for parameter in parameters}
    floating = all(parameter.is_floating_point() for parameter in parameters)
    fused = settings.optimizer in ("adamw", "muon") and places in ({"cpu"}, {"cuda"}) and floating
    return {"fused": True} if fused else {}
