"""`benchmarks/scaling.py` finds what grows too fast, also behind a fixed cost, and lets pass what grows as meant."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from .conftest import Script

SIZES = [4, 8, 16, 32, 64]


@pytest.fixture
def fit(script: Script) -> ModuleType:
    return script("scaling_fit")


def test_linear_growth_with_a_fixed_cost_passes(fit: ModuleType) -> None:
    growth = fit.fit_growth(SIZES, [10 + 2 * size for size in SIZES], noise=0.01)
    assert growth.exponent == pytest.approx(1.0)
    assert growth.fixed == pytest.approx(10)
    assert growth.factor == pytest.approx(2)
    assert growth.at(100) == pytest.approx(210)
    assert growth.low < 1 < growth.high
    assert fit.judge(growth, 1.15) == "within"


@pytest.mark.parametrize(("power", "verdict"), [(0.5, "within"), (2.0, "broken")])
def test_growth_faster_than_linear_is_broken(fit: ModuleType, power: float, verdict: str) -> None:
    growth = fit.fit_growth(SIZES, [0.5 * size**power for size in SIZES], noise=0.01)
    assert growth.exponent == pytest.approx(power)
    assert fit.judge(growth, 1.15) == verdict


def test_quadratic_growth_is_found_behind_a_fixed_cost(fit: ModuleType) -> None:
    """From 4 to 64 the amount grows 1.9 times only: a straight line in log-log axes would have the slope 0.2."""
    amounts = [1000 + 0.22 * size**2 for size in SIZES]
    assert fit.fit_power(SIZES, amounts, noise=0.0).exponent < 0.25
    growth = fit.fit_growth(SIZES, amounts, noise=0.01)
    assert growth.exponent == pytest.approx(2.0)
    assert fit.judge(growth, 1.15) == "broken"


@pytest.mark.parametrize(("power", "verdict"), [(1, "within"), (2, "broken")])
def test_measurement_errors_do_not_change_the_verdict(fit: ModuleType, power: int, verdict: str) -> None:
    errors = [1.03, 0.97, 1.03, 0.98, 1.0]
    amounts = [(3 + size**power) * error for size, error in zip(SIZES, errors, strict=True)]
    growth = fit.fit_growth(SIZES, amounts, noise=0.03)
    assert growth.low < power < growth.high
    assert fit.judge(growth, 1.15) == verdict


def test_a_slow_last_point_alone_is_unclear(fit: ModuleType) -> None:
    """One point 8 % above the line is no proof, and is not passed over either."""
    growth = fit.fit_growth(SIZES, [4, 8, 16, 32, 69], noise=0.03)
    assert fit.judge(growth, 1.01) == "unclear"


def test_memory_meant_to_be_constant(fit: ModuleType) -> None:
    steady = fit.fit_power(SIZES, [50, 53, 48, 51, 52], noise=0.05)
    assert abs(steady.exponent) < 0.05
    assert fit.judge(steady, 0.15) == "within"
    growing = fit.fit_power(SIZES, [30 + size for size in SIZES], noise=0.05)  # kept for every prompt
    assert fit.judge(growing, 0.15) == "broken"


def test_a_peak_overtaken_by_what_grows(fit: ModuleType) -> None:
    """12 until the part that grows, 0.6 a unit, is larger: read as a sum it would look steeper than linear."""
    growth = fit.fit_peak(SIZES, [12, 12, 12, 19.2, 38.4], noise=0.02)
    assert growth.peak
    assert growth.exponent == pytest.approx(1.0)
    assert growth.at(4) == pytest.approx(12)
    assert growth.at(64) == pytest.approx(38.4)
    assert fit.fit_growth(SIZES, [12, 12, 12, 19.2, 38.4], noise=0.02).exponent > 1.5
    quadratic = fit.fit_peak(SIZES, [12, 12, 12, 32, 128], noise=0.02)
    assert fit.judge(quadratic, 1.15) == "broken"
    added = fit.fit_peak(SIZES, [12 + size for size in SIZES], noise=0.02)
    assert not added.peak
    assert added.exponent == pytest.approx(1.0)


def test_amounts_that_do_not_grow_tell_no_exponent(fit: ModuleType) -> None:
    growth = fit.fit_growth(SIZES, [5.0, 5.1, 4.9, 5.0, 5.0], noise=0.03)
    assert growth.low < 0.2
    assert growth.high == 4.0
    assert fit.judge(growth, 1.15) != "broken"


@pytest.mark.parametrize(
    ("sizes", "amounts", "message"),
    [
        ([1, 2, 3], [1, 2, 3], "3 sizes and 3 amounts: 4 or more"),
        ([1, 2, 3, 4], [1, 2, 3], "4 sizes and 3 amounts"),
        ([1, 2, 2, 4], [1, 2, 3, 4], "sizes must be above 0 and increase"),
        ([1, 2, 3, 4], [1, 2, 0, 4], "amounts must be above 0"),
    ],
)
def test_series_that_cannot_be_fitted_are_refused(
    fit: ModuleType, sizes: list[int], amounts: list[int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        fit.fit_growth(sizes, amounts, noise=0.03)


@pytest.mark.slow
def test_the_program_judges_measured_points(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything linear but the update, quadratic in prompts: exit code 1, and a line that names it."""
    scaling = script("scaling")
    assert run_on(scaling, measured(lambda size: 0.1 + 0.01 * size), tmp_path, monkeypatch) == 0
    assert "0 of 8 bounds broken" in capsys.readouterr().err
    assert run_on(scaling, measured(lambda size: 0.1 + 0.001 * size**2), tmp_path, monkeypatch) == 1
    told = capsys.readouterr()
    line = "prompts per step: seconds of update grow with exponent 2.00"
    assert f"BROKEN   {line}" in told.err
    assert "bound 1.15" in told.err
    assert "1 of 8 bounds broken" in told.err
    assert f"- {line}" in (tmp_path / "scaling.md").read_text(encoding="utf-8")
    assert (tmp_path / "scaling.png").stat().st_size > 10_000


def measured(update_seconds: Any) -> dict[str, Any]:
    """A report of one axis."""
    points = []
    for prompts in SIZES:
        linear = {"generate": 0.05 + 0.02 * prompts, "logprobs": 0.01 * prompts, "step": 1 + 0.03 * prompts}
        seconds = linear | {"update": update_seconds(prompts)}
        amounts = {"macs": dict.fromkeys(seconds, prompts * 1e9), "bytes": dict.fromkeys(seconds, 5e7)}
        timed = {"seconds": {"cpu": seconds, "wall": seconds}}
        points.append({"point": {"prompts": prompts}, "parameters": 1000, **amounts, **timed})
    about = {"command": "test", "date": "today", "processor": "none", "threads": 1, "rounds": 1, "steps": 1, "note": ""}
    return {"about": about | {"load_before": 0.0, "load_after": 0.0}, "axes": {"prompts per step": points}}


def run_on(scaling: ModuleType, report: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    (folder / "measured.json").write_text(json.dumps(report), encoding="utf-8")
    arguments = ["--measured", str(folder / "measured.json"), "--output", str(folder / "scaling")]
    monkeypatch.setattr(sys, "argv", ["scaling.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        scaling.main()
    return int(ended.value.code)  # type: ignore[arg-type]
