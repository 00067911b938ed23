"""Weights on their way to several processes of one machine: written once into memory that they all read.

The memory has no name, so nothing is left behind by a process that is killed. Version and checksum are written last: a
reader refuses what was only half written.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from burnish.errors import RolloutError
from burnish.models.weights import Weights

_ALIGNMENT = 64
_SEAL = struct.Struct("=QQ")


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a tensor is: its name, number type, shape, and the byte at which it begins."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """What the memory holds, and where the seal is: version and checksum, behind the last tensor."""

    version: int
    entries: tuple[Entry, ...]
    seal_at: int

    @property
    def num_bytes(self) -> int:
        return self.seal_at + _SEAL.size


class SharedWeights:
    """One version of the weights in shared memory. `descriptor` is the reader's own, closed by `close`."""

    def __init__(self, layout: Layout, descriptor: int) -> None:
        self.layout = layout
        self.descriptor = descriptor

    @staticmethod
    def write(weights: Weights) -> SharedWeights:
        """A copy of the weights as they are now. RolloutError when there is no memory for it."""
        tensors = [(name, tensor.detach()) for name, tensor in weights.tensors()]
        layout = _layout(weights.version, tensors)
        descriptor = os.memfd_create("burnish-weights")
        try:
            os.posix_fallocate(descriptor, 0, layout.num_bytes)  # a lack of memory is an error here, not a SIGBUS later
            _fill(descriptor, layout, tensors)
        except OSError as error:
            os.close(descriptor)
            raise RolloutError(
                f"no memory for a copy of the weights of version {weights.version} ({layout.num_bytes:,} bytes): "
                f"{error.strerror}",
                remedy="free memory on this machine, or use fewer processes (cluster.rollout_workers)",
            ) from error
        return SharedWeights(layout, descriptor)

    def weights(self) -> Weights:
        """For an engine. The tensors are views of the shared memory: whoever keeps them copies them."""
        return Weights(self.layout.version, self.tensors)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Names and tensors. RolloutError when the seal does not fit: the writer did not come to its end."""
        numbers = self._map()
        version, checksum = _SEAL.unpack_from(numbers.data, self.layout.seal_at)
        if (version, checksum) != (self.layout.version, _checksum(numbers[: self.layout.seal_at])):
            raise RolloutError(
                f"the weights of version {self.layout.version} are incomplete or damaged in shared memory",
                remedy="they are sent again by themselves; if this comes back, check the machine's memory",
            )
        for entry in self.layout.entries:
            raw = torch.from_numpy(numbers[entry.start : entry.start + entry.num_bytes])
            yield entry.name, raw.view(vars(torch)[entry.dtype]).reshape(entry.shape)

    def close(self) -> None:
        """Let go of the memory, which ends with its last reader. Idempotent."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _map(self) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        size = self.layout.num_bytes
        if os.fstat(self.descriptor).st_size != size:
            raise RolloutError(
                f"the weights of version {self.layout.version} have {os.fstat(self.descriptor).st_size:,} bytes in "
                f"shared memory instead of {size:,}",
                remedy="they are sent again by themselves; if this comes back, check the machine's memory",
            )
        return np.frombuffer(mmap.mmap(self.descriptor, size), dtype=np.uint8)


def _layout(version: int, tensors: list[tuple[str, Tensor]]) -> Layout:
    entries, at = [], 0
    for name, tensor in tensors:
        dtype = str(tensor.dtype).removeprefix("torch.")
        entries.append(Entry(name, dtype, tuple(tensor.shape), at, tensor.nbytes))
        at += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
    return Layout(version, tuple(entries), at)


def _fill(descriptor: int, layout: Layout, tensors: list[tuple[str, Tensor]]) -> None:
    with mmap.mmap(descriptor, layout.num_bytes) as memory:
        numbers = np.frombuffer(memory, dtype=np.uint8)
        for entry, (_, tensor) in zip(layout.entries, tensors, strict=True):
            target = torch.from_numpy(numbers[entry.start : entry.start + entry.num_bytes])
            target.view(tensor.dtype).copy_(tensor.reshape(-1))
            del target
        _SEAL.pack_into(memory, layout.seal_at, layout.version, _checksum(numbers[: layout.seal_at]))
        del numbers  # the memory cannot be let go of while anything looks into it


def _checksum(numbers: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> int:
    """Sum of the bytes as 64-bit words, modulo 2^64: half a copy does not have it, and it costs less than the copy."""
    return int(numbers.view(np.uint64).sum(dtype=np.uint64))
