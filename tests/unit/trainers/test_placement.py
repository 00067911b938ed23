"""What this machine has, and that an impossible run is refused before anything of it is there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console

from burnish.config.loading import load_run_data
from burnish.errors import ConfigError
from burnish.machine.container import Limits
from burnish.planning.machines import Machine
from burnish.planning.model_facts import read_model_facts
from burnish.planning.seats import seats_of, with_sharding
from burnish.trainers import placement
from burnish.trainers.learning_cluster import train_sft
from burnish.trainers.placement import check_placement, placed, reward_facts, this_machine


@pytest.fixture
def model(save_tiny_llama: Callable[..., Path]) -> Path:
    return save_tiny_llama("abc")


def test_this_machine_has_what_pytorch_and_linux_say() -> None:
    machine = this_machine()
    assert machine.threads == torch.get_num_threads()
    assert machine.cores >= 1
    assert machine.memory_bytes > 1 << 28
    assert len(machine.gpu_bytes) == torch.cuda.device_count()


def test_the_limits_of_a_container_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "container_limits", lambda: Limits(processors=0.5, memory_bytes=123_456_789))
    assert this_machine().memory_bytes == 123_456_789
    assert this_machine().cores == 1


def test_an_impossible_run_leaves_nothing_behind(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    data = {"model": {"path": str(model), "device": "cpu"}, "data": {"train": str(tmp_path / "train.jsonl")}}
    words = [f"output={tmp_path / 'run'}", "cluster.trainers=2"]
    config = load_run_data(data, words, "sft").sft
    assert check_placement(config, Machine(2, 2, 8 << 30)) == []
    assert "2 processes share 1 core," in check_placement(config, Machine(1, 1, 8 << 30))[0]
    whole = seats_of(with_sharding(config, "whole"), read_model_facts(model), Machine(2, 2, 8 << 30))
    enough = sum(seat.host_bytes for seat in whole) - 1  # for slices of the optimizer
    (said,) = [line for line in check_placement(config, Machine(2, 2, enough)) if "sharding" in line]
    assert said == "cluster.sharding: optimizer (auto: there is too little memory for whole)"
    monkeypatch.setattr(placement, "this_machine", lambda: Machine(2, 2, enough))
    assert placed(config).cluster.sharding == "optimizer"
    assert placed(config).data == config.data
    monkeypatch.setattr(placement, "this_machine", lambda: Machine(2, 2, 1 << 20))
    with pytest.raises(ConfigError, match=r"need at least 9\d\d\.\d MiB of memory, but this machine has 1\.0 MiB"):
        train_sft(config, console=Console(quiet=True))
    assert not (tmp_path / "run").exists()


def test_the_sizes_of_reward_models_are_read_without_their_weights(model: Path, tmp_path: Path) -> None:
    """Their files may have a header only; what is not a folder of this machine has no sizes."""
    folder = tmp_path / "rm"
    folder.mkdir()
    (folder / "config.json").write_text((model / "config.json").read_text())
    header = json.dumps({"a": {"dtype": "F32", "shape": [30, 10], "data_offsets": [0, 1200]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    options = {"dtype": "bfloat16", "device": "cuda:1", "tokens_per_microbatch": 64}
    rewards = [{"name": f"model:{folder}", "label": "a", "options": options}, "math", {"name": "model:hub/name"}]
    data = {"model": {"path": str(model), "device": "cpu"}, "data": {"train": "a"}, "rewards": rewards}
    first, second = reward_facts(load_run_data(data, (), "rl").rl)
    assert first.facts is not None
    assert first.facts.num_parameters == 300
    assert (first.label, first.width, first.device, first.tokens_per_microbatch) == ("a", 2, "cuda:1", 64)
    assert (second.label, second.facts, second.width, second.device) == ("model", None, 4, "auto")
    assert second.tokens_per_microbatch == 16_384
