"""The live table in a notebook."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from burnish.observability.console import Display, NotebookLive, as_html


class Shown:
    """What a notebook would show: the one output, and every content that it had."""

    def __init__(self) -> None:
        self.contents: list[str] = []

    def update(self, html: str) -> None:
        self.contents.append(html)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    found = Shown()

    def display(html: str, *, display_id: bool) -> Shown:
        assert display_id
        return found

    fake: Any = SimpleNamespace(HTML=str, display=display)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(display=fake))
    monkeypatch.setitem(sys.modules, "IPython.display", fake)
    return found


def test_text_is_not_read_as_html() -> None:
    assert "&lt;b&gt;" in as_html(Text("<b>"))


def test_pictures_that_come_too_fast_are_left_out_but_for_the_last(shown: Shown) -> None:
    live = NotebookLive()
    live.start()
    for number in range(50):
        live.update(Text(f"picture {number}"), refresh=True)
    live.stop()
    assert "picture 0" in shown.contents[0]
    assert "picture 49" in shown.contents[-1]
    assert len(shown.contents) < 50


def test_a_run_in_a_notebook_has_one_table(shown: Shown, capsys: pytest.CaptureFixture[str]) -> None:
    with Display(Console(force_jupyter=True), 2) as display:
        display.update(1, {"reward/mean": 0.25})
        display.update(2, {"reward/mean": 0.5})
    assert "0.250" in shown.contents[-1]
    assert "0.500" in shown.contents[-1]
    assert capsys.readouterr().out == ""


def test_a_quiet_one_shows_nothing(shown: Shown) -> None:
    with Display(Console(force_jupyter=True, quiet=True), 2) as display:
        display.update(1, {"reward/mean": 0.25})
    assert shown.contents == []
