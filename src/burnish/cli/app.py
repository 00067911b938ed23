"""The table of commands, and the help that ties them together."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Annotated

import typer

from burnish import __version__

COMMANDS = (
    ("demo", "demo", "Start here"),
    ("rl", "train_with_rl", "Train"),
    ("sft", "train_supervised", "Train"),
    ("rm", "train_reward", "Train"),
    ("eval", "evaluate", "Train"),
    ("plan", "show_plan", "Look before you run"),
    ("check", "check_rewards", "Look before you run"),
    ("algorithms", "show_algorithms", "Look before you run"),
    ("report", "write_report", "Look after a run"),
    ("chat", "chat", "Look after a run"),
)
"""Name of the command, function in `burnish.cli.NAME`, panel in the help."""

_HELP = """Reinforcement learning for language models: a run file in, a better model out.

A [bold]prompt[/bold] is answered by [bold]group_size[/bold] sampled [bold]responses[/bold] (rollouts).
A [bold]reward[/bold] scores each; an [bold]estimator[/bold] turns scores into advantages.
The [bold]policy[/bold] (the model you train) moves towards the better ones,
and is held near the frozen [bold]reference[/bold] by a KL if you set one.

One [bold]step[/bold] = prompts_per_step prompts x group_size responses, trained on
in epochs x minibatches optimizer steps. [bold]burnish plan FILE[/bold] shows the numbers.

A first session: [bold]burnish demo[/bold]. Then with a run file of your own:
[bold]burnish check run.yaml[/bold]   do the gold answers get the top reward?
[bold]burnish plan run.yaml[/bold]    what will happen, and in how much memory?
[bold]burnish rl run.yaml[/bold]      train; Ctrl-C saves, the same command goes on
[bold]burnish report runs/NAME[/bold] the curves and the rollouts in one page
"""

_EPILOG = """Any value can be changed on the command line: burnish rl run.yaml steps=20
Every field is explained in docs/configuration.md."""


def build_app() -> typer.Typer:
    """All commands. The modules of the commands are light: what is heavy is imported when a command runs."""
    app = typer.Typer(
        epilog=_EPILOG,
        rich_markup_mode="rich",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(help=_HELP)(_root)
    for name, function, panel in COMMANDS:
        module_name = f"burnish.cli.{name}"
        if importlib.util.find_spec(module_name) is not None:
            command = vars(importlib.import_module(module_name))[function]
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
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of errors in the input too.")] = False,
) -> None:
    """Options that stand before the command."""
