"""The board in a terminal, without one."""

import asyncio
from pathlib import Path

import pytest
from board_runs import line, write_rows, write_step

from burnish.board.runs import Runs

pytest.importorskip("textual", reason="needs burnish[watch]")
from burnish.board.terminal import GroupResponses, RunCurves, RunList, StepGroups, WatchApp, sparkline

MARKED = "[red]\x1b]0;evil\x07"


def test_a_sparkline_shows_means_of_stretches_between_lowest_and_highest() -> None:
    assert sparkline([0, 7], 10) == "▁█"
    assert sparkline([0, 0, 3, 3, 7, 7], 3) == "▁▄█"
    assert sparkline([2, 2], 2) == "▁▁"
    assert sparkline([], 3) == ""


@pytest.mark.slow
def test_from_the_list_to_a_response_and_back(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_rows(tmp_path / name, {"step": 1, "reward/mean": 0.25}, {"step": 2, "reward/mean": 0.5})
        for step in (1, 2):
            marked = line(1, 0, 1.0, token_texts=[MARKED])
            write_step(tmp_path / name, step, [line(0, 0, 0.0), marked, line(1, 1, 0.0)])
    app = WatchApp(Runs.below([str(tmp_path)]))

    async def walk() -> None:
        async with app.run_test() as pilot:

            async def press(keys: str, screen: type) -> None:
                await pilot.press(*keys.split())
                await pilot.pause()
                assert isinstance(app.screen, screen)

            await press("enter", RunCurves)
            await press("g", StepGroups)
            assert app.screen.step == 2
            await pilot.press("left")
            assert app.screen.step == 1
            await press("enter", GroupResponses)
            # The group of the largest spread comes first, and its text is text.
            assert app.screen.page["group"]["responses"][0]["tokens"] == [MARKED]
            shown = app.export_screenshot()
            assert "[red]␛]0;evil␇" in shown.replace("&#160;", " ")
            assert "\x1b" not in shown
            write_step(tmp_path / "a", 1, [line(1, 0, 1.0, rollout_logprobs=[])])
            await press("escape enter", StepGroups)  # a damaged file is told of, and opens nothing
            await press("escape " * 5, RunList)

    asyncio.run(walk())
