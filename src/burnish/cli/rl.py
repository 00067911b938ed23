"""`burnish rl FILE`."""

from __future__ import annotations

from typing import Annotated

import typer

from burnish.cli.arguments import Overrides, RunFile

Fresh = Annotated[
    bool, typer.Option("--fresh", help="Start over: an earlier run in the output folder is moved aside, not deleted.")
]

AcceptChanges = Annotated[
    bool,
    typer.Option(
        "--accept-changes",
        help="Continue although data, code, base model or package versions have changed since the run began.",
    ),
]


def train_with_rl(
    file: RunFile, overrides: Overrides = None, fresh: Fresh = False, accept_changes: AcceptChanges = False
) -> None:
    """Train a policy on its own rollouts: sample, score, update, repeat.

    The same command continues from the newest checkpoint in the output folder.
    Ctrl-C finishes the step and saves. A second Ctrl-C stops at once.

    [bold]Sizes[/bold]
    [bold]rollout.prompts_per_step[/bold]: prompts (not responses) in one step.
    [bold]rollout.group_size[/bold]: responses per prompt.
    [bold]optimization.minibatches[/bold]: optimizer steps per pass over the responses.
    [bold]optimization.epochs[/bold]: passes over the responses of a step.
    [bold]optimization.tokens_per_microbatch[/bold]: tokens computed at once. It affects
    memory and speed, not the result.

    [bold]Examples[/bold]
    burnish rl run.yaml
    burnish rl run.yaml algorithm=rloo steps=50 output=runs/rloo
    burnish rl run.yaml optimization.learning_rate=1e-5 rewards.0.weight=2
    """
    from burnish.cli.training import train_from_file

    train_from_file("rl", file, overrides or (), fresh=fresh, accept_changes=accept_changes)
