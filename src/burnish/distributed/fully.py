"""Cuts a model over the processes of a team with PyTorch's FSDP2: each keeps a slice of every weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from burnish.types import PreTrainedModel

Result = TypeVar("Result")
NARROW = torch.bfloat16
"""The only type of weights, below float32, that trains."""
_AS_IT_IS = MixedPrecisionPolicy(cast_forward_inputs=False)
_SEEN_NARROW = MixedPrecisionPolicy(param_dtype=NARROW, reduce_dtype=torch.float32, cast_forward_inputs=False)


class CommonPass(nn.Module):
    """The root of a sharded model. Embedding, last norm and head are brought together for the whole of a pass, because
    scores are computed from the head's weight itself, which may be the embedding's."""

    def __init__(self, model: PreTrainedModel, heads: tuple[nn.Module, ...]) -> None:
        super().__init__()
        self.model = model
        self.heads = nn.ModuleList(heads)

    def forward(self, work: Callable[[], Result]) -> Result:
        """`work()`, with those weights there. Layers and heads bring theirs together when it is their turn."""
        return work()


def fully_sharded(model: PreTrainedModel, *heads: nn.Module) -> CommonPass:
    """Cut the weights of the model, and of heads on it, in place. All processes make this call, and from then on all
    passes side by side, through the module that is returned. Gradients are sums over the processes.

    Weights that train in bfloat16 are kept as float32 and brought together as bfloat16.
    """
    mesh = init_device_mesh(model.device.type, (dist.get_world_size(),))
    root = CommonPass(model, heads)
    layers = [layer for part in model.base_model.children() if isinstance(part, nn.ModuleList) for layer in part]
    for part in (*layers, *heads, root):
        narrow = [weight for weight in part.parameters() if weight.requires_grad and weight.dtype is NARROW]
        for weight in narrow:
            weight.data = weight.data.float()
        # The root, too, cuts its weights again after a pass, or whole ones of an earlier step would remain.
        fully_shard(part, mesh=mesh, reshard_after_forward=True, mp_policy=_SEEN_NARROW if narrow else _AS_IT_IS)
        if narrow:
            part.register_forward_pre_hook(_sum_in_float32)  # after the hook that brings its weights together
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo cannot multiply while it adds
    return root


def _sum_in_float32(part: nn.Module, _: object) -> None:
    """Gradients of the weights that are there are float32, as they are where the model is whole: some are computed in
    float32, and gradients of head and embedding are added up in place."""
    for weight in part.parameters():
        if weight.requires_grad and not isinstance(weight, DTensor):
            weight.grad_dtype = torch.float32
