"""`burnish rm FILE`."""

from __future__ import annotations

from burnish.cli.arguments import Overrides, RunFile
from burnish.cli.rl import AcceptChanges, Fresh


def train_reward(
    file: RunFile, overrides: Overrides = None, fresh: Fresh = False, accept_changes: AcceptChanges = False
) -> None:
    """Train a reward model on comparisons of responses.

    Rows have chosen and rejected responses, several candidates with the best
    one marked, or token ids (query, sample0 ..., best). How they are read is
    printed. The result scores responses in `burnish rl` as rewards:
    model:PATH.

    [bold]Sizes[/bold]
    [bold]optimization.comparisons_per_batch[/bold]: comparisons per optimizer step.
    [bold]optimization.epochs[/bold]: passes over the data; one is usual.
    [bold]max_tokens[/bold]: limit on a prompt together with a response.

    [bold]Examples[/bold]
    burnish rm rm.yaml
    burnish rm rm.yaml data.train=pairs.jsonl held_out_fraction=0.1 output=runs/rm
    burnish rm rm.yaml loss=best_of normalization.kind=gain_bias
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
    loaded = load_run_file(file, overrides or (), "rm")
    console = training_console()
    if fresh:
        check_output(loaded.config)
        move_aside(loaded.config.output, console)
    with uncollected(lasting=True):
        from burnish.trainers.learning_cluster import train_reward_model

    silence_transformers()
    show_result(train_reward_model(loaded.rm, console=console, accept_changes=accept_changes), console)
