import hashlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.rollouts.noise import random_bits, sample_key, uniforms

MASK = (1 << 64) - 1


def splitmix64(state: int) -> int:
    """The published generator with Python's unbounded integers; returns the output for this (already moved) state."""
    z = state & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def test_known_outputs_of_splitmix64() -> None:
    bits = random_bits(torch.tensor([1234567]), torch.arange(5))
    assert [int(b) & MASK for b in bits] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@pytest.mark.slow
@given(key=st.integers(-(1 << 63), (1 << 63) - 1), position=st.integers(0, 1 << 40))
@settings(max_examples=200, deadline=None)
def test_tensor_arithmetic_wraps_as_unsigned_integers_do(key: int, position: int) -> None:
    expected = splitmix64(key + (position + 1) * 0x9E3779B97F4A7C15)
    assert int(random_bits(torch.tensor([key]), torch.tensor([position]))) & MASK == expected
    assert float(uniforms(torch.tensor([key]), torch.tensor([position]))) == (expected >> 11) / 2.0**53


def test_key_changes_with_every_field_and_fields_do_not_run_together() -> None:
    fields = [
        (0, 0, "p", 0),
        (1, 0, "p", 0),
        (0, 1, "p", 0),
        (0, 0, "q", 0),
        (0, 0, "p", 1),
        (0, 11, "1", 1),
        (0, 1, "1", 11),
    ]
    assert len({sample_key(*f) for f in fields}) == len(fields)
    digest = hashlib.blake2b(b"3\x1f5\x1f7\x1fgsm8k/12", digest_size=8).digest()
    assert sample_key(3, 5, "gsm8k/12", 7) == int.from_bytes(digest, "little", signed=True)


def table() -> torch.Tensor:
    """(prompts 20, samples 16, positions 64) uniform numbers of one step."""
    keys = torch.tensor([[sample_key(0, 3, f"data/{p}", s) for s in range(16)] for p in range(20)])
    return uniforms(keys[..., None], torch.arange(64))


def test_numbers_fill_the_unit_interval_evenly() -> None:
    numbers = table().flatten()
    counts = torch.histc(numbers, bins=32, min=0.0, max=1.0)
    expected = numbers.numel() / 32
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 61.1  # 31 degrees of freedom, one in a thousand
    assert float(numbers.min()) >= 0.0
    assert float(numbers.max()) < 1.0


def test_numbers_are_uncorrelated_over_positions_samples_and_prompts() -> None:
    numbers = table() - 0.5
    for axis in range(3):
        for lag in (1, 2, 5):
            size = numbers.shape[axis] - lag
            product = numbers.narrow(axis, 0, size) * numbers.narrow(axis, lag, size)
            # The mean of n products of independent uniforms has standard deviation 1 / (12 sqrt n).
            assert abs(float(product.mean())) < 4.0 / (12 * product.numel() ** 0.5)


def test_steps_and_seeds_give_unrelated_numbers() -> None:
    positions = torch.arange(4096)
    base = uniforms(torch.tensor(sample_key(0, 0, "p", 0)), positions) - 0.5
    for seed, step in ((1, 0), (0, 1)):
        other = uniforms(torch.tensor(sample_key(seed, step, "p", 0)), positions) - 0.5
        assert abs(float((base * other).mean())) < 4.0 / (12 * 64)
