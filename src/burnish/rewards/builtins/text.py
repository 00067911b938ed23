"""Rewards for the text and the length of a response. Options are checked in the constructor."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from typing import Annotated, Any, Literal

from burnish.errors import ConfigError
from burnish.rewards.builtins.reading_rows import NoScoreError


class Exact:
    """1 if the response equals the answer as text, else 0; None (missing) for a row without an answer."""

    def __init__(
        self,
        strip: Annotated[bool, "ignore white space around both"] = True,
        ignore_case: Annotated[bool, "ignore upper and lower case"] = False,
    ) -> None:
        self._strip = strip
        self._ignore_case = ignore_case

    def __call__(self, response: str, answer: Any) -> float | None:
        golds = [gold for gold in (answer if isinstance(answer, list) else [answer]) if gold is not None]
        return float(self._plain(response) in map(self._plain, map(_text_of, golds))) if golds else None

    def _plain(self, text: str) -> str:
        text = text.strip() if self._strip else text
        return text.casefold() if self._ignore_case else text


def _text_of(gold: Any) -> str:
    """A gold answer as text; whole numbers without a point. NoScoreError for an object."""
    if isinstance(gold, dict):
        raise NoScoreError("the gold answer is an object: name the column or the entry of it that holds the answer")
    return str(int(gold)) if isinstance(gold, float) and gold.is_integer() else str(gold)


class Regex:
    """1 if `pattern` is found in the response (with `full`: if it matches all of it), else 0."""

    def __init__(
        self,
        pattern: Annotated[str, "regular expression"],
        full: Annotated[bool, "the pattern must match the whole response"] = False,
    ) -> None:
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            raise ConfigError(
                f"option pattern of reward 'regex' is not a regular expression: {pattern!r} ({error})"
            ) from (error)
        self._match = compiled.fullmatch if full else compiled.search

    def __call__(self, response: str) -> float:
        return float(self._match(response) is not None)


class Format:
    """1 if the response consists of the tags in order, each exactly once and not empty, separated by white space."""

    def __init__(
        self,
        tags: Annotated[Sequence[str], "names of the tags in order"] = ("think", "answer"),
        opened: Annotated[bool, "the prompt ends with the first opening tag, so the response lacks it"] = False,
    ) -> None:
        if isinstance(tags, str) or not tags:
            raise ConfigError(
                f"option tags of reward 'format' is {tags!r}", remedy="give a list, such as [think, answer]"
            )
        self._tags = tuple(tags)
        self._opened = opened

    def __call__(self, response: str) -> float:
        rest = f"<{self._tags[0]}>{response}" if self._opened else response
        for tag in self._tags:
            if rest.count(f"<{tag}>") != 1 or rest.count(f"</{tag}>") != 1:
                return 0.0
        for tag in self._tags:
            before, _, rest = rest.partition(f"<{tag}>")
            inside, closed, rest = rest.partition(f"</{tag}>")
            if before.strip() or not closed or not inside.strip():
                return 0.0
        return float(not rest.strip())


class Length:
    """With `target`: max(0, 1 - |length - target| / target). With `maximum`: 1 up to the maximum, else 0."""

    def __init__(
        self,
        target: Annotated[int | None, "desired length (set either this or maximum)"] = None,
        maximum: Annotated[int | None, "longest length that scores 1"] = None,
        unit: Annotated[Literal["tokens", "words", "characters"], "tokens (default), words or characters"] = "tokens",
    ) -> None:
        limit = maximum if target is None else target
        if (target is None) == (maximum is None) or limit is None or limit < 1:
            raise ConfigError(
                f"reward 'length' has target {target} and maximum {maximum}",
                remedy="set exactly one of target and maximum, at least 1",
            )
        self._target = target
        self._limit = limit
        self._unit = unit

    def __call__(self, response: str, num_tokens: int) -> float:
        length = {"tokens": num_tokens, "words": len(response.split()), "characters": len(response)}[self._unit]
        if self._target is None:
            return float(length <= self._limit)
        return max(0.0, 1.0 - abs(length - self._limit) / self._limit)


class Overlong:
    """Soft over-long penalty of DAPO (https://arxiv.org/abs/2503.14476, eq. 13), in tokens.

    0 up to max_tokens - buffer_tokens, then falling linearly to -1 at max_tokens, and -1 beyond.
    """

    def __init__(
        self, max_tokens: Annotated[int, "length that costs -1"], buffer_tokens: Annotated[int, "width of the slope"]
    ) -> None:
        if not 0 < buffer_tokens <= max_tokens:
            raise ConfigError(
                f"reward 'overlong' has max_tokens {max_tokens} and buffer_tokens {buffer_tokens}",
                remedy="choose 0 < buffer_tokens <= max_tokens",
            )
        self._free = max_tokens - buffer_tokens
        self._buffer = buffer_tokens

    def __call__(self, num_tokens: int) -> float:
        return -min(1.0, max(0, num_tokens - self._free) / self._buffer)


class Repetition:
    """Minus the fraction of n-grams that have occurred before; 0 if all differ, or there are fewer than two."""

    def __init__(
        self,
        n: Annotated[int, "length of an n-gram"] = 3,
        unit: Annotated[Literal["words", "tokens"], "words (default) or tokens"] = "words",
    ) -> None:
        if n < 1:
            raise ConfigError(f"option n of reward 'repetition' is {n}", remedy="an n-gram has at least 1 element")
        self._n = n
        self._unit = unit

    def __call__(self, response: str, response_tokens: list[int]) -> float:
        sequence: Sequence[Hashable] = response.split() if self._unit == "words" else response_tokens
        grams = [tuple(sequence[start : start + self._n]) for start in range(len(sequence) - self._n + 1)]
        return -(len(grams) - len(set(grams))) / len(grams) if grams else 0.0
