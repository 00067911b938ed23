"""A model of this process as a judge: prompts that arrive at the same time are answered in one batch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Protocol

from burnish.errors import DataError
from burnish.rewards.judging.client import NoVerdictError, RetryPatience, Tally, cut_off
from burnish.rewards.judging.options import JudgeOptions
from burnish.rewards.judging.prompts import Messages


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """Answer of a model, with the numbers of tokens of the prompt and of the answer."""

    text: str
    tokens_in: int
    tokens_out: int
    is_cut_off: bool = False
    """True if it reached `max_tokens` before its end."""


class AnsweringModel(Protocol):
    """A model that answers conversations; `burnish.rollouts.answering` has one."""

    name: str
    """Identifies the model in the cache."""
    special_tokens: frozenset[str]
    """Special tokens of its tokenizer, to be removed from responses."""

    def answer(self, conversations: Sequence[Messages]) -> list[ModelAnswer | DataError]:
        """Return an answer to each, or the error that explains why there is none."""


GATHERING_SECONDS = 0.01
"""A batch is complete when no further prompt arrives for this long."""

OpenModel = Callable[[JudgeOptions], AnsweringModel]


@dataclass(slots=True)
class LocalChat:
    """An `Endpoint` for a model of this process.

    thread: runs the model, so that judges behind endpoints are not held up. It has one worker for all local models of a
    run, because each of them uses the whole device.
    """

    model: AnsweringModel
    options: JudgeOptions
    tally: Tally
    name: str
    thread: Executor
    _waiting: list[tuple[Messages, asyncio.Future[ModelAnswer | DataError]]] = field(default_factory=list)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _batches: set[asyncio.Task[None]] = field(default_factory=set)
    """The loop itself holds tasks only weakly."""

    @property
    def sampling(self) -> Mapping[str, Any]:
        return {
            "temperature": self.options.temperature,
            "max_tokens": self.options.max_tokens,
            "seed": self.options.seed,
            "dtype": self.options.dtype,
        }

    async def reply(self, messages: Messages, patience: RetryPatience) -> str:
        """Get the answer. A model of this process cannot hang, so `timeout_seconds` does not apply to it."""
        future: asyncio.Future[ModelAnswer | DataError] = asyncio.get_running_loop().create_future()
        self._waiting.append((messages, future))
        if len(self._waiting) == 1:
            batch = asyncio.create_task(self._answer_all())
            self._batches.add(batch)
            batch.add_done_callback(self._batches.discard)
        found = await future
        if isinstance(found, DataError):
            raise NoVerdictError(found.message)
        self.tally.tokens_in += found.tokens_in
        self.tally.tokens_out += found.tokens_out
        if found.is_cut_off:
            raise NoVerdictError(cut_off(self.options))
        return found.text

    async def close(self) -> None:
        return None

    async def _answer_all(self) -> None:
        """Answer all prompts that wait when it is this batch's turn. Prompts that arrive while the model works wait for
        the next batch."""
        gathered = 0
        while len(self._waiting) > gathered:  # on a busy machine, prompts take longer to arrive
            gathered = len(self._waiting)
            await asyncio.sleep(GATHERING_SECONDS)
        async with self._turn:
            waiting, self._waiting = self._waiting, []
            self.tally.requests += 1
            began = time.monotonic()
            loop = asyncio.get_running_loop()
            try:
                answers = await loop.run_in_executor(self.thread, self.model.answer, [asked for asked, _ in waiting])
            except BaseException as error:  # noqa: BLE001  boundary: it is raised again where the answers are awaited
                for _, future in waiting:
                    if not future.done():
                        future.set_exception(error)
                return
        self.tally.seconds += time.monotonic() - began
        for (_, future), answer in zip(waiting, answers, strict=True):
            if not future.done():
                future.set_result(answer)
