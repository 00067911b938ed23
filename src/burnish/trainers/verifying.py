"""Steps of a run made again from one of its checkpoints, and compared with its record."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from burnish.checkpointing.comparing import FirstDifference, different_settings, first_difference
from burnish.checkpointing.run import Difference
from burnish.checkpointing.store import CheckpointStore
from burnish.config.kinds import find_kind, load
from burnish.config.schema_run import RunConfig
from burnish.errors import BurnishError, CheckpointError
from burnish.observability.atomic import disk_errors
from burnish.observability.history import read_rows
from burnish.observability.sinks import METRICS_FILE
from burnish.trainers.forking import fork_run
from burnish.trainers.interrupt import StopRequest, Watch, watching
from burnish.trainers.result import RunResult
from burnish.trainers.run_folder import PATHS_FILE


@dataclass(frozen=True, slots=True)
class StepRange:
    """The steps after `start`, up to `last`."""

    start: int
    last: int

    def __str__(self) -> str:
        return f"steps {self.start + 1} to {self.last}" if self.start + 1 < self.last else f"step {self.last}"


def spans_of(run: Path, starts: Sequence[int], count: int | None) -> list[StepRange]:
    """The recorded steps after each of these checkpoints (none given: after all) up to the next one, or `count` steps.
    Step 0 is the beginning. CheckpointError for a step without a checkpoint, or if nothing is recorded after any."""
    kept, rows = CheckpointStore(run).steps(), read_rows(run / METRICS_FILE)
    newest = int(rows[-1]["step"]) if rows else 0
    has = f"checkpoints: {', '.join(map(str, kept)) or 'none'}; recorded up to step {newest}"
    spans = []
    for start in starts or kept:
        if start and start not in kept:
            raise CheckpointError(f"{run} has no checkpoint of step {start}", remedy=f"choose another step ({has})")
        ends = [step for step in kept if step > start] + [newest]
        if start < newest:
            spans.append(StepRange(start, ends[0] if count is None else min(newest, start + count)))
    if not spans:
        raise CheckpointError(
            f"{run} has recorded no step after a checkpoint that it has kept ({has})",
            remedy="--step 0 verifies from the beginning; checkpoint.every_steps and checkpoint.keep keep more",
        )
    return spans


def verify_span(config: RunConfig, span: StepRange) -> tuple[FirstDifference | None, list[Difference]]:
    """Make the steps again in a temporary folder within the run's, and compare them with the record bit for bit: their
    first difference, if any, and files, versions and machines that have changed since.

    `config`: of the run, with `output` where it is. Raises whatever ends a run.
    """
    run = Path(config.output)
    with _beside(run) as folder:
        again = config.changed("logging", sinks=()).model_copy(update={"output": str(folder)})
        if span.start:
            fork_run(again, f"{run}@{span.start}", Console(quiet=True))
        elif (run / PATHS_FILE).exists():
            shutil.copyfile(run / PATHS_FILE, folder / PATHS_FILE)
        reached = _train_until(span.last, again)
        if reached < span.last:
            raise BurnishError(f"stopped after step {reached}, so {span} cannot be compared", remedy="start again")
        changes = [one for one in different_settings(run, folder) if not one.field.startswith("logging")]
        return first_difference(run, folder, range(span.start + 1, span.last + 1)), changes


def _train_until(last: int, config: RunConfig) -> int:
    """Train up to this step, and return the step that was reached."""
    stop = StopRequest()

    def stop_after(step: int, row: Mapping[str, float]) -> None:
        stop.requested |= step >= last

    with watching(Watch((stop_after,), stop)):
        done: RunResult = load(find_kind(config.kind).train)(config, console=Console(quiet=True), accept_changes=False)
    return done.step


@contextmanager
def _beside(run: Path) -> Iterator[Path]:
    """A temporary folder on the file system of the run, where files of checkpoints need not be copied."""
    with disk_errors(f"write to {run}", run, CheckpointError):
        place = TemporaryDirectory(prefix="verify-", dir=run)
    with place as folder:
        yield Path(folder)
