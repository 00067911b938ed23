"""A Llama-like model temporarily cut to its first layers, for timing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

PASS_OPERATIONS = 1e10
"""Multiplications and additions of one timed pass: some hundredths of a second on a fast processor."""


@contextmanager
def few_layers(model: Any, count: int) -> Iterator[None]:
    """Inside, `model` computes with its first `count` layers only, the same modules; afterwards with all of them."""
    trunk = model.base_model
    layers = trunk.layers
    trunk.layers = layers[:count]
    try:
        yield
    finally:
        trunk.layers = layers


def num_weights(module: nn.Module) -> int:
    """Numbers in all weights of a module."""
    return sum(weight.numel() for weight in module.parameters())


def tokens_for(weights: int, *, wanted: int, fewest: int) -> int:
    """Tokens of a forward and backward pass (6 operations per weight) through this many weights: as many as wanted,
    fewer if that exceeds PASS_OPERATIONS."""
    return max(fewest, min(wanted, int(PASS_OPERATIONS / (6 * weights))))
