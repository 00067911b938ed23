"""Every rollout on disk, with what became of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from plain_samples import plain_rollout

from burnish.errors import BurnishError
from burnish.observability.recorder import RolloutNote, RolloutRecorder, read_rollouts, recorded_files
from burnish.types import Message, Prompt, RewardStatus, Rollout, RolloutGroup


def rollout(sample: int, reward: float | None = 1.0, **fields: Any) -> Rollout:
    status = RewardStatus.OK if reward is not None else RewardStatus.TIMEOUT
    known = {"response_tokens": (5, 6), "rollout_logprobs": (-0.5, -1.0), "response": "ab", "status": status}
    return plain_rollout(2, reward, group=7, index=sample, **known | fields)


def group(*rollouts: Rollout, greedy: Rollout | None = None, **prompt: Any) -> RolloutGroup:
    asked: dict[str, Any] = {"id": "p", "text": "1+1=", "answer": 2, "domain": "sums"} | prompt
    return RolloutGroup(Prompt(**asked), 7, rollouts, greedy)


def test_a_line_has_prompt_tokens_and_fate(tmp_path: Path) -> None:
    recorder = RolloutRecorder(tmp_path, lambda ids: [f"<{i}>" for i in ids])
    notes = {(7, 0, 0): RolloutNote(advantage=0.5, token_advantages=(0.5, 0.25), old_logprobs=(-0.6, -1.1))}
    path = recorder.record(12, [group(rollout(0), rollout(1), rollout(2, None), greedy=rollout(-1))], notes)
    assert path.name == "step-000012.jsonl"
    first, second, failed, greedy = read_rollouts(path)
    assert (first["prompt"], first["answer"], first["domain"], first["step"]) == ("1+1=", 2, "sums", 12)
    assert (first["token_texts"], first["rollout_logprobs"]) == (["<5>", "<6>"], [-0.5, -1.0])
    assert (first["kept"], first["advantage"], first["token_advantages"]) == (True, 0.5, [0.5, 0.25])
    assert first["old_logprobs"] == [-0.6, -1.1]
    assert (second["kept"], second["dropped_because"]) == (False, "not in the update")
    assert (failed["kept"], failed["dropped_because"], failed["reward"]) == (False, "reward timeout", None)
    assert (greedy["greedy"], "kept" in greedy) == (True, False)


def test_evaluations_carry_values_also_of_greedy_responses(tmp_path: Path) -> None:
    values = {(7, -1, 0): (0.25, 0.5), (7, 0, 0): (0.125, 1.0)}
    made = [group(rollout(0), rollout(1), greedy=rollout(-1))]
    lines = read_rollouts(RolloutRecorder(tmp_path).record_evaluation(1, made, values))
    assert [line.get("token_values") for line in lines] == [[0.125, 1.0], None, [0.25, 0.5]]


def test_writing_again_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    recorder = RolloutRecorder(tmp_path)
    recorder.record(1, [group(rollout(0), rollout(1))])
    recorder.record(1, [group(rollout(0))])
    recorder.record_evaluation(1, [group(greedy=rollout(0))])
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["eval-000001.jsonl", "step-000001.jsonl"]
    assert len(read_rollouts(tmp_path / "step-000001.jsonl")) == 1


def test_files_past_the_resumed_step_go(tmp_path: Path) -> None:
    recorder = RolloutRecorder(tmp_path)
    for step in (1, 2, 3):
        recorder.record(step, [group(rollout(0))])
        recorder.record_evaluation(step, [group(rollout(0))])
    recorder.discard_after(2)
    kept = {f"{kind}-00000{step}.jsonl" for kind in ("step", "eval") for step in (1, 2)}
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_per_token_values_must_fit_the_response(tmp_path: Path) -> None:
    notes = {(7, 0, 0): RolloutNote(token_advantages=(1.0,))}
    with pytest.raises(ValueError, match="sample 0: token_advantages has 1 entries, but the response has 2 tokens"):
        RolloutRecorder(tmp_path).record(1, [group(rollout(0))], notes)


def test_conversations_odd_answers_and_odd_numbers_are_strict_json(tmp_path: Path) -> None:
    talk = group(rollout(0, response="\ud800 数", rollout_logprobs=(float("-inf"), -1.0)),
                 text=None, messages=(Message("user", "hi"),), answer={1j})  # fmt: skip
    path = RolloutRecorder(tmp_path).record(1, [talk])

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    line = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    assert line["prompt"] == [{"role": "user", "content": "hi"}]
    assert (line["answer"], line["rollout_logprobs"], line["response"]) == ("{1j}", ["-inf", -1.0], "\ud800 数")


def test_files_of_other_names_are_not_the_runs(tmp_path: Path) -> None:
    for name in ("step-000002.jsonl", "eval-000001.jsonl", "step-old.jsonl", "step-000003.jsonl.bak", "notes.jsonl"):
        (tmp_path / name).write_text("")
    assert recorded_files(tmp_path) == {2: tmp_path / "step-000002.jsonl"}
    assert recorded_files(tmp_path, evaluation=True) == {1: tmp_path / "eval-000001.jsonl"}
    RolloutRecorder(tmp_path).discard_after(1)
    assert (tmp_path / "step-old.jsonl").exists()
    assert not (tmp_path / "step-000002.jsonl").exists()


def test_a_folder_in_the_place_of_a_later_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "step-000002.jsonl").mkdir()
    with pytest.raises(BurnishError, match=r"cannot remove .*step-000002\.jsonl"):
        RolloutRecorder(tmp_path).discard_after(1)
