"""Low-rank adapters (LoRA, https://arxiv.org/abs/2106.09685) through peft. Only they train; the base stays frozen."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from burnish.config.schema_data import LoraConfig
from burnish.errors import CheckpointError, ModelError
from burnish.forward.quantized_layers import QuantizedLinear
from burnish.types import PreTrainedModel

if TYPE_CHECKING:
    from peft.tuners.lora import LoraLayer

ADAPTER = "default"
_MARK = ".lora_"
"""Part of the names of the adapter's parameters, and of no other names."""
_NAME_OF_ADAPTER = re.compile(rf"\.{ADAPTER}(?=\.|$)")
"""Part of the names in memory, but not on disk."""


class Adapter:
    """A model with adapters. `model` is the same object as before, but its linear layers are now adapted."""

    def __init__(
        self, model: PreTrainedModel, config: LoraConfig, *, seed: int = 0, task_type: str = "CAUSAL_LM"
    ) -> None:
        """`model` may also be a base model without a head (task_type FEATURE_EXTRACTION).

        Raises ModelError if `target_modules` matches no layer of the model, or matches its head."""
        import peft

        self.model = model
        targets = config.target_modules
        peft_config = peft.LoraConfig(
            r=config.rank,
            lora_alpha=config.alpha,
            target_modules=targets if isinstance(targets, str) else list(targets),
            lora_dropout=0.0,
            bias="none",
            task_type=task_type,
        )
        head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
        is_tied = head is not None and head.weight is embedding.weight
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                self._peft_model = peft.get_peft_model(model, peft_config).eval()
            except ValueError as error:
                raise ModelError(
                    f"model.lora.target_modules {targets!r} does not fit {type(model).__name__}: {error}",
                    remedy=f"use all-linear, or any of: {', '.join(_linear_names(model))}",
                ) from error
        if model.get_output_embeddings() is not head:
            raise ModelError(
                f"model.lora.target_modules {targets!r} adapts the output head, which is not supported",
                remedy="leave the head out, or use all-linear (which leaves it out)",
            )
        if is_tied and model.get_input_embeddings() is not embedding:
            raise ModelError(
                f"model.lora.target_modules {targets!r} adapts the embedding, which is the output head as well in "
                f"{type(model).__name__}: engines and saved weights would have only one of the two",
                remedy="leave the embedding out, or use all-linear (which leaves it out)",
            )

    def off(self) -> AbstractContextManager[None]:
        """Switch the adapter off in this context: the model computes what the base computes."""
        return self._peft_model.disable_adapter()

    def parameters(self) -> dict[str, nn.Parameter]:
        """The adapter's own parameters, by their names in the adapted model."""
        return {name: parameter for name, parameter in self._peft_model.named_parameters() if _MARK in name}

    def save(self, folder: Path, state: Mapping[str, Tensor] | None = None) -> None:
        """Write only the adapter, in the layout of `PeftModel.from_pretrained`. `state`: its weights by the names of
        `parameters`, if the live ones are not whole."""
        self._peft_model.save_pretrained(
            folder,
            safe_serialization=True,
            save_embedding_layers=False,
            state_dict=None if state is None else {**state},
        )
        _sort_names(folder / "adapter_config.json")

    @torch.no_grad()
    def load(self, folder: Path, copy: Callable[[nn.Parameter, Tensor], object] = Tensor.copy_) -> None:
        """Load the adapter's weights from a folder that `save` wrote, bit for bit: `copy(own, found)` for each.

        Raises CheckpointError if they do not fit."""
        from peft import load_peft_weights

        if not folder.is_dir():
            raise CheckpointError(
                f"checkpoint {folder.parent} has no adapter", remedy="resume with the LoRA settings it was made with"
            )
        saved = load_peft_weights(str(folder), device="cpu")
        for name, parameter in self.parameters().items():
            found = saved.get(_NAME_OF_ADAPTER.sub("", name))
            if found is None or found.shape != parameter.shape:
                raise CheckpointError(
                    f"the adapter in {folder} does not fit the model: {name}",
                    remedy="resume with the LoRA settings it was made with",
                )
            copy(parameter, found)

    def merged_state(self) -> dict[str, Tensor]:
        """The weights of an ordinary model with the adapter merged in. The live weights are not touched, because adding
        and then subtracting would not restore the same bits."""
        return dict(merged_weights(self.model))


