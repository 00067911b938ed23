"""`burnish doctor [MODEL_OR_RUN_FILE]`."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from burnish.errors import ConfigError

if TYPE_CHECKING:
    from burnish.cli.doctor.examination import Report
    from burnish.config.schema import RunConfig

EXIT_CANNOT_RUN = 1
FORMAT = 2
"""Of the JSON. It rises when a key goes away or changes its meaning; new keys may come at any time."""
WIDTH = 116
"""Of the text, in characters. It does not follow the terminal."""

Model = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL_OR_RUN_FILE]",
        help="Model folder or run file (YAML) whose fast paths to try.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Quick = Annotated[bool, typer.Option("--quick", help="Skip all builds and trials; takes a few seconds.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Forget the timings of fast paths kept on this machine.")]


def examine_machine(model: Model = None, as_json: AsJson = False, quick: Quick = False, fresh: Fresh = False) -> None:
    """Show what this machine and installation can do, for a bug report.

    Shows versions, the machine, the fast paths that a run would take, and
    problems with remedies. User and machine names, folders and keys are left
    out. The exit status is 1 only if nothing can run at all.

    [bold]Examples[/bold]
    burnish doctor
    burnish doctor run.yaml
    burnish doctor models/mine --json
    burnish doctor --quick
    """
    from burnish.cli.doctor.examination import examine

    if quick and model is not None:
        raise ConfigError("--quick tries no model", remedy=f"leave out --quick or {model}")
    about = None if model is None else _about(model)
    runs = Path.cwd() if about is None or isinstance(about, Path) else Path(about.output)
    report = examine(runs, quick=quick, fresh=fresh)
    if not (quick or report.refuses_runs):
        from burnish.cli.doctor.paths import of_paths  # needs PyTorch

        report.add(report.paths, of_paths(about))
    if as_json:
        typer.echo(json.dumps({"format": FORMAT, **dataclasses.asdict(report)}, indent=1))
    else:
        _show(report)
    if any(problem.weight == "fatal" for problem in report.problems):
        raise typer.Exit(EXIT_CANNOT_RUN)


def _about(given: str) -> RunConfig | Path:
    """The run of a run file or of a run's folder, or a model's folder. ConfigError for anything else."""
    from burnish.checkpointing.run import CONFIG_FILE
    from burnish.cli.arguments import load_any_run_file

    path = Path(given).expanduser()
    if (path / "config.json").is_file():
        return path
    file = path / CONFIG_FILE if path.is_dir() else path
    if path.is_dir() and not file.is_file():
        raise ConfigError(
            f"{given!r} is neither a model's folder nor a run's: it holds neither config.json nor {CONFIG_FILE}",
            remedy="give a model folder, a run file or the folder of a run",
        )
    return load_any_run_file(str(file), ()).config


def _show(report: Report) -> None:
    """Titles stand out on a terminal; elsewhere the text is plain. Its width is made for being pasted into an issue."""
    console = Console(soft_wrap=True, highlight=False)
    for title, rows in (("versions", report.versions), ("machine", report.machine), ("paths of a run", report.paths)):
        console.print(title, style="bold")
        for name, text in rows.items() or {"model": "not tried"}.items():
            console.print(_wrapped(text, f"  {name:<18}  ", " " * 22), markup=False)
        console.print()
    console.print("problems", style="bold")
    for problem in report.problems:
        console.print(_wrapped(f"{problem.weight}: {problem.what}", "  ", "    "), markup=False)
        console.print(_wrapped(f"-> {problem.remedy}", "    ", "       "), markup=False)
    if not report.problems:
        console.print("  none found")


def _wrapped(text: str, first: str, later: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=first, subsequent_indent=later, break_on_hyphens=False)
