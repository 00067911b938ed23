"""What this machine has, and that an impossible run is refused before anything of it is there."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console

from burnish.config.loading import load_run_data
from burnish.errors import ConfigError
from burnish.forward.race import RaceResult
from burnish.forward.verdicts import VerdictCache
from burnish.machine import processor
from burnish.machine.resources import ContainerLimits
from burnish.planning.machines import Machine
from burnish.planning.model_facts import read_model_facts
from burnish.planning.processes import seats_of
from burnish.trainers import placement
from burnish.trainers.placement import (
    KeptTrial,
    check_placement,
    placed,
    reward_facts,
    this_machine,
    with_kept_speed,
)
from burnish.trainers.sft import train_sft


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
    monkeypatch.setattr(
        placement, "container_limits", lambda: ContainerLimits(processors=0.5, memory_bytes=123_456_789)
    )
    assert this_machine().memory_bytes == 123_456_789
    assert this_machine().cores == 1


def test_an_impossible_run_leaves_nothing_behind(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    data = {"model": {"path": str(model), "device": "cpu"}, "data": {"train": str(tmp_path / "train.jsonl")}}
    words = [f"output={tmp_path / 'run'}", "cluster.trainers=2"]
    config = load_run_data(data, words, "sft").config
    assert check_placement(config, Machine(2, 2, 8 << 30)) == []
    assert "2 processes share 1 core," in check_placement(config, Machine(1, 1, 8 << 30))[0]
    whole = seats_of(config.changed("cluster", sharding="whole"), read_model_facts(model), Machine(2, 2, 8 << 30))
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
    first, second = reward_facts(load_run_data(data, (), "rl").config)
    assert first.facts.num_parameters == 300
    assert (first.label, first.width, first.device, first.tokens_per_microbatch) == ("a", 2, "cuda:1", 64)
    assert (second.label, second.facts, second.width, second.device) == ("model", None, 4, "auto")
    assert second.tokens_per_microbatch == 16_384


SHAPE = (
    "model_type llama, num_hidden_layers 5, hidden_size 64, intermediate_size 172, num_attention_heads 8, "
    "num_key_value_heads 4, head_dim 8, vocab_size 512, embedding (512, 64), float32"
)


def kept(folder: Path, path: str, seconds: float, shape: str = SHAPE, threads: int = 1) -> None:
    key = {"path": path, "shape": shape, "threads": threads, **processor.identity()}
    VerdictCache(folder).keep(key, RaceResult("fast", {"fast": seconds, "plain": 2 * seconds}))


def test_the_speed_of_this_processor_is_what_was_timed_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("burnish.trainers.placement.own_cache", lambda: VerdictCache(tmp_path))
    config = load_run_data({"model": "m", "data": {"train": "a"}, "rewards": "math", "cluster": {"threads": 1}}).config
    facts = KeptTrial.of(({"path": "decoding", "shape": SHAPE}, RaceResult("a", {"a": 1.0})))
    machine = Machine(2, 2, 8 << 30)
    assert with_kept_speed(machine, config, facts.facts).speed is None
    kept(tmp_path, "training passes", 0.5, SHAPE.replace("hidden_size 64", "hidden_size 128"))
    kept(tmp_path, "training passes", 1e-9, threads=2)
    kept(tmp_path, "float32 products", 1e-9, "512 x 64 x 256")
    other = with_kept_speed(machine, config, facts.facts).speed
    assert other.source.endswith("a model of hidden size 128")
    kept(tmp_path, "training passes", 0.5)
    kept(tmp_path, "decoding", 0.01)
    speed = with_kept_speed(machine, config, facts.facts).speed
    assert speed.source.endswith("a model of these sizes")
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 172 + 2 * 64
    assert speed.operations == pytest.approx(6 * 2 * layer * 31 * 16 / 0.5)  # two layers, 31 x 16 tokens
    step = 32 * (2 * (2 * layer + 512 * 64) + 4 * 2 * 64 * 128)  # 32 rows, two layers and the head, 128 tokens before
    assert speed.decoding_operations == pytest.approx(step / 0.01)