@torch.no_grad()
def merged_weights(
    model: PreTrainedModel,
    state: Mapping[str, Tensor] | None = None,
    whole: Callable[[Tensor], Tensor] = Tensor.detach,
    *,
    adapters: bool = True,
) -> Iterator[tuple[str, Tensor]]:
    """Yield names and weights of the ordinary model equivalent to `model`. Adapters, if any, are merged in lazily, one
    tensor at a time. Without adapters this is the model's own state.

    state: the tensors to yield; all of the model's without it. whole: makes a whole tensor of the model's part of it.
    adapters: False for the weights of the base."""
    adapted = {f"{name}.weight": layer for name, layer in adapted_layers(model).items()} if adapters else {}
    quantized = {f"{name}.weight": part for name, part in model.named_modules() if isinstance(part, QuantizedLinear)}
    for name, value in (model.state_dict() if state is None else state).items():
        if _MARK in name:
            continue
        plain = name.replace(".base_layer.", ".")
        weight = quantized[name].weight if name in quantized else whole(value)
        if plain in adapted:
            weight = weight + delta_of(adapted[plain], whole).to(weight)
        yield plain, weight


def adapted_layers(model: nn.Module) -> dict[str, LoraLayer]:
    """The layers that have an adapter, by name."""
    from peft.tuners.lora import LoraLayer

    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}


def saved_adapter(model: nn.Module) -> dict[str, nn.Parameter]:
    """The adapters' own parameters, by their names in a folder that `Adapter.save` writes."""
    own = ((name, parameter) for name, parameter in model.named_parameters() if _MARK in name)
    return {f"base_model.model.{_NAME_OF_ADAPTER.sub('', name)}": parameter for name, parameter in own}


class _Delta(nn.Module):
    """The adapter's addition to the weight of its layer, as a module, so that it can be computed from other tensors
    than the layer's own."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self) -> Tensor:
        delta: Tensor = self.layer.get_delta_weight(ADAPTER)  # type: ignore[operator]
        return delta


def delta_of(layer: nn.Module, whole: Callable[[Tensor], Tensor]) -> Tensor:
    """Compute the adapter's addition to a layer's weight, from `whole` of each of the adapter's parameters."""
    module = _Delta(layer)
    own = {name: whole(parameter) for name, parameter in module.named_parameters() if _MARK in name}
    return torch.func.functional_call(module, own, ())


def _linear_names(model: PreTrainedModel) -> list[str]:
    names = {name.rsplit(".", 1)[-1] for name, part in model.named_modules() if type(part).__name__ in _LINEAR}
    return sorted(names - {"lm_head"})


_LINEAR = ("Linear", "QuantizedLinear", "Conv1D")


@torch.no_grad()
def effective_weight(linear: nn.Module) -> tuple[Tensor, Tensor | None]:
    """(weight, bias) that a linear layer computes with, adapter merged in. Without an adapter, the live weight itself.

    Raises TypeError for any other kind of layer."""
    if isinstance(linear, nn.Linear):
        return linear.weight, linear.bias
    from peft.tuners.lora import Linear

    if not isinstance(linear, Linear):
        raise TypeError(f"{type(linear).__name__} is not a linear layer")
    weight, bias = effective_weight(linear.get_base_layer())
    if linear.disable_adapters or linear.merged:
        return weight, bias
    for adapter in linear.active_adapters:
        weight = weight + linear.get_delta_weight(adapter).to(weight)
    return weight, bias


def _sort_names(file: Path) -> None:
    """Sort the lists of names: peft keeps them as sets, whose order differs between processes, but equal runs write
    equal files."""
    content = json.loads(file.read_text(encoding="utf-8"))
    named = {
        key: sorted(value)
        for key, value in content.items()
        if isinstance(value, list) and all(isinstance(name, str) for name in value)
    }
    file.write_text(json.dumps(content | named, indent=2, sort_keys=True), encoding="utf-8")
