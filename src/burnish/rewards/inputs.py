"""Arguments of rewards, chosen by the names of their parameters.

A function with a parameter `responses` is batched: it is called once with lists that have one entry per response. It
may use the plural or the singular name of each row value. Columns keep their names, and are lists too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from burnish.errors import ConfigError, RewardError, did_you_mean
from burnish.types import FinishReason, Json, Message, Prompt, Rollout

Item = tuple[Prompt, Rollout]


def _prompt_text(prompt: Prompt) -> str:
    """The text prompt itself, or the last user message of a conversation (the last message if no user speaks)."""
    if prompt.messages is None:
        return prompt.text or ""
    from_user = [message.content for message in prompt.messages if message.role == "user"]
    return from_user[-1] if from_user else (prompt.messages[-1].content if prompt.messages else "")


def _messages(prompt: Prompt) -> list[dict[str, Json]]:
    """The prompt's messages as dictionaries. A text prompt becomes one user message."""
    if prompt.messages is None:
        return [{"role": "user", "content": prompt.text or ""}]
    return [message.to_dict() for message in prompt.messages]


def _transcript(prompt: Prompt, rollout: Rollout) -> list[dict[str, Json]]:
    """The prompt's messages and all later ones. A response without turns is one message of the assistant."""
    said = [*rollout.history, *(message for turn in rollout.turns for message in turn.messages)]
    answers = said or [Message("assistant", rollout.response)]
    return [*_messages(prompt), *(message.to_dict() for message in answers)]


