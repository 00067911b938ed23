"""The arithmetic of `burnish rm`, and which command a file is for."""

from __future__ import annotations

from burnish.config.kinds import kind_of_data
from burnish.config.loading import load_run_data
from burnish.config.plan import plan_rl
from burnish.config.plan_rm import plan_rm

DATA = {"model": "m", "data": {"train": "pairs.jsonl"}}


def test_steps_are_comparisons_over_the_batch_rounded_up() -> None:
    config = load_run_data({**DATA, "optimization": {"comparisons_per_batch": 32, "epochs": 2}}, (), "rm").rm
    assert plan_rm(config, num_comparisons=100).optimizer_steps == 7  # 200 / 32
    assert plan_rm(config).optimizer_steps is None


def test_a_fixed_number_of_steps_tells_the_passes() -> None:
    config = load_run_data({**DATA, "steps": 25}, (), "rm").rm
    assert plan_rm(config, num_comparisons=400).passes_over_data == 2.0


def test_normalising_on_a_policy_loads_it() -> None:
    config = load_run_data({**DATA, "normalization": {"kind": "gain_bias"}}, (), "rm").rm
    assert [role.role for role in plan_rm(config).models] == ["reward_model", "policy"]


def test_an_rl_plan_names_its_reward_models() -> None:
    config = load_run_data({**DATA, "rewards": {"name": "model:runs/rm", "weight": 0.5}}, (), "rl").rl
    (role,) = [role for role in plan_rl(config).models if role.role == "reward_model"]
    assert "runs/rm" in role.because


def test_kinds_are_told_apart_by_their_keys() -> None:
    assert kind_of_data({**DATA, "loss": "best_of"}) == "rm"
    assert kind_of_data({**DATA, "rewards": "math"}) == "rl"
    assert kind_of_data(DATA) == "sft"
    assert kind_of_data(DATA, ["normalization"]) == "rm"
