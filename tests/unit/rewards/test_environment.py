"""What a reward sees of the environment of the training process."""

import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from burnish.config.schema import RewardConfig
from burnish.errors import ConfigError
from burnish.outside.user_processes import PASSED, worker_environment

SEEN = """
    import os, sys
    from burnish.types import Score

    def seen(response):
        stated = open("/proc/self/environ").read() if sys.platform == "linux" else ""
        return Score(0.0, parts={name: float(os.environ.get(name) == "s3cr3t") for name in WORDS} | {
            "kernel/" + name: float(name + "=s3cr3t" in stated.split("\\0")) for name in WORDS} | {
            "child/" + name: float(os.popen("echo $" + name).read().strip() == "s3cr3t") for name in WORDS})

    WORDS = ("HF_TOKEN", "WANDB_API_KEY", "JUDGE_KEY", "MY_SETTING", "LC_JUDGE")
    def blind(response): return seen(response)
    def early(response): return Score(EARLY)
    EARLY = sum(word in os.environ for word in ("HF_TOKEN", "WANDB_API_KEY"))
"""


@pytest.fixture
def file(reward_file: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HF_TOKEN", "WANDB_API_KEY", "JUDGE_KEY", "MY_SETTING", "LC_JUDGE"):
        monkeypatch.setenv(name, "s3cr3t")
    return reward_file(SEEN)


def seen_by(label: str, rollout: Any) -> set[str]:
    """Names that the reward found in its own environment, in the kernel's copy and in that of a program it started."""
    parts = {name for name, value in rollout.reward_parts.items() if value and name.startswith(f"{label}/")}
    return {name.removeprefix(f"{label}/") for name in parts}


def named(*names: str) -> set[str]:
    return {place + name for name in names for place in ("", "kernel/", "child/")}


def test_keys_and_settings_stay_with_the_training_process(make_scorer, make_items, file: Path) -> None:
    (scored,) = make_scorer(f"{file}:seen", f"{file}:early").score(make_items(["ab"]))
    assert seen_by("seen", scored) == named("LC_JUDGE")
    assert scored.reward_parts["early"] == 0.0  # nor while the file is imported


@pytest.mark.slow
def test_each_reward_sees_what_it_names_and_no_other_one_does(make_scorer, make_items, file: Path) -> None:
    scorer = make_scorer(
        {"name": f"{file}:seen", "environment": ["JUDGE_KEY", "MY_SETTING"]},
        {"name": f"{file}:blind"},
        {"name": f"{file}:seen", "label": "other", "environment": "HF_TOKEN"},
        workers=2,
    )
    for scored in scorer.score(make_items(["ab"] * 9)):
        assert seen_by("seen", scored) == named("JUDGE_KEY", "MY_SETTING", "LC_JUDGE")
        assert seen_by("blind", scored) == named("LC_JUDGE")
        assert seen_by("other", scored) == named("HF_TOKEN", "LC_JUDGE")


def test_a_variable_that_is_not_set_is_an_error_at_the_start(make_scorer, file: Path) -> None:
    with pytest.raises(ConfigError, match="'seen' needs the environment variable NO_SUCH_KEY, which is not set"):
        make_scorer({"name": f"{file}:seen", "environment": ["JUDGE_KEY", "NO_SUCH_KEY"]})


def test_environment_of_a_reward_without_a_worker_is_refused(make_scorer, file: Path) -> None:
    with pytest.raises(ConfigError, match="runs in the training process"):
        make_scorer({"name": "exact", "environment": ["JUDGE_KEY"]})


@pytest.mark.parametrize("name", ["JUDGE_KEY=abc", "", "A B", "A\0B"])
def test_only_names_are_taken(name: str) -> None:
    with pytest.raises(ValidationError):
        RewardConfig(name="math", environment=[name])


def test_no_name_that_is_always_passed_looks_like_a_key() -> None:
    words = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PROXY", "CREDENTIAL")
    assert [name for name in PASSED if any(word in name.replace("TOKENIZERS", "") for word in words)] == []
    assert worker_environment((), {"A": "1"}) == {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    assert worker_environment(("A",), {"A": "1", "OMP_NUM_THREADS": "4"})["OMP_NUM_THREADS"] == "4"
    assert "PATH" in worker_environment((), os.environ)
