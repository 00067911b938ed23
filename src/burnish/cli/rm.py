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
    from burnish.cli.training import train_from_file

    train_from_file("rm", file, overrides or (), fresh=fresh, accept_changes=accept_changes)
