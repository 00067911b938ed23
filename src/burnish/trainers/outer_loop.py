"""The loop around every kind of training; its state is saved, restored, and kept when an error ends the loop.

Supervised fine-tuning, reward models and reinforcement learning differ in their steps and evaluations. This loop alone
decides when they evaluate, write, save and stop.
"""

from __future__ import annotations

import gc
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from rich.console import Console

from burnish.checkpointing.encoding import read_state, restoring, write_state
from burnish.checkpointing.store import Checkpoint, CheckpointStore, Pending, read_pending, write_pending
from burnish.config.schema_run import ConfigT, RunConfig
from burnish.errors import BurnishError, CheckpointError, ConfigError, DivergenceError
from burnish.forward.fast_paths import FastPaths
from burnish.forward.lanes import Lanes
from burnish.models.loading import LoadedModel
from burnish.models.roles import Learner
from burnish.models.saved import SavedPolicy
from burnish.observability.console import say
from burnish.observability.control import RunEnding, write_ending
from burnish.observability.metrics import MetricStore, Stopwatch
from burnish.observability.timeline import Processes, nobody
from burnish.outside.plugins import describe_failure
from burnish.outside.shortage import naming_shortages
from burnish.trainers.chaining import pinned
from burnish.trainers.early_stop import EarlyStop
from burnish.trainers.interrupt import StopRequest, forget_requests, graceful_stop, heed_requests
from burnish.trainers.microbatch import settle_microbatch
from burnish.trainers.result import WEIGHTS_FOLDER, RunResult
from burnish.trainers.run_folder import Workplace, open_workplace, record_paths, recorded_paths
from burnish.trainers.telemetry.journal import Journal, open_journal

STATE_NAME = "training_state"


@dataclass(slots=True)
class Progress:
    """Progress of a run. All randomness follows from the seed and these numbers."""

    step: int = 0
    """The last step whose updates are done."""
    position: int = 0
    """Prompts, examples or comparisons drawn so far."""
    positions: Mapping[str, int] = field(default_factory=dict)
    """Prompts drawn from each domain, in a run of `burnish rl`."""
    saved_step: int | None = None
    """Step of the newest checkpoint; None before the first."""
    pending: Pending | None = None
    """Work left to do for `step`: its updates are done, but its evaluation and its line of metrics are not."""
    versions: tuple[int, ...] = ()
    """Optimizer steps of each learner when the current step began; empty between steps."""

    def advance(self, position: int | Mapping[str, int], row: dict[str, float]) -> None:
        """Record that the updates of a step are done: whatever ends the run after this, its metrics are saved too.
        `position`: items drawn, or prompts of each domain."""
        if isinstance(position, Mapping):
            self.positions, position = position, sum(position.values())
        self.step, self.position, self.versions, self.pending = self.step + 1, position, (), Pending(row)


def check_warmup(warmup: int, total_steps: int) -> None:
    """Raise ConfigError if the learning rate would never reach its peak. Run files that set `steps` are checked before
    any data are read."""
    if warmup > total_steps:
        raise ConfigError(
            f"optimization.warmup_steps is {warmup}, but the run makes {total_steps} optimizer steps",
            remedy=f"set it to at most {total_steps}, or raise optimization.epochs",
        )


class Controller(Protocol):
    """Further state of a run that changes and is saved in checkpoints, such as an adaptive KL coefficient."""

    def state_dict(self) -> Mapping[str, object]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@dataclass(slots=True, kw_only=True)
