"""`burnish doctor [MODEL_OR_RUN_FILE]`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from burnish.errors import ConfigError

if TYPE_CHECKING:
    from burnish.planning.memory import Trained

EXIT_CANNOT_RUN = 1

Model = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL_OR_RUN_FILE]", help="Model folder or run file (YAML) whose paths are tried.", show_default=False
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Quick = Annotated[bool, typer.Option("--quick", help="Measure, build and try nothing: a few seconds.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Forget the timings of fast paths kept on this machine.")]


def examine_machine(model: Model = None, as_json: AsJson = False, quick: Quick = False, fresh: Fresh = False) -> None:
    """Say what this machine and this installation can do, for a bug report.

    Shows versions, processor, memory, compiler, measured rates, the paths that
    a run would take and why, the sandbox, GPUs, and problems with remedies.
    Names of the user and the machine, folders and keys are left out. The exit
    status is 1 only if nothing can run at all.

    [bold]Examples[/bold]
    burnish doctor
    burnish doctor run.yaml
    burnish doctor models/mine --json
    burnish doctor --quick
    """
    from burnish.doctor.examination import examine
    from burnish.doctor.problems import find_problems
    from burnish.doctor.report import as_plain, text_lines

    if quick and model is not None:
        raise ConfigError("--quick tries no model", remedy=f"leave out --quick or {model}")
    facts = examine(None if model is None else _about(model), quick=quick, fresh=fresh)
    problems = find_problems(facts)
    if as_json:
        typer.echo(json.dumps(as_plain(facts, problems), indent=1))
    else:
        _show(text_lines(facts, problems))
    if any(problem.weight == "fatal" for problem in problems):
        raise typer.Exit(EXIT_CANNOT_RUN)


def _about(given: str) -> Trained | Path:
    """The run of a run file or of a run's folder, or a model's folder. ConfigError for anything else."""
    from burnish.checkpointing.run import CONFIG_FILE
    from burnish.cli.run_files import load_any_run_file
    from burnish.config.schema import RlConfig, RmConfig, SftConfig

    path = Path(given).expanduser()
    if (path / "config.json").is_file():
        return path
    file = path / CONFIG_FILE if path.is_dir() else path
    if path.is_dir() and not file.is_file():
        raise ConfigError(
            f"{given!r} is neither a model's folder nor a run's: it holds neither config.json nor {CONFIG_FILE}",
            remedy="give a model folder, a run file or the folder of a run",
        )
    config = load_any_run_file(str(file), ()).config
    assert isinstance(config, RlConfig | SftConfig | RmConfig)  # there are no other kinds of run files
    return config


def _show(lines: Iterable[tuple[str, bool]]) -> None:
    """Titles stand out on a terminal; elsewhere the text is plain."""
    from rich.console import Console

    console = Console(soft_wrap=True, highlight=False)
    for line, is_title in lines:
        console.print(line, style="bold" if is_title else None, markup=False)
