"""The weights that a worker lacks, and how it gets them: all, the changes since the last push, or an
adapter."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from burnish.models.weights import Weights, checkpoint_layout
from burnish.rollouts.vllm.adapters import AdapterPushes
from burnish.rollouts.vllm.heads import ConfigJson, HeadPadding, choose_padding
from burnish.rollouts.vllm.process import EngineProcess
from burnish.types import PreTrainedModel

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


@dataclass(slots=True)
class WeightPushes:
    """The weights of the last `sync` on their way to a worker.

    merges: adapters are merged into the weights. note: writes into the worker's log. asked_dtype: for vLLM, if it is
    not the model's.
    """

    model: PreTrainedModel
    weights: Weights
    vocabulary: int | None
    context_length: int
    asked_dtype: str | None
    merges: bool
    note: Callable[[str], None]
    _adapters: AdapterPushes | None = None
    """None for merged weights, and before the first worker starts."""
    _padding: HeadPadding | None = None
    _pushed: PushedWeights = field(default_factory=PushedWeights)

    def begin(self, *, seconds: float) -> None:
        """Look for adapters before the first worker starts. RolloutError for outdated weights."""
        self.weights.tensors()
        if self._adapters is None and not self.merges:
            self._adapters = AdapterPushes.of(self.model, self.dtype, seconds=seconds)

    @property
    def dtype(self) -> str:
        """The name of the dtype that vLLM computes in."""
        return self.asked_dtype or str(next(self.model.parameters()).dtype).removeprefix("torch.")

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of vllm.LLM."""
        return {} if self._adapters is None else self._adapters.arguments

    @property
    def uses_adapters(self) -> bool:
        return self._adapters is not None

    def fit_heads(self, config: ConfigJson, sizes: list[int] | None) -> ConfigJson:
        """The model's config.json, with wider heads if vLLM supports only heads of other sizes."""
        self._padding = choose_padding(config, sizes)
        if self._padding is None:
            return config
        if self._adapters is not None:
            self.merge("its attention heads are made wider")
        return self._padding.config(config)

    def agree(self, worker: EngineProcess) -> bool:
        """Return whether the worker computes with adapters what merged weights compute. If not, they are merged from
        now on, for which it takes another worker."""
        if self._adapters is None:
            return True
        reason = self._adapters.try_out(worker, self.vocabulary, self.context_length)
        if reason is not None:
            self.merge(reason)
        return reason is None

    def merge(self, reason: str) -> None:
        """Push merged weights from now on, and say so in the worker's log."""
        self._adapters, self.merges = None, True
        self.note(f"adapters are merged into the weights that are pushed, because {reason}")

    def push_all(self, worker: EngineProcess, *, seconds: float) -> int:
        """`push` to a worker without weights."""
        self._pushed.forget()
        return self.push(worker, seconds=seconds)

    def push(self, worker: EngineProcess, *, seconds: float) -> int:
        """Push what the worker lacks of the weights. Returns the number of bytes."""
        version, before, num_bytes = self.weights.version, self._pushed.version, 0
        if self._adapters is not None:
            self.weights.tensors()  # refuses outdated ones
            if before is None:
                before, num_bytes = version, self._adapters.push_base(worker, version)
            num_bytes += self._adapters.push(worker, version, base=before)
        else:
            groups = self._pushed.changed(self._tensors())
            base = None if groups is None else before
            tensors = (named for named in self._tensors() if groups is None or group_of(named[0]) in groups)
            num_bytes = worker.push(tensors, version, seconds=seconds, base=base)
        self._pushed.version = version
        return num_bytes

    def _tensors(self) -> Iterable[tuple[str, Tensor]]:
        """The weights as vLLM takes them."""
        weights = checkpoint_layout(self.model, self.weights.tensors())
        return weights if self._padding is None else self._padding.weights(weights)


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
