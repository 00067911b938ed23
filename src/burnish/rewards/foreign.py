"""Rewards written for other systems: recognised by their parameters, and called as the other system would.

- TRL: `f(completions, prompts, **columns)` gets lists, and returns one; conversations as lists of messages where the
  data are conversations (https://huggingface.co/docs/trl/main/en/rewards).
- verl: `f(data_source, solution_str, ground_truth, extra_info)` returns a number, or a dictionary with `score`.
- OpenRLHF: `f(queries, prompts, labels)` gets lists, where a query is prompt and response together; it returns a
  sequence, or a dictionary with `rewards`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

from burnish.errors import RewardError
from burnish.types import Score


@dataclass(frozen=True, slots=True)
class System:
    """Calling convention of another system. marks: parameters that all of its rewards have. row_values: our row values
    that its rewards need. provided: parameters that the system itself supplies."""

    name: str
    marks: frozenset[str]
    row_values: tuple[str, ...]
    provided: frozenset[str]
    arguments: Callable[..., dict[str, Any]]
    result: Callable[[Any], Any]


def _as_trl(
    *, responses: Any, response_tokens: Any, prompts: Any, conversations: Any, conversational: Any, **columns: Any
) -> dict[str, Any]:
    columns.pop("answers", None)
    written = columns.pop("prompt", None) or [None] * len(prompts)  # text there stays text, behind a system_prompt, too
    talks = [talk and cell != text for talk, cell, text in zip(conversational, written, prompts, strict=True)]
    said = [[{"role": "assistant", "content": text}] for text in responses]
    return {
        **columns,
        "prompts": [turns if talk else text for talk, turns, text in zip(talks, conversations, prompts, strict=True)],
        "completions": [turns if talk else text for talk, turns, text in zip(talks, said, responses, strict=True)],
        "completion_ids": response_tokens,
        "trainer_state": None,
    }


def _as_verl(*, response: str, answer: Any, domain: str, **columns: Any) -> dict[str, Any]:
    return {
        **columns,
        "data_source": columns.get("data_source", domain),
        "solution_str": response,
        "ground_truth": answer,
        "extra_info": columns.get("extra_info"),
    }


def _as_openrlhf(*, responses: Any, prompts: Any, answers: Any, **columns: Any) -> dict[str, Any]:
    queries = [f"{prompt}{response}" for prompt, response in zip(prompts, responses, strict=True)]
    return {**columns, "queries": queries, "prompts": prompts, "labels": answers}


def _score_of_dictionary(result: Any) -> Any:
    """Read the score from a dictionary. Its other numbers, which verl logs, become parts."""
    if not isinstance(result, Mapping):
        return result
    if "score" not in result:
        raise RewardError(
            "a verl reward returned a dictionary without 'score'", remedy="return a number, or add 'score'"
        )
    parts = {str(key): float(value) for key, value in result.items() if key != "score" and isinstance(value, Real)}
    return Score(result["score"], parts=parts)


def _rewards_of_dictionary(result: Any) -> Any:
    return list(result["rewards"] if isinstance(result, Mapping) and "rewards" in result else result)


SYSTEMS = (
    System(
        "verl",
        frozenset({"data_source", "solution_str", "ground_truth"}),
        ("response", "answer", "domain"),
        frozenset({"extra_info"}),
        _as_verl,
        _score_of_dictionary,
    ),
    System(
        "OpenRLHF",
        frozenset({"queries", "labels"}),
        ("responses", "prompts", "answers"),
        frozenset({"prompts"}),
        _as_openrlhf,
        _rewards_of_dictionary,
    ),
    System(
        "TRL",
        frozenset({"completions"}),
        ("responses", "prompts", "conversations", "conversational", "response_tokens"),
        frozenset({"prompts", "completion_ids", "trainer_state"}),
        _as_trl,
        lambda result: result,
    ),
)


def system_of(target: Callable[..., Any]) -> System | None:
    """Recognise the system that a function was written for; None for a reward of Burnish's own form."""
    if not inspect.isfunction(target):
        return None
    names = set(inspect.signature(target).parameters)
    if names & {"response", "responses"}:
        return None
    return next((system for system in SYSTEMS if system.marks <= names), None)


def adapted(target: Callable[..., Any], system: System) -> Callable[..., Any]:
    """Adapt the function to Burnish's form: it takes our row values and the columns, and returns a score or a list."""
    parameters = inspect.signature(target).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    others = [
        parameter.replace(kind=parameter.KEYWORD_ONLY)
        for name, parameter in parameters.items()
        if name not in system.marks | system.provided and parameter.kind is not parameter.VAR_KEYWORD
    ]
    needed = system.row_values
    if system.name == "TRL" and others:  # it compares with a column, so it can be checked on gold answers
        needed = (*needed, "answers")

    def arguments(**given: Any) -> dict[str, Any]:
        made = system.arguments(**given)
        return made if takes_all else {name: value for name, value in made.items() if name in parameters}

    def call(**given: Any) -> Any:
        return system.result(target(**arguments(**given)))

    async def call_async(**given: Any) -> Any:
        return system.result(await target(**arguments(**given)))

    chosen: Any = call_async if inspect.iscoroutinefunction(target) else call
    ours = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in needed]
    known = [*ours, *others, inspect.Parameter("columns", inspect.Parameter.VAR_KEYWORD)]
    chosen.__signature__ = inspect.Signature(known)  # it decides what a reward is called with
    return chosen
