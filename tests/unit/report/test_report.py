"""The report page: whole, bounded, and deaf to what the policy writes."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from burnish.errors import DataError
from burnish.observability.recorder import RolloutNote, RolloutRecorder
from burnish.observability.sinks import build_sinks
from burnish.report.charts import build_charts, evenly
from burnish.report.report import run_names, write_comparison, write_report
from burnish.report.samples import PageLimits, sample_rollouts
from burnish.types import FinishReason, Prompt, RewardStatus, Rollout, RolloutGroup

EVIL = "</script><script>alert(1)</script><!-- \u2028 & <b>"


def groups(count: int, samples: int, tokens: int, text: str = "q") -> list[RolloutGroup]:
    found = []
    for g in range(count):
        rollouts = tuple(
            Rollout(f"p{g}", g, k, (1,), (0,) * tokens, (-1.5,) * tokens, FinishReason.STOP, 0, "x" * tokens,
                    float(k), {"exact": 1.0}, None, RewardStatus.OK)
            for k in range(samples)
        )  # fmt: skip
        found.append(RolloutGroup(Prompt(f"p{g}", text=f"{text}{g}", answer=text), g, rollouts))
    return found


def make_run(folder: Path, steps: int = 3, text: str = "q", **size: int) -> None:
    sinks = build_sinks([], folder)
    recorder = RolloutRecorder(folder / "rollouts", lambda ids: [text] * len(ids))
    for step in range(1, steps + 1):
        sinks.write(step, {"reward/mean": step / steps, "time/generate_seconds": 1.0, "custom/one": 2.0})
        made = groups(**({"count": 2, "samples": 2, "tokens": 3} | size), text=text)
        notes = {r.key: RolloutNote(advantage=0.5) for g in made for r in g.rollouts}
        recorder.record(step, made, notes)
    sinks.close()


def embedded(page: str, name: str) -> Any:
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_the_page_holds_curves_configuration_alarms_and_rollouts(tmp_path: Path) -> None:
    make_run(tmp_path)
    (tmp_path / "config.yaml").write_text("seed: 17\n")
    page = write_report(tmp_path).read_text()
    charts = {chart["title"]: chart for chart in embedded(page, "chart-data")}
    assert charts["Reward"]["series"] == [{"label": "mean", "x": [1, 2, 3], "y": [0.333333, 0.666667, 1.0]}]
    assert charts["Time by phase"]["series"][0]["label"] == "generate"
    assert charts["custom/one"]["section"] == "Further"
    (files,) = embedded(page, "rollout-data")["files"]
    assert [file["step"] for file in files] == [1, 2, 3]
    response = files[0]["groups"][1]["responses"][1]
    assert (response["reward"], response["advantage"], response["tokens"]) == (1.0, 0.5, ["q"] * 3)
    assert "seed: 17" in page
    assert "No alarm in this run" in page


def test_the_page_tells_no_secret_and_is_its_owners(tmp_path: Path) -> None:
    """Also of a folder that an earlier version wrote, which masked nothing."""
    before = os.umask(0)
    try:
        make_run(tmp_path)
        (tmp_path / "config.yaml").write_text("seed: 17\nrewards:\n- options:\n    api_key: hunter2\n    n: 3\n")
        (tmp_path / "environment.json").write_text('{"command": ["a=https://me:hunter2@example.org"]}')
        page = write_report(tmp_path)
    finally:
        os.umask(before)
    assert "hunter2" not in page.read_text()
    assert "api_key: (masked)" in page.read_text()
    assert "n: 3" in page.read_text()
    for name in ("report.html", "metrics.jsonl", "rollouts/step-000001.jsonl"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600, name


def test_the_page_loads_nothing(tmp_path: Path) -> None:
    make_run(tmp_path)
    page = write_report(tmp_path).read_text()
    assert "default-src 'none'" in page
    links = set(re.findall(r"https?://[^\s\"'<>]+", page))
    assert links == {"http://www.w3.org/2000/svg"}  # a name of a kind of element, not an address that is asked
    assert not re.search(r"<link|<img|<iframe|@import|src=", page)


def test_what_the_policy_writes_stays_text(tmp_path: Path) -> None:
    make_run(tmp_path, text=EVIL)
    (tmp_path / "config.yaml").write_text(f"name: '{EVIL}'\n")
    page = write_report(tmp_path).read_text()
    assert "alert(1)</script>" not in page
    assert page.count("<script") == page.count("</script>") == 3
    group = embedded(page, "rollout-data")["files"][0][0]["groups"][0]
    assert group["responses"][0]["tokens"][0] == EVIL
    assert group["answer"] == EVIL


@pytest.mark.slow
def test_a_big_run_makes_a_bounded_page_that_says_so(tmp_path: Path) -> None:
    make_run(tmp_path, steps=12, count=6, samples=8, tokens=200)
    limits = PageLimits(steps=5, prompts_per_step=4, total_bytes=150_000)
    path = write_report(tmp_path, tmp_path / "page.html", limits=limits)
    page = path.read_text()
    data = embedded(page, "rollout-data")
    assert [file["step"] for file in data["files"][0]] == [1, 4, 7, 9, 12]
    assert len(json.dumps(data)) <= 160_000
    assert "5 of 12 recorded steps" in page


@pytest.mark.parametrize("budget", [100, 2_000, 20_000, 200_000])
def test_any_budget_keeps_something_of_each_step(tmp_path: Path, budget: int) -> None:
    make_run(tmp_path, steps=2, count=3, samples=4, tokens=300)
    data = sample_rollouts(tmp_path / "rollouts", PageLimits(total_bytes=budget))
    assert [file["step"] for file in data["files"]] == [1, 2]
    assert all(file["groups"][0]["responses"] for file in data["files"])
    assert len(json.dumps(data["files"])) <= budget + 2_000


def test_a_folder_without_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no metrics\.jsonl"):
        write_report(tmp_path)


def test_a_damaged_rollout_file_is_named(tmp_path: Path) -> None:
    make_run(tmp_path, steps=1)
    (tmp_path / "rollouts" / "step-000001.jsonl").write_text('{"half": 1}\n')
    with pytest.raises(DataError, match=r"step-000001\.jsonl is not a file of recorded rollouts"):
        write_report(tmp_path)


def test_a_run_without_rollouts_has_a_page(tmp_path: Path) -> None:
    build_sinks([], tmp_path).write(1, {"train/loss": 2.0})
    assert embedded(write_report(tmp_path).read_text(), "rollout-data")["files"] == [[]]


def test_long_curves_are_thinned_evenly_with_both_ends_and_all_that_stands_out() -> None:
    rows = [{"step": step, "reward/mean": float(step % 7)} for step in range(5000)]
    rows[1234]["reward/mean"], rows[4321]["reward/mean"] = 99.0, -99.0
    (chart,) = build_charts(rows)
    xs, ys = chart["series"][0]["x"], chart["series"][0]["y"]
    assert len(xs) <= 800
    assert (xs[0], xs[-1]) == (0, 4999)
    assert list(xs) == sorted(set(xs))
    assert (xs[ys.index(99.0)], xs[ys.index(-99.0)]) == (1234, 4321)
    assert evenly(range(5), 3) == [0, 2, 4]
    assert evenly(range(2), 3) == [0, 1]
    assert evenly(range(9), 1) == [8]


def test_parts_and_domains_share_a_chart() -> None:
    row = {"step": 1, "reward/part/math": 1.0, "reward/part/format": 0.5, "eval/domain/sums/accuracy": 0.25}
    charts = {chart["title"]: [s["label"] for s in chart["series"]] for chart in build_charts([row])}
    assert charts == {"Reward by part": ["format", "math"], "Held-out accuracy by domain": ["sums"]}


RESOLVED = """model: {path: tiny, dtype: float32}
data: {train: [{path: a.jsonl, weight: 1.0}, {path: b.jsonl, weight: 3.0}]}
rewards: [{name: math, weight: 1.0}]
algorithm: {preset: dapo, clip_high: 0.28, entropy_coef: %s}
steps: 100
"""


def test_the_configuration_is_told_as_a_difference_from_defaults_and_preset(tmp_path: Path) -> None:
    make_run(tmp_path)
    (tmp_path / "config.yaml").write_text(RESOLVED % "0.01")
    page = write_report(tmp_path).read_text()
    rows = dict(re.findall(r"<tr><th>(.*?)</th><td>(.*?)</td>", page))
    # steps: 100 and dtype are defaults, clip_high is the preset's
    assert rows == {
        "model.path": "tiny",
        "data.train.0.path": "a.jsonl",
        "data.train.1.path": "b.jsonl",
        "data.train.1.weight": "3.0",
        "rewards.0.name": "math",
        "algorithm.preset": "dapo",
        "algorithm.entropy_coef": "0.01",
    }
    assert '<td class="default">0.0</td>' in page


@pytest.mark.parametrize("text", ["- 1\n", "a: [\n", "", "steps: 3\nsteps: 4\n"])
def test_a_configuration_that_cannot_be_read_leaves_the_page_whole(tmp_path: Path, text: str) -> None:
    make_run(tmp_path)
    (tmp_path / "config.yaml").write_text(text)
    assert "Resolved run file" in write_report(tmp_path).read_text() or not text


def test_several_runs_on_one_page(tmp_path: Path) -> None:
    for name, coef in (("a", "0.01"), ("b", "0.02")):
        make_run(tmp_path / name, steps=2)
        (tmp_path / name / "config.yaml").write_text(RESOLVED % coef)
    page = write_comparison([tmp_path / "a", tmp_path / "b"], tmp_path / "both.html").read_text()
    charts = {chart["title"]: chart for chart in embedded(page, "chart-data")}
    lines = [(s["label"], s["run"], s["metric"], s["x"]) for s in charts["Reward"]["series"]]
    assert lines == [("a: mean", 0, 0, [1, 2]), ("b: mean", 1, 0, [1, 2])]
    assert "Time by phase" not in charts  # stacks cannot be laid over each other
    data = embedded(page, "rollout-data")
    assert data["runs"] == ["a", "b"]
    assert [[file["step"] for file in files] for files in data["files"]] == [[1, 2], [1, 2]]
    (marked,) = re.findall(r'<tr class="differs"><th>(.*?)</th><td>(.*?)</td><td>(.*?)</td>', page)
    assert marked == ("algorithm.entropy_coef", "0.01", "0.02")


def test_runs_of_two_presets_show_the_values_that_they_had(tmp_path: Path) -> None:
    """Only b departs from its preset, and a has the value of another."""
    for name, preset, clip in (("a", "grpo", 0.2), ("b", "dapo", 0.3)):
        make_run(tmp_path / name, steps=2)
        text = RESOLVED.replace("preset: dapo, clip_high: 0.28", f"preset: {preset}, clip_high: {clip}")
        (tmp_path / name / "config.yaml").write_text(text % "0.0")
    (tmp_path / "b" / "config.yaml").write_text((tmp_path / "b" / "config.yaml").read_text() + "seed: 7\n")
    page = write_comparison([tmp_path / "a", tmp_path / "b"], tmp_path / "both.html").read_text()
    marked = re.findall(r'<tr class="differs"><th>(.*?)</th><td>(.*?)</td><td>(.*?)</td>', page)
    assert ("algorithm.clip_high", "0.2", "0.3") in marked
    assert ("seed", "", "7") in marked
    assert "by preset" in page


def test_names_of_runs_tell_them_apart(tmp_path: Path) -> None:
    assert run_names([Path("/x/one"), Path("/x/two")]) == ["one", "two"]
    assert run_names([Path("/x/one"), Path("/y/one")]) == ["x/one", "y/one"]
    with pytest.raises(DataError, match="the same run is given twice"):
        run_names([tmp_path, tmp_path / "."])


def test_the_seconds_of_a_phase_are_stacked_once() -> None:
    row = {
        "time/generate_seconds": 3.0,
        "time/prefill_seconds": 1.0,
        "time/decode_seconds": 2.0,
        "time/update_seconds": 4.0,
    }
    charts = {chart["title"]: chart for chart in build_charts([{"step": 1, "time/step_seconds": 7.0, **row}])}
    assert [s["label"] for s in charts["Time by phase"]["series"]] == ["generate", "update"]
    assert [s["label"] for s in charts["Sampling"]["series"]] == ["prefill", "decode"]
    engine = {"time/engine_start_seconds": 2.0, "time/wait_seconds": 1.0}
    charts = {chart["title"]: chart for chart in build_charts([{"step": 1, **row, **engine}])}
    assert [s["label"] for s in charts["Time by phase"]["series"]] == ["update", "wait"]
    assert [s["label"] for s in charts["Sampling ahead"]["series"]] == ["generate"]
    assert [s["label"] for s in charts["Starting and waking of vLLM"]["series"]] == ["start"]


def test_layers_of_a_long_run_are_means_of_the_same_steps() -> None:
    """Every tenth of 8,000 steps is evaluated."""
    rows = [
        {"step": step, "time/update_seconds": 2.0} | ({"time/evaluate_seconds": 5.0} if step % 10 == 0 else {})
        for step in range(8000)
    ]
    charts = {chart["title"]: chart for chart in build_charts(rows)}
    first, second = charts["Time by phase"]["series"]
    assert first["x"] == second["x"]
    assert {s["label"]: set(s["y"]) for s in (first, second)} == {"update": {2.0}, "evaluate": {0.5}}
