"""Responses end where the plan says, in `transformers.generate`. Needs PyTorch and `workloads` only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from workloads import EOS


class EndsAt:
    """A logits processor that allows nothing but the end at the last token of each row, and nothing else to end.

    prompt_width: tokens of the padded prompts. lengths: tokens of each row's response, the end included.
    """

    def __init__(self, prompt_width: int, lengths: Sequence[int]) -> None:
        self._width = prompt_width
        self._ending: dict[int, list[int]] = {}
        for row, length in enumerate(lengths):
            self._ending.setdefault(length - 1, []).append(row)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        rows = self._ending.get(input_ids.shape[1] - self._width, [])
        if rows:
            scores[rows] = -torch.inf
            scores[rows, EOS] = 0.0
        return scores


def ending(inputs: dict[str, Any], lengths: Sequence[int]) -> dict[str, Any]:
    """The arguments of `generate` with such a processor. Raises ValueError if there is not one length for each row."""
    rows, width = inputs["input_ids"].shape
    if rows != len(lengths):
        raise ValueError(f"{rows} rows are sampled, but {len(lengths)} responses planned")
    return {**inputs, "logits_processor": [EndsAt(width, lengths)]}
