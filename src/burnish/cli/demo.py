"""`burnish demo`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from burnish.cli import EXIT_INTERRUPTED
from burnish.errors import ConfigError

if TYPE_CHECKING:
    from burnish.demo import DemoFolder

Output = Annotated[str, typer.Option(help="Folder for everything that the demo writes.")]
Seed = Annotated[int, typer.Option(help="Seed of the model, the data and the sampling.", min=0)]


def demo(output: Output = "runs/demo", seed: Seed = 1) -> None:
    """Watch a tiny transformer learn two-digit addition, in minutes and without a download.

    It starts with supervised fine-tuning on a demonstrator that mostly forgets
    to carry, followed by GRPO with a reward that knows the right answer. The
    model, the data and two run files are written to the output folder. An
    earlier demo there is moved aside.

    [bold]Examples[/bold]
    burnish demo
    burnish demo --output runs/again --seed 2
    burnish rl runs/demo/rl.yaml steps=90
    """
    from burnish.cli.output import training_console
    from burnish.demo import DemoFolder
    from burnish.models.loading_bars import hide_loading_bars

    hide_loading_bars()
    console = training_console()
    folder = DemoFolder(Path(output))
    make_room(folder, console)
    from burnish.checkpointing.lock import RunLock
    from burnish.machine.matmul_precision import num_threads

    # Matrices of 64 columns are too small to gain from a second thread, and on a busy machine each of many thousand
    # small operations would wait for the slower one.
    with RunLock(folder.path), num_threads(1):
        prepare(folder, seed, console)
        train(folder, console)
    from burnish.cli.demo_result import show

    show(folder, console)


def make_room(folder: DemoFolder, console: Console) -> None:
    """Move an earlier demo aside.

    Raises ConfigError if the folder contains something else, and CheckpointError if a demo or a run in it is active.
    """
    from burnish.checkpointing.lock import LOCK_FILE
    from burnish.checkpointing.run import move_run_aside

    if folder.is_demo() or (folder.path / LOCK_FILE).exists():
        aside = move_run_aside(folder.path, signs=(LOCK_FILE, folder.rl_file.name))
        console.print(f"moved the earlier demo to {aside}", markup=False)
    elif folder.path.exists() and (not folder.path.is_dir() or any(folder.path.iterdir())):
        raise ConfigError(
            f"--output {str(folder.path)!r} exists and is not a demo", remedy="name a folder that does not exist yet"
        )


def prepare(folder: DemoFolder, seed: int, console: Console) -> None:
    """Make the data, the model and the run files, and describe them."""
    from burnish import demo as demo_task

    wrong = demo_task.write_data(folder, seed)
    parameters = demo_task.write_model(folder.model, seed)
    demo_task.write_run_files(folder, seed)
    show_paragraphs(
        console,
        f"""
[bold]1  The task[/]
   The right answer to 47+85= is 231: the sum with the ones first, so that carries flow in the direction of writing.
   There are 10,000 two-digit additions; {demo_task.NUM_HELD_OUT} are held out and never trained on.
   The model: a Llama of {parameters:,} parameters, with random weights so far.  {folder.model}""",
        f"""
[bold]2  Supervised fine-tuning[/]  {folder.sft_file}
   The demonstrator forgets {demo_task.FORGET_PROBABILITY:.0%} of the carries out of the ones, so {wrong:.0%} of the \
demonstrations are wrong, on purpose.
   Imitation can copy these mistakes, but not correct them.
""",
    )


def train(folder: DemoFolder, console: Console) -> None:
    """Train twice from the run files, exactly as `burnish sft` and `burnish rl` would."""
    from burnish.api.training import trained
    from burnish.cli.arguments import load_any_run_file
    from burnish.config.loading import flat_values

    imitating, learning = (load_any_run_file(str(file), ()) for file in (folder.sft_file, folder.rl_file))
    if trained(imitating, console, accept_changes=False, lasting=True).stopped:
        raise stopped(console)
    values = flat_values(learning.config)
    show_paragraphs(
        console,
        f"""
[bold]3  GRPO[/]  {folder.rl_file}
   {values["rollout.group_size"]} answers to each of {values["rollout.prompts_per_step"]} problems per step, with \
reward 1 for a right one and 0 for a wrong one.
   Nobody shows the model how to carry. It finds out from the rewards.
""",
    )
    if trained(learning, console, accept_changes=False, lasting=True).stopped:
        raise stopped(console)


def stopped(console: Console) -> typer.Exit:
    """The exception to raise after Ctrl-C."""
    console.print("the demo was stopped; run it again for a complete one")
    return typer.Exit(EXIT_INTERRUPTED)


def show_paragraphs(console: Console, *paragraphs: str) -> None:
    """Print paragraphs without wrapping them."""
    for paragraph in paragraphs:
        console.print(paragraph, highlight=False, soft_wrap=True)
