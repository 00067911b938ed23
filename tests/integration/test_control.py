"""A run that is asked for something while it trains, by files in its folder."""

import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console
from runs import BuildRl

from burnish.observability.control import ask, asked, take
from burnish.trainers.cluster import train_rl
from burnish.trainers.interrupt import Watch, watching


@pytest.mark.slow
def test_a_run_saves_and_stops_when_it_is_asked_to(tiny_run: BuildRl, tmp_path: Path) -> None:
    """And waits while it is asked to."""
    folder, moments = tmp_path / "run", []
    ask(folder, "stop")  # of an earlier start: forgotten

    def on_step(step: int, row: Mapping[str, float]) -> None:
        moments.append(time.monotonic())
        ask(folder, "save" if step == 1 else "stop")
        if step == 1:
            ask(folder, "pause")
            threading.Timer(1.0, take, (folder, "pause")).start()

    with watching(Watch((on_step,))):
        result = train_rl(tiny_run("steps=9"), console=Console(quiet=True))
    assert (result.step, result.stopped) == (2, True)
    assert [path.name for path in sorted((folder / "checkpoints").iterdir())] == ["step-000001", "step-000002"]
    assert (asked(folder), moments[1] - moments[0] >= 1.0) == ([], True)
