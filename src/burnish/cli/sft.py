"""`burnish sft FILE`."""

from __future__ import annotations

from burnish.cli.arguments import Overrides, RunFile
from burnish.cli.rl import AcceptChanges, Fresh


def train_supervised(
    file: RunFile, overrides: Overrides = None, fresh: Fresh = False, accept_changes: AcceptChanges = False
) -> None:
    """Train a model on given texts.

    The data are prompts with completions, conversations (with the loss on the
    assistant's turns) or plain text. The layout is recognised and printed.

    [bold]Sizes[/bold]
    [bold]optimization.tokens_per_batch[/bold]: tokens per optimizer step.
    [bold]optimization.epochs[/bold]: passes over the data (or [bold]steps[/bold] optimizer steps, if set).
    [bold]max_tokens[/bold]: limit on the length of an example.

    [bold]Examples[/bold]
    burnish sft sft.yaml
    burnish sft sft.yaml data.train=chats.jsonl steps=200 output=runs/sft
    """
    from burnish.checkpointing.output import check_output
    from burnish.cli.folders import move_aside
    from burnish.cli.output import training_console
    from burnish.cli.silence import silence_transformers
    from burnish.cli.summary import show_result
    from burnish.cli.torchrun import served_as_rank
    from burnish.collecting import uncollected
    from burnish.config.loading import load_run_file

    if served_as_rank(fresh=fresh):
        return
    loaded = load_run_file(file, overrides or (), "sft")
    console = training_console()
    if fresh:
        check_output(loaded.config)
        move_aside(loaded.config.output, console)
    with uncollected(lasting=True):
        from burnish.trainers.learning_cluster import train_sft

    silence_transformers()
    show_result(train_sft(loaded.sft, console=console, accept_changes=accept_changes), console)
