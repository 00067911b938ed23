"""Strict readers of the values that environments return: observations as text, rewards as numbers, openings, steps.

Whatever cannot be read is an `EnvironmentFailedError` that names the type. `what` is what the value is, for messages.
"""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Mapping, Sequence

import numpy as np

from burnish.agents.environments.protocol import Opening, Step
from burnish.errors import EnvironmentFailedError


def text_of(observation: object, what: str) -> str:
    """A text as it is, plain data as JSON. NumPy's numbers are numbers; its arrays are not plain data."""
    if isinstance(observation, str):
        return observation
    try:
        return json.dumps(observation, ensure_ascii=False, allow_nan=False, default=_number)
    except TypeError as error:
        why, remedy = str(error), "return a text, or lists and dictionaries of texts and numbers"
    except (ValueError, RecursionError) as error:
        why, remedy = str(error), "JSON has no NaN, no infinity and no data that contain themselves"
    raise EnvironmentFailedError(f"{what} is not a text or plain data: {why}", remedy=remedy)


def number_of(value: object, what: str) -> float:
    """A finite number. Booleans and NumPy's numbers are numbers, too."""
    if isinstance(value, (numbers.Real, np.bool_)):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
        raise EnvironmentFailedError(f"{what} is {value}", remedy="return a finite number")
    raise _wrong_type(what, value, "return a number")


def flag_of(value: object, what: str) -> bool:
    """A boolean, or NumPy's."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise _wrong_type(what, value, "return True or False")


def opening_of(value: object, what: str) -> Opening:
    """Read the result of `reset`: a text, messages, the text blocks of a message, or None."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Sequence) and value and all(isinstance(item, Mapping) for item in value):
        if all(item.keys() >= {"role", "content"} for item in value):
            return messages_of(value, what)
        if all(item.get("type") == "text" and isinstance(item.get("text"), str) for item in value):
            return "".join(item["text"] for item in value)
        kinds = sorted({str(item.get("type")) for item in value})
        raise EnvironmentFailedError(
            f"{what} is a list of content blocks of the types {', '.join(kinds)}",
            remedy="return a text, messages with role and content, or blocks of the type text",
        )
    raise _wrong_type(what, value, "return a text, a list of messages, or None")


def messages_of(value: Sequence[Mapping], what: str) -> list[dict]:
    """Messages whose role and content are texts."""
    for message in value:
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                held = f"{what} has a message whose {key}"
                raise _wrong_type(held, message.get(key), "role and content of a message are texts")
    return [dict(message) for message in value]


def checked_step(step: Step, what: str) -> Step:
    """A user's `Step`, with values of the right types."""
    if not isinstance(step.text, str):
        raise _wrong_type(f"the text of {what}", step.text, "make Step.text a text")
    reward = None if step.reward is None else number_of(step.reward, f"the reward of {what}")
    return Step(step.text, reward, flag_of(step.ended, f"`ended` of {what}"))


def step_of(returned: object, what: str) -> Step:
    """Read the result of `step` of a game, in any of its forms: five values (Gymnasium), four (the older Gym), or a
    `Step`."""
    if isinstance(returned, Step):
        return checked_step(returned, what)
    if isinstance(returned, tuple) and len(returned) in (4, 5):
        observation, reward, *flags = returned[:-1]
        names = ("terminated", "truncated") if len(flags) == 2 else ("done",)
        ended = any([flag_of(flag, f"`{name}` of {what}") for flag, name in zip(flags, names, strict=True)])
        text = "" if observation is None and ended else text_of(observation, f"the observation of {what}")
        return Step(text, number_of(reward, f"the reward of {what}"), ended)
    found = f"{len(returned)} values" if isinstance(returned, tuple) else type_name(returned)
    raise EnvironmentFailedError(
        f"{what} returned {found}",
        remedy="return (observation, reward, terminated, truncated, info) or burnish.agents.environments.protocol.Step",
    )


def _wrong_type(what: str, value: object, remedy: str) -> EnvironmentFailedError:
    return EnvironmentFailedError(f"{what} is of the type {type_name(value)}", remedy=remedy)


def type_name(value: object) -> str:
    """`numpy.ndarray`, `str`, `my_games.Board`."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _number(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"it holds a value of the type {type_name(value)}")
