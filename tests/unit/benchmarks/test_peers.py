"""`benchmarks/peers`: the same lengths for every peer, a search that tries what it should, and figures that are
compared only with their like."""

import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from .conftest import BENCHMARKS, Script

PEERS = BENCHMARKS / "peers"


def geometric(script: Script, **changes: Any) -> Any:
    """Two prompts with two responses each, of mean 2 and at most 3 tokens."""
    fields: dict[str, Any] = {"prompts": 2, "group": 2, "prompt_tokens": 5, "max_response": 3, "mean_response": 2}
    return script("workloads").Workload("X", "", "tiny", **(fields | changes))


# Lengths


def test_every_step_has_the_quantiles_of_the_distribution(script: Script) -> None:
    # P(length <= k) = 1 - 2^-k, so the levels 1/8, 3/8, 5/8, 7/8 have the lengths 1, 1, 2, 3.
    lengths = script("workloads").response_lengths
    assert sorted(lengths(geometric(script), 0)) == [1, 1, 2, 3]
    assert sorted(lengths(geometric(script, max_response=2), 0)) == [1, 1, 2, 2]
    steps = [tuple(lengths(geometric(script), step)) for step in range(8)]
    assert {tuple(sorted(step)) for step in steps} == {(1, 1, 2, 3)}
    assert len(set(steps)) > 1
    assert steps == [tuple(lengths(geometric(script), step)) for step in range(8)]
    assert lengths(geometric(script, mean_response=None), 3) == [3, 3, 3, 3]


def test_lengths_have_the_mean_that_the_workload_says(script: Script) -> None:
    # Cut at 256, a geometric length of mean 64 has (1 - (63/64)^256) * 64 = 62.9 tokens.
    found = script("workloads").response_lengths(script("workloads").WORKLOADS["W2"], 0)
    assert len(found) == 64
    assert sum(found) / 64 == pytest.approx(62.9, abs=0.5)
    assert max(found) == 256


def test_the_plan_reads_the_prompts(script: Script, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(f'{{"prompt": "{text}"}}\n' for text in ("a", "a b", "a b c", "d", "e f")))
    plan = script("workloads").planned_lengths(geometric(script, mean_response=None), prompts, range(1, 2))
    assert plan == [[(3, 3), (3, 3), (1, 3), (1, 3)]]


def test_a_workload_survives_as_plain_data(script: Script) -> None:
    workloads = script("workloads")
    for workload in workloads.WORKLOADS.values():
        for either in (workload, workloads.quick(workload)):
            assert workloads.decode(workloads.encode(either)) == either


def done(**changes: Any) -> dict[str, Any]:
    result = {"lengths": [[[5, 3], [5, 1], [5, 2], [5, 1]]], "distinct_prompts": [2], "optimizer_steps": 1}
    return result | changes


PLAN = [[(5, 1), (5, 1), (5, 2), (5, 3)]]


def test_the_planned_work_in_any_order_is_the_same_work(script: Script) -> None:
    script("workloads").check_same_work("peer", geometric(script), done(), PLAN)
    script("workloads").check_same_work("peer", geometric(script), done(optimizer_steps=None), PLAN)
    given_up = {"lengths": [], "distinct_prompts": [], "optimizer_steps": 0}
    script("workloads").check_same_work("peer", geometric(script), given_up, [])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lengths": [[[5, 3], [5, 1], [5, 2], [5, 2]]]}, "tokens of measured step 0"),
        ({"lengths": [[[4, 3], [5, 1], [5, 2], [5, 1]]]}, "tokens of measured step 0"),
        ({"lengths": []}, "steps 0, wanted 1"),
        ({"distinct_prompts": [1]}, "distinct prompts"),
        ({"optimizer_steps": 2}, "optimizer steps 2, wanted 1"),
    ],
)
def test_other_work_is_refused(script: Script, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"peer did other work in X: .*{message}"):
        script("workloads").check_same_work("peer", geometric(script), done(**changes), PLAN)


