"""The report page: whole, bounded, and deaf to what the policy writes."""

import json
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from plain_samples import plain_rollout

from burnish.board.metric_charts import evenly, named_charts
from burnish.board.report import run_names, write_report
from burnish.board.samples import PageLimits, sample_rollouts
from burnish.errors import DataError
from burnish.observability.recorder import RolloutNote, RolloutRecorder
from burnish.observability.sinks import build_sinks
from burnish.types import Prompt, RolloutGroup

EVIL = "</script><script>alert(1)</script><!-- \u2028 & <b>"


def groups(count: int, samples: int, tokens: int, text: str = "q") -> list[RolloutGroup]:
    def group(g: int) -> RolloutGroup:
        more = {"response": "x" * tokens, "reward_parts": {"exact": 1.0}}
        rollouts = tuple(plain_rollout(tokens, float(k), group=g, index=k, **more) for k in range(samples))
        return RolloutGroup(Prompt(f"p{g}", text=f"{text}{g}", answer=text), g, rollouts)

    return [group(g) for g in range(count)]


def make_run(folder: Path, steps: int = 3, text: str = "q", **size: int) -> None:
    sinks = build_sinks([], folder)
    recorder = RolloutRecorder(folder / "rollouts", lambda ids: [text] * len(ids))
    for step in range(1, steps + 1):
        sinks.write(step, {"reward/mean": step / steps, "time/generate_seconds": 1.0, "custom/one": 2.0})
        made = groups(**({"count": 2, "samples": 2, "tokens": 3} | size), text=text)
        recorder.record(step, made, {r.key: RolloutNote(advantage=0.5) for g in made for r in g.rollouts})
    sinks.close()


def embedded(page: str) -> Any:
    return json.loads(re.search(r'<script type="application/json" id="snapshot">(.*?)</script>', page, re.DOTALL)[1])


def held_by(*folders: Path, **more: Any) -> Any:
    """The data in the page of these runs."""
    return embedded(write_report(*folders, **more).read_text(encoding="utf-8"))


def details_of(folder: Path) -> Any:
    (found,) = held_by(folder)["details"].values()
    return found


def test_the_page_holds_curves_configuration_alarms_and_rollouts(tmp_path: Path) -> None:
    make_run(tmp_path)
    (tmp_path / "config.yaml").write_text("seed: 17\n")
    held = held_by(tmp_path)
    ((name, detail),) = held["details"].items()
    reward = held["lines"][name]["drawn"]["reward/mean"]
    assert (reward["steps"], reward["y"]) == ([1, 2, 3], [0.3333333, 0.6666667, 1.0])
    assert held["lines"][name]["places"] == {"1": [0.0, 0.0], "2": [0.0, 0.0], "3": [0.0, 0.0]}
    assert {"metric": "custom/one", "value": 2.0} in held["charts"]["flat"]
    assert held["runs"]["runs"][0]["values"] == {"reward/mean": [1 / 3, 1.0]}
    assert (detail["steps"], detail["evals"], detail["alarms"], detail["remarks"]) == ([1, 2, 3], [], [], [])
    response = detail["rollouts"][0]["groups"][1]["responses"][1]
    assert (response["reward"], response["advantage"], response["tokens"]) == (1.0, 0.5, ["q"] * 3)
    assert "seed: 17" in held["configurations"]["texts"][name]


