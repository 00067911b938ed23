"""The table of commands, and the program's main help text."""

from __future__ import annotations

from typing import Annotated

import typer

from burnish import __version__
from burnish.config.kinds import all_kinds, load

COMMANDS = (
    ("demo", "demo", "Start here"),
    ("init", "init", "Start here"),
    ("eval", "evaluate", "Train"),
    ("sweep", "run_sweep", "Train"),
    ("plan", "show_plan", "Look before you run"),
    ("check", "check_rewards", "Look before you run"),
    ("algorithms", "show_algorithms", "Look before you run"),
    ("sandbox", "commands", "Look before you run"),
    ("doctor", "examine_machine", "Look before you run"),
    ("board", "show_board", "Look after a run"),
    ("watch", "watch_runs", "Look after a run"),
    ("report", "write_report", "Look after a run"),
    ("table", "show_table", "Look after a run"),
    ("replay", "replay", "Look after a run"),
    ("verify", "verify", "Look after a run"),
    ("bisect", "bisect", "Look after a run"),
    ("pairs", "write_pairs", "Look after a run"),
    ("chat", "chat", "Look after a run"),
    ("push", "push", "Look after a run"),
    ("serve", "serve", "Look after a run"),
)
"""Name of the command, its function (or its group of commands) in `burnish.cli.NAME`, and its panel in the help. Those
that train are in the rows of `burnish.config.kinds`."""

_HELP = """Reinforcement learning for language models: a run file in, a better model out.

For each [bold]prompt[/bold], [bold]group_size[/bold] [bold]responses[/bold] (rollouts) are sampled.
A [bold]reward[/bold] scores each, and an [bold]estimator[/bold] turns scores into advantages.
The [bold]policy[/bold] (the model you train) moves towards the better responses.
A KL penalty, if you set one, keeps it near the frozen [bold]reference[/bold].

One [bold]step[/bold] = prompts_per_step prompts x group_size responses, trained on
in epochs x minibatches optimizer steps. [bold]burnish plan FILE[/bold] shows the numbers.

To start: [bold]burnish demo[/bold], or with your own data:
[bold]burnish init[/bold]             write a run file: three questions
[bold]burnish check run.yaml[/bold]   do the gold answers get the top reward?
[bold]burnish plan run.yaml[/bold]    what will happen, and how much memory will it take?
[bold]burnish rl run.yaml[/bold]      train; Ctrl-C saves, the same command continues
[bold]burnish board[/bold]            watch it train, in a browser
[bold]burnish report runs/NAME[/bold] the curves and the rollouts on one page
"""

_EPILOG = """Any value can be changed on the command line: burnish rl run.yaml steps=20
Every field is explained in docs/configuration.md."""


def build_app() -> typer.Typer:
    """Build the app with all commands. Their modules are light: heavy packages are imported when a command runs."""
    app = typer.Typer(
        epilog=_EPILOG,
        rich_markup_mode="rich",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(help=_HELP)(_root)
    first, *others = ((name, f"burnish.cli.{name}:{function}", panel) for name, function, panel in COMMANDS)
    for name, place, panel in (first, *((kind.name, kind.command, "Train") for kind in all_kinds()), *others):
        command = load(place)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, rich_help_panel=panel)
        else:
            app.command(name, rich_help_panel=panel)(command)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"burnish {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Also show tracebacks for errors in the input.")] = False,
) -> None:
    """Options that come before the command."""