# name of a row value -> (plural name, which a batched reward may use instead; function that reads the value)
ROW_VALUES: dict[str, tuple[str, Callable[[Prompt, Rollout], Any]]] = {
    "response": ("responses", lambda prompt, rollout: rollout.response),
    "answer": ("answers", lambda prompt, rollout: prompt.answer),
    "prompt": ("prompts", lambda prompt, rollout: _prompt_text(prompt)),
    "messages": ("conversations", lambda prompt, rollout: _messages(prompt)),
    "conversational": ("conversational", lambda prompt, rollout: prompt.messages is not None),
    "domain": ("domains", lambda prompt, rollout: prompt.domain),
    "prompt_id": ("prompt_ids", lambda prompt, rollout: prompt.id),
    "group_id": ("group_ids", lambda prompt, rollout: rollout.group_id),
    "sample_index": ("sample_indices", lambda prompt, rollout: rollout.sample_index),
    "finish_reason": ("finish_reasons", lambda prompt, rollout: rollout.finish_reason.value),
    "truncated": ("truncated", lambda prompt, rollout: rollout.finish_reason is FinishReason.LENGTH),
    "response_tokens": ("response_tokens", lambda prompt, rollout: list(rollout.response_tokens)),
    "num_tokens": ("num_tokens", lambda prompt, rollout: rollout.num_sampled()),
    "transcript": ("transcripts", _transcript),
    "turns": ("turns", lambda prompt, rollout: [turn.to_dict() for turn in rollout.turns]),
    "environment_reward": ("environment_rewards", lambda prompt, rollout: rollout.environment_reward),
}
_SINGULAR = {plural: name for name, (plural, _) in ROW_VALUES.items()}


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters of a loaded reward, as plain data, so that a worker can send it to the training process."""

    label: str
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    takes_columns: bool = False
    batched: bool = False
    asynchronous: bool = False
    """Awaited for several responses at once, which a batched reward never is."""
    system: str = ""
    """System that the reward was written for, such as `TRL`; empty for a reward of Burnish's own form."""

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that rows provide."""
        return (*self.required, *self.optional)

    @property
    def reads_answer(self) -> bool:
        """True if the reward compares with the answer, so that it can be tested on gold answers."""
        return not {"answer", "answers"}.isdisjoint(self.names)

    @property
    def reads_tokens(self) -> bool:
        """True if the reward reads the tokens of a response, or their number."""
        return not {"response_tokens", "num_tokens"}.isdisjoint(self.names)

    def row_value(self, name: str) -> str | None:
        """The row value that a parameter name means, or None if the name can only be a column."""
        if name in ROW_VALUES:
            return name
        return _SINGULAR.get(name) if self.batched else None

    def check_columns(self, columns: Collection[str]) -> None:
        """Raise RewardError if neither the row values nor these columns provide a required parameter."""
        for name in self.required:
            if self.row_value(name) is None and name not in columns:
                raise RewardError(
                    f"reward {self.label!r} asks for {name!r}, which nothing provides",
                    remedy=self._remedy(name, columns),
                )

    def _remedy(self, name: str, columns: Collection[str]) -> str:
        rows = [plural if self.batched else singular for singular, (plural, _) in ROW_VALUES.items()]
        ways = f"set it under options, give it a default, or use one of {', '.join(rows)}"
        ways += f" or the columns {', '.join(sorted(columns)) or '(none)'}"
        return did_you_mean(name, [*rows, *columns], ways)

    def arguments(self, item: Item) -> dict[str, Any]:
        """Keyword arguments for one response."""
        prompt, rollout = item
        given: dict[str, Any] = {}
        for name in self.names:
            source = self.row_value(name)
            if source is not None:
                given[name] = ROW_VALUES[source][1](prompt, rollout)
            elif name in prompt.columns:
                given[name] = prompt.columns[name]
            elif name in self.required:
                raise RewardError(
                    f"reward {self.label!r} needs the column {name!r}, which prompt {prompt.id!r} does not have",
                    remedy="give the parameter a default for such rows",
                )
        if self.takes_columns:
            # Options are already bound, so a column of the same name must not override one.
            rest = {name: value for name, value in prompt.columns.items() if name not in self.options}
            given = {**rest, **given}
        return given

    def batch_arguments(self, items: Sequence[Item]) -> dict[str, Any]:
        """Keyword arguments for one call on all responses: lists, with None where a row lacks a column."""
        rows = [self.arguments(item) for item in items]
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: [row.get(name) for row in rows] for name in names}


def read_signature(call: Callable[..., Any], label: str, options: Collection[str]) -> Signature:
    """The signature of `call`. `options` are the parameters that the run file sets."""
    required: list[str] = []
    optional: list[str] = []
    takes_columns = False
    for name, parameter in _parameters(call, label).items():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise RewardError(
                f"reward {label!r} takes the positional parameter {name!r}",
                remedy="rewards are called with keyword arguments: use parameters such as response, answer, **columns",
            )
        if parameter.kind is parameter.VAR_KEYWORD:
            takes_columns = True
        elif name not in options:
            (required if parameter.default is parameter.empty else optional).append(name)
    if not required and not optional and not takes_columns:
        raise RewardError(
            f"reward {label!r} has no parameters, so it could only return a constant",
            remedy="give it a parameter such as response",
        )
    batched = "responses" in (*required, *optional)
    names = (tuple(required), tuple(optional), tuple(options))
    return Signature(label, *names, takes_columns, batched, _is_async(call) and not batched)


def check_options(target: Callable[..., Any], label: str, options: Collection[str]) -> None:
    """Raise ConfigError for an option that is not a named parameter of `target`; `**columns` only takes columns."""
    named = [
        name
        for name, parameter in _parameters(target, label).items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    allowed = named if inspect.isclass(target) else [n for n in named if n not in ROW_VALUES and n not in _SINGULAR]
    for name in options:
        if name not in allowed:
            remedy = did_you_mean(name, allowed, f"its options are {', '.join(allowed) or '(none)'}")
            raise ConfigError(f"reward {label!r} has no option {name!r}", remedy=remedy)


def _parameters(call: Callable[..., Any], label: str) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(call).parameters)
    except (TypeError, ValueError) as error:
        raise RewardError(
            f"reward {label!r} has no readable signature: {error}", remedy="wrap it in a Python function"
        ) from error


def _is_async(call: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(type(call).__call__)
