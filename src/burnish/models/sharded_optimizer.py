"""The optimizer step shared by the processes of a team: each keeps and moves a slice of every weight."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor, nn

from burnish.forward.lanes import Lanes
from burnish.forward.team import ROW, Slices, Span, fill, gathered, is_cut, telling
from burnish.models.optimizers import (
    SAFE_NORMS,
    WIDE_TYPES,
    OptimizerSettings,
    WeightOptimizer,
    euclidean_norm,
    norm_of_rows,
    row_norms,
    wide_norm,
)
from burnish.models.roles import TrainingState


def optimizer_for(
    parameters: Sequence[tuple[str, nn.Parameter]], settings: OptimizerSettings, lanes: Lanes
) -> WeightOptimizer:
    """The optimizer of these parameters for gradients that are added as `lanes` says."""
    if lanes.slices is None:
        return WeightOptimizer(parameters, settings, lanes)
    return ShardedOptimizer(parameters, settings, lanes, lanes.slices)


class ShardedOptimizer(WeightOptimizer):
    """A `WeightOptimizer` whose masters, moments and summed gradients are this process' slices only (`Slices`).

    Every process of the team makes every call, and all of them have the whole weights after each step. Weights, norms
    and states equal a `WeightOptimizer`'s to the last bit: Adam treats each number alone, and the norm of a gradient is
    made of the norms of rows, of which each process has whole ones.
    """

    def __init__(
        self, parameters: Sequence[tuple[str, nn.Parameter]], settings: OptimizerSettings, lanes: Lanes, slices: Slices
    ) -> None:
        self._slices = slices
        super().__init__(parameters, settings, lanes)

    @torch.no_grad()
    def grad_norm(self) -> Tensor:
        """Euclidean norm of the gradient over all parameters (0-d float32)."""
        given = [name for name, master in self._masters.items() if master.grad is not None]
        if not given:
            return torch.zeros(())
        parameters = [self._parameters[name] for name in given]
        norms = [torch.empty(_num_norms(p.numel()), device=p.device) for p in parameters]
        fill(self._slices.team, norms, [self._norms_of_own_rows(name) for name in given], self._places(parameters))
        norm = norm_of_rows(torch.stack([norm_of_rows(rows) for rows in norms]))
        is_safe = SAFE_NORMS[0] < float(norm) < SAFE_NORMS[1]
        return norm.float() if is_safe else wide_norm(self._whole_gradients(given)).float()

    def _norms_of_own_rows(self, name: str) -> Tensor:
        """Norms of the rows of this slice, as in the first pass of `euclidean_norm` over the whole gradient."""
        own, last = self._masters[name].grad, self._slices.team.rank == self._slices.team.size - 1
        assert own is not None
        if self._parameters[name].numel() <= ROW:
            return torch.linalg.vector_norm(own).view(1)[: own.numel()]
        return row_norms(own) if last else row_norms(own)[:-1]  # a rest is at the end of the tensor only

    def _places(self, parameters: Sequence[Tensor]) -> list[list[Span]]:
        """Spans of the norms of rows that each process has: one list for each process."""
        *others, last = self._slices.spans(parameters)
        ends = [_num_norms(parameter.numel()) for parameter in parameters]
        return [
            *([(first // ROW, end // ROW) for first, end in spans] for spans in others),
            [(first // ROW, end) for (first, _), end in zip(last, ends, strict=True)],
        ]

    def _whole_gradients(self, names: Sequence[str]) -> Iterator[Tensor]:
        """Yield the whole gradients one after the other. All processes have to take all of them."""
        for name in names:
            gradient = self._masters[name].grad
            assert gradient is not None
            whole = torch.empty(self._parameters[name].numel(), device=gradient.device)
            fill(self._slices.team, [whole], [gradient], self._slices.spans([whole]))
            yield whole

    def _move_masters(self, step: int, grad_norm: Tensor) -> float:
        with telling(self._slices.team):  # the others must not wait for the weights of a process that has none
            return super()._move_masters(step, grad_norm)

    def zero(self) -> None:
        """See `WeightOptimizer.zero`."""
        for master in self._masters.values():
            master.grad = torch.zeros_like(master)

    def _state(self) -> TrainingState:
        """Whole tensors in the host's memory, whatever the size of the team."""
        moved = [name for name, master in self._masters.items() if master in self._adam.state]
        moments: dict[str, dict[str, Tensor]] = {name: {} for name in moved}
        for key in self._adam.state[self._masters[moved[0]]] if moved else ():
            values = {name: self._adam.state[self._masters[name]][key] for name in moved}
            if key == "step":
                whole = {name: value.to("cpu", copy=True) for name, value in values.items()}
            else:
                whole = self._whole(values)
            for name, value in whole.items():
                moments[name][key] = value
        masters = self._whole({name: self._masters[name].detach() for name in self._copied()})
        return {"moments": moments, "masters": masters} if self._lanes.keeps_state else {}

    def _whole(self, own: dict[str, Tensor]) -> dict[str, Tensor]:
        """Gather the slices into whole tensors of the parameters' shapes, in host memory; empty except in the first
        process."""
        parameters = [self._parameters[name] for name in own]
        slices, spans = list(own.values()), self._slices.spans(parameters)
        if not self._lanes.keeps_state:
            for _ in gathered(self._slices.team, slices, spans):
                pass  # the first process needs this one's part of each exchange
            return {}
        whole = [
            torch.empty(parameter.shape, dtype=part.dtype) for parameter, part in zip(parameters, slices, strict=True)
        ]
        fill(self._slices.team, whole, slices, spans)
        return dict(zip(own, whole, strict=True))

    def _master(self, parameter: nn.Parameter) -> nn.Parameter:
        if parameter.dtype not in WIDE_TYPES:
            parameter.grad_dtype = torch.float32
        return self._slices[parameter]

    def _own(self, whole: Tensor) -> Tensor:
        return self._slices.part(whole.contiguous())

    @torch.no_grad()
    def _publish(self) -> None:
        """Give every process the weights that the others have moved."""
        weights = list(self._parameters.values())
        own = [self._masters[name].to(parameter.dtype) for name, parameter in self._parameters.items()]
        fill(self._slices.team, weights, own, self._slices.spans(weights))