def test_a_conversation_of_other_turns_is_refused(script: Script) -> None:
    turns = script("workloads").Turns(count=2, said=16, answered=1)  # 16 + 1 + 3 + 16 = 36 tokens, 32 of them sampled
    workload = geometric(script, prompts=1, group=1, turns=turns, max_response=36, mean_response=None)
    result = {"lengths": [[[5, 36]]], "distinct_prompts": [1], "optimizer_steps": 1, "sampled": [[32]]}
    script("workloads").check_same_work("peer", workload, result, [[(5, 36)]])
    with pytest.raises(ValueError, match="tokens sampled in each response"):
        script("workloads").check_same_work("peer", workload, result | {"sampled": [[31]]}, [[(5, 36)]])


def test_a_row_ends_at_its_last_token_and_at_no_other(script: Script) -> None:
    ends = script("forced").EndsAt(prompt_width=2, lengths=[1, 3])
    eos = script("workloads").EOS

    def after(width: int) -> list[list[float]]:
        return ends(torch.zeros(2, width, dtype=torch.int64), torch.ones(2, 3)).tolist()

    only_end = [-torch.inf, -torch.inf, -torch.inf]
    only_end[eos] = 0.0
    free = [1.0, 1.0, 1.0]
    assert after(2) == [only_end, free]
    assert after(3) == [free, free]
    assert after(4) == [free, only_end]
    with pytest.raises(ValueError, match="3 rows are sampled, but 2 responses planned"):
        script("forced").ending({"input_ids": torch.zeros(3, 2)}, [1, 2])


# The search


class Costs:
    """Tokens per second by settings, made up; remembers what it was asked."""

    def __init__(self, script: Script, speed: Callable[[Any], float], *, gives_up: bool = False) -> None:
        self._trial, self._speed, self._gives_up = script("search").Trial, speed, gives_up
        self.asked: list[Any] = []

    def __call__(self, settings: Any, give_up_seconds: float | None) -> Any:
        self.asked.append((settings, give_up_seconds))
        first = 100 / self._speed(settings)
        if self._gives_up and give_up_seconds is not None and first > give_up_seconds:
            return self._trial(settings, first, None)
        return self._trial(settings, first, self._speed(settings))


SPACE = {
    "rows": (4, 8, 16, 32, 64),
    "matmul": ("highest", "medium"),
    "allocator": ("as it comes", "kept"),
    "checkpointing": (False, True),
}


def speed(settings: Any) -> float:
    """Best with 32 rows, medium and kept."""
    rows = {4: 1.0, 8: 2.0, 16: 4.0, 32: 5.0, 64: 3.0}[settings.rows]
    return rows * (2 if settings.matmul == "medium" else 1) * (1.5 if settings.allocator == "kept" else 1)


def searched(script: Script, space: Any, costs: Any, near: bool = False, **start: Any) -> tuple[list[Any], Any]:
    """All trials, and the best settings."""
    settings = script("settings").TrlSettings(**start)
    trials = script("search").search(space, settings, costs, near=near)
    return trials, script("search").best(trials, settings)


def test_the_search_finds_the_fastest_and_tries_nothing_twice(script: Script) -> None:
    costs = Costs(script, speed)
    trials, best = searched(script, SPACE, costs, rows=8)
    assert best == script("settings").TrlSettings(rows=32, matmul="medium", allocator="kept")
    asked = [settings for settings, _ in costs.asked]
    assert len(asked) == len(set(asked)) == len(trials)
    assert [s.rows for s in asked[:5]] == [8, 4, 16, 32, 64]
    assert [s.rows for s in asked[8:10]] == [16, 64]  # the second round tries only the neighbours of 32 again
    assert len(asked) == 11  # of 40


def test_every_micro_batch_is_tried(script: Script) -> None:
    costs = Costs(script, lambda settings: {4: 9.0, 8: 1.0, 16: 2.0, 32: 8.0, 64: 1.0}[settings.rows])
    trials, best = searched(script, {"rows": (4, 8, 16, 32, 64)}, costs, rows=32)
    assert best.rows == 4  # although 8 and 16 are slower than 32
    assert [trial.settings.rows for trial in trials] == [32, 4, 8, 16, 64]


