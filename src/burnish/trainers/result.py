"""What a finished command has to tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

WEIGHTS_FOLDER = "policy"
"""Name of the folder inside a checkpoint that `from_pretrained` loads."""
CRITIC_FOLDER = "critic"
"""Name of the folder inside a checkpoint with the critic's trunk (where it has its own) and value head."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """Where a run lies, the step it has reached, and the folder that `from_pretrained` loads."""

    folder: Path
    step: int
    weights: Path
    stopped: bool
    """True when the run was asked to stop before its last step."""

    @staticmethod
    def of(folder: Path, step: int, *, stopped: bool) -> RunResult:
        return RunResult(folder, step, folder / "checkpoints" / f"step-{step:06d}" / WEIGHTS_FOLDER, stopped)


@dataclass(frozen=True, slots=True)
class EvalReport:
    """Numbers of an evaluation by name (`eval/...`), and the files that hold them and the responses."""

    metrics: Mapping[str, float]
    metrics_file: Path
    rollouts_file: Path
