"""Weights in shared memory: what is written is what is read, and half a copy is refused."""

from __future__ import annotations

import os
from unittest.mock import Mock

import pytest
import torch

from burnish.distributed.weight_transfer import SharedWeights
from burnish.errors import RolloutError
from burnish.models.weights import Weights

TENSORS = [
    ("a", torch.arange(6.0).reshape(2, 3)),
    ("b", torch.tensor([1.5, -0.0, float("inf")], dtype=torch.bfloat16)),
    ("c", torch.ones(3, 4).T),
    ("none", torch.zeros(0)),
    ("count", torch.tensor(7)),
]


def written() -> SharedWeights:
    return SharedWeights.write(Weights(5, lambda: iter(TENSORS)))


def test_what_is_written_is_what_is_read() -> None:
    shared = written()
    read = dict(SharedWeights(shared.layout, os.dup(shared.descriptor)).weights().tensors())
    assert shared.weights().version == 5
    assert list(read) == [name for name, _ in TENSORS]
    for name, tensor in TENSORS:
        assert read[name].dtype == tensor.dtype
        assert read[name].shape == tensor.shape
        assert torch.equal(read[name], tensor)
    shared.close()
    shared.close()


def test_a_copy_does_not_follow_the_original() -> None:
    weight = torch.zeros(3)
    shared = SharedWeights.write(Weights(1, lambda: iter([("w", weight)])))
    weight.fill_(1)
    assert dict(shared())["w"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("at", [0, 30, -1])
def test_half_a_copy_is_refused(at: int) -> None:
    shared = written()
    place = at % shared.layout.num_bytes
    os.pwrite(shared.descriptor, bytes([os.pread(shared.descriptor, 1, place)[0] ^ 1]), place)
    with pytest.raises(RolloutError, match="version 5 arrived incomplete or damaged"):
        list(shared())


def test_memory_that_is_too_short_is_refused() -> None:
    shared = written()
    os.ftruncate(shared.descriptor, 100)
    with pytest.raises(RolloutError, match=r"arrived with 100 bytes instead of \d+"):
        list(shared())


def test_no_memory_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fallocate", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(RolloutError, match=r"no memory for a copy of the weights of version 5 .*No space left"):
        written()