def test_after_a_search_for_similar_work_only_neighbouring_numbers_are_tried(script: Script) -> None:
    start, costs = script("settings").TrlSettings(rows=8), Costs(script, speed)
    trials, _ = searched(script, SPACE, costs, near=True, rows=8)
    assert [trial.settings.rows for trial in trials] == [8, 4, 16, 32, 64]  # up to where it gets slower
    assert {(s.matmul, s.allocator) for s, _ in costs.asked} == {(start.matmul, start.allocator)}


def test_a_search_goes_on_from_one_of_the_same_model(script: Script) -> None:
    stamp = {"switched_off": []}
    rows = [
        {"peer": "TRL", "precision": "float32", "switched_off": [], "workload": name, "chosen": {"rows": chosen}}
        for name, chosen in (("W1", 16), ("W3", 64))
    ]
    before = script("search").fastest_before
    assert before(rows, "W5", "float32", stamp).rows == 16
    assert before(rows, "W8", "float32", stamp).rows == 64
    assert before(rows, "W10", "float32", stamp) is None
    assert before(rows, "W5", "bfloat16", stamp) is None


def test_a_choice_that_pays_only_with_another_is_found_in_the_next_round(script: Script) -> None:
    def together(settings: Any) -> float:
        return 3.0 if settings.checkpointing and settings.rows == 8 else 2.0 if settings.checkpointing else 1.0

    space = {"rows": (4, 8), "checkpointing": (False, True)}
    _, best = searched(script, space, Costs(script, together), rows=4)
    assert best == script("settings").TrlSettings(rows=8, checkpointing=True)


def test_slow_trials_are_given_up(script: Script) -> None:
    costs = Costs(script, speed, gives_up=True)
    start = {"rows": 32, "matmul": "medium", "allocator": "kept"}  # 100 / 15 s a step
    trials, _ = searched(script, {"rows": (4, 8, 16, 32, 64)}, costs, **start)
    assert [limit for _, limit in costs.asked] == [None, *[pytest.approx(1.25 * 100 / 15)] * 4]
    found = [(trial.settings.rows, trial.tokens_per_second) for trial in trials]
    assert found == [(32, 15.0), (4, None), (8, None), (16, 12.0), (64, None)]


def test_settings_that_fail_are_never_the_best(script: Script) -> None:
    trial, start = script("search").Trial, script("settings").TrlSettings(rows=8)

    def costs(settings: Any, _: float | None) -> Any:
        return trial(settings, None, None, "no memory") if settings.rows == 64 else trial(settings, 1.0, settings.rows)

    assert searched(script, {"rows": (8, 16, 64)}, costs, rows=8)[1].rows == 16
    assert script("search").best([trial(start, None, None, "no memory")], start) == start


