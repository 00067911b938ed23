"""Cuts a model over the processes of a team with PyTorch's FSDP2: each keeps a slice of every weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from burnish.forward.sharded_scoring import Fields

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class CommonPass(nn.Module):
    """The root of a sharded model. Embedding, last norm and head are brought together for the whole of a pass, because
    scores are computed from the head's weight itself, which may be the embedding's."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[], Fields]) -> Fields:
        """`work()`, with those weights there. Layers bring theirs together when it is their turn."""
        return work()


def fully_sharded(model: PreTrainedModel) -> CommonPass:
    """Cut the model's weights in place. All processes make this call, and from then on all passes side by side, through
    the module that is returned. Gradients are sums over the processes."""
    mesh = init_device_mesh(model.device.type, (dist.get_world_size(),))
    for part in model.base_model.children():
        for layer in part if isinstance(part, nn.ModuleList) else ():
            fully_shard(layer, mesh=mesh)
    root = CommonPass(model)
    fully_shard(root, mesh=mesh, reshard_after_forward=True)  # or whole weights of an earlier step would remain
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo cannot multiply while it adds
    return root
