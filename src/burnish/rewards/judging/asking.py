"""One verdict: from the cache, from a request that is on its way, or from the endpoint, with one try to repair it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from burnish.errors import ConfigError
from burnish.rewards.judging.client import ChatClient, NoVerdictError, RetryPatience, Tally
from burnish.rewards.judging.local import LocalChat
from burnish.rewards.judging.prompts import Messages, repair
from burnish.rewards.judging.verdicts import AnswerForm, UnreadableVerdictError

SHOWN_OF_REPLY = 200
"""Number of characters from the end of an answer that the detail of a failure shows."""

T = TypeVar("T")
Endpoint: TypeAlias = ChatClient | LocalChat
"""Anything that answers conversations."""


@dataclass(slots=True)
class Asker:
    """Asks for the verdicts of one judge. Equal requests at the same time are sent once."""

    endpoint: Endpoint
    cache: JudgementCache | None
    tally: Tally
    timeout_seconds: float
    _on_their_way: dict[str, asyncio.Task[Any]] = field(default_factory=dict)

    async def verdict(self, messages: Messages, wanted: AnswerForm[T]) -> T:
        """Get a verdict. NoVerdictError if there is none in time or it cannot be read; RewardError ends the run."""
        self.tally.verdicts += 1
        key = cache_key(self.endpoint.name, messages, self.endpoint.sampling)
        task = self._on_their_way.get(key)
        if task is None:
            kept = self._kept(key, wanted)
            if kept is not None:
                self.tally.cached += 1
                return kept
            task = asyncio.create_task(self._ask(key, messages, wanted))
            self._on_their_way[key] = task
            task.add_done_callback(lambda done: self._arrived(key, done))
        else:
            self.tally.cached += 1  # the samples of a group are often the same text
        try:
            found: T = await asyncio.shield(task)  # others may wait for the same task
        except NoVerdictError:
            self.tally.failed += 1
            raise
        return found

    def _kept(self, key: str, wanted: AnswerForm[T]) -> T | None:
        answer = None if self.cache is None else self.cache.find(key)
        if answer is None:
            return None
        try:
            return wanted.read(answer)
        except UnreadableVerdictError:  # not an answer that this cache stored
            return None

    async def _ask(self, key: str, messages: Messages, wanted: AnswerForm[T]) -> T:
        patience = RetryPatience(self.timeout_seconds)
        reply = await self.endpoint.reply(messages, patience)
        try:
            found = wanted.read(reply)
        except UnreadableVerdictError as error:
            self.tally.repaired += 1
            again = repair(messages, reply, str(error), wanted.instruction)
            reply = await self.endpoint.reply(again, patience)
            found = _read_or_fail(reply, wanted)
        if self.cache is not None:
            self.cache.keep(key, self.endpoint.name, reply)
        return found

    def _arrived(self, key: str, task: asyncio.Task[Any]) -> None:
        del self._on_their_way[key]
        if not task.cancelled():
            task.exception()  # retrieve it, so that asyncio does not warn if nobody waits any more


def _read_or_fail(reply: str, wanted: AnswerForm[T]) -> T:
    try:
        return wanted.read(reply)
    except UnreadableVerdictError as error:
        shown = " ".join(reply.split())[-SHOWN_OF_REPLY:]
        raise NoVerdictError(
            f"its answer cannot be read even after a repair: {error}; it ends with {shown!r}"
        ) from None


VERSION = 1
"""Part of every key: answers kept by an earlier form of this cache are not found."""


def cache_key(model: str, messages: object, sampling: Mapping[str, Any]) -> str:
    """Key of a request: equal for equal model, prompt and sampling, in every process and on every day."""
    text = json.dumps([VERSION, model, messages, sampling], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class JudgementCache:
    """Verdicts on disk: one small file for each request, named by a hash of everything that its answer depends on.

    Only answers that could be read are kept, so the next run retries failures. Files are written under another name and
    renamed, so any number of processes may share a folder.
    """

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
