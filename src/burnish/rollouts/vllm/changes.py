"""The weights that a worker lacks: all, or the ones that have changed since the last push."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby

import torch
from torch import Tensor

LARGEST_PART = 1 / 3
"""Share of the bytes: if more has changed, everything is pushed."""
_SLICE_BYTES = 16 << 20
_MOST_THREADS = 8


def group_of(name: str) -> str:
    """The module whose weights are pushed together, because vLLM joins some of them: `model.layers.3.mlp` for the
    weights of an expert, `lm_head` for the head."""
    parts = name.split(".")
    layer = next((place for place, part in enumerate(parts) if part.isdigit()), None)
    return name.rpartition(".")[0] if layer is None else ".".join(parts[: layer + 2])


@dataclass(slots=True)
class PushedWeights:
    """The version that a worker has, and digests of its weights by group.

    Digests cost about as much as a push, so they are no longer taken once a push has gained nothing from them.
    """

    version: int | None = None
    """Version of the worker's weights; None before the first push."""
    _digests: Mapping[str, bytes] = field(default_factory=dict)
    _pays: bool = True

    def forget(self) -> None:
        """Begin with a worker that has no weights."""
        self.version, self._digests = None, {}

    def changed(self, weights: Iterable[tuple[str, Tensor]]) -> frozenset[str] | None:
        """Return the groups that differ from the worker's; None if everything is to be pushed."""
        if not self._pays:
            return None
        sizes: dict[str, int] = {}
        before, self._digests = self._digests, _digests(weights, sizes)
        if not before:
            return None
        found = frozenset(group for group, digest in self._digests.items() if before.get(group) != digest)
        self._pays = sum(sizes[group] for group in found) < LARGEST_PART * sum(sizes.values())
        return found if self._pays else None


def _digests(weights: Iterable[tuple[str, Tensor]], sizes: dict[str, int]) -> dict[str, bytes]:
    """The digest of each group, over names, shapes, number types and bits. Fills in the bytes of each group."""
    found: dict[str, bytes] = {}
    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as pool:
        for group, members in groupby(weights, key=lambda named: group_of(named[0])):
            whole = hashlib.sha256(found.get(group, b""))  # the weights of a group need not be neighbours
            for name, tensor in members:
                whole.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                for digest in pool.map(lambda piece: hashlib.sha256(piece).digest(), _pieces(tensor)):
                    whole.update(digest)
                sizes[group] = sizes.get(group, 0) + tensor.nbytes
            found[group] = whole.digest()
    return found


def _pieces(tensor: Tensor) -> Iterator[memoryview]:
    """The bytes of a tensor, in pieces that threads can digest side by side."""
    raw = memoryview(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return (raw[start : start + _SLICE_BYTES] for start in range(0, len(raw), _SLICE_BYTES))
