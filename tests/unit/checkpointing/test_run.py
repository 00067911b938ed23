"""Whose folder it is: configuration and environment."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from burnish.checkpointing.run import RunDirectory, dump_config, git_revision, refused_differences
from burnish.config.schema import RlConfig
from burnish.errors import CheckpointError


def config(**fields: Any) -> RlConfig:
    return RlConfig.model_validate({"model": "m", "rewards": "math"} | fields)


def test_a_run_begins_and_continues(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "new" / "run")
    assert run.admit(config(seed=3)) is False
    run.begin(config(seed=3))
    assert run.admit(config(seed=3)) is True
    run.begin(config(seed=3))
    assert run.read_config()["seed"] == 3
    starts = json.loads(run.environment_file.read_text())["starts"]
    assert len(starts) == 2
    assert starts[0]["packages"]["torch"].split(".")[0].isdigit()


def test_the_dump_reads_back_to_the_same_configuration() -> None:
    original = config(algorithm={"loss_options": {"dual_clip": 3.0}}, rollout={"stop": ["数", "\n"]})
    assert RlConfig.model_validate(yaml.safe_load(dump_config(original))) == original


def test_differences_are_refused_and_listed(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.begin(config())
    with pytest.raises(CheckpointError) as caught:
        run.admit(config(seed=1, optimization={"learning_rate": 0.5}, logging={"project": "x"}))
    message = caught.value.message
    assert "optimization.learning_rate: 1e-06 before, 0.5 now" in message
    assert "seed: 0 before, 1 now" in message
    assert "project" not in message
    assert run.read_config()["seed"] == 0


def judged_by(**changed: Any) -> dict[str, Any]:
    options = {"url": "http://here/v1", "model": "one"} | changed
    return {"rewards": ["math", {"name": "judge", "options": options}]}


def of_sums(**fields: Any) -> dict[str, Any]:
    return {"rewards": [], "data": {}, "domains": {"sums": {"train": "sums.jsonl", "rewards": "exact"} | fields}}


def solved_from(score: float, **fields: Any) -> dict[str, Any]:
    return of_sums(**fields) | {"evaluation": {"success": "exact", "success_score": score}}


WEIGHED, KEPT, OWN = {"difficulty_weight": 1.0}, {"difficulty": {"keep": [0.2, 0.8]}}, {"success_score": 0.7}
LINEAR = {"optimization": {"schedule": "linear"}}


@pytest.mark.parametrize(
    ("before", "now", "refused"),
    [
        ({}, {"output": "elsewhere"}, []),
        ({}, {"steps": 500}, []),
        (LINEAR, LINEAR | {"steps": 7}, ["steps"]),  # which set the learning rate
        ({}, {"evaluation": {"every_steps": 3}}, []),
        ({}, {"checkpoint": {"keep": 9}}, []),
        ({}, {"max_staleness": 1, "cluster": {"rollout_workers": 3}}, ["max_staleness"]),
        ({}, {"cluster": {"rollout_workers": 3, "trainers": 2}}, []),
        ({}, {"data": {"eval": "x.jsonl"}}, []),
        ({}, {"data": {"train": "x.jsonl"}}, ["data.train.0"]),
        ({}, {"optimization": {"tokens_per_microbatch": 5}}, []),
        ({}, {"rewards": ["math", "length"]}, ["rewards.1"]),
        ({}, {"rollout": {"group_size": 4}}, ["rollout.group_size"]),
        ({}, {"model": {"path": "m", "device": "cuda"}}, []),
        ({}, {"model": {"path": "m", "lora": {"rank": 4}}}, ["model.lora"]),
        # where a judge is asked, and what
        (judged_by(), judged_by(url="http://there/v1", retries=9, cache="kept"), []),
        (judged_by(), judged_by(model="another"), ["rewards.1.options.model"]),
        (judged_by(), judged_by(template="{response}?"), ["rewards.1.options.template"]),
        # how a domain is evaluated, and what it trains on
        (of_sums(), of_sums(eval="other.jsonl", evaluation={"samples": 8, "max_prompts": 9}), []),
        (of_sums(), of_sums(evaluation={"success_score": 0.5}), ["domains.sums.evaluation.success_score"]),
        (of_sums(), of_sums(share=0.5), ["domains.sums.share"]),
        (of_sums(), of_sums(train="other.jsonl"), ["domains.sums.train.0.path"]),
        # what counts as solved, where it decides what is trained on
        (solved_from(0.5, **WEIGHED), solved_from(1.0, **WEIGHED), ["evaluation.success_score"]),
        (solved_from(0.5, **KEPT), solved_from(1.0, **KEPT), ["evaluation.success_score"]),
        (solved_from(0.5, **WEIGHED, evaluation=OWN), solved_from(1.0, **WEIGHED, evaluation=OWN), []),
        (solved_from(0.5), solved_from(1.0), []),
    ],
)
def test_what_may_differ(before: dict[str, Any], now: dict[str, Any], refused: list[str]) -> None:
    saved = config(**before).model_dump(mode="json")
    assert [d.field for d in refused_differences(saved, config(**now))] == refused


def test_a_field_that_is_new_since_then_has_its_default() -> None:
    before = config().model_dump(mode="json")
    del before["rollout"]["max_prompt_tokens"]
    assert refused_differences(before, config()) == []
    (refused,) = refused_differences(before, config(rollout={"max_prompt_tokens": 9}))
    assert refused.field == "rollout.max_prompt_tokens"


def test_only_what_differs_of_a_section_in_a_list_is_shown() -> None:
    def weighted(weight: float, train: str) -> RlConfig:
        return config(rewards=[{"name": "math"}, {"name": "length", "weight": weight}], data={"train": train})

    before, changed = weighted(0.1, "a").model_dump(mode="json"), weighted(0.2, "b")
    assert [str(one) for one in refused_differences(before, changed)] == [
        "data.train.0.path: 'a' before, 'b' now",
        "rewards.1.weight: 0.1 before, 0.2 now",
    ]
    (more,) = refused_differences(before, config(rewards=[{"name": "math"}], data={"train": "a"}))
    assert (more.field, more.now) == ("rewards.1", None)


def test_checkpoints_of_nobody_are_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(CheckpointError, match=r"has checkpoints but no config\.yaml"):
        RunDirectory(tmp_path).admit(config())


def test_a_folder_that_cannot_be_made_is_an_error_with_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot write to .*file/run") as caught:
        RunDirectory(tmp_path / "file" / "run").begin(config())
    assert caught.value.remedy


def judged(key: str, **fields: Any) -> RlConfig:
    return config(rewards=[{"name": "judge.py:score", "options": {"api_key": key, "pad_token": "<pad>"}}], **fields)


@pytest.mark.slow
def test_secrets_are_masked_and_a_run_with_them_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["burnish", "rl", "run.yaml", "rewards.0.options.api_key=hunter2hunter2"])
    run = RunDirectory(tmp_path / "run")
    run.begin(judged("hunter2hunter2"))
    for file in (run.config_file, run.environment_file):
        assert "hunter2" not in file.read_text()
    assert "api_key=(masked)" in run.environment_file.read_text()
    assert "<pad>" in run.config_file.read_text()
    assert run.admit(judged("hunter2hunter2"))
    run.begin(judged("hunter2hunter2"))
    assert run.admit(judged("hunter2hunter2"))
    with pytest.raises(CheckpointError, match="a different configuration") as caught:
        run.admit(judged("another-key"))
    assert "another-key" not in str(caught.value)
    assert "masked:" not in str(caught.value)
    with pytest.raises(CheckpointError, match="seed"):
        run.admit(judged("hunter2hunter2", seed=9))


def test_only_the_owner_reads_the_files_of_a_run(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        RunDirectory(tmp_path / "run").begin(config())
    finally:
        os.umask(before)
    modes = {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "run").iterdir() if file.is_file()}
    assert modes == {"config.yaml": 0o600, "environment.json": 0o600}


def test_outside_of_a_checkout_there_is_no_revision(tmp_path: Path) -> None:
    assert git_revision(tmp_path) is None
