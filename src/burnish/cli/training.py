"""Commands that train: `burnish rl`, `sft`, `distill`, `rm` and `prefer`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from burnish.cli.arguments import Overrides, RunFile
from burnish.errors import ConfigError

if TYPE_CHECKING:
    from burnish.trainers.result import RunResult

Fresh = Annotated[
    bool, typer.Option("--fresh", help="Start over: an earlier run in the output folder is moved aside, not deleted.")
]

AcceptChanges = Annotated[
    bool,
    typer.Option(
        "--accept-changes",
        help="Continue even if data, code, base model or package versions have changed since the run began.",
    ),
]

Verbose = Annotated[
    bool, typer.Option("--verbose", help="Show all columns of metrics, and the fast paths in use (logging.verbose).")
]
Fork = Annotated[
    str | None, typer.Option(metavar="RUN@STEP", help="Start from a checkpoint of another run, with other settings.")
]


def _trains(described: Callable[[], None]) -> Callable[..., None]:
    """The command of the kind of run that the function is named after. Its docstring is the help."""

    def command(
        file: RunFile,
        overrides: Overrides = None,
        fresh: Fresh = False,
        accept_changes: AcceptChanges = False,
        verbose: Verbose = False,
        fork: Fork = None,
    ) -> None:
        settings = {"fresh": fresh, "accept_changes": accept_changes, "verbose": verbose}
        train_from_file(described.__name__, file, overrides or (), fork=fork, **settings)

    command.__doc__ = described.__doc__
    return command


@_trains
def rl() -> None:
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
    burnish rl run.yaml --fork runs/first@300 output=runs/second seed=1
    """


@_trains
def sft() -> None:
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


@_trains
def distill() -> None:
    """Train a student on the token distributions of a teacher.

    The data are the same as for burnish sft. At every trained token the student
    learns the teacher's probability of each possible token.

    [bold]Sizes[/bold]
    [bold]optimization.tokens_per_batch[/bold]: tokens per optimizer step.
    [bold]sampled_share[/bold]: share of steps that train on the student's responses.
    [bold]top_k[/bold]: number of tokens compared individually.

    [bold]Examples[/bold]
    burnish distill distill.yaml
    burnish distill distill.yaml teacher=runs/large@best output=runs/small
    burnish distill distill.yaml divergence=jsd beta=0.1 sampled_share=0.5
    """


@_trains
def rm() -> None:
    """Train a reward model on comparisons of responses.

    Rows have chosen and rejected responses, several candidates with the best
    one marked, or token ids (query, sample0 ..., best). The layout is
    recognised and printed. The result scores responses in `burnish rl` with
    rewards: model:PATH.

    [bold]Sizes[/bold]
    [bold]optimization.comparisons_per_batch[/bold]: comparisons per optimizer step.
    [bold]optimization.epochs[/bold]: passes over the data; one is usual.
    [bold]max_tokens[/bold]: limit on the length of a prompt and response together.

    [bold]Examples[/bold]
    burnish rm rm.yaml
    burnish rm rm.yaml data.train=pairs.jsonl held_out_fraction=0.1 output=runs/rm
    burnish rm rm.yaml loss=best_of normalization.kind=gain_bias
    """


@_trains
def prefer() -> None:
    """Train a model on preferences between responses (DPO and kin).

    Rows have chosen and rejected responses, or several candidates with the best
    one marked; with [bold]losses: kto[/bold] also single responses with a label. Nothing is
    sampled. The frozen reference scores all responses once, before the first
    step.

    [bold]Sizes[/bold]
    [bold]optimization.comparisons_per_batch[/bold]: data rows per optimizer step.
    [bold]optimization.epochs[/bold]: passes over the data.
    [bold]max_tokens[/bold]: limit on the length of a prompt and response together.

    [bold]Examples[/bold]
    burnish prefer prefer.yaml
    burnish prefer prefer.yaml losses=ipo beta=0.2 output=runs/ipo
    burnish prefer prefer.yaml model=runs/sft held_out_fraction=0.1
    """


def train_from_file(
    kind: str,
    file: str,
    overrides: Sequence[str],
    *,
    fresh: bool,
    accept_changes: bool,
    verbose: bool = False,
    fork: str | None = None,
) -> None:
    """Train as the run file says, and print where the results are. A process of torchrun that only serves does so.
    fork: the checkpoint of another run to go on from."""
    from burnish.api.training import move_aside, trained
    from burnish.checkpointing.sources import check_output
    from burnish.cli.output import training_console
    from burnish.config.loading import load_run_file
    from burnish.distributed.nodes import job_without_folder
    from burnish.models.loading_bars import hide_loading_bars
    from burnish.observability.console import say

    if served_as_rank(fresh=fresh):
        return
    console = training_console()
    if warning := job_without_folder():  # first: it may be why there is no run file
        say(console, (f"warning: {warning}",))
    loaded = load_run_file(file, (*overrides, *(["logging.verbose=true"] if verbose else [])), kind)
    if fresh:
        check_output(loaded.config)
        move_aside(Path(loaded.config.output), console)
    hide_loading_bars()
    if fork is not None:
        from burnish.trainers.forking import fork_run

        fork_run(loaded.config, fork, console)
    show_result(trained(loaded, console, accept_changes=accept_changes, lasting=True), console)


def served_as_rank(*, fresh: bool) -> bool:
    """Serve as a trainer or rollout worker if this process is one. Returns whether it was, and has done so. It opens
    nothing of the run by itself; the process with rank 0 tells it what to hold.

    ConfigError for `--fresh` where torchrun may start the command again, because it would begin anew each time.
    """
    from burnish.config.torchrun import TorchrunRank

    here = TorchrunRank.here()
    if here is None:
        return False
    if here.rank == 0:
        if fresh and here.max_restarts:
            raise ConfigError(
                f"--fresh with torchrun --max-restarts {here.max_restarts} would start over at every restart",
                remedy="move the earlier run's folder away, or set `output` to another one",
            )
        return False
    from burnish.distributed.rank_server import serve_rank

    serve_rank(here)
    return True


def show_result(result: RunResult, console: Console) -> None:
    """Print where the results are, and what to do next."""
    from burnish.observability.console import say

    state = "stopped" if result.stopped else "finished"
    lines = [
        f"{state} at step {result.step}",
        f"  model    {result.weights}",
        f"  metrics  {result.folder / 'metrics.jsonl'}",
        f"  next     burnish report {shlex.quote(str(result.folder))}",
    ]
    if result.stopped:
        lines.append("  to continue, run the same command again")
    say(console, lines)
