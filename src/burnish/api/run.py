"""A run as an object: its configuration, how far it has come, and what it has written."""

from __future__ import annotations

import webbrowser
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from rich.console import Console

from burnish.api.pictures import run_html
from burnish.api.policy import Policy
from burnish.api.rollouts import RecordedRollout, recorded
from burnish.checkpointing.chaining import Chosen, find_checkpoint
from burnish.checkpointing.run import RunDirectory, changed_fields
from burnish.checkpointing.sources import split_choice, with_inputs_moved
from burnish.checkpointing.store import Checkpoint, CheckpointStore
from burnish.config.kinds import find_kind
from burnish.config.loading import LoadedConfig, kind_of_data, load_run_data
from burnish.config.schema_rm import ComparedFields
from burnish.config.schema_run import ConfigT, RunConfig
from burnish.config.yaml_text import parse_value
from burnish.errors import BurnishError, CheckpointError, ConfigError, DataError
from burnish.observability.console import rich_table, table_of
from burnish.observability.control import read_ending
from burnish.observability.history import read_rows
from burnish.observability.recorder import recorded_files

if TYPE_CHECKING:
    from pandas import DataFrame

    from burnish.trainers.interrupt import StopRequest

WEIGHTS_FOLDER = "policy"  # of a checkpoint; `burnish.trainers.result` would import torch
_SHOWN_ROWS = 10
_OF_STEPS = ("learning_rate", "schedule", "warmup_steps", "epochs", "betas", "weight_decay")
ONLY_TRAINS = ("steps", "checkpoint", "stop_when", *(f"optimization.{n}" for n in _OF_STEPS))
ONLY_SAMPLES = ("evaluation", "data.eval", "rollout.group_size", "rollout.prompts_per_step", "rollout.engine")
"""Fields without effect on saved weights, and those without effect on recorded responses."""


