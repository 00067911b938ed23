"""What the trainer knows about each rollout, and what a step leaves behind."""

import math
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import torch
from plain_samples import group_of, plain_rollout

from burnish.models.roles import RowEntropies
from burnish.observability.alarms import AlarmBell
from burnish.observability.recorder import RolloutRecorder, read_rollouts
from burnish.observability.timeline import TimelineRecorder
from burnish.trainers.rl.batching import build_batch, scored
from burnish.trainers.rl.collection import Collected
from burnish.trainers.telemetry.journal import Journal
from burnish.trainers.telemetry.rollout_notes import rollout_notes
from burnish.types import FinishReason, RewardStatus, Rollout, RolloutGroup


def rollout(group: int, index: int, tokens: int = 2, reward: float | None = 1.0, *, cut: bool = False) -> Rollout:
    end = FinishReason.LENGTH if cut else FinishReason.STOP
    status = RewardStatus.OK if reward is not None else RewardStatus.TIMEOUT
    return plain_rollout(tokens, reward, group=group, index=index, finish_reason=end, status=status)


def why_left_out(group: RolloutGroup) -> str:
    return f"because of {len(group.rollouts)}"


def learned(*kept: RolloutGroup, left_out: tuple[RolloutGroup, ...] = ()) -> tuple[Collected, Any]:
    """A step of these groups, and its batch with advantages 10 * row + column."""
    collected = Collected(kept, (*kept, *left_out), {}, {})
    batch = build_batch([r for _, r in scored(kept)], pad_token_id=0, mask_truncated=True)
    shape = batch.response_tokens.shape
    numbers = 10.0 * torch.arange(shape[0])[:, None] + torch.arange(shape[1])
    return collected, batch.replace(advantages=numbers, old_logprobs=-numbers)


def test_a_failed_reward_does_not_shift_the_rows_of_its_siblings() -> None:
    kept = group_of(rollout(0, 0), rollout(0, 1, reward=None), rollout(0, 2, tokens=1))
    notes = rollout_notes(*learned(kept), why_left_out)
    assert set(notes) == {(0, 0, 0), (0, 2, 0)}
    assert notes[0, 0, 0].token_advantages == (0.0, 1.0)
    assert notes[0, 0, 0].advantage == 0.5
    assert notes[0, 2, 0].token_advantages == (10.0,)
    assert notes[0, 2, 0].old_logprobs == (-10.0,)
    assert notes[0, 2, 0].ref_logprobs is None
    assert notes[0, 2, 0].kept


def test_entropies_find_their_rows_in_whatever_order_micro_batches_came() -> None:
    """A uniform choice of two has ln 2 nats; the row that no update has seen has none recorded."""
    kept = group_of(rollout(0, 0), rollout(0, 1), rollout(0, 2, tokens=1))
    parts = [RowEntropies(torch.tensor([2]), torch.tensor([[1.5]]))]
    parts += [RowEntropies(torch.tensor([0]), torch.tensor([[math.log(2), 0.0, 0.0]]))]
    notes = rollout_notes(*learned(kept), why_left_out, parts)
    assert [notes[0, k, 0].token_entropy for k in range(3)] == [(0.6931, 0.0), None, (1.5,)]


def test_a_masked_response_is_named_truncated_and_has_no_advantage() -> None:
    notes = rollout_notes(*learned(group_of(rollout(0, 0), rollout(0, 1, cut=True))), why_left_out)
    assert (notes[0, 1, 0].kept, notes[0, 1, 0].dropped_because, notes[0, 1, 0].advantage) == (False, "truncated", None)


def test_groups_that_a_filter_left_out_say_why() -> None:
    left_out = group_of(rollout(1, 0), rollout(1, 1)), group_of(rollout(2, 0))
    notes = rollout_notes(*learned(group_of(rollout(0, 0)), left_out=left_out), why_left_out)
    assert notes[1, 0, 0].dropped_because == "because of 2"
    assert notes[2, 0, 0].dropped_because == "because of 1"
    assert not notes[1, 0, 0].kept


def test_without_an_update_no_row_has_an_advantage() -> None:
    collected, _ = learned(group_of(rollout(0, 0)))
    assert rollout_notes(collected, None, why_left_out) == {}


def journal(recorder: RolloutRecorder | None) -> tuple[Journal, Mock]:
    """And what its sinks, display and folder are told, in order."""
    heard = Mock()
    heard.sinks.write.return_value = []
    timeline = Mock(spec=TimelineRecorder)
    return Journal(recorder, heard.sinks, AlarmBell(), heard.display, timeline, heard.folder), heard


def test_a_row_reaches_disk_before_the_display_and_an_alarm_is_said_once() -> None:
    book, heard = journal(None)
    row = {"rollout/truncated_fraction": 1.0}
    for step in range(1, 5):
        book.write(step, row)
    told = [one for one in heard.mock_calls if one in (call.sinks.write(1, row), call.display.update(1, row))]
    assert told == [call.sinks.write(1, row), call.display.update(1, row)]
    assert [one.args[0].name for one in heard.display.alarm.call_args_list] == ["all truncated"]


def test_every_rollout_is_recorded_whatever_became_of_it(tmp_path: Path) -> None:
    book, _ = journal(RolloutRecorder(tmp_path))
    kept = group_of(rollout(0, 0), rollout(0, 1, reward=None), greedy=rollout(0, -1))
    collected, batch = learned(kept, left_out=(group_of(rollout(1, 0), rollout(1, 1)),))
    book.record(3, collected.sampled, rollout_notes(collected, batch, why_left_out))
    lines = read_rollouts(tmp_path / "step-000003.jsonl")
    assert [(line["group_id"], line["sample_index"]) for line in lines] == [(0, 0), (0, 1), (0, -1), (1, 0), (1, 1)]
    reasons = [line.get("dropped_because") for line in lines]
    assert reasons == ["", "reward timeout", None, "because of 2", "because of 2"]


def test_without_a_recorder_nothing_is_recorded() -> None:
    book, _ = journal(None)
    book.record(1, [group_of(rollout(0, 0))], {})
    book.record_evaluation(1, [])
