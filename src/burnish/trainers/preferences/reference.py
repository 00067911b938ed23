"""Log-probabilities of the frozen reference: computed once, before the first step, and kept in the run's folder.

So no second model is in memory while the policy learns, and no step waits for one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from burnish.checkpointing.tensor_file import write_tensors

REFERENCE_FILE = "reference.safetensors"
ROWS_AT_ONCE = 256
"""Responses that are sent to the model at once; it cuts them into micro-batches."""
Text = tuple[tuple[int, ...], tuple[int, ...]]
"""Token ids of a prompt and a response to it."""
ScoreTexts = Callable[[Sequence[Text]], Tensor]


@dataclass(frozen=True, slots=True)
class KeptReference:
    """Log-probabilities of each response's tokens under the reference, by prompt and response."""

    rows: Mapping[Text, NDArray[np.float32]]

    def of(self, text: Text) -> list[float]:
        """Log-probability of each token of the response."""
        return self.rows[text].tolist()

    @staticmethod
    def computed(texts: Iterable[Text], score: ScoreTexts) -> KeptReference:
        """Score the texts now. `score` gives the (B, T) log-probabilities of the responses to B texts."""
        distinct = list(dict.fromkeys(texts))
        return _cut(distinct, _computed(distinct, score))

    @staticmethod
    def computed_once(
        texts: Iterable[Text], folder: Path, name: str, score: ScoreTexts, say: Callable[[str], None]
    ) -> KeptReference:
        """Read what an earlier start of the run has kept, else compute it and keep it. `name`: of the reference."""
        distinct = list(dict.fromkeys(texts))
        path = folder / REFERENCE_FILE
        flat = _kept(path, distinct, name)
        if flat is None:
            tokens = sum(len(response) for _, response in distinct)
            say(f"reference {name}: computing log-probabilities of {len(distinct):,} responses ({tokens:,} tokens)")
            flat = _computed(distinct, score)
            partial = path.with_suffix(".partial")
            write_tensors(partial, {_fingerprint(distinct, name, flat): flat})
            partial.replace(path)
        return _cut(distinct, flat)


def _cut(texts: Sequence[Text], flat: Tensor) -> KeptReference:
    ends = np.cumsum([len(response) for _, response in texts])
    parts = np.split(flat.numpy(), ends[:-1])
    return KeptReference(dict(zip(texts, parts, strict=True)))


def _computed(texts: Sequence[Text], score: ScoreTexts) -> Tensor:
    found: list[Tensor] = []
    for start in range(0, len(texts), ROWS_AT_ONCE):
        part = texts[start : start + ROWS_AT_ONCE]
        logprobs_BT = score(part).float().cpu()
        found += [row[: len(response)] for row, (_, response) in zip(logprobs_BT, part, strict=True)]
    return torch.cat(found)


def _kept(path: Path, texts: Sequence[Text], name: str) -> Tensor | None:
    """The numbers in the file, if it is as it was written, and belongs to these texts and this reference."""
    try:
        with safe_open(path, framework="pt") as file:
            kept = {mark: file.get_tensor(mark) for mark in file.keys()}  # noqa: SIM118  no mapping
    except (OSError, SafetensorError):
        return None
    return next((flat for mark, flat in kept.items() if mark == _fingerprint(texts, name, flat)), None)


def _fingerprint(texts: Sequence[Text], name: str, flat: Tensor) -> str:
    digest = hashlib.sha256(name.encode())
    digest.update(flat.numpy().tobytes())
    for prompt, response in texts:
        digest.update(np.array([len(prompt), *prompt, len(response), *response], dtype=np.int64).tobytes())
    return digest.hexdigest()
