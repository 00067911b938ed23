"""A run whose reward is a judge has the scores of the rule by which it judges, faults and all, and from its cache."""

import json
import re
import string
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runs import BuildRl, Run, rows_of, run_file, trace, trained, write_lines
from stub_judge import judge_at, shown

from burnish.cli import main
from burnish.rewards.judging.judges import Judges

pytestmark = pytest.mark.slow_cases("*")

RULE = """
def digits(response: str, answer: str) -> float:
    seen = response.replace("_", "").replace("$", "")  # a judge does not see special tokens
    return sum(a == b for a, b in zip(seen, answer)) / 2
"""


def fault(count: int, prompt: str) -> str:
    """Whatever goes wrong at first goes well in the end."""
    drawn = zlib.crc32(f"{count} {prompt}".encode()) % 100
    for name, until in (("429", 10), ("reset", 15), ("nonsense", 20)):
        if drawn < until and count < 2:
            return name if name != "nonsense" or count == 0 else ""
    return ""


@pytest.fixture
def rule() -> Callable[[Any], str]:
    """Counts the digits that are those of the sum in the request."""

    def judge(messages: Any) -> str:
        first, second = map(int, re.search(r"Request:\n(\d)\+(\d)=", messages[1]["content"]).groups())  # type: ignore[union-attr]
        seen, answer = shown(messages)["response"], f"{first + second:02d}"
        return f'{{"score": {sum(a == b for a, b in zip(seen, answer, strict=False))}}}'

    return judge


@pytest.fixture
def run(tiny_run: BuildRl, tmp_path: Path) -> Run:
    """Trains on one reward in `tmp_path/NAME`, and returns it."""

    def train(name: str, reward: dict[str, Any], **fields: Any) -> Path:
        config = tiny_run(
            f"output={tmp_path / name}",
            steps=4,
            rewards=[{**reward, "label": "digits"}],
            evaluation={"every_steps": 2, "at_start": True},
            checkpoint={"every_steps": 2},
            logging={"sinks": [], "record_rollouts": True},
            **fields,
        )
        return trained(config)

    return train


def test_a_run_has_the_numbers_of_the_rule_and_needs_no_endpoint_again(
    run: Run, rule: Callable[[Any], str], stub_judge: Any, tmp_path: Path
) -> None:
    (tmp_path / "rule.py").write_text(RULE)
    expected = trace(run("rule", {"name": f"{tmp_path / 'rule.py'}:digits"}))
    stub = stub_judge(rule, fault)
    options = {"scale": [0, 2], "reference": True, "cache": str(tmp_path / "cache"), "concurrency": 8}
    judged = judge_at(stub, **options)
    first, asked = trace(run("judged", judged)), stub.requests
    assert asked > 20
    assert min(stub.faults[name] for name in ("429", "reset", "nonsense")) > 0
    assert stub.most_in_flight <= 8
    second = trace(run("again", judged))
    assert stub.requests == asked
    for found in (first, second):
        assert found.rollouts == expected.rollouts
        assert found.state == expected.state
        for metrics, without in zip(found.metrics, expected.metrics, strict=True):
            assert {name: value for name, value in metrics.items() if "judge/" not in name} == without
    assert any(metrics["judge/requests"] > 0 for metrics in first.metrics if "judge/requests" in metrics)
    assert all(metrics["judge/requests"] == 0 for metrics in second.metrics if "judge/requests" in metrics)


def test_pairwise_scores_center_each_group(run: Run, stub_judge: Any) -> None:
    """The longer response wins, so that responses grow; held-out ones, each alone, meet their answers."""

    def longer(messages: Any) -> str:
        said = shown(messages)
        a, b = len(said["response_a"]), len(said["response_b"])
        return f'{{"better": "{"A" if a > b else "B" if b > a else "tie"}"}}'

    rows = rows_of(run("pairwise", judge_at(stub_judge(longer), form="pairwise")))
    means = [row["reward/mean"] for row in rows if "reward/mean" in row]
    assert means == pytest.approx([0.5] * len(means))
    assert all(row["judge/inconsistent_fraction"] == 0 for row in rows if "judge/inconsistent_fraction" in row)