class Run:
    """A run in its folder: the result of `burnish.train`, `sft` and `reward_model`, or of `burnish.load_run`.

    Everything is read from the folder at the time of the call, so it is also up to date for a run that is still in
    progress, or that another process continues.
    """

    def __init__(self, output: str | Path, *, choice: str | None = None, stop: StopRequest | None = None) -> None:
        """`choice`: the checkpoint, given as a step, `best` or `best:METRIC` (None: the newest). `stop` lets `Run.stop`
        end a run that this program trains, whose folder may not exist yet. CheckpointError for another folder that is
        not a run."""
        self.output = Path(str(output))
        """Folder of the run."""
        if stop is None and not RunDirectory(self.output).begun():
            raise no_run(self.output)
        self._choice = choice
        self._stop = stop
        self._policy: Policy | None = None
        self._found: tuple[object, Chosen] | None = None
        """What `_chosen` has found, and what the folder was like then."""

    def __repr__(self) -> str:
        state = "stopped" if self.stopped else "finished" if self.stopped is False else "at"
        rows = self._rows()
        return f"burnish.Run({str(self)!r}), {state} at step {self.step}" + (f"\n{shown(rows)}" if rows else "")

    def __str__(self) -> str:
        """Return the name of the model for a run file: the folder, with the chosen checkpoint."""
        return str(self.output) if self._choice is None else f"{self.output}@{self._choice}"

    def _repr_html_(self) -> str:
        return run_html(f"{self}, step {self.step}", self._rows())

    @property
    def config(self) -> RunConfig:
        """The resolved configuration (`RlConfig`, `SftConfig` or `RmConfig`)."""
        return run_config(self.output).config

    @property
    def metrics(self) -> DataFrame:
        """Every metric of every step: a pandas table with the step as its index."""
        return metrics_table(self._rows())

    @property
    def step(self) -> int:
        """The last step whose metrics are written; 0 before the first."""
        rows = self._rows()
        return int(rows[-1]["step"]) if rows else 0

    @property
    def stopped(self) -> bool | None:
        """True if the run ended before its last step, unless `stop_when` ended it; None if that is not known yet,
        because the configuration gives passes instead of steps."""
        if read_ending(self.output) is not None:
            return False
        steps = run_config(self.output).config.model_dump(include={"steps"})["steps"]
        return None if steps is None else self.step < steps

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints that exist, oldest first: `step` and `folder` of each."""
        store = CheckpointStore(self.output)
        return [store.at(step) for step in store.steps()]

    @property
    def policy(self) -> Policy:
        """The weights of the newest checkpoint, or of the one that `load_run` chose. ConfigError for a reward model,
        which generates nothing; CheckpointError before the first checkpoint."""
        folder, config = self.weights, self.config
        if config.head == "score":
            raise ConfigError(
                f"{self.output} trains a reward model, which has no policy",
                remedy=f"its weights are {folder}; use it as a reward: burnish.rewards.model({str(self)!r})",
            )
        if self._policy is None or self._policy.folder != folder:
            self._policy = Policy(folder, with_saved_tokenizer(config).model, config.data)
        return self._policy

    @property
    def weights(self) -> Path:
        """The weights folder of the chosen checkpoint, which `from_pretrained` loads."""
        return self._chosen().checkpoint.folder / WEIGHTS_FOLDER

    def report(self, *, open: bool = False) -> Path:
        """Write the page with curves and rollouts into the folder, and return its path; `open` shows it."""
        from burnish.board.report import write_report

        page = write_report(self.output)
        if open:
            webbrowser.open(page.resolve().as_uri())
        return page

    def rollouts(self, step: int | None = None, *, evaluation: bool = False) -> list[RecordedRollout]:
        """Return the rollouts of a step (None: the last one), or of its evaluation. DataError for a step without
        rollouts, which names the steps that have some."""
        files = recorded_files(self.output / "rollouts", evaluation=evaluation)
        if not files or (step is not None and (type(step) is not int or step not in files)):
            steps = ", ".join(map(str, files)) or "none"
            raise DataError(
                f"{self.output} has no {'evaluation ' if evaluation else ''}rollouts"
                + (f" of step {step!r}" if step is not None else ""),
                remedy=f"steps with rollouts: {steps} (logging.record_rollouts writes them)",
            )
        return recorded(files[max(files) if step is None else step])

    def stop(self) -> None:
        """End the training after the current step and save, as Ctrl-C does. For functions given to `on_step`, and for
        other threads. BurnishError for a run that this program does not train."""
        if self._stop is None:
            raise BurnishError(
                f"{self.output} is not being trained by this program", remedy="stop the program that does"
            )
        self._stop.requested = True

    def _rows(self) -> list[dict[str, Any]]:
        return read_rows(self.output / "metrics.jsonl")

    def _chosen(self) -> Chosen:
        state = self._state()
        if self._found is None or self._found[0] != state:  # looking reads every byte of a checkpoint
            chosen = find_checkpoint(str(self), field="the run")
            if chosen is None:
                raise no_run(self.output)
            self._found = state, chosen
        return self._found[1]

    def _state(self) -> object:
        """Return a value that changes when anything is written to a checkpoint or one is removed, and where `best`
        decides, when the run logs."""
        metrics = self.output / "metrics.jsonl"
        try:
            files = [(path, path.stat()) for path in sorted((self.output / "checkpoints").rglob("*"))]
            logged = metrics.stat().st_size if self._choice is not None and metrics.exists() else 0
        except FileNotFoundError:  # it is changing now
            return object()
        return [(path, stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in files], logged


def load_run(folder: str | Path) -> Run:
    """The run in a folder. `runs/first@500`, `runs/first@best` and `runs/first@best:eval/loss` choose the checkpoint of
    its policy. CheckpointError if the folder is not a run."""
    place, choice = split_choice(str(folder))
    run_config(place)
    return Run(place, choice=choice)


def run_config(folder: Path, overrides: Sequence[str] = (), *, idle: Sequence[str] = ()) -> LoadedConfig:
    """The configuration that a run of any kind was started with. Its `output` and the paths of its own inputs are where
    the folder is now.

    Overrides that name held-out comparisons replace the part that `held_out_fraction` held out, and one that names a
    preset replaces what the run's own preset had set in `algorithm`. ConfigError for another `seed` or
    `held_out_fraction`: comparisons that the run trained on could count as held out; and for overrides of fields that
    are `idle`.
    """
    run = RunDirectory(folder)
    if not run.begun():
        raise no_run(folder)
    for section, _, name in (field.rpartition(".") for field in idle):
        if any(_sets(one, section, name) for one in overrides):
            named = f"{section}.{name}".lstrip(".")
            raise ConfigError(f"{named} has no effect here, where nothing is trained", remedy="leave it out")
    data = with_inputs_moved(run.read_config(), folder) | {"output": str(folder)}
    kind = kind_of_data(data)
    find_kind(kind).section.give_way(data, lambda section, name: any(_sets(one, section, name) for one in overrides))
    loaded = load_run_data(data, overrides, kind, source=str(run.config_file))
    splits = isinstance(loaded.config, ComparedFields) and loaded.config.held_out_fraction
    for change in changed_fields(data, loaded.config) if splits else ():
        if change.field in ("held_out_fraction", "seed"):  # these two alone decide which conversations are held out
            raise ConfigError(
                f"{change}, which holds out other comparisons than the run did", remedy="name them in data.eval"
            )
    return loaded


def with_saved_tokenizer(config: ConfigT, overrides: Sequence[str] = ()) -> ConfigT:
    """The configuration for a checkpoint of its run, which holds tokenizer and chat template: the files that the run
    file names may have changed since, or be elsewhere. What an override sets stays."""
    saved = [name for name in ("tokenizer", "chat_template") if not any(_sets(one, "model", name) for one in overrides)]
    return config.changed("model", **dict.fromkeys(saved))


def _sets(override: str, section: str, field: str) -> bool:
    """Return whether an override sets this field (of the whole file with an empty section), in any of its forms:
    `section.field=x`, something below it, `section={field: x}`, or `algorithm=x`, which is short for the preset."""
    key, _, text = override.lstrip("-").partition("=")
    if key.strip() != section:
        return f"{key.strip()}.".startswith(f"{section}.{field}.".lstrip("."))
    try:
        value = parse_value(text)
    except yaml.YAMLError:
        return False  # the loader says so
    return field in value if isinstance(value, dict) else field == "preset" and isinstance(value, str)


def no_run(folder: Path) -> CheckpointError:
    """The error for a folder that is not a run's."""
    return CheckpointError(
        f"{folder} is not a run: it has no config.yaml",
        remedy="give a run file, or the folder that `output` of a run file names",
    )


def metrics_table(rows: Sequence[Mapping[str, float]]) -> DataFrame:
    """A pandas table with the step as its index."""
    import pandas

    names = ["step", *dict.fromkeys(name for row in rows for name in row if name != "step")]
    return pandas.DataFrame(list(rows), columns=names).set_index("step")


def shown(rows: Sequence[Mapping[str, float]]) -> str:
    """The newest rows with the columns of the live display, as plain text."""
    lines = table_of(rows)
    console = Console(file=StringIO(), width=200, force_terminal=False, force_jupyter=False)
    with console.capture() as capture:
        console.print(rich_table([lines[0], *lines[1:][-_SHOWN_ROWS:]]))
    return "\n".join(line.rstrip() for line in capture.get().rstrip().splitlines())
