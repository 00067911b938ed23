"""Move weights: from a policy to engines, from a folder into a model, and into the layout of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from burnish.errors import CheckpointError, ModelError
from burnish.models.lora import merged_weights
from burnish.types import PreTrainedModel


@dataclass(frozen=True, slots=True)
class Weights:
    """One version of a policy's weights, for the engines that sample with them.

    tensors: starts to read them, under the names of the ordinary model's state dict, with adapters merged in. Of tied
    tensors (embeddings) only the first is included. Each tensor is made or fetched when its turn comes, so a copy never
    needs memory for a second model. Raises RolloutError if the policy has moved on to another version.
    module: the live module if policy and engine share a process, else None. The policy's next update changes it.
    """

    version: int
    tensors: Callable[[], Iterator[tuple[str, Tensor]]]
    module: PreTrainedModel | None = None

    @staticmethod
    def of(module: PreTrainedModel, version: int = 0) -> Weights:
        """The current weights of a module that is not trained, or is read before training continues."""
        return Weights(version, lambda: named_tensors(module), module)


def named_tensors(
    model: PreTrainedModel, whole: Callable[[Tensor], Tensor] = Tensor.detach, *, adapters: bool = True
) -> Iterator[tuple[str, Tensor]]:
    """Yield names and weights of the ordinary model equivalent to `model`, in its order; see `Weights.tensors`. Weights
    that need no computation are views of the live ones. whole, adapters: as in `merged_weights`."""
    live = {tensor.data_ptr() for tensor in model.state_dict().values()}
    seen: set[tuple[int, torch.Size]] = set()
    for name, tensor in merged_weights(model, None, whole, adapters=adapters):
        place = (tensor.data_ptr(), tensor.shape)
        if place in seen:
            continue
        if tensor.data_ptr() in live:  # a merged one is freed after its turn, and the next may reuse its address
            seen.add(place)
        yield name, tensor


def in_chunks(
    tensors: Iterable[tuple[str, Tensor]], most: int, num_bytes: Callable[[Tensor], int]
) -> Iterator[list[tuple[str, Tensor]]]:
    """The tensors in lists of at most `most` bytes (or of a single tensor), each list made when it is asked for."""
    chunk: list[tuple[str, Tensor]] = []
    size = 0
    for name, tensor in tensors:
        if chunk and size + num_bytes(tensor) > most:
            yield chunk
            chunk, size = [], 0
        chunk.append((name, tensor))
        size += num_bytes(tensor)
    if chunk:
        yield chunk


def checkpoint_layout(model: PreTrainedModel, tensors: Iterable[tuple[str, Tensor]]) -> Iterable[tuple[str, Tensor]]:
    """The tensors with the names and shapes of a checkpoint on disk: modules that transformers fuses in memory are
    split again. They remain an iterator if the architecture needs no splitting."""
    from transformers.core_model_loading import revert_weight_conversion

    nothing: dict[str, Tensor] = {}
    if revert_weight_conversion(model, nothing) is nothing:
        return tensors
    return revert_weight_conversion(model, dict(tensors)).items()


@torch.no_grad()
def take_tensors(
    model: PreTrainedModel, tensors: Iterable[tuple[str, Tensor]], adapter: Mapping[str, Tensor] | None = None
) -> None:
    """Copy the tensors of a `Weights` into the model, or into `adapter` alone. ModelError unless names and shapes are
    exactly the same on both sides."""
    own = adapter or model.state_dict()
    lacking = {tensor.data_ptr(): name for name, tensor in own.items()}
    for name, tensor in tensors:
        target = own.get(name)
        if target is not None and target.is_meta:
            raise ModelError(
                f"{name} of {type(model).__name__} cannot take other weights: it has few bits, or is only an outline",
                remedy="build the engine with a model without model.quantization",
            )
        if target is None or target.shape != tensor.shape:
            there = "no such tensor" if target is None else f"one of shape {tuple(target.shape)}"
            raise ModelError(
                f"the weights contain {name} of shape {tuple(tensor.shape)}, but {type(model).__name__} has {there}",
                remedy="build the engine with the model that the policy trains",
            )
        target.copy_(tensor)
        lacking.pop(target.data_ptr(), None)
    if lacking:
        raise ModelError(
            f"the weights lack {_some(lacking.values())} of {type(model).__name__}",
            remedy="build the engine with the model that the policy trains",
        )


@torch.no_grad()
def load_folder(
    folder: Path,
    model: PreTrainedModel,
    copy: Callable[[nn.Parameter, Tensor], object] = Tensor.copy_,
    *,
    only: Mapping[str, nn.Parameter] | None = None,
) -> None:
    """Read the folder with `from_pretrained`, which knows the architecture's layout on disk, and copy: `copy(own,
    found)` for every parameter, or `only` for these.

    Raises CheckpointError if names or shapes are not the model's."""
    saved, info = type(model).from_pretrained(folder, dtype=model.dtype, use_safetensors=True, output_loading_info=True)
    own, found = only or dict(model.named_parameters()), dict(saved.named_parameters())
    odd = set(info["missing_keys"]) | (own.keys() - found.keys()) | (set() if only else found.keys() - own.keys())
    odd |= {name for name in own.keys() & found.keys() if own[name].shape != found[name].shape}
    if odd:
        raise CheckpointError(
            f"weights in {folder} do not fit the model: {_some(sorted(odd))}",
            remedy="resume with the model it was made with",
        )
    for name, parameter in own.items():
        copy(parameter, found[name])


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")
