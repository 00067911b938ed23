"""Weights on their way to several processes: written once into bytes that they all read.

On one machine these are memory without a name, so nothing is left behind by a process that is killed. Version and
checksum are written last: a reader refuses what was only half written.
"""

from __future__ import annotations

import mmap
import os
import struct
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from burnish.errors import RolloutError
from burnish.models.weights import Weights

_ALIGNMENT = 64
_SEAL = struct.Struct("=QQ")

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True)
class Entry:
    """Description of a tensor in memory: its name, number type, shape, and the byte at which it begins."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """Contents of the memory, and the place of the seal: version and checksum, behind the last tensor."""

    version: int
    entries: tuple[Entry, ...]
    seal_at: int

    @property
    def num_bytes(self) -> int:
        return self.seal_at + _SEAL.size


class SealedWeights(ABC):
    """One version of the weights, written once for several readers; called, it gives names and tensors
    (`Weights.tensors`). `layout` says what the bytes hold."""

    layout: TensorLayout

    @abstractmethod
    def __call__(self) -> Iterator[tuple[str, Tensor]]:
        """Names and tensors. RolloutError when the seal does not fit: the writer did not finish."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the bytes, which end with their last reader. Idempotent."""

    def weights(self) -> Weights:
        """For an engine. The tensors are views of what is shared: whoever keeps them copies them."""
        return Weights(self.layout.version, self)


class Gate(Protocol):
    """Entry and exit of written weights in the process that serves roles; see `burnish.distributed.server`."""

    def receive(self, layout: TensorLayout) -> SealedWeights:
        """Return the weights that come with a request."""

    def publish(self, weights: Weights) -> TensorLayout:
        """Write a copy. Its layout is the answer to the request."""

    def follow(self) -> None:
        """Send what has to follow the answer, if anything has."""


class SharedWeights(SealedWeights):
    """`SealedWeights` in shared memory.

    `descriptor` is this process' own. It is closed by `close`, or when nobody refers to the object any more.
    """

    def __init__(self, layout: TensorLayout, descriptor: int) -> None:
        self.layout = layout
        self.descriptor = descriptor
        self._closing = weakref.finalize(self, os.close, descriptor)

    @staticmethod
    def write(weights: Weights) -> SharedWeights:
        """A copy of the weights as they are now. RolloutError when there is no memory for it."""
        layout, tensors = laid_out(weights)
        descriptor = os.memfd_create("burnish-weights")
        try:
            os.posix_fallocate(descriptor, 0, layout.num_bytes)  # a lack of memory is an error here, not a SIGBUS later
            with mmap.mmap(descriptor, layout.num_bytes) as memory:
                fill(np.frombuffer(memory, dtype=np.uint8), layout, tensors)
        except OSError as error:
            os.close(descriptor)
            raise RolloutError(
                f"no memory for a copy of the weights of version {weights.version} ({layout.num_bytes:,} bytes): "
                f"{error.strerror}",
                remedy="free memory on this machine, or use fewer processes (cluster.rollout_workers)",
            ) from error
        return SharedWeights(layout, descriptor)

    def __call__(self) -> Iterator[tuple[str, Tensor]]:
        """See `SealedWeights`."""
        return unsealed(self._map(), self.layout)

    def close(self) -> None:
        """See `SealedWeights`."""
        self._closing()

    def _map(self) -> Bytes:
        size = min(self.layout.num_bytes, os.fstat(self.descriptor).st_size)
        return np.frombuffer(mmap.mmap(self.descriptor, size), dtype=np.uint8)


def laid_out(weights: Weights) -> tuple[TensorLayout, list[Tensor]]:
    """The weights as they are now, and where each of them goes."""
    entries, tensors, at = [], [], 0
    for name, tensor in weights.tensors():
        dtype = str(tensor.dtype).removeprefix("torch.")
        entries.append(Entry(name, dtype, tuple(tensor.shape), at, tensor.nbytes))
        tensors.append(tensor.detach())
        at += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
    return TensorLayout(weights.version, tuple(entries), at), tensors


def fill(numbers: Bytes, layout: TensorLayout, tensors: list[Tensor]) -> None:
    """Write the tensors into the `layout.num_bytes` bytes, and the seal last."""
    for entry, tensor in zip(layout.entries, tensors, strict=True):
        target = torch.from_numpy(numbers[entry.start : entry.start + entry.num_bytes])
        target.view(tensor.dtype).copy_(tensor.reshape(-1))
    _SEAL.pack_into(numbers.data, layout.seal_at, layout.version, _checksum(numbers[: layout.seal_at]))


def unsealed(numbers: Bytes, layout: TensorLayout) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors, which are views of the bytes. RolloutError when the seal does not fit."""
    if numbers.nbytes != layout.num_bytes:
        raise _damaged(layout, f"arrived with {numbers.nbytes:,} bytes instead of {layout.num_bytes:,}")
    version, checksum = _SEAL.unpack_from(numbers.data, layout.seal_at)
    if (version, checksum) != (layout.version, _checksum(numbers[: layout.seal_at])):
        raise _damaged(layout, "arrived incomplete or damaged")
    for entry in layout.entries:
        with warnings.catch_warnings():  # Ray's memory cannot be written, and tensors of it are only copied
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            raw = torch.from_numpy(numbers[entry.start : entry.start + entry.num_bytes])
        yield entry.name, raw.view(vars(torch)[entry.dtype]).reshape(entry.shape)


def sealed(weights: Weights) -> tuple[TensorLayout, Bytes]:
    """A copy of the weights as they are now, sealed."""
    layout, tensors = laid_out(weights)
    numbers = np.zeros(layout.num_bytes, dtype=np.uint8)
    fill(numbers, layout, tensors)
    return layout, numbers


@dataclass(slots=True)
class LentWeights(SealedWeights):
    """`SealedWeights` in the node's object store, where a reader sees them without a copy."""

    layout: TensorLayout
    numbers: Bytes | None

    def __call__(self) -> Iterator[tuple[str, Tensor]]:
        """See `SealedWeights`."""
        assert self.numbers is not None, "not read after the end"
        return unsealed(self.numbers, self.layout)

    def close(self) -> None:
        """See `SealedWeights`."""
        self.numbers = None


def _damaged(layout: TensorLayout, how: str) -> RolloutError:
    return RolloutError(
        f"the weights of version {layout.version} {how}",
        remedy="they are sent again by themselves; if this comes back, check the machine's memory",
    )


def _checksum(numbers: Bytes) -> int:
    """Sum of the bytes as 64-bit words, modulo 2^64: half a copy does not have it, and it costs less than the copy."""
    return int(numbers.view(np.uint64).sum(dtype=np.uint64))
