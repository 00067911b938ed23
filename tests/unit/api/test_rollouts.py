"""Recorded rollouts as values, and how a notebook shows those of several turns."""

import dataclasses
from pathlib import Path
from typing import Any

from burnish.api.rollouts import RecordedRollout, recorded
from burnish.observability.recorder import RolloutRecorder
from burnish.types import FinishReason, Message, Prompt, RewardStatus, Rollout, RolloutGroup, Turn

CALL = {"type": "function", "function": {"name": "calculator", "arguments": {"expression": "2*3"}}}
TURNS = (
    Turn("policy", 0, 2, (Message("assistant", "I ask", tool_calls=(CALL,)),)),
    Turn("tool", 2, 3, (Message("tool", "6"),)),
    Turn("policy", 3, 4, (Message("assistant", "six " + "and more " * 20),)),
)


def read_back(folder: Path, **fields: Any) -> RecordedRollout:
    known: dict[str, Any] = dict(
        prompt_id="p", group_id=0, sample_index=0, prompt_tokens=(1,), response_tokens=(5, 6, 7, 8),
        rollout_logprobs=(-1.0, -2.0, 0.0, -3.0), finish_reason=FinishReason.STOP, policy_version=0, response="six",
        reward=1.0, status=RewardStatus.OK,
    )  # fmt: skip
    recorder = RolloutRecorder(folder, lambda ids: [f"<{i}>" for i in ids])
    group = RolloutGroup(Prompt("p", text="2*3="), 0, (Rollout(**(known | fields)),))
    (found,) = recorded(recorder.record(1, [group]))
    return found


def test_only_sampled_tokens_are_tinted(tmp_path: Path) -> None:
    html = read_back(tmp_path, turns=TURNS)._repr_html_()
    assert html.count("background:rgba") == 3
    assert 'not sampled" style="color:gray;border-bottom:1px dotted gray">&lt;7&gt;</span>' in html
    assert "-3.000" in html
    assert "0.000" not in html.replace("-1.000", "").replace("-2.000", "").replace("-3.000", "")


def test_a_single_turn_is_tinted_as_a_whole(tmp_path: Path) -> None:
    rollout = read_back(tmp_path)
    assert rollout._repr_html_().count("background:rgba") == 4
    assert rollout.short_text() == "six"


def test_turns_have_a_short_form(tmp_path: Path) -> None:
    short = read_back(tmp_path, turns=TURNS).short_text()
    assert short.startswith("I ask calculator(expression='2*3') → 6 → six and more and more")
    assert short.endswith("…")
    assert len(short.rpartition(" → ")[2]) == 60


def test_what_went_wrong_is_said(tmp_path: Path) -> None:
    broken = read_back(
        tmp_path, turns=TURNS, reward=None, status=RewardStatus.ERROR, finish_reason=FinishReason.FAILED,
        status_detail="the environment failed: <b>",
    )  # fmt: skip
    assert "not scored, failed: the environment failed: &lt;b&gt;" in broken._repr_html_()


def test_every_field_of_a_rollout_is_read_back(tmp_path: Path) -> None:
    """Also one that is added later: it has to be given here, with a value that is not its default."""
    given: dict[str, Any] = dict(
        reward_parts={"exact": 1.0}, token_rewards=(0.0, 0.5, 0.0, 1.0), status_detail="late",
        versions=((0, 3), (2, 4)), turns=TURNS, environment_reward=0.25, ends_in=3, history=(Message("user", "x"),),
        branch=1, turn_seconds=((1.5,), (None, 0.25), (0.5,)),
    )  # fmt: skip
    found = read_back(tmp_path, **given)
    assert {name: getattr(found, name) for name in given} == given
    assert not [one.name for one in dataclasses.fields(Rollout) if getattr(found, one.name) == one.default]
