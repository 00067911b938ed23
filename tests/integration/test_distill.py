"""Distillation end to end: a student learns a teacher's distributions; killed, shared or at rest, it is the same run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from runs import rows_of

import burnish
from burnish.config.schema import SftConfig
from burnish.config.schema_distill import DistillConfig
from burnish.config.loading import load_run_data
from burnish.errors import ConfigError, ModelError
from burnish.trainers.distill import is_sampled, train_distill
from burnish.trainers.sft import train_sft

QUIET = Console(quiet=True)
Train = Callable[..., Path]


@pytest.fixture
def teacher(tiny_sft: Callable[..., SftConfig], tmp_path: Path, save_tiny_llama: Callable[..., Path]) -> str:
    """A run of another width than the student, after a few steps."""
    wider = save_tiny_llama("0123456789+=", hidden_size=48, intermediate_size=64)
    train_sft(tiny_sft("steps=6", f"model={wider}", f"output={tmp_path}/teacher"), console=QUIET)
    return f"{tmp_path}/teacher@best"


@pytest.fixture
def config(tiny_sft: Callable[..., SftConfig], teacher: str, tmp_path: Path) -> Callable[..., DistillConfig]:
    """A run file that distills in `tmp_path/NAME`, on the texts of `tiny_sft`."""

    def build(name: str, *overrides: str) -> DistillConfig:
        fields = tiny_sft(f"output={tmp_path}/{name}", "steps=4").model_dump(exclude_unset=True)
        found = load_run_data({**fields, "teacher": teacher}, list(overrides), "distill").config
        assert isinstance(found, DistillConfig)
        return found

    return build


def test_a_share_of_steps_is_spread_evenly() -> None:
    assert [step for step in range(1, 11) if is_sampled(step, 0.3)] == [4, 7, 10]
    assert all(is_sampled(step, 1.0) for step in range(1, 5))
    assert not any(is_sampled(step, 0.0) for step in range(1, 5))


def test_it_trains(config: Callable[..., DistillConfig]) -> None:
    run = config("run", "hard_weight=0.3", "top_k=3", "temperature=2")
    train_distill(run, console=Console())
    for row in rows_of(run.output): print(row)