class FullyShardedOptimizer(ShardedOptimizer):
    """A `ShardedOptimizer` for weights of which each process has only a slice (`WeightSlices`), in float32. Passes see
    `narrow` weights rounded to a smaller type: their slices are the masters.

    Gradients are added over the processes by PyTorch, so they equal the gradients of one process up to rounding.
    """

    def __init__(
        self,
        parameters: Sequence[tuple[str, nn.Parameter]],
        settings: OptimizerSettings,
        lanes: Lanes,
        slices: Slices,
        narrow: Collection[str] = (),
    ) -> None:
        super().__init__(parameters, settings, lanes, slices)
        self._narrow = narrow

    def _copied(self) -> list[str]:
        return [name for name in self._parameters if name in self._narrow]

    @torch.no_grad()
    def grad_norm(self) -> Tensor:
        """Euclidean norm of the gradient over all parameters (0-d float32), from the norms of all slices."""
        self._move_gradients()
        own = [master.grad for master in self._masters.values() if master.grad is not None]
        norms = self._slices.team.exchange(float(euclidean_norm(own)) if own else 0.0)
        return torch.tensor(math.hypot(*norms), dtype=torch.float32)

    def _move_gradients(self) -> None:
        for name, parameter in self._parameters.items():
            gradient, parameter.grad = parameter.grad, None
            if gradient is not None:
                own = gradient.to_local().view(-1) if is_cut(gradient) else self._slices.part(gradient)
                self._masters[name].grad = own

    @torch.no_grad()
    def _publish(self) -> None:
        """Send every process the uncut weights, which only the first one has updated; of the others each process has
        updated its own part."""
        uncut = {name: weight for name, weight in self._parameters.items() if not is_cut(weight)}
        weights, own = list(uncut.values()), [self._masters[name].detach() for name in uncut]
        fill(self._slices.team, weights, own, self._slices.spans(weights))


def _num_norms(numel: int) -> int:
    """Number of norms that `row_norms` makes of a tensor; a short one has a single norm."""
    return 1 if numel <= ROW else numel // ROW + 1
