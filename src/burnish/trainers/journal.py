"""What a run leaves behind and says: rollout files, metrics, alarms, the live display."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from burnish.models.batch import Batch
from burnish.observability.alarms import AlarmBell
from burnish.observability.console import Display
from burnish.observability.recorder import RolloutNote, RolloutRecorder, TokenValues
from burnish.observability.sinks import Sinks
from burnish.trainers.batching import scored
from burnish.trainers.collection import Collected
from burnish.types import RolloutGroup


@dataclass(frozen=True, slots=True)
class Journal:
    """Where the loop reports to. `recorder` is None when the run records no rollouts."""

    recorder: RolloutRecorder | None
    sinks: Sinks
    alarms: AlarmBell
    display: Display

    def record(self, step: int, collected: Collected, batch: Batch | None) -> None:
        """Every rollout of the step, with its advantage where it entered the update."""
        if self.recorder is not None:
            self.recorder.record(step, collected.sampled, rollout_notes(collected, batch))

    def record_evaluation(self, step: int, groups: Sequence[RolloutGroup], values: TokenValues | None = None) -> None:
        """Every rollout of an evaluation, with the critic's values where there is one."""
        if self.recorder is not None:
            self.recorder.record_evaluation(step, groups, values)

    def write(self, step: int, row: dict[str, float]) -> None:
        """One line of metrics; alarms that this line sets off are said once."""
        self.sinks.write(step, row)
        self.display.update(step, row)
        for alarm in self.alarms.check(step, row):
            self.display.alarm(alarm)


def rollout_notes(collected: Collected, batch: Batch | None) -> dict[tuple[int, int], RolloutNote]:
    """(group, sample) to what the trainer knows about the rollout; groups that a filter left out are named as such."""
    kept_ids = {group.group_id for group in collected.groups}
    notes = {
        (rollout.group_id, rollout.sample_index): RolloutNote(kept=False, dropped_because=_why_left_out(group))
        for group in collected.sampled
        if group.group_id not in kept_ids
        for rollout in group.rollouts
        if rollout.reward is not None
    }
    if batch is not None:
        host = batch.to("cpu")
        for row, (_, rollout) in enumerate(scored(collected.groups)):
            notes[rollout.group_id, rollout.sample_index] = _note(host, row)
    return notes


def _why_left_out(group: RolloutGroup) -> str:
    greedy_failed = group.greedy is not None and group.greedy.reward is None
    return "greedy response without a score" if greedy_failed else "group without signal"


def _note(batch: Batch, row: int) -> RolloutNote:
    trained = batch.loss_mask[row]
    advantages = _of_row(batch.advantages, batch, row)
    kept = bool(trained.any())
    mean = float(batch.advantages[row][trained].mean()) if kept and batch.advantages is not None else None
    return RolloutNote(
        kept=kept,
        dropped_because="" if kept else "truncated",
        advantage=mean,
        token_advantages=advantages,
        old_logprobs=_of_row(batch.old_logprobs, batch, row),
        ref_logprobs=_of_row(batch.ref_logprobs, batch, row),
        token_values=_of_row(batch.values, batch, row),
        token_returns=_of_row(batch.returns, batch, row),
    )


def _of_row(values_BT: Tensor | None, batch: Batch, row: int) -> tuple[float, ...] | None:
    if values_BT is None:
        return None
    return tuple(values_BT[row, : int(batch.response_lengths[row])].tolist())
