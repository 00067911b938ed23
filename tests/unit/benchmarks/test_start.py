"""The seconds of a start are given to the innermost phase, and add up."""

import importlib
import json
from types import ModuleType

import pytest

from .conftest import Script


@pytest.fixture
def watched(script: Script) -> ModuleType:
    return script("start_watched")


def test_a_phase_leaves_out_those_within_it(watched: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(watched, "_clocks", lambda: (now, now / 2))

    def take(seconds: float) -> None:
        nonlocal now
        now += seconds

    phases = watched.Phases()
    inner = phases.during("inner", lambda: take(2.0))

    def outer() -> None:
        take(1.0)
        inner()
        take(4.0)
        inner()

    take(8.0)
    phases.during("outer", outer)()
    assert phases.spent == {"rest": [8.0, 4.0], "outer": [5.0, 2.5], "inner": [4.0, 2.0]}
    take(16.0)
    with pytest.raises(KeyError):
        phases.during("outer", {}.__getitem__)("none")
    assert phases.spent["rest"] == [24.0, 12.0]


def test_the_phases_are_functions_that_there_are(watched: ModuleType) -> None:
    for name, functions in watched.PHASES.items():
        for function in functions:
            found = importlib.import_module(name)
            for part in function.split("."):
                found = getattr(found, part)
            assert callable(found)


def test_the_page_has_a_line_for_each_phase(script: Script) -> None:
    start = script("start")
    starts = [{"whole": [n, 2 * n], "phases": {"a": [n / 4, n], "b": [n / 2, 2 * n]}} for n in (3.0, 1.0, 2.0)]
    rows = start.rows_of("this", starts) + start.rows_of("other", [{"whole": [9.0, 9.0], "phases": {"b": [9.0, 9.0]}}])
    about = dict.fromkeys(("command", "date", "processor", "cores", "load_after", "precision", "repeats"), "x")
    lines = start.to_markdown(about | {"rows": json.loads(json.dumps(rows))}).splitlines()
    assert "| whole | 2.00 | 4.00 | 9.00 | 9.00 |" in lines
    assert "| b | 1.00 | 4.00 | 9.00 | 9.00 |" in lines
    assert "| a | 0.50 | 2.00 |  |  |" in lines