def test_check_asks_about_labelled_rows_and_nothing_else(
    stub_judge: Any, tiny_run: Any, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    stub = stub_judge(lambda messages: json.dumps({"score": len(shown(messages)["response"])}))
    rows = [{"prompt": "1+1=", "answer": "2", "response": "x" * length, "human": length**2} for length in range(1, 9)]
    write_lines(tmp_path / "rows.jsonl", rows)
    (tmp_path / "unlabelled.jsonl").write_text(json.dumps({"prompt": "2+2=", "answer": "4"}) + "\n")
    for labels, requests, said in (
        ({}, 0, "judge 'judge' is not asked"),
        ({"labels": "human"}, 8, "judge 'judge': rank correlation 1.000 on 8 rows that humans have judged"),
    ):
        judge = judge_at(stub, scale=[0, 10], **labels)
        config = tiny_run(
            rewards=[judge, {"name": "exact"}],
            data={"train": str(tmp_path / "rows.jsonl")},
            evaluation={"every_steps": None, "at_start": False, "success": "judge"},
        )
        assert main(["check", run_file(config)]) == 0
        output = " ".join(capsys.readouterr().out.split())
        assert said in output
        assert "8 of 8 gold answers reach the top score 1 (judged by: exact)" in output
        assert stub.requests == requests
        data = {"train": str(tmp_path / "rows.jsonl"), "eval": str(tmp_path / "unlabelled.jsonl")}
        assert main(["check", run_file(tiny_run(rewards=[judge], data=data))]) == 0
        assert said in " ".join(capsys.readouterr().out.split())
        stub.bodies.clear()


def test_a_run_loads_the_judge_that_it_names(run: Run, save_tiny_llama: Callable[..., Path]) -> None:
    """It knows nothing: its answers go on until they are cut off, which is not repaired, so each response fails."""
    letters = "".join(sorted(set(string.printable) - set("$_\r\x0b\x0c")))
    folder = save_tiny_llama(letters, context_length=2048)
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }} {% endfor %}a:"
    )
    judge = {"name": "judge", "options": {"model_path": str(folder), "max_tokens": 8}}
    scoring = {"workers": 1, "on_failure": "score", "failure_score": 0.0, "max_failure_fraction": 1.0}
    asked = [row for row in rows_of(run("local", judge, scoring=scoring)) if "judge/requests" in row]
    assert asked
    assert all(row["judge/requests"] == 1 and row["judge/repaired_fraction"] == 0 for row in asked)  # a batch
    assert all(row["judge/tokens_out"] > 0 and row["judge/seconds"] > 0 for row in asked)
    assert all(row["reward/error_fraction"] == 1 for row in asked)


@pytest.mark.parametrize("staleness", [0, 1])
def test_responses_of_rollout_workers_are_judged_as_they_come(
    staleness: int, tiny_run: BuildRl, stub_judge: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same numbers as in one process."""
    early: list[int] = []
    begin = Judges.begin_early

    def noting(judges: Judges, label: str, items: Any) -> None:
        early.append(len(items))
        begin(judges, label, items)

    monkeypatch.setattr(Judges, "begin_early", noting)
    stub = stub_judge(lambda messages: json.dumps({"score": 1 + len(shown(messages)["response"])}))
    judge = judge_at(stub)
    found = []
    for workers in (0, 1):
        config = tiny_run(
            f"output={tmp_path / str(workers)}",
            f"max_staleness={staleness}",
            steps=4,
            rewards=[judge],
            checkpoint={"every_steps": 2},
            logging={"sinks": [], "record_rollouts": True},
            cluster={"lanes": 2, "threads": 1, "rollout_workers": workers},
        )
        found.append(trace(trained(config)))
        assert sum(early) == 64 * (1 + workers)  # a judge keeps no core busy, so one process asks it early, too
    assert found[0].rollouts == found[1].rollouts
    assert found[0].state == found[1].state
    assert stub.requests <= 128  # nothing is asked twice