def test_the_page_tells_no_secret_and_is_its_owners(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Also of a folder that an earlier version wrote, which masked nothing."""
    request.addfinalizer(partial(os.umask, os.umask(0)))
    make_run(tmp_path)
    (tmp_path / "config.yaml").write_text("seed: 17\nrewards:\n- options:\n    api_key: hunter2\n    n: 3\n")
    (tmp_path / "environment.json").write_text('{"command": ["a=https://me:hunter2@example.org"]}')
    page = write_report(tmp_path).read_text()
    assert "hunter2" not in page
    assert "api_key: (masked)" in page
    assert "n: 3" in page
    for name in ("report.html", "metrics.jsonl", "rollouts/step-000001.jsonl"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600, name


def test_the_page_loads_nothing(tmp_path: Path) -> None:
    make_run(tmp_path)
    page = write_report(tmp_path).read_text()
    assert "default-src 'none'" in page
    links = set(re.findall(r"https?://[^\s\"'<>]+", page))
    # A name of a kind of element, and a comment: no address that is asked.
    assert links == {"http://www.w3.org/2000/svg", "https://github.com/leeoniya/uPlot"}
    assert not re.search(r"<link rel=.stylesheet|<img|<iframe|@import|<script src", page)


def test_half_a_character_does_not_keep_the_page_from_being_written(tmp_path: Path) -> None:
    make_run(tmp_path, text="\ud83d")
    assert details_of(tmp_path)["rollouts"][0]["groups"][0]["responses"][0]["tokens"] == ["\ud83d"] * 3


def test_what_the_policy_writes_stays_text(tmp_path: Path) -> None:
    make_run(tmp_path, text=EVIL)
    (tmp_path / "config.yaml").write_text(f"name: '{EVIL}'\n")
    page = write_report(tmp_path).read_text()
    assert "alert(1)</script>" not in page
    assert page.count("<script") == page.count("</script>") == 7
    group = details_of(tmp_path)["rollouts"][0]["groups"][0]
    assert (group["responses"][0]["tokens"][0], group["answer"]) == (EVIL, EVIL)


@pytest.mark.slow
def test_a_big_run_makes_a_bounded_page_that_says_so(tmp_path: Path) -> None:
    make_run(tmp_path, steps=12, count=6, samples=8, tokens=200)
    limits = PageLimits(steps=5, prompts_per_step=4, total_bytes=150_000)
    (detail,) = held_by(tmp_path, out=tmp_path / "page.html", limits=limits)["details"].values()
    assert [file["step"] for file in detail["rollouts"]] == detail["steps"] == [1, 4, 7, 9, 12]
    assert len(json.dumps(detail["rollouts"])) <= 160_000
    assert "5 of 12 recorded steps" in detail["remarks"][0]


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
    assert details_of(tmp_path)["rollouts"] == []


def test_long_curves_are_thinned_evenly_with_both_ends_and_all_that_stands_out(tmp_path: Path) -> None:
    rows = [{"step": step, "reward/mean": float(step % 7)} for step in range(5000)]
    rows[1234]["reward/mean"], rows[4321]["reward/mean"] = 99.0, -99.0
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    held = held_by(tmp_path)
    (lines,), (detail,) = held["lines"].values(), held["details"].values()
    xs, ys = lines["drawn"]["reward/mean"]["steps"], lines["drawn"]["reward/mean"]["y"]
    assert (len(xs) <= 800, xs[0], xs[-1]) == (True, 0, 4999)
    assert list(xs) == sorted(set(xs)) == list(map(int, lines["places"]))
    assert (xs[ys.index(99.0)], xs[ys.index(-99.0)]) == (1234, 4321)
    assert "800 of 5,000 steps" in detail["remarks"][0]
    assert (evenly(range(5), 3), evenly(range(2), 3), evenly(range(9), 1)) == ([0, 2, 4], [0, 1], [8])


def test_parts_and_domains_share_a_chart() -> None:
    charts = named_charts(["reward/part/format", "reward/part/math", "eval/domain/sums/accuracy"])
    found = {chart.title: [label for label, _ in chart.metrics] for chart in charts if chart.metrics}
    assert found == {"Reward by part": ["format", "math"], "Held-out accuracy by domain": ["sums"]}


@pytest.mark.parametrize("line", ["{", '{"step": 3}\n{"step": 2}'])
def test_damaged_metrics_are_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1}}\n{line}\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl:[23] is (not a row|out of order)"):
        write_report(tmp_path)


RESOLVED = """model: {path: tiny, dtype: float32}
data: {train: [{path: a.jsonl, weight: 1.0}, {path: b.jsonl, weight: 3.0}]}
rewards: [{name: math, weight: 1.0}]
algorithm: {preset: dapo, clip_high: 0.28, entropy_coef: %s}
steps: 100
"""


def test_the_configuration_is_told_as_a_difference_from_defaults_and_preset(tmp_path: Path) -> None:
    make_run(tmp_path)
    (tmp_path / "config.yaml").write_text(RESOLVED % "0.01")
    table = held_by(tmp_path)["configurations"]["rows"]
    rows = {row["path"]: row["values"][0] for row in table}
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
    assert {row["path"]: row["default"] for row in table}["algorithm.entropy_coef"] == "0.0"


@pytest.mark.parametrize("text", ["- 1\n", "a: [\n", "", "steps: 3\nsteps: 4\n"])
def test_a_configuration_that_cannot_be_read_leaves_the_page_whole(tmp_path: Path, text: str) -> None:
    make_run(tmp_path)
    (tmp_path / "config.yaml").write_text(text)
    assert held_by(tmp_path)["configurations"]["texts"] == {tmp_path.name: text}


def test_several_runs_on_one_page(tmp_path: Path) -> None:
    for name, coef in (("a", "0.01"), ("b", "0.02")):
        make_run(tmp_path / name, steps=2)
        (tmp_path / name / "config.yaml").write_text(RESOLVED % coef)
    held = held_by(tmp_path / "a", tmp_path / "b", out=tmp_path / "both.html")
    curves = {name: lines["drawn"]["reward/mean"]["y"] for name, lines in held["lines"].items()}
    assert curves == {"a": [0.5, 1.0], "b": [0.5, 1.0]}
    assert [detail["steps"] for detail in held["details"].values()] == [[1, 2]] * 2
    marked = {row["path"]: row["values"] for row in held["configurations"]["rows"] if row["differs"]}
    assert marked == {"algorithm.entropy_coef": ["0.01", "0.02"]}


def test_runs_of_two_presets_show_the_values_that_they_had(tmp_path: Path) -> None:
    """Only b departs from its preset, and a has the value of another."""
    for name, preset, clip, more in (("a", "grpo", 0.2, ""), ("b", "dapo", 0.3, "seed: 7\n")):
        make_run(tmp_path / name, steps=2)
        text = RESOLVED.replace("preset: dapo, clip_high: 0.28", f"preset: {preset}, clip_high: {clip}")
        (tmp_path / name / "config.yaml").write_text(text % "0.0" + more)
    held = held_by(tmp_path / "a", tmp_path / "b", out=tmp_path / "both.html")
    rows = {row["path"]: (*row["values"], row["default"]) for row in held["configurations"]["rows"] if row["differs"]}
    assert rows["algorithm.clip_high"] == ("0.2", "0.3", "by preset")
    assert rows["seed"][:2] == ("", "7")


def test_names_of_runs_tell_them_apart(tmp_path: Path) -> None:
    assert run_names([Path("/x/one"), Path("/x/two")]) == ["one", "two"]
    assert run_names([Path("/x/one"), Path("/y/one")]) == ["x/one", "y/one"]
    with pytest.raises(DataError, match=f"the same run is given twice: {tmp_path}"):
        run_names([Path("/x"), tmp_path, tmp_path / "."])
