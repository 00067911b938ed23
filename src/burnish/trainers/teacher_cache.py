"""A teacher's likeliest tokens at each token of given texts, kept in a folder that any number of runs may read.

`teacher.json` says whose they are and at which settings. Each file beside it has some of the texts: for each, by its
digest, the ids (T, k) and log-probabilities (T, k + 1) of `Likeliest` at its T response tokens. A file gets its name,
the digest of its bytes, when it is complete, so a killed run goes on with the texts that are missing.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from burnish.checkpointing.tensor_file import write_tensors
from burnish.config.schema_distill import COMPLETE
from burnish.errors import ConfigError, ModelError
from burnish.forward.batch import Batch, Text
from burnish.forward.divergences import Compared, CompareHeads, HeadInput, Likeliest
from burnish.forward.scoring import ResponsePositions
from burnish.observability.atomic import disk_errors, fsync, write_text_atomically
from burnish.outside.reading import read_json, reading

TEXTS_AT_ONCE = 256
"""Texts of a file, which are scored together."""
_DELETE = "delete that file, and start again"
ScoreTexts = Callable[[Sequence[Text]], Sequence[Likeliest]]
"""The likeliest tokens at the response tokens of each text."""


class KeptTeacher:
    """A teacher that has scored all texts before: `compare` reads what was kept of them. compared: the comparison of
    heads by the divergence of the run."""

    def __init__(self, folder: Path, compared: CompareHeads) -> None:
        self.awake: Callable[[], AbstractContextManager[None]] = nullcontext
        self._files, self._compared = _files(folder), compared

    def compare(self, batch: Batch, positions: ResponsePositions, student: HeadInput, targets_N: Tensor) -> Compared:
        """Compare the student with the teacher's likeliest tokens (`burnish.forward.scoring.Compare`)."""
        rows, numbers_N = np.unique(positions.rows_N, return_inverse=True)
        texts = batch.texts()
        kept = [self._kept(texts[row]) for row in rows]
        starts = np.cumsum([0, *(len(ids_TK) for ids_TK, _ in kept)])
        index_N = torch.from_numpy(starts[numbers_N] + positions.columns_N)
        parts = (torch.cat(tensors)[index_N].to(batch.device) for tensors in zip(*kept, strict=True))
        return self._compared(student, Likeliest(*parts), targets_N)

    def _kept(self, text: Text) -> Likeliest:
        digest = _digest(text)
        if digest not in self._files:
            raise ModelError("a text of the run is not in teacher.cache", remedy="start the run again, which adds it")
        ids_TK, logprobs_TC = (self._files[digest].get_tensor(name) for name in (f"ids {digest}", digest))
        return Likeliest(ids_TK.long(), logprobs_TC)


def keep(
    folder: Path,
    about: Mapping[str, Any],
    texts: Sequence[Text],
    open_scores: Callable[[], ScoreTexts],
    say: Callable[[str], None],
) -> None:
    """Have the texts scored that the folder does not hold yet. about: of the teacher and its settings, as JSON.
    open_scores: loads the teacher; not called if nothing is missing. ConfigError if the folder is another one's."""
    path, complete = folder / "teacher.json", folder / COMPLETE
    with reading(f"teacher.cache: {path}", ConfigError, remedy="delete that folder, or name another one"):
        known = read_json(path) if path.exists() else about
        changed = [name for name in about if known[name] != about[name]]
    if changed:
        raise ConfigError(
            f"teacher.cache {folder} was made with another teacher or other settings ({', '.join(changed)})",
            remedy="name another folder for this run, or delete that one",
        )
    with disk_errors(f"write to teacher.cache {folder}", folder, ConfigError):
        folder.mkdir(parents=True, exist_ok=True)
    _check_bytes(folder)
    held = _files(folder)
    missing = [text for digest, text in {_digest(text): text for text in texts}.items() if digest not in held]
    if missing:
        complete.unlink(missing_ok=True)
        say(f"teacher.cache: the teacher scores {len(missing):,} texts; {len(held) // 2:,} are there already")
        score = open_scores()
        for start in range(0, len(missing), TEXTS_AT_ONCE):
            part = missing[start : start + TEXTS_AT_ONCE]
            scores = score(part)
            write_text_atomically(path, json.dumps(about) + "\n")  # not by a teacher that never answers
            _write(folder, part, scores)
    complete.touch()


def _write(folder: Path, texts: Sequence[Text], scores: Sequence[Likeliest]) -> None:
    partial = folder / f"{_digest(texts[0])}.{os.getpid()}.partial"
    named = [(_digest(text), likeliest) for text, likeliest in zip(texts, scores, strict=True)]
    ids = {f"ids {digest}": likeliest.ids_NK.int() for digest, likeliest in named}
    sha256 = write_tensors(partial, ids | {digest: likeliest.logprobs_NC.float() for digest, likeliest in named})
    fsync(partial)
    partial.replace(folder / f"{sha256}.safetensors")


def _check_bytes(folder: Path) -> None:
    """Raise ModelError for a file whose bytes are not the written ones."""
    for path in folder.glob("*.safetensors"):
        with reading(f"teacher.cache: {path}", ModelError, remedy=_DELETE), path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != path.stem:
            raise ModelError(f"teacher.cache: {path} is damaged: its bytes are not the written ones", remedy=_DELETE)


def _files(folder: Path) -> dict[str, Any]:
    """The file of each tensor, by the tensor's name."""
    found: dict[str, Any] = {}
    for path in folder.glob("*.safetensors"):
        with reading(f"teacher.cache: {path}", ModelError, remedy=_DELETE):
            file = safe_open(path, framework="pt")
            found |= dict.fromkeys(file.keys(), file)
    return found


def _digest(text: Text) -> str:
    prompt, response = text
    numbers = np.array([len(prompt), *prompt, *response], dtype=np.int64)
    return hashlib.sha256(numbers.tobytes()).hexdigest()
