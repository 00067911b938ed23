"""Sampling noise as a pure function of (seed, step, prompt id, sample index, token position).

A counter-based generator: each sample has a 64-bit key, the token position is the counter, and the uniform number is a
hash of both. There is no state to checkpoint, and the number that a token is drawn with does not depend on batch
layout, worker count or what ran before.

The hash is SplitMix64 (Steele, Lea, Flood 2014, https://doi.org/10.1145/2660193.2660195) started at the key, so
position t reads the (t + 1)-th output of that stream. The keys are BLAKE2b digests.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def _signed(value: int) -> int:
    """The 64-bit pattern as a two's complement number, as int64 tensors hold it."""
    return value - (1 << 64) if value >= 1 << 63 else value


_INCREMENT = _signed(0x9E3779B97F4A7C15)
_MULTIPLIER_1 = _signed(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = _signed(0x94D049BB133111EB)


def sample_key(seed: int, step: int, name: str, sample_index: int) -> int:
    """The signed 64-bit key of one sample of a request, by its `RolloutRequest.name`. The name comes last, so that no
    two lists of fields give one text."""
    text = f"{seed}\x1f{step}\x1f{sample_index}\x1f{name}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def random_bits(keys: Tensor, positions: Tensor) -> Tensor:
    """64 random bits per element, as int64. keys and positions are int64 tensors whose shapes broadcast.

    int64 arithmetic wraps around like unsigned arithmetic. Only right shifts have to drop the copied sign bits.
    """
    bits = keys + (positions + 1) * _INCREMENT
    bits = (bits ^ _shift_right(bits, 30)) * _MULTIPLIER_1
    bits = (bits ^ _shift_right(bits, 27)) * _MULTIPLIER_2
    return bits ^ _shift_right(bits, 31)


def uniforms(keys: Tensor, positions: Tensor) -> Tensor:
    """float64 numbers in [0, 1) with 53 random bits, one per key and token position."""
    return _shift_right(random_bits(keys, positions), 11).to(torch.float64) * 2.0**-53


def _shift_right(bits: Tensor, count: int) -> Tensor:
    return (bits >> count) & ((1 << (64 - count)) - 1)
