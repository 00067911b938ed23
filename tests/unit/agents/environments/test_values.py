"""Observations, rewards, openings and steps as environments return them."""

import datetime
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from burnish.agents.environments.protocol import Step
from burnish.agents.environments.values import flag_of, number_of, opening_of, step_of, text_of
from burnish.errors import EnvironmentFailedError

ITSELF: list[object] = []
ITSELF.append(ITSELF)


MESSAGES = [{"role": "system", "content": "You play."}, {"role": "user", "content": "Begin."}]


@pytest.mark.parametrize(
    ("read", "value", "found"),
    [
        (text_of, "higher", "higher"),
        (text_of, 7, "7"),
        (text_of, np.int64(7), "7"),
        (text_of, np.bool_(False), "false"),
        (text_of, np.str_("é"), "é"),
        (text_of, (14, np.int64(10), 0), "[14, 10, 0]"),
        (text_of, {"board": ["X", None], "é": np.int8(3)}, '{"board": ["X", null], "é": 3}'),
        (opening_of, None, None),
        (opening_of, "Begin.", "Begin."),
        (opening_of, MESSAGES, MESSAGES),
        (opening_of, [{"type": "text", "text": "Be"}, {"type": "text", "text": "gin."}], "Begin."),
        (step_of, ("higher", 0.5, False, False, {}), Step("higher", 0.5, False)),
        (step_of, (3, np.float32(0.5), np.bool_(True), False, {}), Step("3", 0.5, True)),
        (step_of, ("old", 2, True, {}), Step("old", 2.0, True)),
        (step_of, (None, 1.0, True, False, {}), Step("", 1.0, True)),
        (step_of, Step("mine", None, True), Step("mine", None, True)),
    ],
)
def test_observations_openings_and_steps(read: Callable[[object, str], object], value: object, found: object) -> None:
    assert read(value, "it") == found


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        (np.zeros(2), "it holds a value of the type numpy.ndarray"),
        ([datetime.date(2026, 1, 1)], "it holds a value of the type datetime.date"),
        (np.datetime64("2026-01-01"), "it holds a value of the type datetime.date"),
        ({(1, 2): "x"}, "keys must be str"),
        ([math.nan], "JSON has no NaN"),
        (ITSELF, "data that contain themselves"),
    ],
)
def test_observations_that_have_no_text(observation: object, message: str) -> None:
    with pytest.raises(EnvironmentFailedError, match="the view is not a text or plain data") as raised:
        text_of(observation, "the view")
    assert message in str(raised.value)


@pytest.mark.parametrize(("value", "number"), [(1, 1.0), (True, 1.0), (np.float32(0.25), 0.25), (np.bool_(True), 1.0)])
def test_numbers(value: object, number: float) -> None:
    assert number_of(value, "it") == number
    assert type(number_of(value, "it")) is float


@pytest.mark.parametrize("value", ["1", None, [1.0], np.ones(1), 1j, math.nan, math.inf, np.float64("nan"), 10**400])
def test_what_is_not_a_number(value: object) -> None:
    with pytest.raises(EnvironmentFailedError, match="the reward is"):
        number_of(value, "the reward")


@pytest.mark.parametrize("value", [0, 1, None, "yes", np.int64(1)])
def test_what_is_not_a_flag(value: object) -> None:
    assert flag_of(np.bool_(True), "it") is True
    with pytest.raises(EnvironmentFailedError, match="`done` is of the type"):
        flag_of(value, "`done`")


IMAGE = [{"type": "image", "image": 0}, {"type": "text", "text": "x"}]
THREE = r"step of G returned 3 values\n  -> return \(observation, reward, terminated, truncated"
BLOCKS = [{"role": "user", "content": [{"type": "text"}]}]


@pytest.mark.parametrize(
    ("read", "value", "message"),
    [
        (opening_of, 5, "of the type int"),
        (opening_of, [], "of the type list"),
        (opening_of, IMAGE, "content blocks of the types image, text"),
        (opening_of, BLOCKS, "a message whose content is of the type list"),
        (step_of, ("higher", 0.5, False), THREE),
        (step_of, "higher", "step of G returned str"),
        (step_of, ("higher", "much", False, False, {}), "the reward of step of G is of the type str"),
        (step_of, ("higher", 0.0, None, False, {}), "`terminated` of step of G is of the type NoneType"),
        (step_of, ("higher", 0.0, True, 0, {}), "`truncated` of step of G is of the type int"),
        (step_of, (np.zeros(3), 0.0, False, False, {}), "the observation of step of G is not a text .* numpy.ndarray"),
        (step_of, Step(5), "the text of step of G is of the type int"),  # type: ignore[arg-type]
        (step_of, Step("x", reward=math.inf), "the reward of step of G is inf"),
        (step_of, Step("x", ended=1), "`ended` of step of G is of the type int"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_opening_and_no_step(read: Callable[[Any, str], object], value: object, message: str) -> None:
    with pytest.raises(EnvironmentFailedError, match=message):
        read(value, "step of G")
