"""A teacher behind an OpenAI-compatible endpoint that answers with log-probabilities of the prompt (`prompt_logprobs`),
as vLLM and `burnish serve` do."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch
from anyio.from_thread import start_blocking_portal
from torch import Tensor

from burnish.config.schema_teacher import TeacherPlace
from burnish.config.secrets import key_in
from burnish.errors import BurnishError, ModelError, OutageError
from burnish.forward.batch import Batch, Text
from burnish.forward.divergences import Likeliest
from burnish.forward.logprobs import LEAST_LOGPROB
from burnish.outside.endpoint_client import EndpointClient, FinalAnswer, growing_pause
from burnish.types import Tokenizer

PROBED_IDS = 512
"""Token ids whose texts are compared before the run, spread over the vocabulary."""
_ANSWER_BYTES, _TOKEN_BYTES = 1 << 20, 1 << 10
"""Limit on the size of an answer: a fixed part, and a part for each token of the text."""
_ROUNDING = 1e-3
"""Log-probabilities may be above 0 by this much."""
_NO_CHARACTER = "\ufffd"

Read = TypeVar("Read")
Entries = Mapping[str, Any]
"""Answer about one place of a text: by id, for its token and the likeliest ones, `logprob` and perhaps the token's text
(`decoded_token`)."""


@dataclass(frozen=True, slots=True)
class EndpointTeacher:
    """`roles.Reference` whose model is `name` at `url`.

    concurrency: requests on their way at a time. timeout_seconds: for one text, with all tries; waiting for one of our
    other requests does not count. Everything raises ModelError for an answer that cannot be used, and OutageError if
    there is none in time.
    """

    url: str
    name: str
    key: str | None = field(default=None, repr=False)
    concurrency: int = 16
    timeout_seconds: float = 600.0

    def logprobs(self, batch: Batch) -> Tensor:
        """(B, T) log-probabilities of the response tokens at temperature 1. 0 past the end of a response."""
        batch.host.check_prompts()
        pairs, found_BT = batch.texts(), torch.zeros(batch.response_tokens.shape)
        found = self.ask([(*prompt, *response) for prompt, response in pairs], list)
        for row, ((prompt, response), entries) in enumerate(zip(pairs, found, strict=True)):
            named = zip(response, entries[len(prompt) - 1 :], strict=True)
            own = [some[str(token)]["logprob"] for token, some in named]
            found_BT[row, : len(response)] = torch.tensor(own)
        return found_BT

    def likeliest(self, texts: Sequence[Text], k: int) -> list[Likeliest]:
        """The k likeliest tokens at each token of each response, at temperature 1."""
        found = self.ask([(*prompt, *response) for prompt, response in texts], partial(_likeliest, k=k), k)
        return [whole.at(slice(len(prompt) - 1, None)) for (prompt, _), whole in zip(texts, found, strict=True)]

    def check(self, tokenizer: Tokenizer, longest: int, *, compare_texts: bool) -> None:
        """Ask about texts of as many tokens as the `longest` of the run, with ids from all over the vocabulary. Raises
        ModelError also for an id that stands for another text there, unless the tokenizers have been compared."""
        texts = probe(tokenizer, longest)
        for text, entries in zip(texts, self.ask(texts, list), strict=True):
            for token, some in zip(text[1:], entries, strict=True) if compare_texts else ():
                ours, theirs = str(tokenizer.decode([token])), some[str(token)].get("decoded_token")
                # Some tokenizers drop the space before the first word.
                if not isinstance(theirs, str) or ours.lstrip(" ") != theirs.lstrip(" "):
                    message = f"has another vocabulary: id {token} is {ours!r} here and {theirs!r} there"
                    remedy = "use a teacher of the policy's model family; if it gives no decoded_token (None), set "
                    raise self._error(message, remedy + "teacher.tokenizer to the folder or hub name of its tokenizer")

    def ask(self, texts: Sequence[Sequence[int]], read: Callable[[list[Entries]], Read], k: int = 0) -> list[Read]:
        """Ask about each text. For every token after the first there are entries of itself and of the k likeliest
        tokens. read: what is kept of the entries of a text, as soon as they are there."""
        with start_blocking_portal(name="burnish-teacher") as portal:  # this thread may run an event loop itself
            return portal.call(self._ask_all, texts, read, k)

    async def _ask_all(
        self, texts: Sequence[Sequence[int]], read: Callable[[list[Entries]], Read], k: int
    ) -> list[Read]:
        client = EndpointClient(f"{self.url.rstrip('/')}/completions", self.key, concurrency=self.concurrency)
        places = asyncio.Semaphore(self.concurrency)
        try:
            return await asyncio.gather(*(self._ask(client, places, text, read, k) for text in texts))
        finally:
            await client.close()

    async def _ask(
        self,
        client: EndpointClient,
        places: asyncio.Semaphore,
        text: Sequence[int],
        read: Callable[[list[Entries]], Read],
        k: int,
    ) -> Read:
        body = {"model": self.name, "prompt": text, "max_tokens": 1, "temperature": 0, "prompt_logprobs": k}
        most = _ANSWER_BYTES + _TOKEN_BYTES * len(text) * (1 + k)
        async with places:
            left, tries, last = self.timeout_seconds, 0, ""
            while True:
                began = time.monotonic()
                found = await client.post(body, seconds=left, max_bytes=most)
                if isinstance(found, FinalAnswer):
                    return read(self._entries(found, text, k))
                tries += 1
                last = last if last and found.timeout else found.reason  # a status says more
                pause = max(found.wait, growing_pause(str(text), tries))
                left -= time.monotonic() - began + pause
                if left <= 0:
                    message = f"has not answered within timeout_seconds {self.timeout_seconds:g}; last: {last}"
                    raise self._error(message, "start it, and then the run again, which resumes", OutageError)
                await asyncio.sleep(pause)

    def _entries(self, answer: FinalAnswer, text: Sequence[int], k: int) -> list[Entries]:
        """The entries of an answer, with finite log-probabilities of each token of the text and k likely ones."""
        if answer.status != 200:
            message = f"refuses to score a text of {len(text):,} tokens: {answer.reason}"
            raise self._error(message, "check teacher.url (up to and with /v1), name and key_variable")
        try:
            given = json.loads(answer.text)["choices"][0]["prompt_logprobs"]
        except (ValueError, RecursionError, KeyError, IndexError, TypeError):
            given = None
        if not isinstance(given, list) or len(given) != len(text):
            count = f"{len(given):,}" if isinstance(given, list) else "no"
            message = f"gives {count} log-probabilities (prompt_logprobs) for {len(text):,} tokens: {answer.reason}"
            raise self._error(message, "serve the model with vLLM or `burnish serve`")
        for place, (token, named) in enumerate(zip(text[1:], given[1:], strict=True), start=1):
            found = named if isinstance(named, dict) else {}
            for one in {str(token): None, **found}:
                logprob = found[one].get("logprob") if isinstance(found.get(one), dict) else None
                if not isinstance(logprob, (int, float)) or not -math.inf < logprob <= _ROUNDING:
                    message = f"gives {logprob!r:.40} as the log-probability of the id {one} at position {place}"
                    raise self._error(message, "update the server, or use another one")
            if len(found) < k or not all(one.isdecimal() for one in found):
                message = f"names {len(found)} of the {k} likeliest tokens at position {place}: {list(found)!s:.60}"
                raise self._error(message, "lower top_k, or raise the server's limit (vLLM: --max-logprobs)")
        return given[1:]

    def _error(self, what: str, remedy: str, kind: type[BurnishError] = ModelError) -> BurnishError:
        return kind(f"the teacher {self.name!r} at {self.url} {what}", remedy=remedy)


def endpoint_teacher(place: TeacherPlace) -> EndpointTeacher:
    """The teacher at an endpoint, which is not asked yet. ConfigError for a key that is not there."""
    assert place.url is not None
    assert place.name is not None
    key = key_in(place.key_variable, "teacher.key_variable")
    return EndpointTeacher(place.url, place.name, key, place.concurrency, place.timeout_seconds)


def _likeliest(entries: Sequence[Entries], k: int) -> Likeliest:
    """The likeliest tokens by their entries. Others together have what the rounded probabilities leave."""
    tops = [heapq.nlargest(k, ((one["logprob"], int(token)) for token, one in some.items())) for some in entries]
    logprobs_TK = torch.tensor([[logprob for logprob, _ in top] for top in tops], dtype=torch.float64)
    rest_T1 = (1 - logprobs_TK.exp().sum(-1, keepdim=True)).clamp(min=0).log().clamp(min=LEAST_LOGPROB)
    ids_TK = torch.tensor([[token for _, token in top] for top in tops])
    return Likeliest(ids_TK, torch.cat((logprobs_TK, rest_T1), -1).float())


def probe(tokenizer: Tokenizer, longest: int) -> list[list[int]]:
    """Texts of `longest` tokens, in which each of the probed ids follows another: every one of them that is a text by
    itself, or an even selection."""
    added = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}  # some stand for images, which are not sent
    plain = [number for number in sorted(tokenizer.get_vocab().values()) if number not in added]
    chosen = plain[:: max(1, len(plain) // PROBED_IDS)]
    whole = [number for number in chosen if _NO_CHARACTER not in str(tokenizer.decode([number]))] or chosen
    each = max(1, longest - 1)
    pool = itertools.cycle(whole)
    return [[whole[0], *itertools.islice(pool, each)] for _ in range(0, len(whole), each)]
