"""The weights as a checkpoint on disk would hold them, without the disk: names, layout, adapters, shared tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from burnish.models.lora import merged_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def checkpoint_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors of the present weights, in the model's order; tensors are views of them where nothing has to be
    computed. Adapters are merged in, modules that transformers fuses in memory are taken apart again, and of tensors
    that are one (tied embeddings) only the first comes."""
    from transformers.core_model_loading import revert_weight_conversion

    seen: set[tuple[int, tuple[int, ...]]] = set()
    for name, tensor in revert_weight_conversion(model, dict(merged_weights(model))).items():
        place = (tensor.data_ptr(), tuple(tensor.shape))
        if place not in seen:
            seen.add(place)
            yield name, tensor
