"""The built-in rewards, as a literal table. Nothing registers itself, and a reward's code is imported on use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """One built-in reward.

    `target` is `module:attribute`. `runs` says whether it may run in the training process, because it is cheap and
    cannot hang, or needs a killable worker; a `service` only waits for others, on a thread of the training process, and
    its target are its options. `options` maps each option to one line of help. `top_score` is its highest score,
    None if others set it.
    """

    target: str
    summary: str
    runs: Literal["inline", "process", "service"]
    top_score: float | None
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
    "environment": BuiltIn(
        target=f"{_HERE}.environment:Environment",
        summary="what the environment of a conversation paid for it",
        runs="inline",
        top_score=None,
        options={"by_turn": "pay each turn its own reward on its last token, and the rest at the end (default false)"},
    ),
    "code": BuiltIn(
        target=f"{_HERE}.code:Code",
        summary="1 when the program in the response passes all tests of its row, run in the sandbox, else 0",
        runs="process",
        top_score=1.0,
        options={
            "score": "all (default), or fraction: the share of the tests that it passes",
            "tier": "of the sandbox: auto (default), namespaces, landlock, or process, which confines nothing",
            "seconds": "for all tests of a response together; less than two thirds of timeout_seconds (default 6)",
            "memory_mb": "memory of a program, beyond Python's own (default 512)",
            "url": "of a server that runs the programs instead of this machine (default none)",
            "token_variable": "environment variable that holds the server's token (default none)",
            "grade": "split (default), or shared: a server that only runs programs may test in the candidate's process",
        },
    ),
    "reasoning_gym": BuiltIn(
        target=f"{_HERE}.reasoning_gym:ReasoningGym",
        summary="what the task of reasoning-gym that made the row gives for the answer in the response, 0 to 1",
        runs="process",
        top_score=1.0,
        options={
            "extract": "auto (default: in <answer> tags, else all), tags (only there) or all: the text after thinking",
            "allow": "names of tasks whose scores are unsound, and that are to be used all the same (default none)",
        },
    ),
    "choice": BuiltIn(
        target=f"{_HERE}.choice:Choice",
        summary="1 when the option that the response states last, by label or text, is the right one, else 0",
        runs="process",
        top_score=1.0,
        options={"column": "the column with the options (default choices, else options)"},
    ),
    "instructions": BuiltIn(
        target=f"{_HERE}.instructions:Instructions",
        summary="1 when the response follows all verifiable instructions of its row, as IFEval has them, else 0",
        runs="process",
        top_score=1.0,
        options={
            "mode": "strict (default), or loose: also without asterisks and without the first or last line",
            "score": "all (default), or fraction: the share of the instructions that it follows",
        },
    ),
    "json_schema": BuiltIn(
        target=f"{_HERE}.json_schema:JsonSchema",
        summary="1 when the JSON of the response is valid against the JSON Schema of its row, else 0",
        runs="process",
        top_score=1.0,
        options={
            "schema": "for rows without one of their own: an object, or JSON text",
            "column": "the column with the schema (default json_schema, else schema)",
            "whole": "the whole response has to be JSON, without a block or a word around it (default false)",
        },
    ),
    "command": BuiltIn(
        target=f"{_HERE}.command:Command",
        summary="what a program of yours says of the response: 1 for exit status 0, 0 for others that you name",
        runs="process",
        top_score=1.0,
        options={
            "argv": "the program and its arguments, a list (required); {file}, {row} and {here} become paths",
            "score": "exit_code (default), or stdout: its last line is the score, at most 1",
            "wrong": "exit statuses that score 0 (default [1]); any other is an error",
            "suffix": "ending of the name of {file}, such as .lean",
            "folder": "in which it runs (default one of its own, removed afterwards)",
            "seconds": "for one response; less than timeout_seconds (default 8)",
            "too_slow": "what a longer run is: an error (default), or wrong",
            "memory_mb": "address space of each of its processes (default no limit)",
            "output_mb": "of each file that it writes, standard output too (default 16)",
        },
    ),
    "judge": BuiltIn(
        target="burnish.rewards.judging.options:JudgeOptions",
        summary="what another language model says of the response, from 0 to 1 (docs/judge.md)",
        runs="service",
        top_score=1.0,
        options={
            "url": "OpenAI-compatible endpoint, up to and with /v1 (this or model_path is required)",
            "model": "the endpoint's name of the model (required with url)",
            "model_path": "folder of a model that this process loads, in place of an endpoint",
            "device": "of that model: auto (default), cpu, cuda:1 ...",
            "dtype": "of that model: float32 (default) or bfloat16",
            "key_variable": "name of the environment variable that holds the endpoint's key",
            "form": "score (default), rubric, pairwise or steps",
            "template": "the question, as text or the path of a .txt or .md file, with {prompt}, {response}, {COLUMN}",
            "system": "the system message",
            "reference": "show the row's answer to the judge (default false)",
            "scale": "[lowest, highest] (default [1, 10]) or {WORD: number from 0 to 1}",
            "answer_format": "of the verdict: json (default), tag or last_line",
            "criteria": "of a rubric: a list of {name, weight, text}, or the column that holds one",
            "one_call": "ask for all criteria at once (default true), or for each on its own",
            "opponents": "pairwise: how many others of its group each response meets (default 7)",
            "step_pattern": "steps: regular expression between two steps (default: a blank line)",
            "max_steps": "steps: at most this many, the last of which is all the rest (default 64)",
            "temperature": "of the judge (default 0)",
            "max_tokens": "of an answer (default 1024)",
            "seed": "sent with each request",
            "extra": "further fields of the request; null removes one",
            "concurrency": "requests on their way at the same time, at most (default 16)",
            "requests_per_minute": "at most (default: no limit)",
            "tokens_per_minute": "of prompts and answers, at most (default: no limit)",
            "retries": "after connection errors, timeouts, 429 and 5xx (default 4)",
            "request_timeout_seconds": "for one request (default: what is left of timeout_seconds)",
            "cache": "folder of verdicts, which any number of runs may share (default: none)",
            "price_in": "of a million tokens of prompts, for judge/cost",
            "price_out": "of a million tokens of answers",
            "labels": "column with a human's score of the row's response, for burnish check",
        },
    ),
}
