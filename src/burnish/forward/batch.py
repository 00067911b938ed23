"""The one device-side batch: typed tensors that are cut, joined and moved together.

Rows are sequences (B), prompts are right-padded to P and responses right-padded to T. Everything that belongs to a
response position is (B, T) and aligned with `response_tokens`. Fields that a run does not need stay None.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """Rollouts of one step, or a part of them.

    prompt_tokens (B, P) int64, prompt_lengths (B,) int64; response_tokens (B, T) int64, response_lengths (B,) int64
    (sampled tokens including the stop token); loss_mask (B, T) bool, True where the token was sampled by the policy and
    is trained on; group_ids (B,) int64. All log-probabilities are of the sampling distribution's temperature.
    What stands past `response_lengths` is padding and has no meaning.
    """

    prompt_tokens: Tensor
    prompt_lengths: Tensor
    response_tokens: Tensor
    response_lengths: Tensor
    loss_mask: Tensor
    group_ids: Tensor
    rollout_logprobs: Tensor | None = None
    old_logprobs: Tensor | None = None
    ref_logprobs: Tensor | None = None
    values: Tensor | None = None
    token_rewards: Tensor | None = None
    advantages: Tensor | None = None
    returns: Tensor | None = None
    weights: Tensor | None = None
    """(B, T) importance weight of each token's loss (sampler/trainer mismatch); None is 1 everywhere."""
    selection: Tensor | None = None
    """(B, T) bool, tokens picked over the whole minibatch for losses that treat some tokens specially."""

    def __len__(self) -> int:
        return self.response_tokens.shape[0]

    @property
    def device(self) -> torch.device:
        return self.response_tokens.device

    def replace(self, **fields: Tensor | None) -> Batch:
        """A batch with some fields set; shapes of (B, T) fields must agree with `response_tokens`."""
        shape = tuple(self.response_tokens.shape)
        for name, value in fields.items():
            if value is not None and value.shape[0] != len(self):
                raise ValueError(f"batch field {name} has {value.shape[0]} rows, the batch has {len(self)}")
            if value is not None and value.dim() == 2 and name != "prompt_tokens" and tuple(value.shape) != shape:
                raise ValueError(f"batch field {name} has shape {tuple(value.shape)}, response_tokens has {shape}")
        return dataclasses.replace(self, **fields)  # type: ignore[arg-type]

    def select(self, rows: Tensor | Sequence[int]) -> Batch:
        """The rows in this order, with padding columns that no selected row needs cut off."""
        index = torch.as_tensor(rows, dtype=torch.int64, device=self.device)
        picked = self._map(lambda tensor: tensor[index])
        return picked._trim()

    def to(self, device: torch.device | str) -> Batch:
        return self._map(lambda tensor: tensor.to(device))

    def sequence_lengths(self) -> list[int]:
        """Tokens of each row, prompt and response together."""
        return (self.prompt_lengths + self.response_lengths).tolist()

    @staticmethod
    def cat(batches: Sequence[Batch], *, pad_token_id: int) -> Batch:
        """Rows of several batches under each other; a field must be set in all of them or in none."""
        width = {
            "P": max(b.prompt_tokens.shape[1] for b in batches),
            "T": max(b.response_tokens.shape[1] for b in batches),
        }
        columns: dict[str, Tensor | None] = {}
        for field in dataclasses.fields(Batch):
            parts = [getattr(b, field.name) for b in batches]
            if any(p is None for p in parts):
                if not all(p is None for p in parts):
                    raise ValueError(f"batch field {field.name} is set in some of the batches to join but not in all")
                columns[field.name] = None
                continue
            fill = pad_token_id if field.name in ("prompt_tokens", "response_tokens") else 0
            target = width["P"] if field.name == "prompt_tokens" else width["T"]
            columns[field.name] = torch.cat([p if p.dim() == 1 else _widen(p, target, fill) for p in parts])
        return Batch(**columns)  # type: ignore[arg-type]

    def _map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        return dataclasses.replace(self, **{name: function(value) for name, value in self._tensors()})  # type: ignore[arg-type]

    def _tensors(self) -> list[tuple[str, Tensor]]:
        fields = ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self))
        return [(name, value) for name, value in fields if value is not None]

    def _trim(self) -> Batch:
        prompt_width = int(self.prompt_lengths.max()) if len(self) else 0
        width = int(self.response_lengths.max()) if len(self) else 0
        cut = {
            name: value[:, : prompt_width if name == "prompt_tokens" else width]
            for name, value in self._tensors()
            if value.dim() == 2
        }
        return dataclasses.replace(self, **cut)  # type: ignore[arg-type]


def _widen(tensor: Tensor, width: int, fill: int) -> Tensor:
    missing = width - tensor.shape[1]
    return tensor if missing == 0 else torch.nn.functional.pad(tensor, (0, missing), value=fill)
