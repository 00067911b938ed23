"""`burnish.train`, `sft`, `distill`, `reward_model`, `prefer`: what the command line trains, called from a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import copy_context
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec

from rich.console import Console

from burnish.api.inputs import Inputs, remove_torn, write_inputs
from burnish.api.preparing import Given, prepared_run
from burnish.api.run import Run
from burnish.checkpointing.lock import RunLock
from burnish.checkpointing.run import move_run_aside
from burnish.checkpointing.sources import check_output
from burnish.checkpointing.store import CheckpointStore
from burnish.config.kinds import Kind, find_kind, load
from burnish.config.loading import LoadedConfig
from burnish.errors import ConfigError, DifferentRunError
from burnish.machine.memory import uncollected
from burnish.models.loading_bars import without_loading_bars

if TYPE_CHECKING:
    from burnish.trainers.interrupt import StopRequest, Watcher
    from burnish.trainers.result import RunResult

Arguments = ParamSpec("Arguments")
OnStep = Callable[[Run, Mapping[str, float]], None]
"""Called after each step with the run and the step's metrics. It may call `run.stop()`. If it raises, the run saves its
finished steps and ends, and the exception reaches the caller."""


def train(
    config: Given,
    *,
    on_step: OnStep | None = None,
    quiet: bool = False,
    fresh: bool = False,
    accept_changes: bool = False,
    fork: Run | str | None = None,
    **fields: object,
) -> Run:
    """Train a policy with reinforcement learning, as `burnish rl` does, and return the run.

    `config` has the fields of a run file (docs/configuration.md); `fields` override it. As well as what a run file can
    hold, `model` may be `(model, tokenizer)` of transformers or a `Run`, `data` may be a list of rows, a data set, or
    `{"train": ..., "eval": ...}` of them, and `rewards` may be functions, lambdas and `burnish.rewards`.

    Without `output` the run gets a new folder, `runs/rl-001` and so on. If `output` holds a run, that run continues
    from its newest checkpoint. `fresh` moves it aside and starts over. `accept_changes` continues even if data, code,
    model or package versions have changed. `quiet` shows nothing. `fork`, a run or the name of one (`runs/first@300`),
    lets a new folder begin at that run's checkpoint, with weights, optimizer and data position; any field may differ.

    Ctrl-C finishes the step and saves. Outside the main thread, and in notebooks, signals are left alone.
    Raises BurnishError for everything that the caller can fix.
    """
    return train_kind(
        "rl", config, on_step=on_step, quiet=quiet, fresh=fresh, accept_changes=accept_changes, fork=fork, **fields
    )


def train_kind(
    kind: str,
    /,
    config: Given,
    *,
    on_step: OnStep | None = None,
    quiet: bool = False,
    fresh: bool = False,
    accept_changes: bool = False,
    fork: Run | str | None = None,
    **fields: object,
) -> Run:
    """`train`, for a run of any kind."""
    from burnish.rewards.loading import functions_at_hand
    from burnish.trainers.forking import fork_run
    from burnish.trainers.interrupt import StopRequest, Watch, watching

    if on_step is not None and not callable(on_step):
        raise ConfigError(f"on_step is {on_step!r:.80}, not a function", remedy="give one of the run and its metrics")
    console, stop = Console(quiet=quiet), StopRequest()
    with ExitStack() as stack:
        stack.enter_context(without_loading_bars())
        caller = f"burnish.{find_kind(kind).function}"
        loaded, inputs = stack.enter_context(prepared_run(kind, config, fields, caller))
        output = Path(loaded.config.output)
        check_output(loaded.config)
        if fresh:
            move_aside(output, console)
        _write_inputs(inputs, output, accept_changes=accept_changes)
        if fork is not None:
            fork_run(loaded.config, str(fork), console)
        run = Run(output, stop=stop)
        watchers: tuple[Watcher, ...] = () if on_step is None else (lambda _, row: on_step(run, row),)
        stack.enter_context(functions_at_hand(inputs.functions))
        stack.enter_context(watching(Watch(watchers, stop)))
        _run_trainer(loaded, console, stop, accept_changes=accept_changes)
    return Run(output)


def function_of(kind: Kind, like: Callable[Concatenate[str, Arguments], Run]) -> Callable[Arguments, Run]:
    """`burnish.FUNCTION` of a kind of run, with the arguments of `like` (which is `train_kind`) after the kind."""

    @wraps(train)
    def call(*arguments: Arguments.args, **fields: Arguments.kwargs) -> Run:
        return like(kind.name, *arguments, **fields)

    call.__name__ = call.__qualname__ = kind.function
    call.__doc__ = (
        f"Train {kind.trains}, as `burnish {kind.name}` does, and return the run. Arguments are those of `train`."
    )
    return call


sft = function_of(find_kind("sft"), train_kind)
"""Train a model on given texts, as `burnish sft` does, and return the run. Arguments are those of `train`."""
distill = function_of(find_kind("distill"), train_kind)
"""Train a student on the token distributions of a teacher, as `burnish distill` does, and return the run. Arguments are
those of `train`."""
reward_model = function_of(find_kind("rm"), train_kind)
"""Train a reward model on comparisons, as `burnish rm` does, and return the run, which `train` takes as one of its
`rewards`. Arguments are those of `train`."""

prefer = function_of(find_kind("prefer"), train_kind)
"""Train a policy on preferences between given responses, as `burnish prefer` does, and return the run. Arguments are
those of `train`."""


def move_aside(output: Path, console: Console) -> None:
    """Rename the folder of an earlier run, so that a new run can start. CheckpointError if that run is still active."""
    aside = move_run_aside(output)
    if aside is not None:
        console.print(f"moved the earlier run to {aside}", markup=False)


def _write_inputs(inputs: Inputs, output: Path, *, accept_changes: bool) -> None:
    """Write the inputs with the run's folder locked, so that a run that another process is writing is not touched. They
    may change until there is a checkpoint, because nothing depends on them before."""
    if inputs:
        with RunLock(output):
            remove_torn(inputs.folder)
            write_inputs(inputs, may_change=accept_changes or not CheckpointStore(output).steps())


def trained(loaded: LoadedConfig, console: Console, *, accept_changes: bool, lasting: bool = False) -> RunResult:
    """Train as the run file says. Only what this kind of training needs is imported; lasting: see `uncollected`.

    If the folder holds another run, what is wrong with the new configuration itself, such as a name, is said first.
    """
    with uncollected(lasting=lasting):
        train_as = load(find_kind(loaded.config.kind).train)
    try:
        return train_as(loaded.config, console=console, accept_changes=accept_changes)
    except DifferentRunError:
        from burnish.api.planning import plan_of

        plan_of(loaded, [])
        raise


def _run_trainer(loaded: LoadedConfig, console: Console, stop: StopRequest, *, accept_changes: bool) -> None:
    from burnish.machine.matmul_precision import without_autocast

    def call() -> None:
        with without_autocast():
            trained(loaded, console, accept_changes=accept_changes)

    if console.is_jupyter:
        _in_a_thread(call, stop, console)
    else:
        call()


def _in_a_thread(call: Callable[[], None], stop: StopRequest, console: Console) -> None:
    """In a notebook, signals belong to the kernel, whose interrupt raises KeyboardInterrupt here. So the training runs
    in a thread: the first interrupt lets it finish its step and save, a second one does not wait for it.
    """
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="burnish")
    training = pool.submit(copy_context().run, call)
    pool.shutdown(wait=False)
    try:
        training.result()
    except KeyboardInterrupt:
        stop.requested = True
        console.print("stopping after this step, then saving (interrupt again not to wait for it)")
        training.result()
