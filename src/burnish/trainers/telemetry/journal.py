"""Records and output of a run: rollout files, metrics, alarms, the live display."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console

from burnish.checkpointing.run import RunDirectory
from burnish.config.schema import RunConfig
from burnish.config.secrets import masked
from burnish.data.chat import text_of_tokens
from burnish.models.loading import LoadedModel
from burnish.observability.alarms import AlarmBell
from burnish.observability.console import Display, say
from burnish.observability.recorder import Notes, RolloutRecorder, TokenValues
from burnish.observability.sinks import Sinks, build_sinks
from burnish.observability.timeline import Processes, TimelineRecorder, WorkSpan, nobody
from burnish.trainers.interrupt import Watcher, present_watch
from burnish.trainers.run_folder import Workplace
from burnish.types import RolloutGroup


@dataclass(frozen=True, slots=True)
class Journal:
    """The destinations of the loop's reports. `recorder` is None if the run records no rollouts."""

    recorder: RolloutRecorder | None
    sinks: Sinks
    alarms: AlarmBell
    display: Display
    timeline: TimelineRecorder
    place: Workplace
    """The run's folder, which all of this is written to. Checked before each write: it must still be this run's."""
    watchers: tuple[Watcher, ...] = ()
    """Functions of the program that trains, called with each line of metrics."""

    def record(self, step: int, groups: Sequence[RolloutGroup], notes: Notes) -> None:
        """Record every rollout of the step, with the trainer's notes by (group, sample)."""
        self.place.check()
        if self.recorder is not None:
            self.recorder.record(step, groups, notes)

    def record_evaluation(self, step: int, groups: Sequence[RolloutGroup], values: TokenValues | None = None) -> None:
        """Record every rollout of an evaluation, with the critic's values, if any."""
        self.place.check()
        if self.recorder is not None:
            self.recorder.record_evaluation(step, groups, values)

    def phase(self, name: str) -> None:
        """Show and note the phase that begins; an empty name only ends the last one."""
        self.display.phase(name)
        self.timeline.phase(name)

    def write(self, step: int, row: dict[str, float]) -> None:
        """Write one line of metrics; an alarm that it triggers is shown once. Raises what a watcher raises."""
        self.place.check()
        broken = self.sinks.write(step, row)
        for watch in self.watchers:  # before the alarms: a run that a watcher ends writes this line again on resuming
            watch(step, row)
        self.timeline.write(step)
        self.display.update(step, row)
        for alarm in (*broken, *self.alarms.check(step, row)):
            self.display.alarm(alarm)


@contextmanager
def open_journal(
    config: RunConfig,
    workplace: Workplace,
    loaded: LoadedModel,
    console: Console,
    *,
    total_steps: int,
    processes: Processes = nobody,
    scoring: Callable[[], Sequence[WorkSpan]] = tuple,
) -> Iterator[Journal]:
    """Recorder, sinks, alarms and display, with everything after the checkpoint that the run continues from removed.

    The run's configuration is written here, because only here is it known whether any step is left: a finished run
    keeps the configuration it was made with.
    """
    resume_step = workplace.resume_step
    if workplace.written_step is None or workplace.written_step < total_steps:
        RunDirectory(workplace.path).begin(config, accepted=workplace.accepted)
    else:
        finished = f"{workplace.path} is finished at step {resume_step} ({total_steps} asked for), nothing to do"
        say(console, [f"{finished}; raise `steps` to continue"])
    recorder = RolloutRecorder(workplace.path / "rollouts", token_texts(loaded))
    recorder.discard_after(-1 if resume_step is None else resume_step)
    sinks = build_sinks(
        config.logging.sinks,
        workplace.path,
        project=config.logging.project,
        config=masked(config.model_dump(mode="json")),
        resume_step=workplace.written_step,
    )
    plain_every = max(1, total_steps // 100)  # a log file does not need a line for each of thousands of steps
    with Display(
        console,
        total_steps,
        start_step=resume_step or 0,
        title=str(workplace.path),
        plain_every=plain_every,
        processes=processes,
        verbose=config.logging.verbose,
    ) as display:
        for alarm in sinks.alarms:
            display.alarm(alarm)
        failed = True
        try:
            yield Journal(
                recorder=recorder if config.logging.keeps_rollouts else None,
                sinks=sinks,
                alarms=AlarmBell(),
                display=display,
                timeline=TimelineRecorder(workplace.path, processes, scoring, resume_step=workplace.written_step),
                place=workplace,
                watchers=present_watch().watchers,
            )
            failed = False
        finally:
            for alarm in sinks.close(failed=failed):
                display.alarm(alarm)


def token_texts(loaded: LoadedModel) -> Callable[[Sequence[int]], list[str]]:
    """From token ids to one text each (`data.chat.text_of_tokens`)."""
    text = text_of_tokens(loaded.tokenizer)
    return lambda tokens: [text(token) for token in tokens]