def test_settings_that_do_not_last_a_whole_run_give_way_to_the_next(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, trial, settings = script("bench"), script("search").Trial, script("settings").TrlSettings
    asked = []

    def add(self: Any, name: str, peer: str, allocator: str, words: str, **more: Any) -> dict[str, Any]:
        asked.append(more["settings"]["rows"])
        if more["settings"]["rows"] > 8:
            raise script("parent").ScriptFailed("run_trl.py failed", "killed", "")
        return {"words": words}

    monkeypatch.setattr(bench._Measuring, "add", add)
    trials = [trial(settings(rows=rows), 1.0, tokens) for rows, tokens in ((4, 1.0), (8, 2.0), (16, 3.0), (32, 4.0))]
    trials.append(trial(settings(rows=64), None, None, "killed"))
    by_speed = script("search").by_speed(trials, settings(rows=4))
    workload = geometric(script)
    measured = bench._Measuring(types.SimpleNamespace(stamp={}), workload, "float32", bench.Cell())
    row, chosen = bench._add_fastest(measured, by_speed)
    assert asked == [32, 16, 8]
    assert (row["words"], chosen.rows) == ("8 rows, highest, allocator as it comes", 8)
    assert [failed["settings"].split()[0] for failed in measured.cell.failed] == ["32", "16"]
    with pytest.raises(script("parent").ScriptFailed):
        bench._add_fastest(measured, by_speed[:2])


def test_what_is_searched_is_what_can_be_set(script: Script) -> None:
    settings = script("settings")
    space = settings.search_space(24, precision="float32", fast_is_accurate=True, rows=(4, 8, 16))
    assert space["rows"] == (4, 8)  # 16 rows do not divide 24
    assert space["matmul"] == ("highest", "medium")
    assert settings.search_space(24, precision="bfloat16", fast_is_accurate=True, rows=(4,))["matmul"] == ("highest",)
    assert settings.search_space(24, precision="float32", fast_is_accurate=False, rows=(4,))["matmul"] == ("highest",)
    assert settings.low_memory(space).words() == "4 rows, highest, allocator bounded, checkpointing"
    assert settings.as_written(64).words() == "8 rows, highest, allocator as it comes, checkpointing"


def test_bounded_is_what_burnish_sets_for_itself(script: Script) -> None:
    from burnish.machine.memory import KEPT_BYTES, MAPPED

    bounded = script("settings").environment("bounded", ())
    assert bounded == {"MALLOC_TRIM_THRESHOLD_": str(KEPT_BYTES), "MALLOC_MMAP_MAX_": str(MAPPED)}
    assert script("settings").environment("as it comes", ("avx512",))["ATEN_CPU_CAPABILITY"] == "avx2"


def test_the_compiler_of_the_environment_is_told_what_is_switched_off(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = script("settings")
    for compiler, command in (("/opt/gcc/clang", "/opt/gcc/clang"), ("", "gcc")):
        monkeypatch.setenv("CC", compiler)
        assert settings.environment("as it comes", ("avx512",))["CC"] == f"{command} -march=x86-64-v3"
        assert settings.SWITCHED_OFF["avx512"]["CC"] == "${CC:-gcc} -march=x86-64-v3"  # on every page


# Where figures come from


ORIGIN: dict[str, Any] = {"commit": "abc", "machine": "M", "threads": 2, "switched_off": []}
CELL = ORIGIN | {"workload": "W2", "precision": "float32"}


def row(**changes: Any) -> dict[str, Any]:
    """A row of a cell in which Burnish needs 2 s a step for 200 tokens."""
    fields: dict[str, Any] = {
        **CELL,
        "peer": "Burnish",
        "settings": "defaults",
        "allocator": "as it comes",
        "title": "real shape",
        "samples_only": False,
        "step_seconds": 2.0,
        "all_step_seconds": [1.9, 2.0, 2.1],
        "cpu_seconds": 4.0,
        "phase_seconds": dict.fromkeys(("generate", "logprobs", "values", "update", "other"), 0.4),
        "tokens_per_second": 100.0,
        "tokens_per_cpu_second": 50.0,
        "generated_tokens_per_second": 500.0,
        "over_floor": 2.5,
        "peak_bytes": 2e9,
        "workers_bytes": 1e8,
        "capability": "AVX512",
        "responses": 12,
        "response_tokens_mean": 62.9,
        "sampled_tokens_mean": None,
        "optimizer_steps": 3,
        "versions": {"torch": "2.13.0"},
    }
    return fields | changes


def trl(**changes: Any) -> dict[str, Any]:
    fields = {"peer": "TRL", "settings": "8 rows", "allocator": "bounded", "step_seconds": 16.0, "peak_bytes": 8e9}
    return row(**(fields | {"tokens_per_second": 12.5, "tokens_per_cpu_second": 10.0} | changes))


def test_ratios_are_of_the_same_cell(script: Script) -> None:
    rows = [
        row(),
        row(allocator="kept", tokens_per_second=120.0, peak_bytes=3e9),
        trl(),
        trl(allocator="kept", peak_bytes=12e9),
        trl(allocator="as it comes"),
        row(peer="vLLM", settings="eager", samples_only=True, generated_tokens_per_second=250.0),
        trl(precision="bfloat16"),
        trl(switched_off=["avx512"]),
    ]
    script("report").add_ratios(rows)
    assert [r["ratio"] for r in rows] == [1.0, 100 / 120, 8.0, 8.0, 8.0, 2.0, None, None]
    assert [r["cpu_ratio"] for r in rows] == [1.0, 1.0, 5.0, 5.0, 5.0, None, None, None]
    # Burnish as it comes has the allocator `bounded`; TRL as it comes has one that Burnish was not measured with.
    assert [r["memory_ratio"] for r in rows] == [None, None, 0.25, 0.25, None, None, None, None]


def test_floors_are_by_the_best_rate_of_all_runs_with_the_same_capabilities(script: Script) -> None:
    rows = [
        row(all_step_seconds=[2.0, 4.0, 3.0], unavoidable_macs=[1e11, 1e11, 2e11]),
        row(switched_off=["avx512"], all_step_seconds=[2.0, 4.0, 3.0], unavoidable_macs=[1e11, 1e11, 2e11]),
        row(precision="bfloat16", all_step_seconds=[2.0], unavoidable_macs=[1e11]),
    ]
    slow, fast = rates(float32=0.5e11, float32_fast=0.5e11), rates(float32=1e11, float32_fast=2e11)
    runs = [run(rates=slow), run(rates=fast), run(rates=slow, switched_off=["avx512"])]
    script("report").add_floors(rows, runs)
    # At 2e11 the steps take 4, 8 and 3 times as long as their multiply-adds, at 0.5e11 1, 2 and 0.75 times.
    assert [r["over_floor"] for r in rows] == [4.0, 1.0, 8.0]


def test_of_several_measured_rates_the_highest_of_each_kind_counts(script: Script) -> None:
    best = script("rates").best_of([rates(float32=1e11, bfloat16=5e11), rates(float32=2e11, bfloat16=3e11)])
    assert best == rates(float32=2e11, bfloat16=5e11)


def test_the_faster_float32_counts_only_where_it_is_as_accurate(script: Script) -> None:
    rate_at = script("rates").rate_at
    assert rate_at(rates(float32=1e11, float32_fast=3e11), "float32") == 3e11
    assert rate_at(rates(float32=1e11, float32_fast=3e11) | {"fast_is_accurate": False}, "float32") == 1e11
    assert rate_at(rates(bfloat16=4e11), "bfloat16") == 4e11


def rates(**changes: float) -> dict[str, Any]:
    by_kind = {"float32": 1e11, "float32_fast": 2e11, "bfloat16": 4e11} | changes
    return {"macs_per_second": by_kind, "rms_error": dict.fromkeys(by_kind, 2.4e-7), "fast_is_accurate": True}


def run(**changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        **ORIGIN,
        "command": "python benchmarks/peers",
        "date": "2026-11-24",
        "load_before": 0.1,
        "load_after": 2.0,
        "rates": rates(),
        "note": "",
        "left_out": [],
    }
    return fields | changes


def page(script: Script, *rows: dict[str, Any]) -> str:
    script("report").add_ratios(rows)
    return str(script("report").to_markdown({"runs": [run()], "rows": list(rows), "tried": [], "failed": []}))


def test_the_page_says_what_of_a_ratio_is_a_fallback(script: Script) -> None:
    head = script("report").HEAD
    text = page(script, row(), trl(), trl(peer=head, step_seconds=12.0, tokens_per_second=200 / 12))
    assert "float32: 25% of TRL's step is the head's work on other positions" in text
    assert "the ratio of 8.00 would be 6.00" in " ".join(text.split())
    assert "| W2 | float32 | 2.00 | 16.00 | 8.00 | 5.00 | 6.00 | - | - | - | - | - | 2.50 |" in text
    assert "| W2 | float32 | Burnish | TRL | bounded | 2.00 | 0.10 | 8.00 | 0.25 | 2.00 | 16.00 |" in text


def test_trl_with_little_memory_is_compared_with_burnish_as_it_comes_and_with_little_memory(script: Script) -> None:
    peers = script("report").TRL_LOW_MEMORY, script("report").BURNISH_LOW_MEMORY
    text = page(script, row(), trl(peer=peers[0]), row(peer=peers[1], peak_bytes=1e9, step_seconds=3.0))
    memory = text.split("| Burnish / TRL |")[1].split("### ")[0]
    assert "| Burnish | TRL, low memory | bounded | 2.00 | 0.10 | 8.00 | 0.25 | 2.00 | 16.00 |" in memory
    assert "| Burnish, low memory | TRL, low memory | bounded | 1.00 | 0.10 | 8.00 | 0.12 | 3.00 | 16.00 |" in memory


def test_the_ratio_is_to_the_fastest_row_of_trl(script: Script) -> None:
    head = script("report").HEAD
    faster = trl(peer="TRL, as written", step_seconds=8.0, tokens_per_second=25.0)
    text = page(script, row(), trl(), trl(peer=head, step_seconds=12.0, tokens_per_second=200 / 12), faster)
    assert "| W2 | float32 | 2.00 | 8.00 | 4.00 | 5.00 | 3.00 | - | 4.00 | - | - | - | 2.50 |" in text


def test_rows_of_another_commit_or_machine_are_not_on_the_page(script: Script) -> None:
    text = page(script, row(), row(commit="old", step_seconds=77.0), row(machine="N", step_seconds=88.0))
    assert "2 rows of other commits, machines or numbers of threads are not shown." in text
    assert "77.00" not in text
    assert "88.00" not in text


def test_a_page_without_figures_says_why(script: Script) -> None:
    empty: dict[str, Any] = {"runs": [], "rows": [], "tried": [], "failed": []}
    assert "Nothing has been measured by the present rules yet" in script("report").to_markdown(empty)


@pytest.mark.parametrize(("what", "found"), [("commit", "old"), ("machine", "N"), ("threads", 4)])
def test_figures_are_not_mixed(script: Script, what: str, found: Any) -> None:
    refuse = script("origin").refuse_to_mix
    refuse([row()], "abc", "M", 2, Path("peers.json"))
    with pytest.raises(SystemExit, match=rf"peers.json has rows of {what} {found!r}"):
        refuse([row(), row(**{what: found})], "abc", "M", 2, Path("peers.json"))


def peers(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(PEERS), *words], capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_too_few_steps_are_refused_and_quick_figures_do_not_become_results() -> None:
    assert "2 is fewer than 3" in peers("--steps", "2").stderr
    assert "it writes nothing into" in peers("--quick", "--output", str(PEERS.parent / "results" / "peers")).stderr


# Memory and processes

PROGRAM = """
import json, subprocess, sys, time
block = b"x" * {own}
child = subprocess.Popen([sys.executable, "-c", "b = b'x' * {workers}; import time; time.sleep(2)"])
time.sleep(1)
del block
child.wait()
open(sys.argv[2], "w").write(json.dumps({{"peak_bytes": 0}}))
"""


@pytest.mark.slow
def test_memory_is_that_of_everything_a_script_starts(script: Script, tmp_path: Path) -> None:
    own, workers = 200 << 20, 100 << 20
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(own=own, workers=workers))
    result = script("parent").run_script(program, {"threads": 1}, environment={})
    assert own + workers <= result["peak_bytes"] < own + workers + (100 << 20)
    assert workers <= result["workers_bytes"] < workers + (50 << 20)


def test_a_process_that_has_not_started_its_program_does_not_count(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shares of a forked process at three looks: its parent's memory, then its own, then less."""
    memory = script("memory")
    shares = iter([500, 30, 20])
    for name, value in (("peak_resident_bytes", 500), ("descendants", [tmp_path / "child"])):
        monkeypatch.setattr(memory, name, lambda process, value=value: value)
    monkeypatch.setattr(memory, "shared_bytes", lambda process: next(shares))
    watch = memory.PeakMemory(1)
    monkeypatch.setattr(watch, "_process", tmp_path)
    found = []
    for _ in range(3):
        watch._look()
        found.append((watch.all_bytes, watch.workers_bytes))
    assert found == [(500, 0), (530, 30), (530, 30)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "limit", "reason"),
    [
        ("raise ValueError('no such thing')", {}, "ValueError: no such thing"),
        ("import os; os.kill(os.getpid(), 9)", {}, "killed by SIGKILL, as happens without memory"),
        ("print('waiting', flush=True); import time; time.sleep(600)", {"timeout": 5}, "still running after 5 s"),
    ],
)
def test_a_script_that_fails_or_hangs_is_told_of(
    script: Script, tmp_path: Path, program: str, limit: dict[str, int], reason: str
) -> None:
    (tmp_path / "program.py").write_text(program)
    started = time.monotonic()
    with pytest.raises(script("parent").ScriptFailed, match="waiting" if limit else None) as failed:
        script("parent").run_script(tmp_path / "program.py", {"threads": 1}, environment={}, **limit)
    assert failed.value.reason == reason
    assert time.monotonic() - started < 120
