"""Reading of rows, responses and options for built-in rewards, and their errors."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from burnish.errors import ConfigError, did_you_mean

_TAGS = "think|thinking|thought|reasoning"
_END_OF_THOUGHTS = re.compile(rf"</(?:{_TAGS})>|\[/THINK\]|◁/think▷|<\|channel\|>final<\|message\|>")
# At the beginning of a line or sentence: a program or a text may mention the tag.
_OPEN_THOUGHTS = re.compile(
    rf"(?:^|(?<=[.!?][ \t]))[ \t]*+(?:<(?:{_TAGS})>|\[THINK\]|◁think▷|<\|channel\|>analysis)", re.MULTILINE
)
# The closing fence is as long as the opening one and not indented deeper, so that a fence inside a docstring does not
# end the block, and no word touches it. Repeats are possessive, so that a long line does not take quadratic time.
_FENCE = re.compile(
    r"^([ \t]*+)(`{3,}+|~{3,}+)[ \t]*+([\w+-]*+)[^\n]*+\n(.*?)(?:^(?!\1[ \t])[ \t]*+\2[`~]*+(?=\s|\Z)|\Z)",
    re.DOTALL | re.MULTILINE,
)


class NoScoreError(Exception):
    """A built-in reward has no score for this response: columns of its row cannot be used, or the program or sandbox
    that judges it gave no verdict. The response fails; the run goes on, and counts it."""


def check_word(reward: str, option: str, value: str, known: Sequence[str]) -> None:
    """Raise ConfigError for a value of an option that is none of these words."""
    if value not in known:
        remedy = did_you_mean(str(value), known, f"use {', '.join(known)}")
        raise ConfigError(f"option {option} of reward {reward!r} is {value!r}", remedy=remedy)


def check_positive(reward: str, **amounts: float) -> None:
    """Raise ConfigError for an option that is not a number above 0."""
    for option, amount in amounts.items():
        if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not amount > 0:
            raise ConfigError(f"option {option} of reward {reward!r} is {amount!r}", remedy="use a number above 0")


def parsed(value: Any, column: str) -> Any:
    """The value of a column that may hold JSON as text. NoScoreError if the text is not valid JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise NoScoreError(
            f"column {column!r} is not valid JSON ({error}); convert it when the data set is made"
        ) from error


def after_thoughts(response: str) -> str:
    """Return the response after its last `</think>` (or another template's tag); empty if another thought begins there
    and does not end, because the response was then cut off before it said anything."""
    said = _END_OF_THOUGHTS.split(response)[-1]
    return "" if _OPEN_THOUGHTS.search(said) else said


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """The language (in lower case; empty for none) and the content of each block between fences (```), in the order of
    the text. The last one may lack its closing fence."""
    return [(language.lower(), block) for _, _, language, block in _FENCE.findall(text)]


def blocks_in(text: str, languages: Sequence[str]) -> list[str]:
    """The blocks marked with one of these languages, else the blocks that are not marked."""
    blocks = fenced_blocks(text)
    marked = [block for language, block in blocks if language in languages]
    return marked or [block for language, block in blocks if not language]


def last_block(response: str, languages: Sequence[str]) -> str:
    """The last of `blocks_in` a response after its thoughts; all of it if it has none."""
    text = after_thoughts(response)
    return (blocks_in(text, languages) or [text])[-1]