class Training(ABC):
    """An open run of one kind: its step, its evaluation, and the models that it trains."""

    config: RunConfig
    journal: Journal
    store: CheckpointStore
    total_steps: int
    progress: Progress = field(default_factory=Progress)
    saved: SavedPolicy | None = None
    """Completes the policy in a checkpoint for other programs, and tries it; None in runs without a policy."""
    early_stop: EarlyStop = field(init=False)

    def __post_init__(self) -> None:
        self.early_stop = EarlyStop(self.config.stop_when)

    @abstractmethod
    def learners(self) -> Mapping[str, Learner]:
        """Trained models by the name of their folder in a checkpoint."""

    def controllers(self) -> Mapping[str, Controller]:
        """Further state of a checkpoint, by name."""
        return {}

    @abstractmethod
    def train_step(self) -> dict[str, float]:
        """Do one step. Afterwards `progress` is one step further, with the returned metrics pending."""

    @abstractmethod
    def evaluate(self) -> dict[str, float]:
        """Compute metrics on held-out data, `eval/...`; empty if the run holds nothing out."""

    def before_first_step(self) -> None:  # noqa: B027  most kinds do nothing here
        """Do, once, the work of a new run that comes before its first evaluation and step."""

    def after_last_step(self, pending: Pending) -> bool:
        """Do, once, the work that follows the run's last update, and record in `pending` that it is done. Returns
        whether the model has changed, so that an evaluation made before no longer describes it."""
        return False


def train_to_end(opened: AbstractContextManager[Training], console: Console) -> RunResult:
    """Open a run, train it, and return its folder and step. The first Ctrl-C finishes the current step and saves."""
    with (
        naming_shortages(),
        graceful_stop(lambda text: console.print(f"[yellow]{text}[/]")) as stop,
        opened as training,
    ):
        run_loop(training, stop)
        folder, step, because = Path(training.config.output), training.progress.step, end_of(training)
        if because:
            training.journal.place.lock.check()
            write_ending(folder, RunEnding(step, because))
        if because and step < training.total_steps:
            training.journal.display.note(f"ended before step {training.total_steps}: {because}")
        return RunResult(folder, step, stopped=not because)


def end_of(training: Training) -> str:
    """Say why the run has no steps left to make; empty if it has some."""
    if training.progress.step >= training.total_steps:
        return "all steps are made"
    return training.early_stop.reason() if training.early_stop.ended else ""


def evaluated(training: Training) -> dict[str, float]:
    """Metrics on held-out data, and the time that they took; empty if the run holds nothing out."""
    stopwatch = Stopwatch(training.journal.phase)
    with stopwatch.phase("evaluate"):
        row = training.evaluate()
    return row and row | {"time/evaluate_seconds": stopwatch.seconds("evaluate")}


def run_loop(training: Training, stop: StopRequest) -> None:
    """Train from where `progress` is to the last step, or until asked to stop. Always leaves a checkpoint."""
    config, progress = training.config, training.progress
    folder, note = Path(config.output), training.journal.display.note

    def save_now() -> None:
        if progress.saved_step != progress.step:
            save_and_try(training)

    with saving_finished_steps(training):
        if progress.saved_step is None:
            # Once any checkpoint exists, even of step 0, this has been done and its evaluation written.
            training.before_first_step()
            if config.evaluation.begins and (row := evaluated(training)):
                training.journal.write(0, row)
                training.early_stop.observe(0, row)
                training.early_stop.check_measured(row)
        close_step(training)  # an error may have stopped the run between the last step's updates and its metrics
        forget_requests(folder)
        while not end_of(training) and not heed_requests(folder, stop, save_now, note):
            # Versions go up before weights change, so comparing them tells `_keep` whether this step has moved any.
            progress.versions = _versions(training)
            training.train_step()
            close_step(training)
        save_now()


def close_step(training: Training) -> None:
    """Finish a step after its updates: evaluation, the line of metrics, a checkpoint. Nothing if that is done."""
    config, progress, pending = training.config, training.progress, training.progress.pending
    if pending is None:
        return
    last = progress.step == training.total_steps
    if last:
        training.after_last_step(pending)
    due = config.evaluation.due(progress.step, last=last)
    row = pending.row | evaluated(training) if due else pending.row
    if training.early_stop.ends_with(progress.step, row) and not last:
        last = True
        if training.after_last_step(pending) or (config.evaluation.due(progress.step, last=True) and not due):
            row = pending.row | evaluated(training)
    training.journal.write(progress.step, row)
    progress.pending = None  # before saving: a resume from this checkpoint must not write the line a second time
    training.early_stop.check_measured(row)
    lacking = training.journal.place.lacks_checkpoint(progress.saved_step)  # also says so, thus always
    if lacking or config.checkpoint.due(progress.step, last=last):
        save_and_try(training)


