"""Every built-in reward has a constructor with its options, and what it returns is the reward of a run file."""

import inspect
from typing import Any, get_type_hints

import pytest

from burnish import rewards
from burnish.config.schema import RewardConfig
from burnish.errors import ConfigError
from burnish.rewards.constructors import WorkerSettings
from burnish.rewards.loading import RewardSpec, load_reward
from burnish.rewards.registry import BUILT_INS

REQUIRED: dict[str, dict[str, Any]] = {
    "command": {"argv": ["true"]},
    "regex": {"pattern": "a"},
    "length": {"maximum": 4},
    "overlong": {"max_tokens": 8, "buffer_tokens": 2},
    "judge": {"url": "http://localhost:8000/v1", "model": "m"},
}


OPTIONAL = {"json_schema": "jsonschema", "reasoning_gym": "reasoning_gym"}
"""Packages that may not be installed."""


@pytest.mark.slow_cases("code")
@pytest.mark.parametrize("name", BUILT_INS)
def test_each_built_in_has_a_function_whose_reward_can_be_loaded(name: str) -> None:
    if name in OPTIONAL:
        pytest.importorskip(OPTIONAL[name])
    config = getattr(rewards, name)(**REQUIRED.get(name, {}))
    assert config.options == REQUIRED.get(name, {})
    assert load_reward(RewardSpec(config.name, name, config.options)).spec.name == name


@pytest.mark.parametrize(
    ("name", "option", "word", "near"),
    [
        ("math", "require", "bxed", "boxed"),
        ("length", "unit", "word", "words"),
        ("repetition", "unit", "token", "tokens"),
        ("code", "score", "al", "all"),
        ("code", "grade", "share", "shared"),
        ("command", "too_slow", "wron", "wrong"),
        ("instructions", "mode", "lose", "loose"),
        ("reasoning_gym", "extract", "tag", "tags"),
    ],
)
def test_a_misspelt_word_is_refused_with_the_nearest(name: str, option: str, word: str, near: str) -> None:
    if name in OPTIONAL:
        pytest.importorskip(OPTIONAL[name])
    why = rf"option {option} of reward '{name}' is '{word}'(?s:.*)did you mean '{near}'"
    with pytest.raises(ConfigError, match=why):
        load_reward(RewardSpec(name, name, {**REQUIRED.get(name, {}), option: word}))


def test_a_misspelt_option_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"reward judge has no option 'tempature'\n.*'temperature'"):
        rewards.judge("http://localhost:8000/v1", "m", tempature=1)


def test_options_are_those_of_the_class() -> None:
    assert str(inspect.signature(rewards.regex)) == "(pattern: str, full: bool = False, **settings)"
    assert rewards.format(("a", "b"), opened=None).options == {"tags": ["a", "b"]}
    with pytest.raises(TypeError, match="missing a required argument: 'pattern'"):
        rewards.regex()
    assert BUILT_INS["regex"].options == {
        "pattern": "regular expression (required)",
        "full": "the pattern must match the whole response (default false)",
    }
    assert BUILT_INS["format"].options["tags"] == "names of the tags in order (default [think, answer])"
    assert BUILT_INS["code"].options["seconds"].endswith("timeout_seconds (default 6)")


def test_weight_label_and_limits() -> None:
    config = rewards.length(maximum=64, weight=2.0, label="short", timeout_seconds=3.0, environment=["KEY"])
    assert config == RewardConfig(
        name="length", options={"maximum": 64}, weight=2.0, label="short", timeout_seconds=3.0, environment=("KEY",)
    )
    assert config.weighted(0.5).weight == 0.5
    assert config.weighted(0.5).label == "short"


def test_every_setting_of_a_reward_can_be_given() -> None:
    """`name` and `options` are what the functions are for. A judge has a concurrency among its own options."""
    assert set(get_type_hints(WorkerSettings)) == set(RewardConfig.model_fields) - {"name", "options"}
    watched = rewards.math(audit=True, concurrency=4, domains="math")
    assert watched == RewardConfig(name="math", options=watched.options, audit=True, concurrency=4, domains=("math",))
    assert rewards.judge(model_path="runs/j", concurrency=3, domains=["chat"]).options["concurrency"] == 3


def test_a_reward_model_is_named_by_its_path() -> None:
    assert rewards.model("runs/rm@best", dtype="bfloat16").name == "model:runs/rm@best"
    assert rewards.model("runs/rm@best", dtype="bfloat16").options == {"dtype": "bfloat16"}


def test_a_function_keeps_its_name_and_takes_a_weight() -> None:
    def brief(response: str) -> float:
        return -len(response)

    found = rewards.function(brief, weight=0.1, options={"limit": 3})
    assert (found.call, found.config.name, found.config.weight) == (brief, "python:brief", 0.1)
    assert found.config.options == {"limit": 3}
    assert found.weighted(2.0).config.weight == 2.0
    assert rewards.function(lambda response: 1.0).config.name == "python:lambda"


def test_a_setting_that_no_reward_can_have_is_refused_in_words() -> None:
    with pytest.raises(ConfigError, match="timeout_seconds"):
        rewards.exact(timeout_seconds=-1.0)


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("code", {"seconds": "5"}, "option seconds of reward 'code' is '5'\n  -> write a finite number"),
        ("code", {"seconds": float("nan")}, "is nan\n  -> write a finite number"),
        ("code", {"memory_mb": 100.5}, "is 100.5\n  -> write a whole number"),
        ("code", {"url": 3}, "is 3\n  -> write text, or null"),
        ("exact", {"strip": "no"}, "option strip of reward 'exact' is 'no'\n  -> write true or false"),
        ("format", {"tags": "think"}, "option tags of reward 'format' is 'think'\n  -> write a list of: text"),
        ("length", {"maximum": True}, "is True\n  -> write a whole number, or null"),
    ],
)
def test_options_of_another_type_are_refused(name: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        load_reward(RewardSpec(name, name, options))
