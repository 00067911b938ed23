"""Weights in shared memory: what is written is what is read, and half a copy is refused."""

import os
import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from burnish.distributed import handles
from burnish.distributed.handles import TeamRole
from burnish.distributed.peers import RoleLostError
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
        torch.testing.assert_close(read[name], tensor, rtol=0, atol=0)  # in shape and type as well
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


class Slices:
    """A process of a team whose weights are cut: `share` and what the others give may fail."""

    def __init__(self, name: str, fate: Callable[[], object]) -> None:
        self.name = name
        self.fate = fate
        self.killed = threading.Event()

    def share(self, *arguments: object, **named: object) -> object:
        return self.fate()

    def kill(self) -> None:
        self.killed.set()


def test_one_that_is_lost_while_weights_are_read_is_what_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first process only sees its connection end."""
    lost = RoleLostError("weights of policy: process 'trainer 1' ended", remedy="", process="trainer 1")

    def closed() -> object:
        raise RuntimeError("connection closed by peer")

    def waits() -> object:
        assert first.killed.wait(60.0)  # or it would wait for the others
        raise RoleLostError("policy.share: process 'trainer 0' has been ended", remedy="", process="trainer 0")

    monkeypatch.setattr(handles, "ask_all", Mock(side_effect=lost))
    for fate in (closed, waits):
        first = Slices("trainer 0", fate)
        others: Any = (first, Slices("trainer 1", closed))
        with pytest.raises(RoleLostError) as raised:
            TeamRole(others[0], "policy", 60, others[1:], cuts_weights=True).share(3)
        assert raised.value is lost