def save_and_try(training: Training) -> None:
    """Save, and after the first time load the policy again as its users will."""
    is_first = training.progress.saved_step is None
    checkpoint = save(training)
    if is_first and training.saved is not None:
        problem = training.saved.problem(checkpoint.folder / WEIGHTS_FOLDER)
        if problem is not None:
            training.journal.display.note(problem)


def save(training: Training) -> Checkpoint:
    """Write a checkpoint of the current step: weights that `from_pretrained` loads, and everything else that an
    uninterrupted run would remember."""
    progress, journal = training.progress, training.journal

    def write(folder: Path) -> Mapping[str, str]:
        state: dict[str, Any] = {
            "step": progress.step,
            "position": progress.position,
            "positions": dict(progress.positions),
            "alarms": journal.alarms.state(),
        }
        if training.config.stop_when is not None:
            state["early_stop"] = training.early_stop.state_dict()
        for name, learner in training.learners().items():
            learner.save_weights(folder / name)
            state[name] = learner.training_state()
        if training.saved is not None:
            training.saved.write_ends(folder / WEIGHTS_FOLDER)
        for name, controller in training.controllers().items():
            state[name] = controller.state_dict()
        hashed = write_state(folder, STATE_NAME, state)
        write_pending(folder, progress.pending)
        return hashed

    journal.place.check()
    checkpoint = training.store.save(progress.step, write)
    progress.saved_step = progress.step
    return checkpoint


def restore(training: Training, checkpoint: Checkpoint) -> None:
    """Restore the state of the checkpoint in a newly opened run."""
    progress = training.progress
    with restoring(checkpoint.folder):
        state = read_state(checkpoint.folder, STATE_NAME)
        for name, learner in training.learners().items():
            if name not in state:
                raise CheckpointError(
                    f"{checkpoint.folder} is of a run that trained no {name}",
                    remedy="a fork cannot add one: start a new run from its weights instead, model=RUN@STEP",
                )
            learner.load_weights(checkpoint.folder / name)
            learner.load_training_state(state[name])
        progress.step, progress.position, progress.saved_step = state["step"], state["position"], state["step"]
        progress.positions = state["positions"]
        for name, controller in training.controllers().items():
            controller.load_state_dict(state[name])
        training.journal.alarms.load_state(state["alarms"])
        training.early_stop.load_state_dict(state.get("early_stop", {}))
        progress.pending = read_pending(checkpoint.folder)


def trained_on(
    tokens: int, progress: Progress, position: int, metrics: MetricStore, stopwatch: Stopwatch
) -> dict[str, float]:
    """Record that an update on this many tokens is done, and return the metrics of its step with times and speed.
    `position`: items drawn so far."""
    metrics.merge(stopwatch.metrics())
    row = metrics.row() | {"throughput/tokens_per_second": tokens / max(stopwatch.seconds("update"), 1e-9)}
    progress.advance(position, row)
    return row


def _versions(training: Training) -> tuple[int, ...]:
    return tuple(learner.version for learner in training.learners().values())


LearnerT = TypeVar("LearnerT", covariant=True)
TrainingT = TypeVar("TrainingT", bound=Training)


@dataclass(frozen=True, slots=True)
class OpenedModel(Generic[LearnerT]):
    """A model, and the function that gives it an optimizer once the number of optimizer steps is known from the data.

    `loaded` has no weights if the model is in other processes; `processes` are these.
    """

    loaded: LoadedModel
    learner: Callable[[int], LearnerT]
    processes: Processes = nobody


