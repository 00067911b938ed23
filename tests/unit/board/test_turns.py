"""Responses of several turns on the report page: who said what, with numbers only where the policy sampled."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from burnish.agents.partner import ToolsAndEnvironment
from burnish.board.metric_charts import named_charts
from burnish.board.pictures import value_charts
from burnish.board.report import write_report
from burnish.board.samples import PageLimits, ShownResponse, sample_rollouts
from burnish.board.turns import MOST_CHARACTERS
from burnish.observability.metrics import MetricStore
from burnish.observability.recorder import RolloutNote, RolloutRecorder, num_sampled, read_rollouts, sampled_mask
from burnish.trainers.telemetry.groups import describe_conversations, describe_groups
from burnish.types import FinishReason, Message, Prompt, RewardStatus, Rollout, RolloutGroup, Turn

CALL = {"id": "call00100", "type": "function", "function": {"name": "python", "arguments": {"code": "a\nb", "n": 3}}}


def talk(result: str = "42", prompt: tuple[int, ...] = (1,), **fields: Any) -> Rollout:
    """Two tokens with a call, three of its result, two of an answer."""
    turns = (
        Turn("policy", 0, 2, (Message("assistant", "", tool_calls=(CALL,)),), reward=0.25),
        Turn("tool", 2, 5, (Message("tool", result, extra={"name": "python"}),)),
        Turn("policy", 5, 7, (Message("assistant", "it is 42"),)),
    )
    known: dict[str, Any] = dict(
        prompt_id="p", group_id=0, sample_index=0, prompt_tokens=prompt, response_tokens=tuple(range(7)),
        rollout_logprobs=(-1.0, -0.5, 0.0, 0.0, 0.0, -0.25, float("-inf")), finish_reason=FinishReason.TURNS,
        policy_version=1, response="it is 42", reward=1.0, status=RewardStatus.OK, turns=turns, environment_reward=0.5,
    )  # fmt: skip
    return Rollout(**(known | fields))


def record(folder: Path, *rollouts: Rollout, texts: bool = True, **note: Any) -> list[ShownResponse]:
    """What the page shows of these responses to one prompt."""
    recorder = RolloutRecorder(folder / "rollouts", (lambda ids: [f"<{i}>" for i in ids]) if texts else None)
    group = RolloutGroup(Prompt("p", text="q"), 0, rollouts)
    recorder.record(1, [group], {r.key: RolloutNote(**note) for r in rollouts})
    return sample_rollouts(folder / "rollouts", PageLimits())["files"][0]["groups"][0]["responses"]


def test_a_response_is_shown_turn_by_turn(tmp_path: Path) -> None:
    (response,) = record(tmp_path, talk())
    call = {"name": "python", "arguments": [("code", "a\nb"), ("n", "3")]}
    assert response["turns"] == [
        {"author": "policy", "start": 0, "stop": 2, "calls": [call], "messages": [], "reward": 0.25},
        {"author": "tool", "start": 2, "stop": 5, "calls": [], "messages": [{"name": "python", "text": "42"}]},
        {"author": "policy", "start": 5, "stop": 7, "calls": [], "messages": []},
    ]
    assert (response["count"], response["given"], response["environment"]) == (4, 3, 0.5)
    assert (response["finish"], response["tokens"][5]) == ("turns", "<5>")


def test_last_words_stand_in_the_turn_that_they_answer_and_each_turn_has_its_seconds(tmp_path: Path) -> None:
    """With their own seconds. A call that nobody measured has none."""
    words = (Message("assistant", "it is 42"), Message("user", "right"))
    turns = (*talk().turns[:2], replace(talk().turns[2], messages=words))
    seconds = ((1.25,), (0.25, None, 0.5), (0.5, 0.1234))
    (response,) = record(tmp_path, talk(turns=turns, turn_seconds=seconds))
    assert response["turns"][2]["messages"] == [{"name": "", "text": "right"}]
    assert [turn["seconds"] for turn in response["turns"]] == [[1.25], [0.25, None, 0.5], [0.5, 0.123]]
    assert response["seconds"] == {"policy": 1.75, "tool": 0.75, "environment": 0.123}


def test_numbers_are_those_of_sampled_tokens(tmp_path: Path) -> None:
    masked = (0.5, 0.5, 0.0, 0.0, 0.0, 0.5, 0.5)
    (response,) = record(tmp_path, talk(), advantage=0.5, token_advantages=masked, token_values=masked)
    assert response["logprobs"] == [-1.0, -0.5, None, None, None, -0.25, "-inf"]
    assert response["values"] == [0.5, 0.5, None, None, None, 0.5, 0.5]
    assert "advantages" not in response  # all sampled tokens have that of the response
    uneven = (0.5, 0.5, 0.0, 0.0, 0.0, 0.25, 0.25)
    (response,) = record(tmp_path, talk(), advantage=0.4, token_advantages=uneven)
    assert response["advantages"] == [0.5, 0.5, None, None, None, 0.25, 0.25]


def test_a_response_of_one_turn_is_as_before(tmp_path: Path) -> None:
    (response,) = record(tmp_path, talk(turns=(), environment_reward=None))
    assert (response["count"], response["logprobs"][2]) == (7, 0.0)
    assert not {"turns", "given", "environment", "seen"} & set(response)
    assert "prompt_text" not in read_rollouts(tmp_path / "rollouts" / "step-000001.jsonl")[0]


def test_without_texts_of_tokens_each_turn_is_its_text(tmp_path: Path) -> None:
    (response,) = record(tmp_path, talk(), texts=False)
    assert response["tokens"] == ["", "42", "it is 42"]
    assert [(turn["start"], turn["stop"]) for turn in response["turns"]] == [(0, 1), (1, 2), (2, 3)]
    assert response["count"] == 4


def test_the_prompt_is_shown_as_the_policy_saw_it(tmp_path: Path) -> None:
    """Once for a group, and again for a response whose environment has begun otherwise."""
    record(tmp_path, talk(prompt=(1, 8)), talk(prompt=(1, 8), sample_index=1), talk(prompt=(1, 9), sample_index=2))
    (group,) = sample_rollouts(tmp_path / "rollouts", PageLimits())["files"][0]["groups"]
    assert group["seen"] == "<1><8>"
    assert [response.get("seen") for response in group["responses"]] == [None, None, "<1><9>"]


def test_long_results_are_cut_for_the_page(tmp_path: Path) -> None:
    (response,) = record(tmp_path, talk("x" * (MOST_CHARACTERS + 5)))
    (message,) = response["turns"][1]["messages"]
    assert message["text"] == "x" * MOST_CHARACTERS + " […5 more characters]"


@pytest.mark.parametrize("budget", [600, 2_500])
def test_a_response_that_is_too_long_keeps_its_first_turns(tmp_path: Path, budget: int) -> None:
    record(tmp_path, talk("x" * 4_000))
    files = sample_rollouts(tmp_path / "rollouts", PageLimits(total_bytes=budget))["files"]
    (response,) = files[0]["groups"][0]["responses"]
    assert len(json.dumps(files)) < budget + 1_500
    assert response["tokens"][-1] == " […cut for this page]"
    *before, last = response["turns"]
    assert last["stop"] == len(response["tokens"])
    assert [turn["stop"] for turn in before] == [turn["start"] for turn in response["turns"][1:]]


def test_what_tools_say_stays_text(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script>"
    record(tmp_path, talk(evil))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward/mean": 1.0}\n')
    page = write_report(tmp_path).read_text()
    assert page.count("<script") == page.count("</script>") == 7
    assert "alert(1)</script>" not in page


def test_a_line_tells_which_tokens_were_sampled() -> None:
    line = talk().to_dict()
    assert sampled_mask(line) == [True, True, False, False, False, True, True]
    assert num_sampled(line) == 4
    assert num_sampled(talk(turns=()).to_dict()) == 7


def test_returns_are_plotted_for_sampled_tokens(tmp_path: Path) -> None:
    values = (1.0, 2.0, 9.0, 9.0, 9.0, 3.0, 4.0)
    record(tmp_path, talk(), token_values=values, token_returns=values)
    (chart,) = value_charts(tmp_path / "rollouts")
    assert sorted(x for series in chart["series"] if series.get("mark") == "dots" for x in series["x"]) == [1, 2, 3, 4]


def test_every_metric_of_conversations_is_in_their_charts() -> None:
    """None of them is among the further metrics, and none is a phase of the step."""
    host = Mock(has_environment=True, answers_text=True, **{"parent.take_restarts.return_value": 0})
    partner = ToolsAndEnvironment(host, (), Mock(), Mock(), Mock(), Mock())
    partner.count(calls=4, turns=2, opened=1, seconds=3.0)
    described = [describe_conversations([talk()]), describe_conversations([talk()], "eval/")]
    metrics = MetricStore.of([partner.take_metrics(), *described]).row()
    assert len(metrics) == 25
    shown = [chart for chart in named_charts(metrics) if chart.section == "Conversations"]
    assert sorted(metric for chart in shown for _, metric in chart.metrics) == sorted(metrics)


def test_a_response_of_several_rows_counts_once() -> None:
    """Rows of 2 + 1 turns of the policy and one of 2; tokens likewise."""
    rows = [
        talk(branch=1, ends_in=0, finish_reason=FinishReason.STOP),
        talk(turns=talk().turns[:1], response_tokens=(1, 2), rollout_logprobs=(-1.0, -1.0)),
        talk(sample_index=1, reward=0.0),
    ]
    found = {name: metric.result() for name, metric in describe_conversations(rows).items()}
    assert (found["conversation/turns_mean"], found["conversation/rows_mean"]) == (2.5, 1.5)
    assert found["conversation/sampled_tokens_mean"] == 5.0  # 4 + 2, and 4
    assert found["conversation/out_of_turns_fraction"] == 1.0
    group = RolloutGroup(Prompt("p", text="q"), 0, tuple(rows))
    assert [row.sample_index for row in group.samples()] == [0, 1]
    metrics = {name: metric.result() for name, metric in describe_groups([group]).items()}
    assert (metrics["reward/mean"], metrics["groups/constant_fraction"]) == (0.5, 0.0)
