"""Verdicts on disk: one small file for each request, named by a hash of everything that its answer depends on.

Only answers that could be read are kept, so the next run retries failures. Files are written under another name and
renamed, so any number of processes may share a folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.errors import ConfigError

VERSION = 1
"""Part of every key: answers kept by an earlier form of this cache are not found."""


def cache_key(model: str, messages: object, sampling: Mapping[str, Any]) -> str:
    """Key of a request: equal for equal model, prompt and sampling, in every process and on every day."""
    text = json.dumps([VERSION, model, messages, sampling], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class JudgementCache:
    """A folder of answers."""

    folder: Path

    @staticmethod
    def open(folder: str) -> JudgementCache:
        """Create the folder if needed. ConfigError if that fails, or nothing can be written there."""
        cache = JudgementCache(Path(folder).expanduser())
        probe = cache.folder / f".probe-{uuid.uuid4().hex}"
        try:
            cache.folder.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise ConfigError(
                f"option cache of reward 'judge' is {folder!r}, where nothing can be written: {error}",
                remedy="name a folder that can be written",
            ) from error
        return cache

    def find(self, key: str) -> str | None:
        """Return the stored answer to this request; None if there is none, or its file is damaged."""
        try:
            kept = json.loads(self._path(key).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        answer = kept.get("answer") if isinstance(kept, dict) else None
        return answer if isinstance(answer, str) else None

    def keep(self, key: str, model: str, answer: str) -> None:
        """Store an answer. Errors of writing (a full disk) are ignored: they cost a request later, not the run."""
        path = self._path(key)
        # No fsync: a file damaged by a power failure cannot be read, and its answer is requested again.
        temporary = path.with_name(f".{key}.{os.getpid()}.{uuid.uuid4().hex[:8]}")
        try:
            path.parent.mkdir(exist_ok=True)
            temporary.write_text(json.dumps({"model": model, "answer": answer}), encoding="utf-8")
            temporary.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"
