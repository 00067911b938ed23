"""Results of finished commands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from burnish.checkpointing.run import CONFIG_FILE, dump_config
from burnish.config.schema import RunConfig
from burnish.errors import CheckpointError
from burnish.observability.atomic import disk_errors, write_text_atomically

WEIGHTS_FOLDER = "policy"
"""Name of the folder inside a checkpoint that `from_pretrained` loads."""
CRITIC_FOLDER = "critic"
"""Name of the folder inside a checkpoint with the critic's value head, and the backbone of a separate critic."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """The folder of a run, and the step it has reached."""

    folder: Path
    step: int
    stopped: bool
    """True if the run was asked to stop before its last step."""

    @property
    def weights(self) -> Path:
        """The folder that `from_pretrained` loads."""
        return self.folder / "checkpoints" / f"step-{self.step:06d}" / WEIGHTS_FOLDER


@dataclass(frozen=True, slots=True)
class EvalReport:
    """Metrics of an evaluation (`eval/...`), the file that holds them, and the file with the responses, if any."""

    metrics: Mapping[str, float]
    metrics_file: Path
    rollouts_file: Path | None = None


def new_eval_folder(run_dir: Path, kind: str = "eval") -> Path:
    """`eval/001` in the folder of a run, or the next free number: earlier results stay. kind: another name for it."""
    place = run_dir / kind
    with disk_errors(f"write to {place}", run_dir, CheckpointError):
        place.mkdir(parents=True, exist_ok=True)
    number = max((int(entry.name) for entry in place.iterdir() if entry.name.isdecimal()), default=0)
    while True:
        number += 1
        folder = place / f"{number:03d}"
        with suppress(FileExistsError):  # another evaluation has just taken it
            folder.mkdir()
            return folder


def write_eval_metrics(folder: Path, config: RunConfig, metrics: Mapping[str, float]) -> Path:
    """Write `metrics.json`, and next to it the configuration of the evaluation (its `model.path` is the measured
    model). Returns the path of the metrics."""
    write_text_atomically(folder / CONFIG_FILE, dump_config(config))
    file = folder / "metrics.json"
    write_text_atomically(file, json.dumps(metrics, indent=2, sort_keys=True) + "\n")
    return file
