"""A model of which each process of a team has only a slice of the weights (`cluster.sharding: full`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from burnish.forward.compiled_layers import CompiledLayer
from burnish.forward.kernel_layers import own_layers
from burnish.forward.lanes import Lanes, LanesInStep
from burnish.forward.team import WeightSlices, is_cut
from burnish.models.loading import LoadedModel
from burnish.models.lora import Adapter, merged_weights
from burnish.models.optimizers import WIDE_TYPES, OptimizerSettings
from burnish.models.sharded_optimizer import FullyShardedOptimizer
from burnish.models.tokenizers import save_tokenizer
from burnish.types import PreTrainedModel

Cut = Callable[..., nn.Module]
"""Cuts a model, and heads that are not part of it, in place (`burnish.distributed.fully.fully_sharded`). Returns the
module that brings the weights together for what it is called with."""


class CutModel:
    """A model that has been cut, and what each process has to do to use it. Every process makes every call.

    Weights that train and are below float32 are kept as slices of float32, their masters. Passes, engines and
    checkpoints see them rounded to their own type, as they do where the model is whole.
    """

    def __init__(self, model: PreTrainedModel, lanes: Lanes, cut: Cut, heads: Sequence[nn.Module] = ()) -> None:
        """heads: further modules with parameters, used in the model's passes. For the lanes of a team."""
        assert lanes.team is not None
        self.model = model
        own_types = {name: parameter.dtype for name, parameter in model.named_parameters()}
        self._dtype = model.dtype
        own_layers(model, instead_of=CompiledLayer)  # whose code was made for whole weights
        self.root = cut(model, *heads)
        self._types: dict[Tensor, torch.dtype] = {
            parameter: own_types[name] for name, parameter in model.named_parameters()
        }
        for head in heads:
            self._types |= {parameter: parameter.dtype for parameter in head.parameters()}
        self._slices = WeightSlices(lanes.team)
        self.lanes = LanesInStep(lanes.count, lanes.team, self._slices)

    def optimizer(
        self, parameters: Sequence[tuple[str, nn.Parameter]], settings: OptimizerSettings
    ) -> FullyShardedOptimizer:
        """The optimizer of some of the parameters, heads included."""
        narrow = {name for name, parameter in parameters if self._types.get(parameter, torch.float32) not in WIDE_TYPES}
        return FullyShardedOptimizer(parameters, settings, self.lanes, self._slices, narrow)

    def whole(self, tensor: Tensor) -> Tensor:
        """Gather a whole parameter, in its own type and on its device. Other tensors are returned as they are."""
        own_type = self._types.get(tensor)
        return tensor.detach() if own_type is None else self._slices.whole(tensor).to(own_type)

    def copy(self, parameter: nn.Parameter, whole: Tensor) -> None:
        """Take this process' slice of a whole weight."""
        if is_cut(parameter):
            self._slices[parameter].copy_(self._slices.part(whole))
        else:
            parameter.copy_(whole)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Names and whole weights of the ordinary model, adapters merged in, one after the other; of tied ones the
        first."""
        names = {name for name, _ in self.model.named_parameters()}
        tied = {name for name, _ in self.model.named_parameters(remove_duplicate=False)} - names
        state = self.model.state_dict(keep_vars=True)
        return merged_weights(
            self.model, {name: value for name, value in state.items() if name not in tied}, self.whole
        )

    def collected(self, tensors: Iterator[tuple[str, Tensor]]) -> dict[str, Tensor]:
        """The tensors in the host's memory of the first process; nothing in the others, which make them with it."""
        return {name: tensor.cpu() for name, tensor in tensors if self.lanes.keeps_state}

    def save(self, folder: Path, state: Mapping[str, Tensor]) -> None:
        """Write the model with these weights, in the first process alone."""
        self.model.save_pretrained(folder, state_dict={**state}, safe_serialization=True)
        self.model.config.dtype = str(self._dtype).removeprefix("torch.")  # else the masters' type
        self.model.config.save_pretrained(folder)


def save_model(
    folder: Path, loaded: LoadedModel, state: dict[str, Tensor] | None, adapter: Adapter | None, cut: CutModel | None
) -> None:
    """Write a model with the weights of `state` (None: its own), its tokenizer, and its adapter in `folder/adapter`.

    Of a model that has been cut every process makes this call with its `CutModel`, and the first one writes.
    """
    of_adapter: Mapping[str, Tensor] | None = None
    if cut is not None and adapter is not None:
        of_adapter = cut.collected((name, cut.whole(weight)) for name, weight in adapter.parameters().items())
    if cut is None or state is None:
        loaded.model.save_pretrained(folder, state_dict=state, safe_serialization=True)
    elif cut.lanes.keeps_state:
        cut.save(folder, state)
    else:
        return
    save_tokenizer(loaded.tokenizer, folder)
    if adapter is not None:
        adapter.save(folder / "adapter", of_adapter)
