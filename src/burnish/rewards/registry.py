"""The built-in rewards, as a literal table. Nothing registers itself, and a reward's code is imported on use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """One built-in reward.

    `target` is `module:attribute`. `runs` says whether it may run in the training process, because it is cheap and
    cannot hang, or needs a killable worker. `options` maps each option to one line of help. `top_score` is its highest
    score.
    """

    target: str
    summary: str
    runs: Literal["inline", "process"]
    top_score: float
    options: dict[str, str] = field(default_factory=dict)


_HERE = "burnish.rewards.builtins"

BUILT_INS: dict[str, BuiltIn] = {
    "math": BuiltIn(
        target=f"{_HERE}.math_answer:MathAnswer",
        summary="1 when the final answer equals the gold answer mathematically, else 0",
        runs="process",
        top_score=1.0,
        options={
            "require": "where the answer must be: any (default), boxed, hash (####), phrase (answer is ...)",
        },
    ),
    "exact": BuiltIn(
        target=f"{_HERE}.text:Exact",
        summary="1 when the response equals the answer as text, else 0",
        runs="inline",
        top_score=1.0,
        options={
            "strip": "ignore white space around both (default true)",
            "ignore_case": "ignore upper and lower case (default false)",
        },
    ),
    "regex": BuiltIn(
        target=f"{_HERE}.text:Regex",
        summary="1 when the pattern is found in the response, else 0",
        runs="process",
        top_score=1.0,
        options={
            "pattern": "regular expression (required)",
            "full": "the pattern must match the whole response (default false)",
        },
    ),
    "format": BuiltIn(
        target=f"{_HERE}.text:Format",
        summary="1 when the response consists of the tags in order, each exactly once and not empty, else 0",
        runs="inline",
        top_score=1.0,
        options={
            "tags": "names of the tags in order (default [think, answer])",
            "opened": "the prompt ends with the first opening tag, so the response lacks it (default false)",
        },
    ),
    "length": BuiltIn(
        target=f"{_HERE}.text:Length",
        summary="closeness to a target length (1 at it, 0 at zero or twice of it), or 1 up to a maximum, else 0",
        runs="inline",
        top_score=1.0,
        options={
            "target": "desired length (set either this or maximum)",
            "maximum": "longest length that scores 1",
            "unit": "tokens (default), words or characters",
        },
    ),
    "overlong": BuiltIn(
        target=f"{_HERE}.text:Overlong",
        summary="soft over-long penalty: 0 up to max_tokens - buffer_tokens, linear down to -1 at max_tokens",
        runs="inline",
        top_score=0.0,
        options={"max_tokens": "length that costs -1 (required)", "buffer_tokens": "width of the slope (required)"},
    ),
    "repetition": BuiltIn(
        target=f"{_HERE}.text:Repetition",
        summary="minus the fraction of n-grams that repeat an earlier one: 0 without repeats, towards -1 for a loop",
        runs="inline",
        top_score=0.0,
        options={"n": "length of an n-gram (default 3)", "unit": "words (default) or tokens"},
    ),
    "code": BuiltIn(
        target=f"{_HERE}.code:Code",
        summary="1 when the program in the response passes all tests of its row, run in the sandbox, else 0",
        runs="process",
        top_score=1.0,
        options={
            "score": "all (default), or fraction: the share of the tests that it passes",
            "tier": "of the sandbox: auto (default), namespaces, landlock, or process, which confines nothing",
            "seconds": "for all tests of a response together; less than timeout_seconds (default 6)",
            "memory_mb": "memory of a program, beyond Python's own (default 512)",
        },
    ),
    "sentiment": BuiltIn(
        target=f"{_HERE}.sentiment:Sentiment",
        summary="VADER compound sentiment of the response, from -1 (negative) to 1 (positive)",
        runs="process",
        top_score=1.0,
        options={
            "part": "all (default) or ending (the last sentences only)",
            "sentences": "number of sentences in the ending (default 2)",
        },
    ),
}
