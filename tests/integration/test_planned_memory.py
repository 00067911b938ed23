"""The memory of a run's processes at their peaks is what the plan says, up to 15 %."""

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runs import run_file
from watching import children

from burnish.config.loading import load_run_data
from burnish.config.schema import RunConfig
from burnish.planning.processes import seats_of
from burnish.trainers.placement import model_facts, this_machine

PPO = {"algorithm": {"preset": "ppo", "kl_in": "reward", "kl_coef": 0.05}, "critic": {"kind": "separate"}}
GRPO = {"algorithm": {"preset": "grpo", "kl_in": "loss", "kl_coef": 0.05}}
LAYOUTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "one process": ("rl", PPO, {}),
    "two trainers": ("rl", GRPO, {"trainers": 2}),
    "two trainers, a worker": ("rl", PPO, {"trainers": 2, "rollout_workers": 1}),
    "slices of the optimizer": ("rl", PPO, {"trainers": 2, "rollout_workers": 1, "sharding": "optimizer"}),
    "four lanes": ("rl", GRPO, {"trainers": 2, "lanes": 4}),
    "two workers": ("rl", GRPO, {"rollout_workers": 2}),
    "a process for the critic": ("rl", PPO, {"own_process": ["critic"]}),
    "given data": ("sft", {}, {"trainers": 2}),
    "a teacher": ("distill", {}, {"trainers": 2}),
}


def told_of(pid: int, name: str) -> str:
    """A file that the system has of a process; empty once it has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return ""


def own_bytes(pid: int) -> int:
    """Proportional set size without shared memory, which the plan counts at the controller."""
    lines = re.findall(r"^(Pss|Pss_Shmem):\s+(\d+) kB", told_of(pid, "smaps_rollup"), re.MULTILINE)
    return 1024 * sum(int(number) if name == "Pss" else -int(number) for name, number in lines)


def role_of(pid: int) -> str | None:
    """The name of the process, as the file for its stacks has it."""
    found = re.search(r"stacks/([\w-]+)[.]txt", told_of(pid, "cmdline"))
    return found[1].replace("-", " ") if found else None


def peaks_of(command: list[str], log: Path) -> dict[str, int]:
    with log.open("w") as output:
        run = subprocess.Popen(command, stdout=output, stderr=output)
    peaks: dict[str, int] = {}
    while run.poll() is None:
        for name, pid in [("controller", run.pid), *((role_of(pid), pid) for pid in children(run.pid))]:
            if name is not None:
                peaks[name] = max(peaks.get(name, 0), own_bytes(pid))
        time.sleep(0.03)
    assert run.returncode == 0, log.read_text()
    return peaks


@pytest.fixture(scope="module")
def model(save_tiny_llama: Callable[..., Path]) -> Path:
    """34 million parameters: next to them a process' own 300 MiB are not what is measured."""
    return save_tiny_llama("0123456789+=", hidden_size=512, intermediate_size=1536, num_layers=10, num_heads=8)


@pytest.mark.matrix
@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_process_takes_more_than_its_plan(layout: str, model: Path, tiny_task: Path, tmp_path: Path) -> None:
    kind, fields, cluster = LAYOUTS[layout]
    common = {
        "output": str(tmp_path / "run"),
        "steps": 2,
        "model": {"path": str(model), "device": "cpu"},
        "evaluation": {"every_steps": None, "at_start": False},
        "checkpoint": {"every_steps": 1},
        "logging": {"sinks": []},
        "cluster": {"threads": 1, **cluster},
    }
    of_kind: dict[str, Any] = {
        "data": {"train": str(tiny_task / "train.jsonl")},
        "rewards": [{"name": f"{tiny_task / 'reward.py'}:digits", "label": "digits"}],
        "scoring": {"workers": 1},
        "rollout": {"prompts_per_step": 8, "group_size": 2, "max_prompt_tokens": 8, "max_response_tokens": 4},
        "optimization": {"minibatches": 2, "epochs": 1},
    }
    if kind in ("sft", "distill"):
        rows = tmp_path / "pairs.jsonl"
        rows.write_text('{"prompt": "1+1=", "completion": "02"}\n' * 40)
        of_kind = {"data": {"train": str(rows)}, "max_tokens": 16, "optimization": {"tokens_per_batch": 128}}
        of_kind |= {"teacher": str(model)} if kind == "distill" else {}
    config: RunConfig = load_run_data({**common, **of_kind, **fields}, (), kind).config  # type: ignore[arg-type, assignment]
    planned = {seat.name: seat.host_bytes for seat in seats_of(config, model_facts(config), this_machine())}
    peaks = peaks_of([sys.executable, "-m", "burnish", kind, run_file(config)], tmp_path / "log")
    ratios = {name: round(peak / planned[name], 2) for name, peak in peaks.items()}
    assert {name: ratio for name, ratio in ratios.items() if ratio > 1.15} == {}
