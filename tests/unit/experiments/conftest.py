"""Folders of runs as training leaves them, without the training."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from burnish.checkpointing.run import dump_config
from burnish.config.loading import load_run_data


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[..., Path]:
    """Writes a run of `rl`: `recorded(name, {step: accuracy}, algorithm="rloo", seed=1)`; each step samples 100 tokens.
    Returns its folder."""

    def write(name: str, curve: Mapping[int, float], *overrides: str, **fields: Any) -> Path:
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        data = {"model": "m", "data": {"train": "t", "eval": "e"}, "rewards": "exact", "output": str(folder)}
        data |= {"steps": max(curve), **fields}
        (folder / "config.yaml").write_text(dump_config(load_run_data(data, overrides, "rl").config))
        tokens = {"rollout/response_tokens_sum": 100}
        rows = [{"step": step} | (tokens if step else {}) for step in range(max(curve) + 1)]
        rows = [row | ({"eval/accuracy": curve[row["step"]]} if row["step"] in curve else {}) for row in rows]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return folder

    return write