OpenLearner = Callable[[ConfigT, FastPaths, Console, Lanes], AbstractContextManager[OpenedModel[LearnerT]]]
"""Function that opens the model in this process, and reports its notes to the user. Closed with the run."""


@dataclass(frozen=True, slots=True)
class Beginning(Generic[ConfigT, LearnerT]):
    """A run that trains one model on given data, with its folder locked and its model there, before the data are read.
    `config` names the checkpoints of other runs and the tokens of a micro-batch."""

    config: ConfigT
    opened: OpenedModel[LearnerT]
    workplace: Workplace
    paths: FastPaths
    console: Console
    stack: ExitStack

    def journal(self, total_steps: int) -> Journal:
        """Open the journal of the run, to be closed with it."""
        opened, processes = self.opened, self.opened.processes
        journal = open_journal(
            self.config, self.workplace, opened.loaded, self.console, total_steps=total_steps, processes=processes
        )
        return self.stack.enter_context(journal)

    def restored(self, training: TrainingT) -> TrainingT:
        """The run where its newest checkpoint left off, with its fast paths recorded."""
        record_paths(self.workplace.path, self.paths)
        if self.workplace.checkpoint is not None:
            restore(training, self.workplace.checkpoint)
        return training


@contextmanager
def beginning(
    config: ConfigT, console: Console, open_learner: OpenLearner[ConfigT, LearnerT], *, accept_changes: bool
) -> Iterator[Beginning[ConfigT, LearnerT]]:
    """Lock the folder of a run and open its model."""
    config, chained = pinned(config)
    say(console, chained)
    with ExitStack() as stack:
        workplace = stack.enter_context(open_workplace(config, console, accept_changes=accept_changes))
        paths = recorded_paths(workplace.path)
        config = settle_microbatch(config, paths)
        opened = stack.enter_context(open_learner(config, paths, console, Lanes(config.cluster.num_lanes)))
        yield Beginning(config, opened, workplace, paths, console, stack)


@contextmanager
def saving_finished_steps(training: Training) -> Iterator[None]:
    """Save the last finished step, report it and re-raise, if anything except Ctrl-C ends the loop inside. If that save
    fails too, this is reported, but the first error is still the one raised.

    After a CheckpointError nothing is saved: the folder is no longer ours, or has just refused a checkpoint.
    """
    try:
        yield
    except CheckpointError:
        raise
    except (Exception, SystemExit) as error:  # boundary: whatever ends the loop, finished steps are worth keeping
        traceback.clear_frames(error.__traceback__)  # which hold the tensors of the call: saving needs memory, too
        gc.collect()
        told = _keep(training, diverged=isinstance(error, DivergenceError))
        if told:
            training.journal.display.note(told)
        raise


def _keep(training: Training, *, diverged: bool) -> str:
    """Save what can be saved, and return a sentence about it. diverged: a number that is not finite ended the run."""
    progress = training.progress
    step, saved, pending = progress.step, progress.saved_step, progress.pending
    newest = "there is no checkpoint" if saved is None else f"the newest checkpoint is of step {saved}"
    try:
        moved = bool(progress.versions) and progress.versions != _versions(training)
    except Exception as error:  # noqa: BLE001  boundary: a model in a process that is lost too cannot be asked
        reason = error.message if isinstance(error, BurnishError) else describe_failure(error)
        return f"nothing more is saved ({reason})"
    hindrance = ""
    if moved:
        hindrance = f"step {step + 1} was stopped in the middle of its updates, so its weights belong to no step"
    elif pending is not None and (diverged or not pending.is_finite()):  # before its line was written
        hindrance = f"the metrics of step {step} are not all finite, so its weights cannot be trusted"
    if hindrance:
        return f"{hindrance}; nothing is saved, {newest}"
    if step in (0, saved):
        return ""
    try:
        save(training)
    except Exception as error:  # noqa: BLE001  boundary: why the run stopped matters more than why this save failed
        return f"step {step} could not be saved either ({describe_failure(error)}); {newest}"
    return f"step {step} is saved; the same command continues from there"
