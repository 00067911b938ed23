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
    from burnish.cli.training import train_from_file

    train_from_file("sft", file, overrides or (), fresh=fresh, accept_changes=accept_changes)
