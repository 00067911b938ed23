"""The value head: one number read from the hidden state before each response token, with its own optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from burnish.errors import CheckpointError, ModelError
from burnish.forward.batch import Batch
from burnish.forward.lanes import ONE_LANE, Lanes
from burnish.forward.scoring import ResponsePositions, Rooted, TrunkRunner, put_back, within_root
from burnish.types import PreTrainedModel

HEAD_FILE = "value_head.safetensors"


class ValueHead(nn.Module):
    """Linear read-out of a hidden state (..., H) to a value (...), float32 whatever the dtype of the backbone.

    Weight and bias start at 0, so a new critic predicts 0 everywhere and the first advantages are plain returns
    (https://arxiv.org/abs/1909.08593). `init_value_head` starts it differently.
    """

    def __init__(self, hidden_size: int, *, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, hidden_size, device=device))
        self.bias = nn.Parameter(torch.zeros(1, device=device))

    def forward(self, hidden: Tensor) -> Tensor:
        return nn.functional.linear(hidden.float(), self.weight, self.bias).squeeze(-1)

    @torch.no_grad()
    def take(self, weight: Tensor, bias: Tensor) -> None:
        """Copy a trained read-out: weight (1, H), bias (1)."""
        self.weight.copy_(weight)
        self.bias.copy_(bias)

    def save(self, folder: Path, state: Mapping[str, Tensor] | None = None) -> None:
        """Write the head next to the backbone's weights. `state`: its weights, if the live ones are not whole."""
        folder.mkdir(parents=True, exist_ok=True)
        own = self.state_dict() if state is None else state
        save_file({name: value.detach().cpu().contiguous() for name, value in own.items()}, folder / HEAD_FILE)

    @torch.no_grad()
    def load(self, folder: Path, copy: Callable[[nn.Parameter, Tensor], object] = Tensor.copy_) -> None:
        """Load what `save` wrote: `copy(own, found)` for weight and bias. Raises CheckpointError if it is missing or
        has another width."""
        file = folder / HEAD_FILE
        if not file.is_file():
            raise CheckpointError(
                f"checkpoint {folder} has no value head", remedy="resume with the critic.kind it was made with"
            )
        saved: Mapping[str, Tensor] = load_file(file)
        if saved["weight"].shape != self.weight.shape:
            raise CheckpointError(
                f"the value head in {folder} reads {saved['weight'].shape[1]} numbers, but the model gives "
                f"{self.weight.shape[1]}",
                remedy="resume with the model that the checkpoint was made with",
            )
        copy(self.weight, saved["weight"])
        copy(self.bias, saved["bias"])


@torch.no_grad()
def init_value_head(head: ValueHead, *, std: float, seed: int) -> None:
    """Set weights from N(0, std) and bias 0. Depends on the seed only. std 0 leaves a new head unchanged."""
    generator = torch.Generator().manual_seed(seed)
    head.weight.copy_(torch.randn(head.weight.shape, generator=generator) * std)
    head.bias.zero_()


class ValueScorer(Rooted):
    """Values of the states before the response tokens, from a backbone (`trunk`: a model without its output head) and
    a value head. `plain` as in `TrunkRunner`."""

    def __init__(self, trunk: PreTrainedModel, head: ValueHead, *, plain: bool = False) -> None:
        self.head = head
        self.trunk = TrunkRunner(trunk, plain=plain)

    @property
    def device(self) -> torch.device:
        """The device of backbone and head."""
        return self.head.weight.device

    @within_root
    def score(self, batch: Batch, *, only_trained: bool = False, train_trunk: bool = True) -> Tensor:
        """(B, T) float32 at every response token (`only_trained`: only in the loss mask), 0 elsewhere.

        Differentiable. Without `train_trunk` only the head gets a gradient.
        """
        batch = batch.to(self.device)
        positions = ResponsePositions.of(batch, only_trained=only_trained)
        with torch.set_grad_enabled(train_trunk and torch.is_grad_enabled()):
            hidden_N = self.trunk.hidden(batch, positions)
        return positions.scatter(self.head(hidden_N))

    @torch.no_grad()
    def score_in_microbatches(self, batch: Batch, tokens_per_microbatch: int, *, lanes: Lanes = ONE_LANE) -> Tensor:
        """Score all rows without gradient, in row order and the batch's width, on the batch's device."""
        cut = list(self.trunk.split(batch, lanes.budget(batch.num_tokens, tokens_per_microbatch)))
        values = lanes.map([part for _, part in cut], [part.num_tokens for _, part in cut], self.score)
        return put_back(batch, [rows for rows, _ in cut], values)


def trunk_of(model: PreTrainedModel) -> PreTrainedModel:
    """The model without its output head. Raises ModelError if it has no such part."""
    trunk = model.base_model
    if trunk is model:
        raise ModelError(
            f"{type(model).__name__} has no backbone separate from its output head, so a critic has nothing to read",
            remedy="use a model of another architecture, or an estimator without a critic",
        )
    return trunk


@torch.no_grad()
def hidden_size(trunk: PreTrainedModel) -> int:
    """Width of the last hidden state, found by running one token, because configs use different names for it."""
    token = torch.zeros((1, 1), dtype=torch.int64, device=trunk.device)
    return int(trunk(input_ids=token, use_cache=False)[0].shape[-1])
