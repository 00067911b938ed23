"""Every kind of run says at its start how many held-out prompts are training prompts too, and names the first."""

import io
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from runs import write_lines

from burnish.config.loading import load_run_data
from burnish.trainers.preferences.loop import open_prefer_run
from burnish.trainers.reward_model.loop import open_rm_run
from burnish.trainers.rl.setup.parts import open_rl_run
from burnish.trainers.rl.setup.preflight import preview
from burnish.trainers.sft import open_sft_run

OWN: dict[str, dict[str, Any]] = {
    "rl": {"rewards": "exact", "rollout": {"prompts_per_step": 2, "max_prompt_tokens": 8, "max_response_tokens": 4}},
    "sft": {"max_tokens": 16},
    "rm": {"max_tokens": 16},
    "prefer": {"max_tokens": 16, "losses": "sigmoid"},
}
PAIR = {"chosen": "7", "rejected": "8"}
TOLD = {"rl": {"answer": "7"}, "sft": {"completion": "7"}, "rm": PAIR, "prefer": PAIR}
OPEN: dict[str, Callable[..., AbstractContextManager[Any]]] = {
    "rl": open_rl_run,
    "sft": open_sft_run,
    "rm": open_rm_run,
    "prefer": open_prefer_run,
}


@pytest.mark.parametrize("kind", ["rl", "sft", "rm", "prefer"])
def test_shared_and_repeated_prompts_are_said_at_the_start(kind: str, tiny_model: Path, tmp_path: Path) -> None:
    for name, asked in {"train": ["1+1=", "2+2=", "2+2="], "eval": ["3+4=", "1+1="]}.items():
        rows = [{"prompt": prompt, **TOLD[kind]} for prompt in asked]
        write_lines(tmp_path / f"{name}.jsonl", rows)
    data = {
        "output": str(tmp_path / "run"),
        "model": str(tiny_model),
        "data": {name: str(tmp_path / f"{name}.jsonl") for name in ("train", "eval")},
        "steps": 1,
        "logging": {"sinks": []},
        **OWN[kind],
    }
    said = io.StringIO()
    with OPEN[kind](load_run_data(data, [], kind).config, Console(file=said, width=200)):  # type: ignore[arg-type]
        pass
    assert "1 of 2 held-out prompts are training prompts too: eval:1 is train:0\n" in said.getvalue()
    assert "1 of 3 training prompts repeat an earlier one: train:2 repeats train:1\n" in said.getvalue()


def test_without_a_tokenizer_other_tools_are_another_question(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ("add", "add", "look_up")]
    rows = [{"prompt": [{"role": "user", "content": "1+1="}], "answer": "2", "tools": [tool]} for tool in tools]
    write_lines(tmp_path / "train.jsonl", rows)
    data = {"model": "owner/model", "data": {"train": str(tmp_path / "train.jsonl")}, **OWN["rl"]}
    notes = preview(load_run_data(data, [], "rl").config, None).notes
    assert notes[0] == "1 of 3 training prompts repeat an earlier one: train:1 repeats train:0"
